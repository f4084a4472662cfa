"""Other metrics in a comparison: BLEU and chrF by sacrebleu, ROUGE by rouge-score (extra ``[metrics]``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from itertools import zip_longest
from typing import Any

METRICS = ("bleu", "chrf", "rouge")
_ROUGE = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}


@dataclass(frozen=True)
class MetricScores:
    """Scores by one metric, between 0 and ``largest``.

    ``texts`` are the scores of each system's texts, and ``corpus`` those of whole systems, if these are not the means.
    """

    name: str
    label: str
    largest: float
    texts: list[list[float]]
    corpus: list[float] | None
    settings: str


def check_installed(names: Sequence[str]) -> None:
    """Raise an ImportError that names the extra if the library of a metric is missing; call it before long work."""
    needed = {"rouge_score" if name == "rouge" else "sacrebleu" for name in names}
    missing = sorted(name for name in needed if find_spec(name) is None)
    if missing:
        raise ImportError(f"--metrics needs {' and '.join(missing)}: pip install 'bertscore-tm[metrics]'")


def score_by_metrics(
    names: Sequence[str], systems: Sequence[list[str]], references: Sequence[list[str]]
) -> list[MetricScores]:
    """Score the texts of systems, all with the same references, by each of the named metrics."""
    found: list[MetricScores] = []
    for name in dict.fromkeys(names):
        found += _rouge(systems, references) if name == "rouge" else [_sacrebleu(name, systems, references)]
    return found


def _sacrebleu(name: str, systems: Sequence[list[str]], references: Sequence[list[str]]) -> MetricScores:
    from sacrebleu import BLEU, CHRF

    # A short text has no n-grams of the highest order.
    of_texts, of_corpus = (BLEU(effective_order=True), BLEU()) if name == "bleu" else (CHRF(), CHRF())
    texts = [
        [of_texts.sentence_score(text, own).score for text, own in zip(system, references, strict=True)]
        for system in systems
    ]
    by_number = list(zip_longest(*references))
    corpus = [of_corpus.corpus_score(system, by_number) for system in systems]
    settings = f"sacrebleu {of_corpus.get_signature()}"
    return MetricScores(name, corpus[0].name, 100, texts, [score.score for score in corpus], settings)


def _rouge(systems: Sequence[list[str]], references: Sequence[list[str]]) -> list[MetricScores]:
    from rouge_score.rouge_scorer import RougeScorer

    scorer: Any = RougeScorer(list(_ROUGE))
    scored = [list(map(scorer.score_multi, references, system)) for system in systems]
    settings = f"rouge-score F-measure, no stemming, version:{version('rouge-score')}"
    return [
        MetricScores(name, label, 1, [[text[name].fmeasure for text in texts] for texts in scored], None, settings)
        for name, label in _ROUGE.items()
    ]
