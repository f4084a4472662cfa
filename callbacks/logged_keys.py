"""Keys under which scores are logged."""

from collections.abc import Iterable

from torchmetrics import Metric

from bertscore_tm.metric import BERTScore
from bertscore_tm.utilities.score_names import SCORES


def find_repeated_keys(metrics: Iterable[tuple[str, Metric]]) -> list[str]:
    """Return the keys under which several metrics, given with their names, log."""
    ends = [f"_{score}" for score in SCORES]
    keys = [name + end for name, metric in metrics for end in (ends if isinstance(metric, BERTScore) else [""])]
    return sorted({key for key in keys if keys.count(key) > 1})
