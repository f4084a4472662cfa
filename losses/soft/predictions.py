"""Turn a generator's predictions into soft tokens (input embeddings instead of ids), and encode them."""

from __future__ import annotations

from collections.abc import Sequence
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


@dataclass(frozen=True)
class EncoderTokens:
    """Input embeddings and weights of the encoder's tokens on one device."""

    table: Tensor  # input embedding of each token, (encoder's vocabulary, width)
    weights: Tensor  # weight of each token, (encoder's vocabulary,)
    special_embeddings: Tensor  # of the special tokens before and after a text, (special, width)
    special_weights: Tensor  # (special,), float32 or wider

    @classmethod
    def load(cls, encoder: FrozenEncoder, weights: TokenWeights, device: torch.device) -> EncoderTokens:
        """Return the tokens of an encoder on a device, for which the model is loaded."""
        # The tokenizer caches the special tokens at this first access, because a compiled graph must not call it.
        before, after = encoder.tokenizer.special_affixes
        table = embedding_table(encoder, device)
        token_weights = weights.to(device).table
        special_ids = constant([*before, *after], device)
        special_weights = token_weights[special_ids].to(_weights_dtype(table))
        return cls(table, token_weights, table[special_ids], special_weights)


@dataclass(frozen=True, eq=False)
class GeneratorVocabulary:
    """Embeddings, weights and pieces of the generator's tokens in the encoder, on one device.

    :meth:`of_encoder` is for a generator that has the encoder's vocabulary, :meth:`of_bridge` for any other.

    Args:
        encoder: the encoder.
        encoder_tokens: the encoder's own tokens.
        bridge: the bridge, or ``None`` if the generator has the encoder's vocabulary.
        control_ids: tokens that are not content, such as special tokens. They get no probability.
        kinds: whether a token is text (not a control token), and whether it ends a text, shape (vocabulary + 1, 2),
            bool. The last row is for ids outside the vocabulary.
        table: input embedding of each token, shape (vocabulary, width).
        weights: weight of each token, shape (vocabulary,); ``None`` if all weigh 1.
        columns: the table and, if there are weights, a column with them. So one product gives both expectations.
        encoder_ids: the encoder's id of each token, shape (vocabulary,); ``None`` if a token has several pieces.
        pieces: pieces of each token, if the bridge changes positions: it expands them to pieces, or leaves out those of
            tokens without a piece. Otherwise ``None``.
    """

    encoder: FrozenEncoder
    encoder_tokens: EncoderTokens
    bridge: VocabularyBridge | None
    control_ids: Sequence[int]
    kinds: Tensor
    table: Tensor
    weights: Tensor | None
    columns: Tensor
    encoder_ids: Tensor | None
    pieces: PieceTable | None

    @classmethod
    def of_encoder(cls, encoder: FrozenEncoder, weights: TokenWeights, device: torch.device) -> GeneratorVocabulary:
        """Return the tokens of a generator that has the encoder's vocabulary."""
        tokenizer = encoder.tokenizer
        # Tensors made in inference mode could not be used in training.
        with torch.inference_mode(False), torch.no_grad():
            encoder_tokens = EncoderTokens.load(encoder, weights, device)
            table = encoder_tokens.table
            token_weights = None
            if not weights.is_uniform:
                # Tokens that were added to the tokenizer may have a weight, but no embedding.
                token_weights = encoder_tokens.weights[: len(table)].to(_weights_dtype(table))
            return cls(
                encoder=encoder,
                encoder_tokens=encoder_tokens,
                bridge=None,
                control_ids=tokenizer.control_ids,
                kinds=_find_kinds(len(table), tokenizer.control_ids, tokenizer.end_ids).to(device),
                table=table,
                weights=token_weights,
                columns=_join_columns(table, token_weights),
                encoder_ids=torch.arange(len(table), device=device),
                pieces=None,
            )

    @classmethod
    def of_bridge(
        cls, bridge: VocabularyBridge, encoder: FrozenEncoder, weights: TokenWeights, device: torch.device
    ) -> GeneratorVocabulary:
        """Return the tokens of a generator with another tokenizer, embedded in an encoder by a bridge to its tokens."""
        with torch.inference_mode(False), torch.no_grad():
            encoder_tokens = EncoderTokens.load(encoder, weights, device)
            pieces = bridge.pieces.to(device)
            table = bridge.embed_tokens(encoder_tokens.table)
            has_own_table = table is not encoder_tokens.table
            token_weights = None
            # A table of means has weights even if all of the encoder's tokens weigh 1, because tokens without a piece
            # weigh 0.
            if has_own_table or not weights.is_uniform:
                token_weights = pieces.average_weights(encoder_tokens.weights).to(_weights_dtype(table))
            leaves_positions_out = bridge.mode == "mean" and bool(pieces.pieceless.any())
            used_pieces = None
            if bridge.mode == "expand" or leaves_positions_out:
                used_pieces = pieces
            return cls(
                encoder=encoder,
                encoder_tokens=encoder_tokens,
                bridge=bridge,
                control_ids=bridge.control_ids,
                kinds=_find_kinds(len(table), bridge.control_ids, bridge.end_ids).to(device),
                table=table,
                weights=token_weights,
                columns=_join_columns(table, token_weights),
                encoder_ids=pieces.single_pieces,
                pieces=used_pieces,
            )

    def count_tokens(self, num_outputs: int, owner: str) -> int:
        """Return the number of tokens in the vocabulary, or raise a ValueError if a generator has another vocabulary.

        With a bridge, the generator may have more outputs than tokens, because output layers are often padded to a
        round size. The first outputs are then the tokens.

        Args:
            num_outputs: number of the generator's outputs.
            owner: what has these outputs, for the message: ``"logits"`` or ``"lm_head"``.
        """
        num_tokens = len(self.table)
        has_padded_outputs = num_outputs > num_tokens and self.bridge is not None
        if num_outputs == num_tokens or has_padded_outputs:
            return num_tokens
        if self.bridge is None:
            raise ValueError(
                f"the vocabulary of {owner} has {num_outputs} tokens, that of the encoder {self.encoder.name!r} has "
                f"{num_tokens}. Pass the generator's tokenizer as tokenizer=."
            )
        raise ValueError(
            f"the vocabulary of {owner} has {num_outputs} tokens, that of the generator's tokenizer has {num_tokens}. "
            f"Pass the tokenizer of this generator."
        )


