"""A generator's predictions: their expectations as soft tokens, and the encoding of these.

Soft tokens are texts as input embeddings rather than ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bertscore_tm.core.matching import TokenMass
from bertscore_tm.core.memory import constant
from bertscore_tm.core.onednn import is_eager
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.encoder.soft_tokens import embedding_table, encode_soft
from bertscore_tm.losses.soft.expectations import expected_embedding, linear_expected_embedding, softmax_expectation
from bertscore_tm.losses.soft.output_layer import OutputLayer
from bertscore_tm.losses.soft.relaxation import Relaxation, mask_excluded, softmax_relaxation
from bertscore_tm.scoring.token_weights import TokenWeights

if TYPE_CHECKING:
    from bertscore_tm.losses.soft.bridge.piece_table import PieceTable
    from bertscore_tm.losses.soft.bridge.vocabulary import VocabularyBridge

# Positions per step where the likeliest tokens are looked up.
_POSITIONS_PER_STEP = 256


@dataclass(frozen=True)
class OutputVocabulary:
    """The generator's tokens as the encoder sees them, on one device.

    Args:
        table: input embedding of each of the generator's tokens, shape (vocabulary, width).
        weights: weight of each token, shape (vocabulary,); ``None`` where all weigh 1.
        columns: the table and the weights, whose expectations one product computes, shape (vocabulary, columns).
        excluded_ids: tokens that get no probability.
        encoder_table: input embedding of each of the encoder's tokens, shape (encoder's vocabulary, width).
        encoder_weights: weight of each of the encoder's tokens, shape (encoder's vocabulary,).
        encoder_ids: the encoder's id of each token, shape (vocabulary,), int64; ``None`` where a token has several.
        pieces: the encoder's pieces of each token, where positions are expanded to them.
    """

    table: Tensor
    weights: Tensor | None
    columns: Tensor
    excluded_ids: Sequence[int]
    encoder_table: Tensor
    encoder_weights: Tensor
    encoder_ids: Tensor | None
    pieces: PieceTable | None


class GeneratorVocabulary:
    """The generator's tokens as the encoder sees them, through a bridge or not, kept per device.

    Attributes:
        control_ids: tokens that are not content, such as special tokens.
        end_ids: tokens that end a text.
    """

    def __init__(self, encoder: FrozenEncoder, bridge: VocabularyBridge | None, weights: TokenWeights) -> None:
        tokens = encoder.tokenizer if bridge is None else bridge
        self.control_ids, self.end_ids = tokens.control_ids, tokens.end_ids
        self._encoder, self._bridge, self._weights = encoder, bridge, weights
        # Keyed by the device's name, as torch.compile cannot look up devices.
        self._loaded: dict[str, OutputVocabulary] = {}

    def load(self, device: torch.device) -> OutputVocabulary:
        """Return the generator's tokens on a device."""
        name = str(device)
        self._load_once(name)
        return self._loaded[name]

    # Run while torch.compile traces the loss, rather than traced: loading a model is not part of the graph.
    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def _load_once(self, name: str) -> bool:
        if name in self._loaded:
            return True
        device, encoder, bridge = torch.device(name), self._encoder, self._bridge
        # Cached by the tokenizer here, since the graph must not ask it.
        _ = encoder.tokenizer.special_affixes
        with torch.inference_mode(False), torch.no_grad():
            encoder_weights = self._weights.to(device).table
            encoder_table = table = embedding_table(encoder, device)
            pieces = None
            encoder_ids: Tensor | None = torch.arange(len(table), device=device)
            if bridge is not None:
                pieces, table = bridge.pieces.to(device), bridge.embedding_table(device)
                encoder_ids = pieces.single_pieces
            weights, columns = None, table
            if table.data_ptr() != encoder_table.data_ptr() or not self._weights.is_uniform:
                weights = encoder_weights[: len(table)] if pieces is None else pieces.average_weights(encoder_weights)
                weights = weights.to(torch.promote_types(torch.float32, table.dtype))
                columns = torch.cat([table, weights[:, None].to(table.dtype)], dim=1)  # (vocabulary, width + 1)
            if bridge is not None and bridge.mode != "expand":
                pieces = None
            self._loaded[name] = OutputVocabulary(
                table, weights, columns, self.control_ids, encoder_table, encoder_weights, encoder_ids, pieces
            )
        return True

    def require_size(self, size: int, expected: int, subject: str) -> int:
        """Return how many outputs are tokens; with a bridge, output layers may be padded beyond the tokenizer."""
        if size == expected or (size > expected and self._bridge is not None):
            return expected
        if self._bridge is None:
            raise ValueError(
                f"{subject} a vocabulary of {size} but the encoder {self._encoder.name!r} has one of {expected}: pass "
                f"the generator's tokenizer as tokenizer="
            )
        raise ValueError(f"{subject} a vocabulary of {size}, the generator's tokenizer has {expected} tokens")

    def __getstate__(self) -> dict[str, Any]:
        # Copies take the tables from the encoder again.
        return {**self.__dict__, "_loaded": {}}


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


