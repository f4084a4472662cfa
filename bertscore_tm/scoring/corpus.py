"""Scores of a corpus, in steps of bounded memory that processes can divide."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from bertscore_tm.device.memory import device_with_index, return_freed_memory, send
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.encoder.cache import ReferenceCache, VectorCache
from bertscore_tm.encoder.tokenizer import TextTokenizer
from bertscore_tm.matching.greedy import MatchedPairs, MatchedTokens, match_pairs
from bertscore_tm.matching.scores import best_of_references, precision_recall_f1
from bertscore_tm.matching.vectors import TokenizedTexts, TokenVectors, concatenate
from bertscore_tm.scoring.idf import require_known
from bertscore_tm.scoring.inputs import TextPairs
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.scoring.warnings import UnknownText

# A method of an encoder that takes texts, or the token ids of texts, and a device.
EncodeFunction = Callable[[Sequence[str] | TokenizedTexts, torch.device], TokenVectors]

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
    repeated: Mapping[str, TokenVectors] | None = None,
    tokenized: TokenizedTexts | None = None,
) -> EncodedTexts:
    """Encode texts, each distinct one once, by a method of an encoder.

    References are read from ``cache``, if there is one, and added to it. ``repeated`` are vectors of texts that an
    earlier step has encoded, ``tokenized`` the token ids of ``texts.distinct()``, if they are known.
    """
    vectors = dict(repeated or {})
    references = [] if cache is None else [*dict.fromkeys(chain.from_iterable(texts.references))]
    if cache is not None:
        vectors |= cache.vectors.get(text for text in references if text not in vectors)
    missing = [text for text in references if text not in vectors]
    known = {*vectors, *missing}
    others = [text for text in dict.fromkeys(chain(texts.candidates, *texts.references)) if text not in known]
    # On a CPU apart, so that the last digits of candidates' vectors, which depend on the batch, are those of later
    # epochs. An accelerator would run all layers twice.
    batches = [missing, others] if device.type == "cpu" else [missing + others]
    batches = [batch for batch in batches if batch] or ([] if vectors else [[]])
    places = {} if tokenized is None else {text: i for i, text in enumerate(texts.distinct())}
    encoded = []
    for batch in batches:
        ids = None if tokenized is None else tokenized.select(np.array([places[text] for text in batch], np.int64))
        encoded.append(encode(batch if ids is None else ids, device))
    if cache is not None and missing:
        new = encoded[0]
        if len(batches[0]) > len(missing):
            new = new.select(np.arange(len(missing)))
        cache.vectors.add(missing, new, cache.max_bytes)
    names = chain(vectors, *batches)
    return EncodedTexts({text: i for i, text in enumerate(names)}, concatenate([*vectors.values(), *encoded]))


def encode_steps(
    texts: TextPairs,
    steps: Sequence[list[int]],
    encoder: FrozenEncoder,
    device: torch.device,
    cache: ReferenceCache | None = None,
) -> Iterator[tuple[list[int], TextPairs, EncodedTexts]]:
    """Encode a corpus in the steps of :func:`plan_steps`, which bound its memory.

    The vectors of a step are gone when the next one is encoded. Those of texts that occur in several steps are kept on
    the device, at most 256 MiB; texts beyond that are encoded once in each step that they occur in. Other
    arguments are those of :func:`encode_texts`.

    Yields:
        The indices of a step's candidates, its texts, and their vectors.

    Raises:
        ValueError: the vectors are not finite. Those of an accelerator are checked after the last step, because each
            check waits for it. A cache gets checked vectors only.
    """
    checks_at_end = device.type != "cpu" and cache is None
    method = encoder.encode_unchecked if checks_at_end else encoder.encode
    sums = []  # 0-d each, finite if the vectors are
    parts = [texts.select(step) for step in steps]
    counts = Counter(chain.from_iterable(part.distinct() for part in parts)) if len(parts) > 1 else Counter()
    repeated_texts = VectorCache() if counts else None
    encode = partial(encode_texts, encode=method, device=device, cache=cache)
    # The cores of a CPU are busy.
    is_ahead = len(parts) > 1 and device.type != "cpu"
    ahead = _tokenize_ahead(parts, encoder.tokenizer) if is_ahead else [None] * len(parts)
    for step, part, tokenized in zip(steps, parts, ahead, strict=True):
        repeated = {}
        if repeated_texts is not None:
            repeated = repeated_texts.get(text for text in part.distinct() if counts[text] > 1)
        encoded = encode(part, repeated=repeated, tokenized=tokenized)
        new = [text for text in encoded.indices if counts[text] > 1 and text not in repeated]
        if repeated_texts is not None and new:
            numbers = np.array([encoded.indices[text] for text in new])
            repeated_texts.add(new, encoded.vectors.select(numbers), _BYTES_OF_REPEATED_TEXTS)
        if checks_at_end:
            sums.append(encoded.vectors.vectors.sum())
        yield step, part, encoded
        if len(parts) > 1:
            # The caller's loop holds the object until it has the next one.
            del encoded.vectors
            if not is_ahead:  # an accelerator's vectors are not in this memory
                return_freed_memory()
    if sums and not torch.isfinite(torch.stack(sums).sum()):
        raise encoder.error_of_values(device)


def _tokenize_ahead(parts: Sequence[TextPairs], tokenizer: TextTokenizer) -> Iterator[TokenizedTexts]:
    """Yield the token ids of each step's distinct texts, made while an accelerator encodes the step before."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(tokenizer, parts[0].distinct())
        for part in [*parts[1:], None]:
            tokenized = following.result()
            if part is not None:
                following = pool.submit(tokenizer, part.distinct())
            yield tokenized