def _weights_dtype(table: Tensor) -> torch.dtype:
    """Return the precision of token weights: float32, because half precision would round them, or wider."""
    return torch.promote_types(torch.float32, table.dtype)


def _join_columns(table: Tensor, weights: Tensor | None) -> Tensor:
    """Return a table of embeddings with the weights, if there are any, as its last column."""
    if weights is None:
        return table
    return torch.cat([table, weights[:, None].to(table.dtype)], dim=1)


def _find_kinds(size: int, control_ids: Sequence[int], end_ids: Sequence[int]) -> Tensor:
    """Return :attr:`GeneratorVocabulary.kinds` on the CPU: one table, so that one lookup finds both kinds."""
    # Ids outside the vocabulary count as text, so that the check of the labels finds them.
    is_text = torch.ones(size + 1, dtype=torch.bool, device="cpu")
    is_text[[i for i in control_ids if i < size]] = False
    is_end = torch.zeros(size + 1, dtype=torch.bool, device="cpu")
    is_end[[i for i in end_ids if i < size]] = True
    return torch.stack([is_text, is_end], dim=1)


@dataclass(frozen=True)
class SoftTokens:
    """Texts as input embeddings, without the special tokens around them."""

    embeddings: Tensor  # (batch, positions, width)
    content: Tensor  # positions that belong to the text, anywhere in a row, (batch, positions), bool
    weights: Tensor | None = None  # token weight of each position, None if all weigh 1, (batch, positions)