def predict_from_logits(
    logits: Tensor, content: Tensor, vocabulary: OutputVocabulary, relaxation: Relaxation, temperature: float
) -> SoftTokens:
    """Return expectations under relaxed logits as soft tokens, arbitrary and without gradient outside the content."""
    if relaxation is softmax_relaxation and is_eager():
        indices = _needed_positions(content)
        columns = softmax_expectation(logits, vocabulary.columns, temperature, vocabulary.excluded_ids, indices)
        return _split_columns(columns, content, vocabulary)
    # A model may compute anything elsewhere, such as NaN in padding, whose gradient would be NaN too.
    p = relaxation(logits.masked_fill(~content[..., None], 0.0), temperature, vocabulary.excluded_ids)
    weights = None if vocabulary.weights is None else p.detach() @ vocabulary.weights.to(p.dtype)
    return SoftTokens(expected_embedding(p, vocabulary.table), content, weights)


def predict_from_hidden(
    hidden: Tensor,
    content: Tensor,
    layer: OutputLayer,
    vocabulary: OutputVocabulary,
    temperature: float,
    *,
    labels: Tensor | None = None,
    ignore_index: int = -100,
) -> tuple[SoftTokens, Tensor | None]:
    """Return expectations as :func:`predict_from_logits`, and the cross-entropy of labels, without all logits at once.

    Hidden states have the shape (batch, positions, features), labels and content (batch, positions).
    """
    needed = content if labels is None else content | (labels != ignore_index)
    indices = _needed_positions(needed)
    if indices is None:
        hidden = hidden.masked_fill(~needed[..., None], 0.0)
    else:
        hidden = hidden.flatten(0, 1).index_select(0, indices)  # (needed, features)
        labels = None if labels is None else labels.flatten().index_select(0, indices)
    if layer.scale != 1:
        hidden = hidden * layer.scale
    weight, bias, columns, excluded = layer.weight, layer.bias, vocabulary.columns, [*vocabulary.excluded_ids]
    size = len(columns)
    if labels is None:
        weight, bias = weight[:size], None if bias is None else bias[:size]
    elif size < len(weight):
        # Outputs beyond the tokens take part in the cross-entropy, as in that of the logits.
        columns = nn.functional.pad(columns, (0, 0, 0, len(weight) - size))
        excluded += range(size, len(weight))
    result = linear_expected_embedding(
        hidden,
        weight,
        columns,
        labels,
        linear_bias=bias,
        temperature=temperature,
        excluded_ids=excluded,
        ignore_index=ignore_index,
    )
    expected, cross_entropy = result if isinstance(result, tuple) else (result, None)
    return _split_columns(_spread(expected.flatten(0, -2), indices, content), content, vocabulary), cross_entropy


@torch.no_grad()
def find_likeliest(
    to_logits: Callable[[Tensor], Tensor], predictions: Tensor, content: Tensor, excluded_ids: Sequence[int]
) -> Tensor:
    """Return the likeliest token at each position with content, elsewhere 0, shape (batch, positions).

    Logits of the predictions, shape (batch, positions, ...), are made of some positions at a time.
    """
    flat = predictions.flatten(0, 1), content.flatten()
    steps = (torch.split(values, _POSITIONS_PER_STEP) for values in flat)
    likeliest = [
        mask_excluded(to_logits(rows[needed]), excluded_ids).argmax(-1) for rows, needed in zip(*steps, strict=True)
    ]
    return torch.zeros_like(content, dtype=torch.long).masked_scatter(content, torch.cat(likeliest))


def expand_to_pieces(
    tokens: SoftTokens, likeliest: Tensor, pieces: PieceTable, vocabulary: OutputVocabulary
) -> SoftTokens:
    """Return one position per piece of the likeliest token at each position, in the mode ``"expand"``."""
    ids, position, content = pieces.expand(likeliest, tokens.content)
    dtype, token = tokens.embeddings.dtype, likeliest.gather(1, position)  # (batch, pieces)
    correction = vocabulary.encoder_table[ids].to(dtype) - vocabulary.table[token].to(dtype)  # (batch, pieces, width)
    expanded = tokens.embeddings.gather(1, position[..., None].expand_as(correction)) + correction
    weights = vocabulary.encoder_weights[ids]  # (batch, pieces)
    if tokens.weights is not None:
        surplus = tokens.weights.gather(1, position) - pieces.average_weights(vocabulary.encoder_weights)[token]
        weights = (weights + surplus).clamp(min=0)
    return SoftTokens(expanded, content, weights.to(dtype))


