"""A generator's predictions as soft tokens, which are input embeddings rather than ids, and their encoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bertscore_tm.device.memory import constant
from bertscore_tm.device.onednn import is_eager
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.encoder.soft_tokens import embedding_table, encode_soft
from bertscore_tm.losses.soft.expectations import expected_embedding, linear_expected_embedding, softmax_expectation
from bertscore_tm.losses.soft.output_layer import OutputLayer
from bertscore_tm.losses.soft.relaxation import Relaxation, mask_excluded, softmax_relaxation
from bertscore_tm.matching.greedy import TokenMass
from bertscore_tm.scoring.idf import TokenWeights

if TYPE_CHECKING:
    from bertscore_tm.losses.soft.bridge import VocabularyBridge
    from bertscore_tm.losses.soft.pieces import PieceTable

# Positions per step where the likeliest tokens are looked up.
_POSITIONS_PER_STEP = 256


class GeneratorVocabulary:
    """The generator's tokens as the encoder sees them, through a bridge or not, on one device."""

    def __init__(
        self, encoder: FrozenEncoder, bridge: VocabularyBridge | None, weights: TokenWeights, device: torch.device
    ) -> None:
        self.encoder, self.bridge = encoder, bridge
        tokens = encoder.tokenizer if bridge is None else bridge
        self.control_ids = tokens.control_ids  # not content, such as special tokens: they get no probability
        # Cached by the tokenizer here, since a compiled graph must not ask it.
        before, after = encoder.tokenizer.special_affixes
        with torch.inference_mode(False), torch.no_grad():
            # Weight and input embedding of each of the encoder's tokens; the table is that of the generator's tokens.
            self.encoder_weights = weights.to(device).table
            self.encoder_table = self.table = embedding_table(encoder, device)
            # The encoder's id of each token, (vocabulary,); None where a token has several.
            self.encoder_ids: Tensor | None = torch.arange(len(self.table), device=device)
            # Set where positions change: they are expanded to pieces, or those of tokens without a piece are left out.
            self.pieces: PieceTable | None = None
            means = self.encoder_weights
            if bridge is not None:
                pieces, self.table = bridge.pieces.to(device), bridge.embed_tokens(encoder, device)
                self.encoder_ids, means = pieces.single_pieces, pieces.average_weights(means)
                leaves_out = bridge.mode == "mean" and bool((pieces.empty & ~pieces.control).any())
                self.pieces = pieces if bridge.mode == "expand" or leaves_out else None
            # Weight of each token, None where all weigh 1; one product takes expectations of all columns.
            self.weights, self.columns = None, self.table
            if self.table.data_ptr() != self.encoder_table.data_ptr() or not weights.is_uniform:
                self.weights = means[: len(self.table)].to(torch.promote_types(torch.float32, self.table.dtype))
                self.columns = torch.cat([self.table, self.weights[:, None].to(self.table.dtype)], dim=1)
            # Embeddings, (special, width), and weights of the encoder's special tokens around a text.
            numbers = constant([*before, *after], device)
            dtype = torch.promote_types(torch.float32, self.table.dtype)
            self.special = self.encoder_table[numbers], self.encoder_weights[numbers].to(dtype)
            # Whether a token is not a control token, and whether it ends a text; the last row is that of ids outside.
            kinds = torch.tensor([[True, False]], device="cpu").repeat(len(self.table) + 1, 1)
            for kind, ids in enumerate((tokens.control_ids, tokens.end_ids)):
                kinds[[token for token in ids if token < len(self.table)], kind] = kind == 1
            self.kinds = kinds.to(device)

    def require_size(self, size: int, subject: str) -> int:
        """Return how many outputs are tokens; with a bridge, output layers may be padded beyond the tokenizer."""
        expected = len(self.table)
        if size == expected or (size > expected and self.bridge is not None):
            return expected
        if self.bridge is None:
            raise ValueError(
                f"{subject} a vocabulary of {size} but the encoder {self.encoder.name!r} has one of {expected}: pass "
                f"the generator's tokenizer as tokenizer="
            )
        raise ValueError(f"{subject} a vocabulary of {size}, the generator's tokenizer has {expected} tokens")


@dataclass(frozen=True)
class SoftTokens:
    """Texts as input embeddings, without the special tokens around them."""

    embeddings: Tensor  # (batch, positions, width)
    content: Tensor  # positions that belong to the text, anywhere in a row, (batch, positions), bool
    weights: Tensor | None = None  # token weight of each position, 1 by default, (batch, positions)