@dataclass(frozen=True)
class LogitPredictions:
    """A generator's predictions as logits."""

    values: Tensor  # (batch, positions, vocabulary)
    relaxation: Relaxation
    temperature: float

    def to_logits(self, rows: Tensor) -> Tensor:
        """Return the logits of some rows of the values: the rows themselves."""
        return rows

    def predict(self, content: Tensor, vocabulary: GeneratorVocabulary) -> tuple[SoftTokens, None]:
        """Return the expected embeddings under the relaxed logits as soft tokens. There is no cross-entropy.

        Positions without content have arbitrary values and no gradient.
        """
        if self.relaxation is softmax_relaxation and is_eager():
            indices = _needed_positions(content)
            expected = softmax_expectation(
                self.values, vocabulary.columns, self.temperature, vocabulary.control_ids, indices
            )  # (needed, columns)
            tokens = _as_soft_tokens(expected, indices, content, vocabulary)
        else:
            # Replace the logits of padding, because NaN there would become NaN in the gradient.
            logits_of_content = self.values.masked_fill(~content[..., None], 0.0)
            p = self.relaxation(logits_of_content, self.temperature, vocabulary.control_ids)
            weights = None
            if vocabulary.weights is not None:
                weights = p.detach() @ vocabulary.weights.to(p.dtype)  # (batch, positions)
            tokens = SoftTokens(expected_embedding(p, vocabulary.table), content, weights)
        return _expand_likeliest(tokens, vocabulary, self), None


@dataclass(frozen=True)
class HiddenPredictions:
    """A generator's predictions as last hidden states with the output layer, and labels for the cross-entropy."""

    values: Tensor  # (batch, positions, features)
    layer: OutputLayer
    temperature: float
    num_tokens: int  # number of the layer's outputs that are tokens; they are the first ones, the others are padding
    labels: Tensor | None = None  # (batch, positions), None without cross-entropy
    ignore_index: int = -100

    def to_logits(self, rows: Tensor) -> Tensor:
        """Return the logits of some rows of the hidden states, shape (rows, vocabulary)."""
        return self.layer.logits(rows, self.num_tokens)

    def predict(self, content: Tensor, vocabulary: GeneratorVocabulary) -> tuple[SoftTokens, Tensor | None]:
        """Return soft tokens like :class:`LogitPredictions`, and the cross-entropy of labels, without all logits."""
        labels = self.labels
        needed = content
        if labels is not None:
            needed = content | (labels != self.ignore_index)
        rows = self.values
        indices = _needed_positions(needed)
        if indices is not None:
            rows = rows.flatten(0, 1).index_select(0, indices)  # (needed, features)
            if labels is not None:
                labels = labels.flatten().index_select(0, indices)
        elif not is_eager():
            rows = rows.masked_fill(~needed[..., None], 0.0)
        if self.layer.scale != 1:
            rows = rows * self.layer.scale
        layer = self.layer
        columns = vocabulary.columns
        excluded = [*vocabulary.control_ids]
        num_outputs = len(layer.weight)
        if labels is None:
            layer = layer.first(self.num_tokens)
        elif num_outputs > self.num_tokens:
            # Keep the outputs that are not tokens, because the cross-entropy of the logits includes them.
            columns = nn.functional.pad(columns, (0, 0, 0, num_outputs - self.num_tokens))
            excluded += range(self.num_tokens, num_outputs)
        result = linear_expected_embedding(
            rows,
            layer.weight,
            columns,
            labels,
            linear_bias=layer.bias,
            temperature=self.temperature,
            excluded_ids=excluded,
            ignore_index=self.ignore_index,
        )
        cross_entropy = None
        if isinstance(result, tuple):
            expected, cross_entropy = result
        else:
            expected = result
        tokens = _as_soft_tokens(expected.flatten(0, -2), indices, content, vocabulary)
        return _expand_likeliest(tokens, vocabulary, self), cross_entropy


Predictions = LogitPredictions | HiddenPredictions


