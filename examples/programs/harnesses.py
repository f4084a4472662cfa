"""BERTScore as a metric of the evaluation harnesses lm-eval and lighteval. Copy this file into the folder of your task.

In the YAML file of a task of lm-eval, whose documents have a column ``references``::

    process_results: !function harnesses.process_results
    metric_list:
      - metric: bertscore_f1
        aggregation: !function harnesses.mean_f1
        higher_is_better: true

In a task of lighteval::

    LightevalTaskConfig(..., metrics=[harnesses.lighteval_metric()])
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from bertscore_tm import FrozenEncoder, bert_score

__all__ = ["lighteval_metric", "mean_f1", "process_results"]

References = str | Sequence[str]


# Cached, because the harnesses call the functions below several times and the model is large.
@cache
def load_encoder() -> FrozenEncoder:
    """Return the encoder of published English scores, the same object at each call."""
    return FrozenEncoder.for_language("en")


def process_results(doc: dict[str, Any], results: Sequence[str]) -> dict[str, tuple[str, References]]:
    """Return the generated text and the references of a document, for :func:`mean_f1`.

    Nothing is scored here, because the encoder is faster with all documents in one call.
    """
    return {"bertscore_f1": (results[0], doc["references"])}


def mean_f1(items: Sequence[tuple[str, References]]) -> float:
    """Return the mean F1 of generated texts against their references."""
    candidates = [candidate for candidate, _ in items]
    references = [reference for _, reference in items]
    scores = bert_score(candidates, references, load_encoder())
    return scores["f1"].mean().item()


def mean_f1_of_inputs(inputs: Sequence[Any]) -> float:
    """Return the mean F1 of lighteval's documents: the first prediction of each against its golds."""
    return mean_f1([(document.preds[0], document.golds) for document in inputs])


def lighteval_metric() -> Any:
    """Return BERTScore F1 as a corpus metric of lighteval (written for 0.13)."""
    # Import here, because lm-eval uses this file without lighteval.
    from lighteval.metrics.sample_preparator import GenerativePreparator
    from lighteval.metrics.utils.metric_utils import CorpusLevelMetric
    from lighteval.tasks.requests import SamplingMethod

    return CorpusLevelMetric(
        metric_name="bertscore_f1",
        higher_is_better=True,
        category=SamplingMethod.GENERATIVE,
        sample_level_fn=GenerativePreparator(),
        corpus_level_fn=mean_f1_of_inputs,
    )