def predict_from_logits(
    logits: Tensor, content: Tensor, vocabulary: GeneratorVocabulary, relaxation: Relaxation, temperature: float
) -> SoftTokens:
    """Return expectations under relaxed logits as soft tokens, arbitrary and without gradient outside the content."""
    if relaxation is softmax_relaxation and is_eager():
        indices = _needed_positions(content)
        expected = softmax_expectation(logits, vocabulary.columns, temperature, vocabulary.control_ids, indices)
        tokens = _as_soft_tokens(expected, indices, content, vocabulary)
    else:
        # A model may compute anything elsewhere, such as NaN in padding, whose gradient would be NaN too.
        p = relaxation(logits.masked_fill(~content[..., None], 0.0), temperature, vocabulary.control_ids)
        weights = None if vocabulary.weights is None else p.detach() @ vocabulary.weights.to(p.dtype)
        tokens = SoftTokens(expected_embedding(p, vocabulary.table), content, weights)
    return _expand_likeliest(tokens, vocabulary, logits, lambda rows: rows)


def predict_from_hidden(
    hidden: Tensor,  # (batch, positions, features)
    content: Tensor,  # (batch, positions), as labels
    vocabulary: GeneratorVocabulary,
    layer: OutputLayer,
    temperature: float,
    *,
    labels: Tensor | None = None,
    ignore_index: int = -100,
) -> tuple[SoftTokens, Tensor | None]:
    """Return expectations as :func:`predict_from_logits`, and the cross-entropy of labels, but never all logits."""
    needed = content if labels is None else content | (labels != ignore_index)
    indices = _needed_positions(needed)
    if indices is None:
        rows = hidden if is_eager() else hidden.masked_fill(~needed[..., None], 0.0)
    else:
        rows = hidden.flatten(0, 1).index_select(0, indices)  # (needed, features)
        labels = None if labels is None else labels.flatten().index_select(0, indices)
    if layer.scale != 1:
        rows = rows * layer.scale
    weight, bias, columns, excluded = layer.weight, layer.bias, vocabulary.columns, [*vocabulary.control_ids]
    size = len(columns)
    if labels is None and size < len(weight):
        weight, bias = weight[:size], None if bias is None else bias[:size]
    elif size < len(weight):
        # Outputs beyond the tokens take part in the cross-entropy, as in that of the logits.
        columns = nn.functional.pad(columns, (0, 0, 0, len(weight) - size))
        excluded += range(size, len(weight))
    result = linear_expected_embedding(
        rows,
        weight,
        columns,
        labels,
        linear_bias=bias,
        temperature=temperature,
        excluded_ids=excluded,
        ignore_index=ignore_index,
    )
    expected, cross_entropy = result if isinstance(result, tuple) else (result, None)
    tokens = _as_soft_tokens(expected.flatten(0, -2), indices, content, vocabulary)
    return _expand_likeliest(tokens, vocabulary, hidden, lambda rows: layer.logits(rows, size)), cross_entropy


def _expand_likeliest(
    tokens: SoftTokens, vocabulary: GeneratorVocabulary, predictions: Tensor, to_logits: Callable[[Tensor], Tensor]
) -> SoftTokens:
    """Expand positions to the pieces of their likeliest tokens, or leave them out, with few logits at a time."""
    if vocabulary.pieces is None:
        return tokens
    likeliest = torch.zeros_like(tokens.content, dtype=torch.long)
    with torch.no_grad():
        for indices in torch.split(tokens.content.flatten().nonzero().squeeze(1), _POSITIONS_PER_STEP):
            logits = to_logits(predictions.flatten(0, 1)[indices])  # (indices, vocabulary)
            likeliest.view(-1)[indices] = mask_excluded(logits, vocabulary.control_ids).argmax(-1)
    return expand_to_pieces(tokens, likeliest, vocabulary)


def expand_to_pieces(tokens: SoftTokens, likeliest: Tensor, vocabulary: GeneratorVocabulary) -> SoftTokens:
    """Return one position per piece of the likeliest token at each position in the mode ``"expand"``.

    In the mode ``"mean"`` positions without a piece are left out.
    """
    pieces, bridge = vocabulary.pieces, vocabulary.bridge
    if pieces is None or bridge is None or not likeliest.numel():
        return tokens
    if bridge.mode == "mean":
        return replace(tokens, content=tokens.content & ~pieces.empty[likeliest])
    ids, position, content = bridge.find_pieces(likeliest, tokens.content, pieces)
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


def _as_soft_tokens(
    expected: Tensor, indices: Tensor | None, content: Tensor, vocabulary: GeneratorVocabulary
) -> SoftTokens:
    """Put expected columns, shape (needed, columns), into their places, and split them into embeddings and weights."""
    if indices is not None:
        expected = expected.new_zeros(content.numel(), expected.shape[1]).index_copy(0, indices, expected)
    expected = expected.view(*content.shape, expected.shape[1])  # (batch, positions, columns)
    if vocabulary.weights is None:
        return SoftTokens(expected, content)
    return SoftTokens(expected[..., :-1], content, expected[..., -1].detach())


