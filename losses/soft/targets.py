"""Encode the references of a batch (labels or texts, one or several per item), and find the content of labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertscore_tm.device.memory import send
from bertscore_tm.device.onednn import is_eager
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.encoder.tokenizer import TextTokenizer
from bertscore_tm.losses.soft.expectations import require_token_ids
from bertscore_tm.losses.soft.predictions import (
    EncodedTokens,
    GeneratorVocabulary,
    Placement,
    Predictions,
    SoftTokens,
    encode_soft_tokens,
)
from bertscore_tm.matching.greedy import TokenMass
from bertscore_tm.matching.vectors import TokenizedTexts
from bertscore_tm.scoring.corpus import EncodeFunction, encode_by_ids, encode_texts
from bertscore_tm.scoring.inputs import TextPairs
from bertscore_tm.utilities.compilation import untraced
from bertscore_tm.utilities.warnings import warn_user

# Minimum number of positions for the check that predictions and labels are aligned.
_FEWEST_SHIFTED = 16
# Maximum number of positions that this check compares.
_MOST_COMPARED = 256
# Minimum number of rows for the check that the mask ends before the end tokens.
_FEWEST_ENDED = 4


@dataclass(frozen=True)
class EncodedReferences:
    """Encoded references of a batch, item by item, as a target of the loss."""

    tokens: EncodedTokens
    items: Tensor | None  # index of each reference's item, (references,); None if every item has one reference
    num_items: int
    num_truncated: int = 0
    # Encoder of the references, so that a loss with another one can refuse them. None if the loss that scores them has
    # encoded them itself.
    encoder: FrozenEncoder | None = None


@untraced
def encode_references(
    references: list[list[Any]],
    vocabulary: GeneratorVocabulary,
    cache_bytes: int = 0,
    tokenized: TokenizedTexts | None = None,
) -> EncodedReferences:
    """Encode the references of each item.

    Args:
        references: for each item its references, either texts or tuples of token ids.
        vocabulary: the generator's vocabulary.
        cache_bytes: size limit of the cache of references.
        tokenized: the distinct references, if they are tuples of token ids.
    """
    encoder = vocabulary.encoder
    device = vocabulary.table.device
    texts = TextPairs([], references)
    cache = encoder.reference_cache(device, cache_bytes, of_losses=True)
    encode: EncodeFunction = encoder.encode
    if tokenized is not None:
        encode = encode_by_ids(encoder.encode, texts.distinct(), tokenized)
    encoded = encode_texts(texts, encode, device, cache)
    vectors = encoded.vectors
    rows = np.array([encoded.indices[text] for text in chain.from_iterable(references)])  # (references,)
    # Texts that repeat were encoded once, and get a row each here.
    index, mask = vectors.texts.locate(rows)  # (references, tokens) each
    is_token = send(mask, device)  # (references, tokens)
    padded = vectors.gather(index, is_token)  # (1, references, tokens, width), of the encoder's one layer
    # Padding has the index -1, which selects the appended id 0. A batch of blank texts may have no other id.
    ids = np.append(vectors.texts.ids, 0)[np.where(mask, index, -1)]  # (references, tokens)
    all_weights = vocabulary.encoder_tokens.weights.to(padded.dtype)[send(ids, device)]  # (references, tokens)
    weights = all_weights * is_token  # (references, tokens)
    has_content = send(vectors.texts.has_content[rows], device)  # (references,)
    tokens = EncodedTokens(padded[0], TokenMass(is_token, weights), has_content)
    num_items = len(references)
    items = None
    # With one reference per item, the loss needs no reduction over references.
    if len(rows) != num_items:
        counts = [len(references_of_item) for references_of_item in references]
        items = send(np.repeat(np.arange(num_items), counts), device)  # (references,)
    return EncodedReferences(tokens, items, num_items, vectors.texts.num_truncated, encoder=encoder)


def encode_labels(
    labels: Tensor, content: Tensor, placement: Placement, vocabulary: GeneratorVocabulary, cache_bytes: int
) -> EncodedReferences:
    """Encode the references of a batch from labels, one per item.

    The generator has the encoder's tokens, with the same or other ids. On a CPU, distinct rows are encoded once and
    cached: without that, a step of the loss takes 1.19 times as long for 8 rows and 1.23 times for one (MiniLM with 5
    layers, one thread).

    Args:
        labels: labels, shape (items, positions).
        content: positions with content, shape (items, positions), bool.
        placement: the placement of this content.
        vocabulary: the generator's vocabulary.
        cache_bytes: size limit of the cache of references.
    """
    # On an accelerator, finding the distinct rows would synchronize the device; in a compiled graph it would break it.
    can_read_rows = labels.device.type == "cpu" and is_eager()
    if not can_read_rows or vocabulary.encoder_ids is None:
        ids = labels.long().clamp(min=0)  # (items, positions)
        with torch.no_grad(), torch.autocast(device_type=labels.device.type, enabled=False):
            weights = None
            if vocabulary.weights is not None:
                weights = vocabulary.weights[ids]  # (items, positions)
            soft_tokens = SoftTokens(torch.nn.functional.embedding(ids, vocabulary.table), content, weights)
            tokens = encode_soft_tokens(soft_tokens, vocabulary, placement)
        return EncodedReferences(tokens, items=None, num_items=len(labels))
    tokenizer = vocabulary.encoder.tokenizer
    before, after = tokenizer.special_affixes
    content_ids = vocabulary.encoder_ids[labels[content].long()]  # (content tokens of the batch,)
    # Tuples can be keys of the cache of references, as texts can.
    rows = []
    for row_ids in torch.split(content_ids, content.sum(1).tolist()):
        rows.append((*before, *row_ids.tolist(), *after))
    distinct_rows = list(dict.fromkeys(rows))
    tokenized = _as_tokenized(distinct_rows, tokenizer)
    return encode_references([[row] for row in rows], vocabulary, cache_bytes, tokenized)


def _as_tokenized(rows: Sequence[Sequence[int]], tokenizer: TextTokenizer) -> TokenizedTexts:
    """Return rows of token ids, with their special tokens, as the result of a tokenizer."""
    lengths = np.array([len(row) for row in rows], np.int64)
    flat = np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum()))
    has_content = lengths > tokenizer.num_special_tokens
    is_truncated = np.zeros_like(has_content)
    # Sizes are numbers of characters, for the warning about unknown text. Labels are ids without a text: their sizes
    # are 0, so that they add nothing to a count.
    no_sizes = np.zeros_like(lengths)
    return TokenizedTexts(flat, lengths, has_content, is_truncated, text_sizes=no_sizes, unknown_sizes=no_sizes)


def locate_content(
    labels: Tensor, allowed: Tensor | None, vocabulary: GeneratorVocabulary, ignore_index: int
) -> Tensor:
    """Return which of the allowed positions of labels are content, shape (batch, positions), bool.

    Content ends at the first end token that has content before it.
    """
    size = len(vocabulary.table)
    # Ids outside the vocabulary get the last row, which the index -1 selects too.
    is_text, is_end = vocabulary.kinds[labels.long().clamp(-1, size)].unbind(-1)  # (batch, positions) each
    content = is_text & (labels != ignore_index)
    if allowed is not None:
        content = content & allowed
        is_end = is_end & allowed
    # Ignore end tokens before any content: some labels begin with a decoder's start token, which may be its end token.
    # In the labels [end, a, b, end, c], the end tokens have 0 and 2 content tokens before them: a and b are content.
    num_content_before_end = content.cumsum(1) * is_end  # 0 except at end tokens after content, (batch, positions)
    is_before_end = num_content_before_end.cumsum(1) == 0
    content = content & is_before_end
    require_token_ids(labels, content, size, ignore_index)
    return content


@torch.no_grad()
def warn_if_misaligned(
    predictions: Predictions, target: Any, content: Tensor, ignore_index: int, excluded_ids: Sequence[int]
) -> bool:
    """Warn if predictions and target are not aligned, and return whether they are misaligned.

    With labels, the predictions may be of the next label. With texts, the mask may go beyond the end of the texts.

    Args:
        predictions: logits or hidden states.
        target: labels, shape (batch, positions), or anything else for texts.
        content: positions with content, shape (batch, positions), bool.
        ignore_index: label of positions without content.
        excluded_ids: ids of special tokens.
    """
    if isinstance(target, Tensor):
        return _warn_if_unshifted(predictions, target, ignore_index)
    rows = content.any(1).nonzero()[:, 0]
    # A cumulative sum has its first maximum at the last position with content.
    last = content[rows].long().cumsum(1).argmax(1)  # (rows,)
    logits = predictions.to_logits(predictions.values[rows, last])  # (rows, vocabulary)
    special_probabilities = logits.float().softmax(-1)[:, [*excluded_ids]].sum(-1)  # (rows,)
    num_ended = int((special_probabilities > 0.5).sum())
    # A model that has learned nothing yet does not end its texts, so this is no false alarm for a new model.
    is_misaligned = len(rows) >= _FEWEST_ENDED and num_ended > len(rows) // 2
    if is_misaligned:
        warn_user(
            f"at the last position of the mask, the predictions of {num_ended} of {len(rows)} rows are end tokens or "
            f"other special tokens. Pass a mask that ends before them, such as "
            f"mask & (labels != tokenizer.eos_token_id)."
        )
    return is_misaligned


def _warn_if_unshifted(predictions: Predictions, labels: Tensor, ignore_index: int) -> bool:
    """Warn if predictions are of the next label, like those of causal models, and return whether they are."""
    current = labels[:, :-1]  # (batch, positions - 1)
    following = labels[:, 1:]  # (batch, positions - 1)
    has_labels = (current != ignore_index) & (following != ignore_index)
    can_tell = has_labels & (current != following)  # (batch, positions - 1)
    places = can_tell.nonzero()[:_MOST_COMPARED].unbind(1)  # rows and positions, (places,) each
    likeliest = predictions.to_logits(predictions.values[places]).argmax(-1)  # (places,)
    count = len(likeliest)
    num_current = int((likeliest == current[places]).sum())
    num_following = int((likeliest == following[places]).sum())
    # A model that has learned nothing yet predicts neither label, so require a fifth of the positions.
    predicts_following = num_following > max(2 * num_current, count // 5)
    is_unshifted = count >= _FEWEST_SHIFTED and predicts_following
    if is_unshifted:
        warn_user(
            f"the logits predict the next label at {num_following} of {count} positions, their own at {num_current}. "
            f"For a causal language model, pass logits[:, :-1], or hidden[:, :-1], and labels[:, 1:]."
        )
    return is_unshifted