def _needed_positions(content: Tensor) -> Tensor | None:
    """Return the indices of the flattened positions with content; ``None`` where all have it or are to be computed."""
    # Their number would break a compiled graph.
    if not is_eager():
        return None
    indices = content.flatten().nonzero().squeeze(1)
    return indices if len(indices) < content.numel() else None


def _spread(values: Tensor, indices: Tensor | None, content: Tensor) -> Tensor:
    """Put the values of the needed positions into their places, shape (batch, positions, ...)."""
    if indices is not None:
        values = values.new_zeros(content.numel(), *values.shape[1:]).index_copy(0, indices, values)
    return values.view(*content.shape, *values.shape[1:])


def _split_columns(expected: Tensor, content: Tensor, vocabulary: OutputVocabulary) -> SoftTokens:
    """Split expected columns into embeddings and weights."""
    if vocabulary.weights is None:
        return SoftTokens(expected, content)
    return SoftTokens(expected[..., :-1], content, expected[..., -1].detach())


@dataclass(frozen=True)
class EncodedTokens:
    """Encoded candidates or references of a batch.

    Args:
        vectors: unit vectors, shape (batch, tokens, width).
        mass: tokens that can be matched, special ones included unless the encoder excludes them, and their weights.
        has_content: rows with a content token, shape (batch,), bool.
    """

    vectors: Tensor
    mass: TokenMass
    has_content: Tensor

    def select(self, rows: Tensor) -> EncodedTokens:
        """Return some rows, which may repeat, by their indices."""
        mass = TokenMass(self.mass.mask[rows], self.mass.weights[rows])
        return EncodedTokens(self.vectors[rows], mass, self.has_content[rows])


def encode_soft_tokens(tokens: SoftTokens, encoder: FrozenEncoder, encoder_weights: Tensor) -> EncodedTokens:
    """Encode soft tokens between the encoder's special tokens, their content moved to the left, with gradient.

    Raises a ValueError if a row is too long. ``encoder_weights`` are those of all token ids, for the special tokens.
    """
    embeddings, content, tokenizer = tokens.embeddings, tokens.content, encoder.tokenizer
    device, dtype = embeddings.device, embeddings.dtype
    before, after = tokenizer.special_affixes
    num_before, special_ids = len(before), [*before, *after]
    numbers = constant(special_ids, device)
    special = embedding_table(encoder, device)[numbers].to(dtype)  # (special, width)
    if tokenizer.exclude_special_tokens:
        special_weights = torch.zeros(len(special_ids), dtype=dtype, device=device)
    else:
        special_weights = encoder_weights.to(device)[numbers].to(dtype)

    lengths = content.sum(1, keepdim=True)  # (batch, 1)
    # Content moves to the left, over holes and left padding.
    order = (~content).long().argsort(dim=1, stable=True)  # (batch, positions)
    limit = tokenizer.max_length
    # On an accelerator, the longest row is waited for only if it may be too long.
    if (device.type == "cpu" and is_eager()) or (limit is not None and content.shape[1] + len(special_ids) > limit):
        longest = int(lengths.max())
        require_fitting(longest, encoder)
        order = order[:, : max(longest, 1)]
    weights = torch.ones_like(embeddings[..., 0]) if tokens.weights is None else tokens.weights.to(dtype)

    # Each token is taken from its position or, a special one, from after the last position.
    place = torch.arange(order.shape[1] + len(special_ids), device=device)  # (tokens,)
    after_text = place - num_before - lengths  # (batch, tokens)
    is_text = (place >= num_before) & (after_text < 0)
    keys = after_text < len(after)
    index = content.shape[1] + torch.where(place < num_before, place, num_before + after_text)  # (batch, tokens)
    index = torch.where(is_text, nn.functional.pad(order, (num_before, len(after))), index)
    index = index.clamp(max=content.shape[1] + len(special_ids) - 1)
    row_weights = torch.cat([weights, special_weights.expand(len(order), -1)], 1).gather(1, index) * keys
    rows = torch.cat([embeddings, special.expand(len(order), -1, -1)], 1)  # (batch, positions + special, width)
    rows = rows.gather(1, index[..., None].expand(-1, -1, rows.shape[-1])).masked_fill(~keys[..., None], 0.0)
    mass = TokenMass(is_text if tokenizer.exclude_special_tokens else keys, row_weights)
    return EncodedTokens(encode_soft(encoder, rows, keys)[0], mass, lengths.squeeze(1) > 0)


def require_fitting(longest: int, encoder: FrozenEncoder) -> None:
    """Raise an error unless the longest text of a batch, in tokens without special ones, fits the encoder."""
    limit, num_special = encoder.tokenizer.max_length, encoder.tokenizer.num_special_tokens
    if limit is not None and longest + num_special > limit:
        raise ValueError(
            f"a row has {longest} tokens, but the encoder {encoder.name!r} takes {limit - num_special} and its special "
            f"tokens: tokenize the labels with truncation=True and max_length={limit - num_special} (with texts as "
            f"target, end the mask there)"
        )