@dataclass(frozen=True)
class EncodedTokens:
    """Encoded candidates or references of a batch."""

    vectors: Tensor  # unit vectors, (batch, tokens, width)
    mass: TokenMass  # tokens that can be matched, special ones included unless the encoder excludes them
    has_content: Tensor  # rows with a content token, (batch,), bool

    def select(self, rows: Tensor) -> EncodedTokens:
        """Return some rows, which may repeat, by their indices."""
        mass = TokenMass(self.mass.mask[rows], self.mass.weights[rows])
        return EncodedTokens(self.vectors[rows], mass, self.has_content[rows])


@dataclass(frozen=True)
class Placement:
    """Where the encoder finds content, moved to the left, and its special tokens around it."""

    order: Tensor  # each token's index among the special tokens before a text, all positions, and those after it
    keys: Tensor  # tokens that are not padding, (batch, tokens), bool, as the order
    mass: TokenMass  # tokens that can be matched, and their weights if each token of a text weighs 1
    has_content: Tensor  # rows with a content token, (batch,), bool


def place_content(content: Tensor, vocabulary: GeneratorVocabulary) -> Placement:
    """Place positions with content, shape (batch, positions), bool; a ValueError if a row is too long."""
    tokenizer = vocabulary.encoder.tokenizer
    sizes = len(tokenizer.special_affixes[0]), len(tokenizer.special_affixes[1])
    is_token = nn.functional.pad(content, sizes, value=True)  # (batch, positions + special)
    # Content moves to the left, over holes and left padding. As numbers, since not every device sorts bool.
    keys, order = is_token.view(torch.uint8).sort(dim=1, descending=True, stable=True)
    limit = tokenizer.max_length
    # On an accelerator, the longest row is waited for only if it may be too long.
    if (content.device.type == "cpu" and is_eager()) or (limit is not None and keys.shape[1] > limit):
        longest = int(content.sum(1).max())
        most = longest if limit is None else limit - sum(sizes)
        if longest > most:
            raise ValueError(
                f"a row has {longest} tokens, but the encoder {vocabulary.encoder.name!r} takes {most} and its special "
                f"tokens: tokenize the labels with truncation=True and max_length={most} (with texts as target, end "
                f"the mask there)"
            )
        keys, order = (values[:, : max(longest + sum(sizes), 1)] for values in (keys, order))
    # A cast of bits, keys.view(torch.bool), fails in compiled code.
    keys = keys != 0  # (batch, tokens)
    special = vocabulary.special[1]  # (special,)
    weights = _surround(content.to(special.dtype), special, sizes[0]).gather(1, order)  # (batch, tokens)
    if not tokenizer.exclude_special_tokens:
        return Placement(order, keys, TokenMass(keys, weights), content.any(1))
    can_match = nn.functional.pad(content, sizes).gather(1, order)
    return Placement(order, keys, TokenMass(can_match, weights * can_match), content.any(1))


def _surround(values: Tensor, special: Tensor, num_before: int) -> Tensor:
    """Put what belongs to special tokens, shape (special, ...), around values, shape (batch, positions, ...)."""
    special = special.expand(len(values), *special.shape)
    return torch.cat([special[:, :num_before], values, special[:, num_before:]], 1)


def encode_soft_tokens(
    tokens: SoftTokens, vocabulary: GeneratorVocabulary, placement: Placement | None = None
) -> EncodedTokens:
    """Encode soft tokens between special tokens, with gradient; texts with the same content share a placement."""
    encoder, num_before = vocabulary.encoder, len(vocabulary.encoder.tokenizer.special_affixes[0])
    placement = placement or place_content(tokens.content, vocabulary)
    order, keys, mass = placement.order, placement.keys, placement.mass
    special, special_weights = vocabulary.special
    # In the encoder's precision from here on.
    rows = _surround(tokens.embeddings.to(special.dtype), special, num_before)  # (batch, positions + special, width)
    rows = rows.gather(1, order[..., None].expand(-1, -1, rows.shape[-1]))  # (batch, tokens, width)
    weights = mass.weights
    if tokens.weights is not None:
        weights = _surround(tokens.weights, special_weights, num_before).gather(1, order) * mass.mask
    if not len(special):
        # Without special tokens a batch may have no token at all, and a model needs one.
        keys = keys | (~keys.any() & (torch.arange(keys.shape[1], device=keys.device) == 0))
    vectors = encode_soft(encoder, rows, keys).squeeze(0)  # (batch, tokens, width)
    weights = weights.to(torch.promote_types(weights.dtype, tokens.embeddings.dtype))
    return EncodedTokens(vectors, TokenMass(mass.mask, weights), placement.has_content)
