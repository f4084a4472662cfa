"""Scores of a corpus, in steps of bounded memory that processes can divide."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, repeat
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from bertscore_tm.device.memory import device_with_index, return_freed_memory, send
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.encoder.cache import ReferenceCache, VectorCache
from bertscore_tm.matching.greedy import MatchedPairs, MatchedTokens, match_pairs
from bertscore_tm.matching.scores import best_of_references, precision_recall_f1
from bertscore_tm.matching.vectors import TokenizedTexts, TokenVectors, concatenate
from bertscore_tm.scoring.idf import require_known
from bertscore_tm.scoring.inputs import TextPairs
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.scoring.warnings import UnknownText

# A function that encodes texts on a device, such as a method of an encoder.
EncodeFunction = Callable[[Sequence[str], torch.device], TokenVectors]

# Elements of the token vectors of one step, of all layers: 48 MB in float32, several times as much during encoding and
# matching.
_ELEMENTS_PER_STEP = 12_000_000
# Accelerators have more memory and are faster with large batches.
_ACCELERATOR_FACTOR = 8
# Memory for the vectors of texts that occur in several steps, of all layers: 175,000 tokens of MiniLM.
_BYTES_OF_REPEATED_TEXTS = 2**28
# Most tokens are longer, so that a step has at most the planned number of tokens.
_CHARACTERS_PER_TOKEN = 2


@dataclass(frozen=True)
class MatchedTexts(MatchedPairs):
    """Matched tokens of one pair per candidate and reference, and the number of distinct texts that were truncated."""

    counts: Tensor  # references per candidate, (candidates,)
    num_truncated: int


@dataclass
class EncodedTexts:
    """Token vectors of distinct texts, and the index of each text in them."""

    indices: dict[str, int]
    vectors: TokenVectors


@dataclass(frozen=True)
class CorpusScores:
    """Precision, recall and F1 of the candidates of a corpus, on the CPU, before rescaling.

    Each is the maximum over the candidate's references.
    """

    scores: Tensor  # (3, layers, candidates), float32
    best_reference: Tensor  # index of the reference with the best F1, (layers, candidates), int64
    num_truncated: int  # equal texts of one step count once
    unknown: UnknownText  # equal texts of one step count once


def encode_texts(
    texts: TextPairs,
    encode: EncodeFunction,
    device: torch.device,
    cache: ReferenceCache | None = None,
    *,
    known: Mapping[str, TokenVectors] | None = None,
) -> EncodedTexts:
    """Encode texts, each distinct one once, except those whose vectors are ``known`` or cached.

    References are read from ``cache``, if there is one, and added to it.
    """
    vectors = dict(known or {})  # vectors by text, of the texts that need not be encoded
    new_references: list[str] = []
    if cache is not None:
        references = [text for text in TextPairs([], texts.references).distinct() if text not in vectors]
        vectors |= cache.vectors.get(references)
        new_references = [text for text in references if text not in vectors]
    found = {*vectors, *new_references}
    others = [text for text in texts.distinct() if text not in found]

    # The result has the known and cached texts first, then the new references, then the others.
    batches = [[*new_references, *others]]
    if device.type == "cpu":
        # The last digits of vectors depend on the batch. Later epochs read these references from the cache and encode
        # the other texts alone, so do the same in the first epoch. An accelerator would have to run all layers twice.
        batches = [new_references, others]
    encoded = [encode(batch, device) for batch in batches if batch]
    if cache is not None and new_references:
        # The first batch starts with the new references, and `add` ignores the vectors of further texts.
        cache.vectors.add(new_references, encoded[0], cache.max_bytes)

    parts = [*vectors.values(), *encoded]
    if not parts:
        # Encode no text, because the result must have the encoder's width and dtype.
        parts = [encode([], device)]
    indices = {text: i for i, text in enumerate([*vectors, *new_references, *others])}
    return EncodedTexts(indices, concatenate(parts))


def encode_by_ids(
    encode: Callable[[TokenizedTexts, torch.device], TokenVectors], texts: Sequence[str], tokenized: TokenizedTexts
) -> EncodeFunction:
    """Return a function that encodes some of these texts, whose token ids are known."""
    indices = {text: i for i, text in enumerate(texts)}

    def encode_batch(batch: Sequence[str], device: torch.device) -> TokenVectors:
        selected = np.array([indices[text] for text in batch], np.int64)  # (texts of the batch,)
        return encode(tokenized.select(selected), device)

    return encode_batch


def encode_steps(
    texts: TextPairs,
    steps: Sequence[list[int]],
    encoder: FrozenEncoder,
    device: torch.device,
    cache: ReferenceCache | None = None,
) -> Iterator[tuple[list[int], TextPairs, EncodedTexts]]:
    """Encode a corpus in the steps of :func:`plan_steps`, which bound its memory.

    The vectors of a step are freed before the next step is encoded. Vectors of texts that occur in several steps are
    kept on the device, at most 256 MiB; texts beyond that are encoded once in each step that they occur in. Other
    arguments are those of :func:`encode_texts`.

    Yields:
        The indices of a step's candidates, its texts, and their vectors.

    Raises:
        ValueError: the vectors are not finite. On an accelerator without a cache, they are checked after the last step
            only, because each check synchronizes. So the caller must exhaust the iterator before it uses a result.
    """
    is_accelerator = device.type != "cpu"
    # Vectors are checked before they enter a cache, because later steps would use them.
    checks_at_end = is_accelerator and cache is None
    encode = encoder.encode_unchecked if checks_at_end else encoder.encode
    parts = [texts.select(step) for step in steps]
    encode_part: Callable[[TextPairs, EncodeFunction, torch.device, ReferenceCache | None], EncodedTexts]
    encode_part = encode_texts
    functions: Iterator[EncodeFunction] = repeat(encode, len(parts))
    if len(parts) > 1:
        encode_part = _RepeatedTexts(parts).encode
        if is_accelerator:
            # On a CPU a thread that tokenizes would compete with the encoder for the cores.
            functions = _tokenize_ahead(parts, encoder.tokenizer, encode)
    # A sum is NaN or infinite if one of the vectors has such a value, and takes no memory of their size. It cannot
    # overflow, because the elements of unit vectors are at most 1.
    sums = []  # 0-d each
    for step, part, encode_batch in zip(steps, parts, functions, strict=True):
        encoded = encode_part(part, encode_batch, device, cache)
        if checks_at_end:
            sums.append(encoded.vectors.vectors.sum())
        yield step, part, encoded
        # The rest of the body runs when the caller asks for the next step.
        if len(parts) > 1:
            # The caller still references this object while the next step runs, so free its vectors now.
            del encoded.vectors
            if not is_accelerator:
                return_freed_memory()
    # This runs only if the caller asks for a step after the last one, as a loop without `break` does.
    if sums and not torch.isfinite(torch.stack(sums).sum()):
        raise encoder.error_of_values(device)


class _RepeatedTexts:
    """Vectors of texts that occur in several steps of a corpus. The first of these steps encodes them."""

    def __init__(self, parts: Sequence[TextPairs]) -> None:
        counts = Counter(chain.from_iterable(part.distinct() for part in parts))
        self._repeated = {text for text, count in counts.items() if count > 1}
        self._cache = VectorCache()

    def encode(
        self, part: TextPairs, encode: EncodeFunction, device: torch.device, cache: ReferenceCache | None = None
    ) -> EncodedTexts:
        """Encode the texts of a step as :func:`encode_texts` does, and keep vectors for other steps, up to 256 MiB."""
        known = self._cache.get(text for text in part.distinct() if text in self._repeated)
        encoded = encode_texts(part, encode, device, cache, known=known)
        new = [text for text in encoded.indices if text in self._repeated and text not in known]
        if new:
            rows = np.array([encoded.indices[text] for text in new])  # (new texts,)
            self._cache.add(new, encoded.vectors.select(rows), _BYTES_OF_REPEATED_TEXTS)
        return encoded


def _tokenize_ahead(
    parts: Sequence[TextPairs],
    tokenizer: Callable[[list[str]], TokenizedTexts],
    encode: Callable[[TokenizedTexts, torch.device], TokenVectors],
) -> Iterator[EncodeFunction]:
    """Yield a function for each step that encodes its texts, tokenized while an accelerator encodes the step before."""
    distinct = [part.distinct() for part in parts]
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(tokenizer, distinct[0])
        for number, part in enumerate(distinct):
            tokenized = following.result()
            if number + 1 < len(distinct):
                following = pool.submit(tokenizer, distinct[number + 1])
            yield encode_by_ids(encode, part, tokenized)


def match_encoded(texts: TextPairs, encoded: EncodedTexts) -> MatchedTexts:
    """Match each candidate with its references; the result holds no vectors and no texts."""
    vectors = encoded.vectors
    counts = np.array([len(references) for references in texts.references], np.int64)  # (candidates,)
    indices = np.array([encoded.indices[text] for text in texts.candidates], np.int64)  # (candidates,)
    candidates = np.repeat(indices, counts)  # (pairs,)
    all_references = chain.from_iterable(texts.references)
    references = np.array([encoded.indices[text] for text in all_references], np.int64)  # (pairs,)
    pairs = match_pairs(vectors, candidates, references)
    return MatchedTexts(
        candidate=pairs.candidate,
        reference=pairs.reference,
        counts=send(counts, vectors.vectors.device),
        num_truncated=vectors.texts.num_truncated,
    )


def compute_scores(matched: MatchedTexts, settings: ScoreSettings) -> tuple[Tensor, Tensor]:
    """Return ``scores`` and ``best_reference`` of :class:`CorpusScores`, on the device of the matched tokens."""
    weights = settings.weights.to(matched.counts.device)
    for tokens in (matched.candidate, matched.reference):
        require_known(weights, tokens.ids, settings.encoder.tokenizer)
    scores = torch.stack(precision_recall_f1(matched, weights.table, settings.f1))  # (3, layers, pairs)
    # Precision, recall and F1 take their own maximum each, as if they were further layers.
    best_scores, best = best_of_references(scores.flatten(0, 1), matched.counts)  # (3 * layers, candidates) each
    shape = (*scores.shape[:2], len(matched.counts))  # (3, layers, candidates)
    best_by_f1 = best.view(shape)[2]  # (layers, candidates)
    return best_scores.view(shape), best_by_f1


def plan_steps(
    texts: TextPairs, encoder: FrozenEncoder, device: torch.device | str = "cpu", *, keep_order: bool = False
) -> list[list[int]]:
    """Divide a corpus into steps, the indices of their candidates, whose token vectors fit into memory.

    Unless ``keep_order`` is set, candidates with equal references share a step, where each distinct text is encoded
    once, and so do texts of similar length.
    """
    width = int(encoder.config.hidden_size) * encoder.num_outputs
    num_elements = _ELEMENTS_PER_STEP
    if torch.device(device).type != "cpu":
        num_elements *= _ACCELERATOR_FACTOR
    budget = num_elements // width * _CHARACTERS_PER_TOKEN
    special = encoder.tokenizer.num_special_tokens * _CHARACTERS_PER_TOKEN
    order = list(range(len(texts.references)))
    if not keep_order:
        # Compare the length of the first reference first, so that the texts of a step differ little in length.
        order.sort(key=lambda i: (len(texts.references[i][0]), texts.references[i]))
    # Lengths are counted in characters, because the texts are not tokenized yet.
    steps: list[list[int]] = []
    num_characters = 0
    previous = None  # references of the candidate before
    for i in order:
        references = texts.references[i]
        added = special
        if texts.candidates:
            added += len(texts.candidates[i])
        # Equal references of neighbours are encoded once. If this candidate starts a new step, they are encoded again
        # there without being counted: a step may exceed the budget by the references of one candidate.
        if references != previous:
            added += sum(len(text) + special for text in references)
        previous = references
        exceeds_budget = num_characters + added > budget
        if not steps or exceeds_budget:
            steps.append([])
            num_characters = 0
        steps[-1].append(i)
        num_characters += added
    return steps


def score_corpus(
    texts: TextPairs,
    settings: ScoreSettings,
    *,
    progress: Callable[[int], None] | None = None,
) -> CorpusScores:
    """Score candidates against their references, step by step; progress is called with each number of candidates."""
    encoder = settings.encoder
    device = device_with_index(settings.device)
    # Move the weights once, instead of in each step.
    settings = replace(settings, weights=settings.weights.to(device))
    # Allocate the results once: small results between large blocks would fragment the allocator's memory. They stay on
    # the device until the end, because copying them would synchronize with an accelerator.
    scores = torch.empty(3, encoder.num_outputs, len(texts), dtype=torch.float32, device=device)
    best_reference = torch.empty(encoder.num_outputs, len(texts), dtype=torch.long, device=device)
    num_truncated = 0
    unknown = UnknownText()
    steps = plan_steps(texts, encoder, device)
    for step, part, encoded in encode_steps(texts, steps, encoder, device):
        unknown.count(encoded.vectors.texts, encoder.tokenizer)
        matched = match_encoded(part, encoded)
        step_scores, step_best = compute_scores(matched, settings)
        places = send(np.array(step), device)
        scores.index_copy_(2, places, step_scores)
        best_reference.index_copy_(1, places, step_best)
        num_truncated += matched.num_truncated
        if progress is not None:
            progress(len(step))
    return CorpusScores(scores.cpu(), best_reference.cpu(), num_truncated, unknown)


# The latest batch of each encoder and device with all layers of its matches, from which each metric takes its layer.
# Only `match_batch` writes to it; it ends with its encoder or at `forget_batch`.
_latest: WeakKeyDictionary[VectorCache, tuple[TextPairs, MatchedTexts, UnknownText]] = WeakKeyDictionary()


def match_batch(texts: TextPairs, settings: ScoreSettings, cache_bytes: int = 0) -> tuple[MatchedTexts, UnknownText]:
    """Match the texts of an update, at one layer or all, unless another metric has just matched the same.

    Returns:
        The matched texts, and how much of them is unknown.
    """
    encoder = settings.encoder
    device = settings.device
    vector_cache = encoder.cache(device)
    latest = _latest.get(vector_cache)
    # Compare all texts, which takes far less time than to encode them.
    if latest is None or latest[0] != texts:
        # Free the memory of the earlier batch before the next one is encoded.
        _latest.pop(vector_cache, None)
        cache: ReferenceCache | None = None
        if cache_bytes > 0:
            cache = ReferenceCache(vector_cache, cache_bytes)
        steps = plan_steps(texts, encoder, device, keep_order=True)
        unknown = UnknownText()
        parts = []
        for _, part, encoded in encode_steps(texts, steps, encoder, device, cache):
            unknown.count(encoded.vectors.texts, encoder.tokenizer)
            parts.append(match_encoded(part, encoded))
        matched = parts[0]
        if len(parts) > 1:
            matched = _join_steps(parts)
        latest = _latest[vector_cache] = (texts, matched, unknown)
    _, matched, unknown = latest
    if settings.layer is None:
        return matched, unknown
    candidate = _select_layer(matched.candidate, settings.layer)
    reference = _select_layer(matched.reference, settings.layer)
    return replace(matched, candidate=candidate, reference=reference), unknown


def _select_layer(tokens: MatchedTokens, layer: int) -> MatchedTokens:
    """Return a copy of one layer, because a view would keep the memory of all layers."""
    return tokens._replace(best=tokens.best[:, layer : layer + 1].clone())  # (tokens, 1)


def forget_batch(encoder: FrozenEncoder, device: torch.device) -> None:
    """Free the memory of the latest batch on a device."""
    _latest.pop(encoder.cache(device), None)


def _join_steps(steps: Sequence[MatchedTexts]) -> MatchedTexts:
    """Return the pairs of all steps, in the order of steps."""
    return MatchedTexts(
        candidate=_join_tokens([step.candidate for step in steps]),
        reference=_join_tokens([step.reference for step in steps]),
        counts=torch.cat([step.counts for step in steps]),
        num_truncated=sum(step.num_truncated for step in steps),
    )


def _join_tokens(parts: Sequence[MatchedTokens]) -> MatchedTokens:
    return MatchedTokens(
        ids=torch.cat([part.ids for part in parts]),
        best=torch.cat([part.best for part in parts]),
        lengths=torch.cat([part.lengths for part in parts]),
    )
