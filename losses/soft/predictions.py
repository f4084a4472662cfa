"""Turn a generator's predictions into soft tokens (input embeddings instead of ids), and encode them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

# Positions per step in the search for the likeliest tokens, so that there are few logits at a time.
_POSITIONS_PER_STEP = 256


class GeneratorVocabulary:
    """Embeddings, weights and pieces of the generator's tokens in the encoder, with or without a bridge, on one device.

    Attributes:
        encoder: the encoder.
        bridge: the bridge, or ``None`` if the generator has the encoder's vocabulary.
        control_ids: tokens that are not content, such as special tokens. They get no probability.
        encoder_weights: weight of each of the encoder's tokens, shape (encoder's vocabulary,).
        encoder_table: the encoder's input embeddings, shape (encoder's vocabulary, width).
        encoder_ids: the encoder's id of each token, shape (vocabulary,); ``None`` if a token has several pieces.
        table: input embedding of each token, shape (vocabulary, width).
        weights: weight of each token, shape (vocabulary,); ``None`` if all weigh 1.
        columns: the table and, if there are weights, a column with them. So one product gives both expectations.
        pieces: pieces of each token, if the bridge changes positions: it expands them to pieces, or leaves out those of
            tokens without a piece. Otherwise ``None``.
        special_embeddings: input embeddings of the special tokens before and after a text, shape (special, width).
        special_weights: weights of these tokens, shape (special,).
        kinds: whether a token is text (not a control token), and whether it ends a text, shape (vocabulary + 1, 2),
            bool. The last row is for ids outside the vocabulary.
    """

    def __init__(
        self, encoder: FrozenEncoder, bridge: VocabularyBridge | None, weights: TokenWeights, device: torch.device
    ) -> None:
        self.encoder = encoder
        self.bridge = bridge
        tokens = encoder.tokenizer if bridge is None else bridge
        self.control_ids = tokens.control_ids
        # The tokenizer caches the special tokens at this first access, because a compiled graph must not call it.
        before, after = encoder.tokenizer.special_affixes
        # Tensors made in inference mode could not be used in training.
        with torch.inference_mode(False), torch.no_grad():
            self.encoder_weights = weights.to(device).table
            self.encoder_table = embedding_table(encoder, device)
            self.table = self.encoder_table
            self.encoder_ids: Tensor | None = torch.arange(len(self.table), device=device)
            self.pieces: PieceTable | None = None
            mean_weights = self.encoder_weights
            if bridge is not None:
                pieces = bridge.pieces.to(device)
                self.table = bridge.embed_tokens(encoder, device)
                self.encoder_ids = pieces.single_pieces
                mean_weights = pieces.average_weights(mean_weights)
                leaves_out = bridge.mode == "mean" and bool((pieces.empty & ~pieces.control).any())
                if bridge.mode == "expand" or leaves_out:
                    self.pieces = pieces
            dtype = torch.promote_types(torch.float32, self.table.dtype)
            self.weights: Tensor | None = None
            self.columns = self.table
            has_own_table = self.table.data_ptr() != self.encoder_table.data_ptr()
            # A table of means has weights even if all of the encoder's tokens weigh 1, because tokens without a piece
            # weigh 0.
            if has_own_table or not weights.is_uniform:
                self.weights = mean_weights[: len(self.table)].to(dtype)
                self.columns = torch.cat([self.table, self.weights[:, None].to(self.table.dtype)], dim=1)
            special_ids = constant([*before, *after], device)
            self.special_embeddings = self.encoder_table[special_ids]
            self.special_weights = self.encoder_weights[special_ids].to(dtype)
            self.kinds = self._find_kinds(tokens.control_ids, tokens.end_ids).to(device)

    def _find_kinds(self, control_ids: Sequence[int], end_ids: Sequence[int]) -> Tensor:
        """Return :attr:`kinds` on the CPU: one table, so that one lookup finds both kinds."""
        size = len(self.table)
        # Ids outside the vocabulary count as text, so that the check of the labels finds them.
        is_text = torch.ones(size + 1, dtype=torch.bool, device="cpu")
        is_text[[i for i in control_ids if i < size]] = False
        is_end = torch.zeros(size + 1, dtype=torch.bool, device="cpu")
        is_end[[i for i in end_ids if i < size]] = True
        return torch.stack([is_text, is_end], dim=1)

    def require_size(self, size: int, subject: str) -> int:
        """Return how many outputs are tokens. With a bridge, output layers may be padded beyond the tokenizer."""
        expected = len(self.table)
        is_padded = size > expected and self.bridge is not None
        if size == expected or is_padded:
            return expected
        if self.bridge is None:
            raise ValueError(
                f"{subject} a vocabulary of {size} but the encoder {self.encoder.name!r} has one of {expected}. Pass "
                f"the generator's tokenizer as tokenizer=."
            )
        raise ValueError(
            f"{subject} a vocabulary of {size}, the generator's tokenizer has {expected} tokens. Pass the tokenizer of "
            f"this generator."
        )


@dataclass(frozen=True)
class SoftTokens:
    """Texts as input embeddings, without the special tokens around them."""

    embeddings: Tensor  # (batch, positions, width)
    content: Tensor  # positions that belong to the text, anywhere in a row, (batch, positions), bool
    weights: Tensor | None = None  # token weight of each position, None if all weigh 1, (batch, positions)


def predict_from_logits(
    logits: Tensor, content: Tensor, vocabulary: GeneratorVocabulary, relaxation: Relaxation, temperature: float
) -> SoftTokens:
    """Return the expected embeddings under relaxed logits as soft tokens.

    Positions without content have arbitrary values and no gradient.
    """
    if relaxation is softmax_relaxation and is_eager():
        indices = _needed_positions(content)
        expected = softmax_expectation(logits, vocabulary.columns, temperature, vocabulary.control_ids, indices)
        tokens = _as_soft_tokens(expected, indices, content, vocabulary)
    else:
        # Replace the logits of padding, because NaN there would become NaN in the gradient.
        logits_of_content = logits.masked_fill(~content[..., None], 0.0)
        p = relaxation(logits_of_content, temperature, vocabulary.control_ids)
        weights = None
        if vocabulary.weights is not None:
            weights = p.detach() @ vocabulary.weights.to(p.dtype)
        tokens = SoftTokens(expected_embedding(p, vocabulary.table), content, weights)
    return _expand_likeliest(tokens, vocabulary, logits, to_logits=lambda rows: rows)


def predict_from_hidden(
    hidden: Tensor,  # (batch, positions, features)
    content: Tensor,  # (batch, positions), bool
    vocabulary: GeneratorVocabulary,
    layer: OutputLayer,
    temperature: float,
    *,
    labels: Tensor | None = None,  # (batch, positions)
    ignore_index: int = -100,
) -> tuple[SoftTokens, Tensor | None]:
    """Return soft tokens like :func:`predict_from_logits`, and the cross-entropy of labels, without all logits."""
    needed = content
    if labels is not None:
        needed = content | (labels != ignore_index)
    indices = _needed_positions(needed)
    if indices is not None:
        rows = hidden.flatten(0, 1).index_select(0, indices)  # (needed, features)
        if labels is not None:
            labels = labels.flatten().index_select(0, indices)
    elif is_eager():
        rows = hidden
    else:
        rows = hidden.masked_fill(~needed[..., None], 0.0)
    if layer.scale != 1:
        rows = rows * layer.scale
    weight = layer.weight
    bias = layer.bias
    columns = vocabulary.columns
    excluded = [*vocabulary.control_ids]
    vocab_size = len(columns)
    num_padding = len(weight) - vocab_size  # outputs that are not tokens
    if num_padding > 0 and labels is None:
        weight = weight[:vocab_size]
        if bias is not None:
            bias = bias[:vocab_size]
    elif num_padding > 0:
        # Keep these outputs, because the cross-entropy of the logits includes them.
        columns = nn.functional.pad(columns, (0, 0, 0, num_padding))
        excluded += range(vocab_size, len(weight))
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
    if isinstance(result, tuple):
        expected, cross_entropy = result
    else:
        expected = result
        cross_entropy = None
    tokens = _as_soft_tokens(expected.flatten(0, -2), indices, content, vocabulary)
    tokens = _expand_likeliest(tokens, vocabulary, hidden, to_logits=lambda rows: layer.logits(rows, vocab_size))
    return tokens, cross_entropy


def _expand_likeliest(
    tokens: SoftTokens, vocabulary: GeneratorVocabulary, predictions: Tensor, to_logits: Callable[[Tensor], Tensor]
) -> SoftTokens:
    """Find the likeliest token of each position, and apply :func:`expand_to_pieces` to the soft tokens."""
    if vocabulary.pieces is None:
        return tokens
    likeliest = torch.zeros_like(tokens.content, dtype=torch.long)  # (batch, positions)
    content_indices = tokens.content.flatten().nonzero().squeeze(1)
    with torch.no_grad():
        for indices in torch.split(content_indices, _POSITIONS_PER_STEP):
            logits = to_logits(predictions.flatten(0, 1)[indices])  # (indices, vocabulary)
            likeliest.view(-1)[indices] = mask_excluded(logits, vocabulary.control_ids).argmax(-1)
    return expand_to_pieces(tokens, likeliest, vocabulary)


def expand_to_pieces(tokens: SoftTokens, likeliest: Tensor, vocabulary: GeneratorVocabulary) -> SoftTokens:
    """Apply the bridge's mode to the positions of soft tokens.

    In the mode ``"expand"`` each position becomes one position per piece of its likeliest token, with the equation
    in :class:`VocabularyBridge`. In the mode ``"mean"`` positions whose likeliest token has no piece are left out.

    Args:
        tokens: soft tokens of the generator's vocabulary.
        likeliest: likeliest token of each position, shape (batch, positions).
        vocabulary: the generator's vocabulary.
    """
    pieces = vocabulary.pieces
    bridge = vocabulary.bridge
    if pieces is None or bridge is None or likeliest.numel() == 0:
        return tokens
    if bridge.mode == "mean":
        return replace(tokens, content=tokens.content & ~pieces.empty[likeliest])
    ids, position, content = bridge.find_pieces(likeliest, tokens.content, pieces)  # (batch, pieces) each
    token = likeliest.gather(1, position)  # (batch, pieces)
    dtype = tokens.embeddings.dtype
    correction = vocabulary.encoder_table[ids].to(dtype) - vocabulary.table[token].to(dtype)  # (batch, pieces, width)
    expanded = tokens.embeddings.gather(1, position[..., None].expand_as(correction)) + correction
    weights = vocabulary.encoder_weights[ids]  # (batch, pieces)
    if tokens.weights is not None:
        # Correct the weights like the embeddings.
        expected_weights = tokens.weights.gather(1, position)
        mean_weights = pieces.average_weights(vocabulary.encoder_weights)[token]
        surplus = expected_weights - mean_weights  # (batch, pieces)
        weights = (weights + surplus).clamp(min=0)
    return SoftTokens(expanded, content, weights.to(dtype))


def _needed_positions(content: Tensor) -> Tensor | None:
    """Return the indices of the flattened positions with content, or ``None`` to compute all positions."""
    # Compute all in a compiled graph, because the number of positions with content depends on the data.
    if not is_eager():
        return None
    indices = content.flatten().nonzero().squeeze(1)
    if len(indices) == content.numel():
        return None
    return indices


def _as_soft_tokens(
    expected: Tensor, indices: Tensor | None, content: Tensor, vocabulary: GeneratorVocabulary
) -> SoftTokens:
    """Put expected columns, shape (needed, columns), at their positions, and split them into embeddings and weights."""
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
    mass: TokenMass  # tokens that can be matched; special tokens are among them unless the encoder excludes them
    has_content: Tensor  # rows with a content token, (batch,), bool

    def select(self, rows: Tensor) -> EncodedTokens:
        """Return the rows with the given indices, which may repeat."""
        mass = TokenMass(self.mass.mask[rows], self.mass.weights[rows])
        return EncodedTokens(self.vectors[rows], mass, self.has_content[rows])


@dataclass(frozen=True)
class Placement:
    """Order of the encoder's input: special tokens, content without holes, special tokens, then padding."""

    order: Tensor  # index of each token among [special tokens before, all positions, special tokens after]
    keys: Tensor  # tokens that are not padding, (batch, tokens), bool
    mass: TokenMass  # tokens that can be matched, and their weights if each content token weighs 1
    has_content: Tensor  # rows with a content token, (batch,), bool