def _expand_likeliest(tokens: SoftTokens, vocabulary: GeneratorVocabulary, predictions: Predictions) -> SoftTokens:
    """Find the likeliest token of each position, and apply :func:`expand_to_pieces` to the soft tokens."""
    if vocabulary.pieces is None:
        return tokens
    rows = predictions.values.flatten(0, 1)  # (batch * positions, vocabulary or features)
    # Positions without content keep the token 0. Its value is never used, because expand_to_pieces skips them.
    likeliest = torch.zeros(len(rows), dtype=torch.long, device=rows.device)  # (batch * positions,)
    content_indices = tokens.content.flatten().nonzero().squeeze(1)
    with torch.no_grad():
        for indices in torch.split(content_indices, _POSITIONS_PER_STEP):
            logits = predictions.to_logits(rows[indices])  # (indices, vocabulary)
            likeliest[indices] = mask_excluded(logits, vocabulary.control_ids).argmax(-1)
    return expand_to_pieces(tokens, likeliest.view_as(tokens.content), vocabulary)


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
    encoder_tokens = vocabulary.encoder_tokens
    # Difference between the embedding of a piece and of its token: E_piece - M_token.
    correction = encoder_tokens.table[ids].to(dtype) - vocabulary.table[token].to(dtype)  # (batch, pieces, width)
    expected = tokens.embeddings.gather(1, position[..., None].expand_as(correction))  # (batch, pieces, width)
    weights = encoder_tokens.weights[ids]  # (batch, pieces)
    if tokens.weights is not None:
        # Correct the weights like the embeddings.
        expected_weights = tokens.weights.gather(1, position)
        mean_weights = pieces.average_weights(encoder_tokens.weights)[token]
        surplus = expected_weights - mean_weights  # (batch, pieces)
        weights = (weights + surplus).clamp(min=0)
    return SoftTokens(expected + correction, content, weights.to(dtype))


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
        # Positions without content are 0. They are left out of the encoder's input.
        expected = expected.new_zeros(content.numel(), expected.shape[1]).index_copy(0, indices, expected)
    expected = expected.view(*content.shape, expected.shape[1])  # (batch, positions, columns)
    if vocabulary.weights is None:
        return SoftTokens(expected, content)
    # The weights are constants, because their gradient would reward tokens for their weight and not for their match.
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
    """Order of the encoder's input: special tokens, content without holes, special tokens, then padding.

    For example, a row has the positions ``[a, hole, b, hole]``. Between the special tokens it is ``[cls, a, hole, b,
    hole, sep]``. The order ``[0, 1, 3, 5, 2]`` makes ``[cls, a, b, sep, padding]`` of it, if the longest row of the
    batch has 5 tokens.

    Args:
        order: index of each token of the input in the row between special tokens, shape (batch, tokens).
        is_token: tokens of the input that are not padding, shape (batch, tokens), bool.
        mass: tokens of the input that can be matched, and their weights if each content token weighs 1. Special tokens
            can be matched unless the encoder excludes them.
        has_content: rows with a content token, shape (batch,), bool.
    """

    order: Tensor
    is_token: Tensor
    mass: TokenMass
    has_content: Tensor


def place_content(content: Tensor, vocabulary: GeneratorVocabulary) -> Placement:
    """Return where the encoder finds positions with content, shape (batch, positions), bool.

    Raises a ValueError if a row is too long for the encoder.
    """
    tokenizer = vocabulary.encoder.tokenizer
    before, after = tokenizer.special_affixes
    margins = (len(before), len(after))
    is_used = nn.functional.pad(content, margins, value=True)  # (batch, positions + special)
    # Move the tokens to the left, over holes and left padding. Because the sort is stable, they stay in their order.
    # Sort the numbers 0 and 1, because not every device sorts bool.
    used_first = is_used.view(torch.uint8).sort(dim=1, descending=True, stable=True)
    num_tokens = _count_tokens(content, vocabulary.encoder, num_special=sum(margins))
    order = used_first.indices[:, :num_tokens]  # (batch, tokens)
    # Compare with 0, because view(torch.bool) fails in compiled code.
    is_token = used_first.values[:, :num_tokens] != 0  # (batch, tokens)
    special_weights = vocabulary.encoder_tokens.special_weights
    content_weights = content.to(special_weights.dtype)  # (batch, positions)
    weights = _surround_and_order(content_weights, special_weights, order, len(before))  # (batch, tokens)
    can_match = is_token
    if tokenizer.exclude_special_tokens:
        can_match = nn.functional.pad(content, margins).gather(1, order)  # (batch, tokens)
        weights = weights * can_match
    return Placement(order, is_token, TokenMass(can_match, weights), has_content=content.any(1))