def match_encoded(texts: TextPairs, encoded: EncodedTexts) -> MatchedTexts:
    """Match each candidate with its references; the result holds no vectors and no texts."""
    vectors, indices = encoded.vectors, encoded.indices
    counts = np.fromiter(map(len, texts.references), np.int64, len(texts.references))
    candidates = np.repeat(np.array([indices[text] for text in texts.candidates], np.int64), counts)  # (pairs,)
    references = np.array([indices[text] for text in chain.from_iterable(texts.references)], np.int64)  # (pairs,)
    pairs, num_truncated = match_pairs(vectors, candidates, references), vectors.texts.num_truncated
    return MatchedTexts(pairs.candidate, pairs.reference, send(counts, vectors.vectors.device), num_truncated)


def compute_scores(matched: MatchedTexts, settings: ScoreSettings) -> tuple[Tensor, Tensor]:
    """Return ``scores`` and ``best_reference`` of :class:`CorpusScores`, on the device of the matched tokens."""
    weights = settings.weights.to(matched.counts.device)
    if weights.source.kind == "mapping":
        for tokens in (matched.candidate, matched.reference):
            require_known(weights, tokens.ids, settings.encoder.tokenizer)
    scores = torch.stack(precision_recall_f1(matched, weights.table, settings.f1))  # (3, layers, pairs)
    shape = *scores.shape[:2], len(matched.counts)  # (3, layers, candidates)
    best, which = (found.view(shape) for found in best_of_references(scores.flatten(0, 1), matched.counts))
    return best, which[2]


def plan_steps(
    texts: TextPairs, encoder: FrozenEncoder, device: torch.device | str = "cpu", *, keep_order: bool = False
) -> list[list[int]]:
    """Divide a corpus into steps, the indices of their candidates, whose token vectors fit into memory.

    Candidates with equal references are in the same step, where each distinct text is encoded once, and so are texts
    of similar length; not so with ``keep_order``.
    """
    width = int(encoder.config.hidden_size) * encoder.num_outputs
    numbers = _ELEMENTS_PER_STEP * (1 if torch.device(device).type == "cpu" else _ACCELERATOR_FACTOR)
    budget = numbers // width * _CHARACTERS_PER_TOKEN
    special = encoder.tokenizer.num_special_tokens * _CHARACTERS_PER_TOKEN
    order = list(range(len(texts.references)))
    if not keep_order:
        order.sort(key=lambda i: (len(texts.references[i][0]), texts.references[i]))
    steps: list[list[int]] = []
    num_characters = 0
    for i in order:
        characters = special + (len(texts.candidates[i]) if texts.candidates else 0)
        if not steps or texts.references[i] != texts.references[steps[-1][-1]]:
            characters += sum(len(text) + special for text in texts.references[i])
        if not steps or num_characters + characters > budget:
            steps.append([])
            num_characters = 0
        steps[-1].append(i)
        num_characters += characters
    return steps


def score_corpus(
    texts: TextPairs,
    settings: ScoreSettings,
    *,
    progress: Callable[[int], None] | None = None,
) -> CorpusScores:
    """Score candidates against their references, step by step; progress is called with each number of candidates."""
    encoder, device = settings.encoder, device_with_index(settings.device)
    settings = replace(settings, weights=settings.weights.to(device))
    # Allocated once: small results between large blocks would fragment the allocator's memory. An accelerator keeps
    # them, and is not waited for until the end.
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
    encoder, device, layer = settings.encoder, settings.device, settings.layer
    cache = encoder.cache(device)
    latest = _latest.get(cache)
    if latest is None or latest[0] != texts:
        _latest.pop(cache, None)
        parts, unknown = [], UnknownText()
        steps = plan_steps(texts, encoder, device, keep_order=True)
        references = encoder.reference_cache(device, cache_bytes)
        for _, part, encoded in encode_steps(texts, steps, encoder, device, references):
            unknown.count(encoded.vectors.texts, encoder.tokenizer)
            parts.append(match_encoded(part, encoded))
        latest = _latest[cache] = texts, parts[0] if len(parts) == 1 else _join_steps(parts), unknown
    _, matched, unknown = latest
    if layer is None:
        return matched, unknown
    # Copies, or states would hold the memory of all layers.
    candidate, reference = (
        tokens._replace(best=tokens.best[:, layer : layer + 1].clone())  # (tokens, 1)
        for tokens in (matched.candidate, matched.reference)
    )
    return replace(matched, candidate=candidate, reference=reference), unknown


def forget_batch(encoder: FrozenEncoder, device: torch.device) -> None:
    """Free the memory of the latest batch on a device."""
    _latest.pop(encoder.cache(device), None)


def _join_steps(steps: Sequence[MatchedTexts]) -> MatchedTexts:
    candidate, reference = (
        MatchedTokens(*map(torch.cat, zip(*parts, strict=True)))
        for parts in ([step.candidate for step in steps], [step.reference for step in steps])
    )
    counts = torch.cat([step.counts for step in steps])  # (candidates,)
    return MatchedTexts(candidate, reference, counts, sum(step.num_truncated for step in steps))