def place_content(content: Tensor, vocabulary: GeneratorVocabulary) -> Placement:
    """Return where the encoder finds positions with content, shape (batch, positions), bool.

    Raises a ValueError if a row is too long for the encoder.
    """
    tokenizer = vocabulary.encoder.tokenizer
    before, after = tokenizer.special_affixes
    num_special = len(before) + len(after)
    is_token = nn.functional.pad(content, (len(before), len(after)), value=True)  # (batch, positions + special)
    # Move content to the left, over holes and left padding. Sort numbers, because not every device sorts bool.
    keys, order = is_token.view(torch.uint8).sort(dim=1, descending=True, stable=True)
    limit = tokenizer.max_length
    may_be_too_long = limit is not None and keys.shape[1] > limit
    # Reading the longest row synchronizes an accelerator and breaks a compiled graph, so do it there only if necessary.
    is_cheap = content.device.type == "cpu" and is_eager()
    if is_cheap or may_be_too_long:
        longest = int(content.sum(1).max())
        if limit is not None and longest > limit - num_special:
            most = limit - num_special
            raise ValueError(
                f"a row has {longest} tokens, but the encoder {vocabulary.encoder.name!r} takes {most} and its special "
                f"tokens. Tokenize the labels with truncation=True and max_length={most}; with texts as target, end "
                f"the mask there."
            )
        num_tokens = max(longest + num_special, 1)
        keys = keys[:, :num_tokens]
        order = order[:, :num_tokens]
    # Compare with 0, because keys.view(torch.bool) fails in compiled code.
    keys = keys != 0  # (batch, tokens)
    special_weights = vocabulary.special_weights
    content_weights = content.to(special_weights.dtype)  # (batch, positions)
    weights = _surround(content_weights, special_weights, len(before)).gather(1, order)  # (batch, tokens)
    if not tokenizer.exclude_special_tokens:
        return Placement(order, keys, TokenMass(keys, weights), content.any(1))
    can_match = nn.functional.pad(content, (len(before), len(after))).gather(1, order)  # (batch, tokens)
    return Placement(order, keys, TokenMass(can_match, weights * can_match), content.any(1))


