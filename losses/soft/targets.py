"""References of a batch: labels or texts, one or several per item."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertscore_tm.device.memory import send
from bertscore_tm.device.onednn import is_eager
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.losses.soft.expectations import require_token_ids
from bertscore_tm.losses.soft.predictions import (
    EncodedTokens,
    GeneratorVocabulary,
    Placement,
    SoftTokens,
    encode_soft_tokens,
    place_content,
)
from bertscore_tm.matching.greedy import TokenMass
from bertscore_tm.matching.vectors import TokenizedTexts
from bertscore_tm.scoring.corpus import EncodeFunction, encode_by_ids, encode_texts
from bertscore_tm.scoring.inputs import TextPairs
from bertscore_tm.utilities.compilation import untraced
from bertscore_tm.utilities.warnings import warn_user

# Fewest positions from which shifted logits are recognised.
_FEWEST_SHIFTED = 16
# Positions that are compared at most.
_MOST_COMPARED = 256
# Fewest rows from which a mask beyond the texts' ends is recognised.
_FEWEST_ENDED = 4


@dataclass(frozen=True)
class EncodedReferences:
    """Encoded references of a batch, item by item, a target of the loss."""

    tokens: EncodedTokens
    items: Tensor | None  # index of each reference's item, (references,); None where every item has one reference
    num_items: int
    num_truncated: int = 0
    placement: Placement | None = None  # of predictions with the same content, if it is known
    encoder: FrozenEncoder | None = None  # set for references of texts, which another loss may get


@untraced
def encode_references(
    references: list[list[Any]],
    vocabulary: GeneratorVocabulary,
    cache_bytes: int = 0,
    tokenized: TokenizedTexts | None = None,
) -> EncodedReferences:
    """Encode the references of each item: texts, or tuples of token ids, with the distinct ones in ``tokenized``."""
    encoder, device = vocabulary.encoder, vocabulary.table.device
    texts = TextPairs([], references)
    cache = encoder.reference_cache(device, cache_bytes, of_losses=True)
    encode: EncodeFunction = encoder.encode
    if tokenized is not None:
        encode = encode_by_ids(encoder.encode, texts.distinct(), tokenized)
    encoded = encode_texts(texts, encode, device, cache)
    vectors = encoded.vectors
    rows = np.array([encoded.indices[text] for text in chain.from_iterable(references)])
    index, mask = vectors.texts.locate(rows)  # (references, tokens)
    keys = send(mask, device)
    padded = vectors.gather(index, keys)  # (1, references, tokens, width)
    # Padding has the id that is appended, as there may be no other.
    ids = np.append(vectors.texts.ids, 0)[np.where(mask, index, -1)]  # (references, tokens)
    weights = vocabulary.encoder_weights.to(padded.dtype)[send(ids, device)] * keys
    tokens = EncodedTokens(padded[0], TokenMass(keys, weights), send(vectors.texts.has_content[rows], device))
    items = None
    if len(rows) != len(references):
        counts = [len(of_item) for of_item in references]
        items = send(np.repeat(np.arange(len(references)), counts), device)  # (references,)
    return EncodedReferences(tokens, items, len(references), vectors.texts.num_truncated, encoder=encoder)


def encode_labels(
    labels: Tensor, content: Tensor, vocabulary: GeneratorVocabulary, cache_bytes: int
) -> EncodedReferences:
    """Encode the references of a batch from labels in the encoder's vocabulary, one per item.

    On a CPU distinct rows are encoded once and cached: without, a step of the loss takes 1.19 times as long for 8 rows
    and 1.23 times for one (MiniLM with 5 layers, one thread).
    """
    placement = place_content(content, vocabulary)
    # An accelerator would have to be waited for to encode each distinct row once, without padding, and cache it.
    if labels.device.type != "cpu" or not is_eager() or vocabulary.encoder_ids is None:
        ids = labels.long().clamp(min=0)
        with torch.no_grad(), torch.autocast(device_type=labels.device.type, enabled=False):
            weights = None if vocabulary.weights is None else vocabulary.weights[ids]
            soft = SoftTokens(torch.nn.functional.embedding(ids, vocabulary.table), content, weights)
            tokens = encode_soft_tokens(soft, vocabulary, placement)
            return EncodedReferences(tokens, None, len(labels), placement=placement)
    tokenizer, (before, after) = vocabulary.encoder.tokenizer, vocabulary.encoder.tokenizer.special_affixes
    ids_of_rows = torch.split(vocabulary.encoder_ids[labels[content].long()], content.sum(1).tolist())
    rows = [(*before, *ids.tolist(), *after) for ids in ids_of_rows]
    distinct = [*dict.fromkeys(rows)]
    lengths = np.fromiter(map(len, distinct), np.int64, len(distinct))
    flat = np.fromiter(chain.from_iterable(distinct), np.int64, int(lengths.sum()))
    has_content = lengths > tokenizer.num_special_tokens
    truncated = np.zeros_like(has_content)
    # Tokens are counted, because labels have no characters.
    sizes = lengths - tokenizer.num_special_tokens
    unknown_sizes = np.array([row.count(tokenizer.unknown_id) for row in distinct], np.int64)
    tokenized = TokenizedTexts(flat, lengths, has_content, truncated, sizes, unknown_sizes)
    encoded = encode_references([[row] for row in rows], vocabulary, cache_bytes, tokenized)
    return replace(encoded, placement=placement)


def locate_content(
    labels: Tensor, allowed: Tensor | None, vocabulary: GeneratorVocabulary, ignore_index: int
) -> Tensor:
    """Return which of the allowed positions of labels are content, none after the first end token behind content."""
    size = len(vocabulary.table)
    is_text, is_end = vocabulary.kinds[labels.long().clamp(-1, size)].unbind(-1)  # -1 is the last row
    content = is_text & (labels != ignore_index)
    if allowed is not None:
        content, is_end = content & allowed, is_end & allowed
    # An end token at the beginning, as in labels that hold the token a decoder starts from, ends nothing.
    content = content & ((content.cumsum(1) * is_end).cumsum(1) == 0)
    require_token_ids(labels, content, size, ignore_index)
    return content


@torch.no_grad()
def warn_if_misaligned(
    predictions: Tensor,
    to_logits: Callable[[Tensor], Tensor],
    target: Any,
    content: Tensor,
    ignore_index: int,
    excluded_ids: Sequence[int],
) -> bool:
    """Warn if predictions are of the next label, or if the mask of texts goes beyond their end; return whether.

    Takes logits or hidden states, shape (batch, positions, ...), and what makes logits of some of them.
    """
    if isinstance(target, Tensor):
        return _warn_if_unshifted(predictions, to_logits, target, ignore_index)
    rows = content.any(1).nonzero()[:, 0]
    last = content[rows].long().cumsum(1).argmax(1)
    logits = to_logits(predictions[rows, last])  # (rows, vocabulary)
    num_ended = int((logits.float().softmax(-1)[:, [*excluded_ids]].sum(-1) > 0.5).sum())
    # A model that has learned nothing yet does not end its texts.
    is_misaligned = len(rows) >= _FEWEST_ENDED and num_ended > len(rows) // 2
    if is_misaligned:
        warn_user(
            f"at the last position of the mask, the predictions of {num_ended} of {len(rows)} rows are end tokens or "
            f"other special tokens, which are not scored: pass a mask that ends before them, such as "
            f"mask & (labels != tokenizer.eos_token_id)"
        )
    return is_misaligned


def _warn_if_unshifted(
    predictions: Tensor, to_logits: Callable[[Tensor], Tensor], labels: Tensor, ignore_index: int
) -> bool:
    """Warn if predictions are of the next label rather than their own, as those of causal models; return whether."""
    current, following = labels[:, :-1], labels[:, 1:]
    differs = (current != ignore_index) & (following != ignore_index) & (current != following)
    places = differs.nonzero()[:_MOST_COMPARED].unbind(1)  # rows and positions, (places,) each
    likeliest = to_logits(predictions[places]).argmax(-1)  # (places,)
    count = len(likeliest)
    num_current = int((likeliest == current[places]).sum())
    num_following = int((likeliest == following[places]).sum())
    # A model that has learned nothing yet predicts neither.
    is_unshifted = count >= _FEWEST_SHIFTED and num_following > max(2 * num_current, count // 5)
    if is_unshifted:
        warn_user(
            f"the logits predict the next label at {num_following} of {count} positions, their own at {num_current}: "
            f"for a causal language model, pass logits[:, :-1], or hidden[:, :-1], and labels[:, 1:]"
        )
    return is_unshifted
