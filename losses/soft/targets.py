"""References of a batch: labels or texts, one or several per item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from bertscore_tm.core.matching import TokenMass
from bertscore_tm.core.memory import constant, send
from bertscore_tm.core.onednn import is_eager
from bertscore_tm.core.token_vectors import TokenVectors, concatenate
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.encoder.tokenization import TokenizedTexts
from bertscore_tm.encoder.vector_cache import VectorCache
from bertscore_tm.losses.soft.expectations import require_token_ids
from bertscore_tm.losses.soft.predictions import (
    EncodedTokens,
    GeneratorVocabulary,
    OutputVocabulary,
    SoftTokens,
    encode_soft_tokens,
    require_fitting,
)
from bertscore_tm.scoring.corpus import encode_texts
from bertscore_tm.scoring.texts import TextPairs, as_references
from bertscore_tm.utilities.user_warnings import warn_user

# Fewest positions from which shifted logits are recognised.
_FEWEST_SHIFTED = 16
# Fewest rows from which a mask beyond the texts' ends is recognised.
_FEWEST_ENDED = 4


@dataclass(frozen=True)
class EncodedReferences:
    """Encoded references of a batch, a target of the loss.

    Args:
        tokens: the references, item by item.
        items: index of each reference's item, shape (references,); ``None`` where every item has one.
        num_items: number of items in the batch.
        num_truncated: number of references that were truncated.
    """

    tokens: EncodedTokens
    items: Tensor | None
    num_items: int
    num_truncated: int = 0


def list_references(target: Any, num_items: int | None = None) -> list[list[str]]:
    """Validate target texts, one or several per item, and return a list per item, without blank ones next to others."""
    if isinstance(target, str):
        raise TypeError("target is a single string: pass a list of texts, one or several per row of the predictions")
    references = as_references(target, "target")
    if num_items is not None and len(references) != num_items:
        raise ValueError(
            f"target must have a text or a list of texts for each of the {num_items} rows of the predictions, got "
            f"{len(references)}"
        )
    return references


def encode_reference_texts(
    references: list[list[str]], encoder: FrozenEncoder, weights: Tensor, device: torch.device, cache_bytes: int = 0
) -> EncodedReferences:
    """Encode the references of a batch, each distinct text once, with the weight of each token id."""
    encoded = encode_texts(TextPairs([], references), encoder, device, cache_bytes, of_losses=True)
    texts = list(chain.from_iterable(references))
    tokens = _pad(encoded.vectors, [encoded.indices[text] for text in texts], weights, device)
    items = None
    if len(texts) != len(references):
        counts = torch.tensor([len(of_item) for of_item in references], device="cpu")
        items = send(torch.arange(len(references), device="cpu").repeat_interleave(counts), device)  # (references,)
    return EncodedReferences(tokens, items, len(references), encoded.vectors.num_truncated)


def encode_reference_labels(
    labels: Tensor, content: Tensor, vocabulary: OutputVocabulary, encoder: FrozenEncoder, cache_bytes: int = 0
) -> EncodedReferences:
    """Encode the references of a batch from labels, one per item.

    On the CPU they are encoded as texts are: each distinct row once, without padding, and cached. Labels on an
    accelerator would have to be waited for.
    """
    if labels.device.type != "cpu" or not is_eager() or vocabulary.encoder_ids is None:
        ids = labels.long().masked_fill(~content, 0)
        with torch.no_grad(), torch.autocast(device_type=labels.device.type, enabled=False):
            weights = None if vocabulary.weights is None else vocabulary.weights[ids]
            soft = SoftTokens(torch.nn.functional.embedding(ids, vocabulary.table), content, weights)
            tokens = encode_soft_tokens(soft, encoder, vocabulary.encoder_weights)
        return EncodedReferences(tokens, None, len(labels))
    tokenizer, (before, after) = encoder.tokenizer, encoder.tokenizer.special_affixes
    ids_of_rows = torch.split(vocabulary.encoder_ids[labels[content].long()], content.sum(1).tolist())
    require_fitting(max(map(len, ids_of_rows)), encoder)
    rows = [(*before, *ids.tolist(), *after) for ids in ids_of_rows]
    distinct = [*dict.fromkeys(rows)]
    cache = encoder.cache(labels.device, of_losses=True) if cache_bytes else VectorCache()
    cached = cache.get(distinct)
    missing = [row for row in distinct if row not in cached]
    parts = list(cached.values())
    if missing:
        has_content = [len(row) > tokenizer.num_special_tokens for row in missing]
        is_truncated = [False] * len(missing)
        tokenized = TokenizedTexts([[*row] for row in missing], has_content, is_truncated, tokenizer.num_excluded)
        parts.append(encoder.encode(tokenized, labels.device))
        cache.add(missing, parts[-1], cache_bytes)
    indices = {row: i for i, row in enumerate([*cached, *missing])}
    tokens = _pad(concatenate(parts), [indices[row] for row in rows], vocabulary.encoder_weights, labels.device)
    return EncodedReferences(tokens, None, len(labels))


def _pad(vectors: TokenVectors, indices: list[int], weights: Tensor, device: torch.device) -> EncodedTokens:
    """Put the vectors of some texts, which may repeat, into a padded batch."""
    texts = torch.tensor(indices, device="cpu")
    index, mask = vectors.locate(texts)  # (texts, tokens)
    keys = send(mask, device)
    padded = vectors.gather(index, keys)  # (1, texts, tokens, width)
    # Padding has the id that is appended, as there may be no other.
    ids = torch.nn.functional.pad(vectors.ids, (0, 1))[torch.where(mask, index, -1)]  # (texts, tokens)
    token_weights = weights.to(device=device, dtype=padded.dtype)[send(ids, device)] * keys
    return EncodedTokens(padded[0], TokenMass(keys, token_weights), send(vectors.has_content[texts], device))


def locate_label_content(
    labels: Tensor, allowed: Tensor, vocabulary: GeneratorVocabulary, vocab_size: int, ignore_index: int
) -> Tensor:
    """Return which of the allowed positions of labels are content, none after the first end token.

    All shapes are (batch, positions). Ids outside the vocabulary are an error, on the CPU only.
    """
    is_control = torch.isin(labels, constant(vocabulary.control_ids, labels.device))
    is_end = torch.isin(labels, constant(vocabulary.end_ids, labels.device)) & allowed
    content = allowed & (labels != ignore_index) & ~is_control & (is_end.cumsum(1) == 0)
    require_token_ids(labels, content, vocab_size, ignore_index)
    return content


@torch.no_grad()
def warn_if_misaligned(
    logits: Tensor, target: Any, content: Tensor, ignore_index: int, excluded_ids: Sequence[int]
) -> None:
    """Warn if logits predict the next label, or if the mask of texts goes beyond the end of the predictions."""
    if isinstance(target, Tensor):
        _warn_if_unshifted(logits, target, ignore_index)
        return
    rows = content.any(1).nonzero()[:, 0]
    last = content[rows].long().cumsum(1).argmax(1)
    num_ended = int((logits[rows, last].float().softmax(-1)[:, [*excluded_ids]].sum(-1) > 0.5).sum())
    # A model that has learned nothing yet does not end its texts.
    if len(rows) >= _FEWEST_ENDED and num_ended > len(rows) // 2:
        warn_user(
            f"at the last position of the mask, the predictions of {num_ended} of {len(rows)} rows are end tokens or "
            f"other special tokens, which are not scored: pass a mask that ends before them, such as "
            f"mask & (labels != tokenizer.eos_token_id)"
        )


def _warn_if_unshifted(logits: Tensor, labels: Tensor, ignore_index: int) -> None:
    """Warn if logits predict the next label rather than their own, as those of causal language models do."""
    current, following = labels[:, :-1], labels[:, 1:]
    differs = (current != ignore_index) & (following != ignore_index) & (current != following)
    likeliest, count = logits[:, :-1].argmax(-1), int(differs.sum())
    num_current, num_following = (int((differs & (likeliest == ids)).sum()) for ids in (current, following))
    # A model that has learned nothing yet predicts neither.
    if count >= _FEWEST_SHIFTED and num_following > max(2 * num_current, count // 5):
        warn_user(
            f"the logits predict the next label at {num_following} of {count} positions, their own at {num_current}: "
            f"for a causal language model, pass logits[:, :-1] and labels[:, 1:]"
        )