def _surround(values: Tensor, special: Tensor, num_before: int) -> Tensor:
    """Put values of the special tokens around values of the positions.

    Args:
        values: shape (batch, positions, ...).
        special: shape (special, ...).
        num_before: number of special tokens before a text.

    Returns:
        Shape (batch, positions + special, ...).
    """
    special = special.expand(len(values), *special.shape)
    return torch.cat([special[:, :num_before], values, special[:, num_before:]], 1)


def encode_soft_tokens(
    tokens: SoftTokens, vocabulary: GeneratorVocabulary, placement: Placement | None = None
) -> EncodedTokens:
    """Encode soft tokens between special tokens, with gradient.

    ``placement`` is that of other texts with the same content, which saves computing it again.
    """
    if placement is None:
        placement = place_content(tokens.content, vocabulary)
    order = placement.order  # (batch, tokens)
    keys = placement.keys
    can_match = placement.mass.mask
    weights = placement.mass.weights
    before, _ = vocabulary.encoder.tokenizer.special_affixes
    special = vocabulary.special_embeddings
    # The embeddings are in the encoder's precision from here on.
    rows = _surround(tokens.embeddings.to(special.dtype), special, len(before))  # (batch, positions + special, width)
    rows = rows.gather(1, order[..., None].expand(-1, -1, rows.shape[-1]))  # (batch, tokens, width)
    if tokens.weights is not None:
        weights = _surround(tokens.weights, vocabulary.special_weights, len(before)).gather(1, order) * can_match
    if len(special) == 0:
        # Without special tokens a batch may have no token at all. Let the model see one, because it needs one.
        is_first = torch.arange(keys.shape[1], device=keys.device) == 0
        keys = keys | (~keys.any() & is_first)
    vectors = encode_soft(vocabulary.encoder, rows, keys).squeeze(0)  # (batch, tokens, width)
    weights = weights.to(torch.promote_types(weights.dtype, tokens.embeddings.dtype))
    return EncodedTokens(vectors, TokenMass(can_match, weights), placement.has_content)