def _count_tokens(content: Tensor, encoder: FrozenEncoder, num_special: int) -> int:
    """Return the number of tokens of the encoder's input per row, special tokens included.

    It is the number of the longest row, or of all positions where reading the longest row would be expensive. Raises
    a ValueError if a row is too long for the encoder.
    """
    num_all = content.shape[1] + num_special
    limit = encoder.tokenizer.max_length
    may_be_too_long = limit is not None and num_all > limit
    # Reading the longest row synchronizes an accelerator and breaks a compiled graph, so do it there only if necessary.
    is_cheap = content.device.type == "cpu" and is_eager()
    if not is_cheap and not may_be_too_long:
        return num_all
    longest = int(content.sum(1).max())
    if limit is not None and longest > limit - num_special:
        most = limit - num_special
        raise ValueError(
            f"a row has {longest} tokens, but the encoder {encoder.name!r} takes {most} and its special tokens. "
            f"Tokenize the labels with truncation=True and max_length={most}; with texts as target, end the mask there."
        )
    # A batch may have no token at all if the encoder has no special tokens, but the model needs a position.
    return max(longest + num_special, 1)


def _surround_and_order(values: Tensor, special: Tensor, order: Tensor, num_before: int) -> Tensor:
    """Put values of the special tokens around values of the positions, and sort both by :attr:`Placement.order`.

    Args:
        values: a number or a vector per position, shape (batch, positions) or (batch, positions, width).
        special: the same for the special tokens, shape (special,) or (special, width).
        order: the order, shape (batch, tokens).
        num_before: number of special tokens before a text. The other ones follow it.

    Returns:
        Shape (batch, tokens) or (batch, tokens, width).
    """
    special = special.expand(len(values), *special.shape)  # (batch, special) or (batch, special, width)
    # Shape (batch, positions + special), or with vectors (batch, positions + special, width).
    surrounded = torch.cat([special[:, :num_before], values, special[:, num_before:]], 1)
    if values.ndim == 3:
        # gather needs an index for each number of a vector.
        order = order[..., None].expand(-1, -1, values.shape[-1])  # (batch, tokens, width)
    return surrounded.gather(1, order)


def encode_soft_tokens(
    tokens: SoftTokens, vocabulary: GeneratorVocabulary, placement: Placement | None = None
) -> EncodedTokens:
    """Encode soft tokens between special tokens, with gradient.

    Args:
        tokens: the soft tokens.
        vocabulary: the generator's vocabulary.
        placement: the placement of their content, if other texts with the same content have it already. Default: it is
            computed.
    """
    if placement is None:
        placement = place_content(tokens.content, vocabulary)
    order = placement.order
    can_match = placement.mass.mask  # (batch, tokens)
    weights = placement.mass.weights  # (batch, tokens)
    before, _ = vocabulary.encoder.tokenizer.special_affixes
    special_embeddings = vocabulary.encoder_tokens.special_embeddings  # (special, width), in the encoder's precision
    embeddings = tokens.embeddings.to(special_embeddings.dtype)  # (batch, positions, width)
    inputs = _surround_and_order(embeddings, special_embeddings, order, len(before))  # (batch, tokens, width)
    if tokens.weights is not None:
        special_weights = vocabulary.encoder_tokens.special_weights
        all_weights = _surround_and_order(tokens.weights, special_weights, order, len(before))  # (batch, tokens)
        # Padding and excluded special tokens weigh 0.
        weights = all_weights * can_match
    is_token = placement.is_token
    if len(special_embeddings) == 0:
        # Without special tokens a batch may have no token. Unmask the first position then, because the model needs one.
        is_first = torch.arange(is_token.shape[1], device=is_token.device) == 0
        is_token = is_token | (~is_token.any() & is_first)
    vectors = encode_soft(vocabulary.encoder, inputs, is_token)  # (1, batch, tokens, width), of the encoder's one layer
    # The weights determine the precision of the scores: float64 for float64 predictions, else float32.
    weights = weights.to(torch.promote_types(weights.dtype, tokens.embeddings.dtype))
    return EncodedTokens(vectors.squeeze(0), TokenMass(can_match, weights), placement.has_content)
