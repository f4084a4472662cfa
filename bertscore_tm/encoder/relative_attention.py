"""Attention with relative positions within the texts of a packed row: DeBERTa, DeBERTa-v2 and v3, MPNet and T5."""

from collections.abc import Sequence
from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from bertscore_tm.encoder.packing import (
    Row,
    calls_packed_attention,
    current_row,
    switch_torch_attention,
)


def switch_attention(model: nn.Module, *, packed: bool) -> bool:
    """Switch a model between attention within the texts of packed rows and that of transformers.

    Most models look their attention up by a name, which is changed here. The attention of models with relative
    positions is code of their classes, so their modules get derived classes instead.

    Returns:
        Whether the model attends within the texts of packed rows now.
    """
    switch_torch_attention(model, packed=packed)
    for module in model.modules():
        untyped: Any = module
        if packed:
            mixin = _MIXINS.get(type(module).__name__)
            # "Talking heads" mix the scores of different heads, which the functions of this module do not.
            mixes_heads = getattr(module, "talking_head", False)
            if mixin is not None and not mixes_heads:
                original: Any = type(module)
                untyped.__class__ = _derive_class(mixin, original)
        elif isinstance(module, _Adapted):
            untyped.__class__ = module.original
    return is_packed(model)


def is_packed(model: nn.Module) -> bool:
    """Return whether a model attends within the texts of packed rows."""
    has_derived_classes = any(isinstance(module, _AttendsInRow) for module in model.modules())
    return has_derived_classes or calls_packed_attention(model)


@cache
def _derive_class(mixin: Any, original: Any) -> Any:
    """Return a subclass of a class of transformers whose methods are replaced by those of a mixin."""
    return type(f"Packed{original.__name__}", (mixin, original), {"original": original})


def _create(mixin: Any, original: Any) -> Any:
    """Return an instance of a derived class without calling its constructor, for copies and pickles."""
    derived = _derive_class(mixin, original)
    return derived.__new__(derived)


class _Adapted(nn.Module):
    """A module of transformers whose class was replaced by a derived one.

    Attributes:
        original: the class of transformers.
    """

    original: Any

    def __reduce__(self) -> Any:
        # pickle cannot import a derived class by its name, so it derives the class again.
        mixin = type(self).__mro__[1]
        return _create, (mixin, self.original), self.__dict__


class _AttendsInRow(_Adapted):
    """Attention that is replaced in a packed row."""

    def forward(self, hidden_states: Tensor, *arguments: Any, **options: Any) -> Any:
        """Attend within each text of a packed row; outside of one as the original does."""
        row = current_row()
        if row is None:
            return super().forward(hidden_states, *arguments, **options)
        # Look arguments up by name, because their positions differ between versions of transformers.
        bound = signature(self.original.forward).bind(self, hidden_states, *arguments, **options)
        named = bound.arguments
        # T5 and MPNet have a bias for each pair of positions, DeBERTa has vectors of relative positions.
        relative = named.get("position_bias", named.get("rel_embeddings"))
        attend: Any = _ATTENTIONS[self.original.__name__]
        tokens = hidden_states[0]  # the only row of the batch, (tokens, width)
        return attend(self, row, tokens, relative)


class _SkipsPairs(_Adapted):
    """An encoder that skips the (tokens x tokens) masks and position biases of the original in a packed row.

    MPNet makes a bias for the longest text only.
    """

    def get_attention_mask(self, mask: Tensor) -> Any:
        """Return the mask of the row's tokens unchanged, because our attention needs none for pairs of tokens."""
        if current_row() is not None:
            return mask
        return self.original.get_attention_mask(self, mask)

    def get_rel_pos(self, states: Tensor, *arguments: Any) -> Any:
        """Return any tensor, because our attention computes the relative positions itself."""
        if current_row() is not None:
            return states
        return self.original.get_rel_pos(self, states, *arguments)

    def compute_position_bias(self, states: Tensor, *arguments: Any) -> Any:
        """Return the bias of the row's longest text. The biases of shorter texts are parts of it."""
        row = current_row()
        if row is not None:
            states = states[:, : row.longest]
        return self.original.compute_position_bias(self, states, *arguments)


def _split_heads(states: Tensor, heads: int) -> Tensor:
    """Split the last dimension, shape (..., width), into heads, shape (..., heads, size)."""
    return states.view(*states.shape[:-1], heads, -1)


def _mpnet(module: Any, row: Row, hidden: Tensor, position_bias: Tensor) -> tuple[Tensor]:
    """Attend as MPNet's attention does, with a bias for each pair of positions."""
    heads = module.num_attention_heads
    query = _split_heads(module.q(hidden), heads)  # (tokens, heads, size)
    key = _split_heads(module.k(hidden), heads)
    value = _split_heads(module.v(hidden), heads)
    attended = row.attend([query, key, value], bias=position_bias)  # (tokens, heads, size)
    output = module.o(attended.flatten(1))  # (tokens, width)
    return (output[None],)


def _t5(module: Any, row: Row, hidden: Tensor, position_bias: Tensor | None) -> tuple[Tensor, Tensor, None]:
    """Attend as T5's attention does, with a bias for each pair of positions and without a scale."""
    if position_bias is None:
        # The first layer computes the bias and returns it for the others.
        position_bias = module.compute_bias(row.longest, row.longest, device=hidden.device)
    query = _split_heads(module.q(hidden), module.n_heads)  # (tokens, heads, size)
    key = _split_heads(module.k(hidden), module.n_heads)
    value = _split_heads(module.v(hidden), module.n_heads)
    attended = row.attend([query, key, value], bias=position_bias, scale=1.0)  # (tokens, heads, size)
    output = module.o(attended.flatten(1))  # (tokens, width)
    return output[None], position_bias, None


def _deberta(module: Any, row: Row, hidden: Tensor, rel_embeddings: Tensor | None) -> tuple[Tensor, None]:
    """Attend as DeBERTa's attention does, with scores of contents and of relative positions.

    The score of a query and a key is the sum of up to three products: query and key, query and the vector of the key's
    relative position ("c2p"), key and the vector of the query's relative position ("p2c"); see equation 4 of He et al.,
    DeBERTa (2021), https://arxiv.org/abs/2006.03654.
    """
    query, key, value = _project_tokens(module, hidden)  # (tokens, heads, size) each
    size = query.shape[-1]
    num_products = 1.0 + len(module.pos_att_type)
    # Take the root in float32, because the model does so in every precision.
    scale = float(torch.tensor(size * num_products, dtype=torch.float32, device="cpu").sqrt())
    longest = row.longest
    positions: dict[str, Tensor] = {}
    if module.relative_attention and rel_embeddings is not None:
        positions = _project_positions(module, rel_embeddings, longest, scale)

    def attend(batch: Sequence[Tensor], mask: Tensor | None) -> Tensor:
        queries, keys, values = batch  # (texts, heads, length, size) each
        length = queries.shape[2]
        # The distances from -(length - 1) to length - 1 are the middle of those of the longest text.
        used = slice(longest - length, longest + length - 1)
        scores = queries @ keys.mT  # (texts, heads, length, length)
        if "c2p" in positions:
            by_distance = queries @ positions["c2p"][..., used]  # (texts, heads, length, distances)
            scores += _by_pairs(by_distance, length)
        if "p2c" in positions:
            by_distance = keys @ positions["p2c"][..., used]  # (texts, heads, length, distances)
            scores += _by_pairs(by_distance, length).mT
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return scores.softmax(-1) @ values

    attended = row.attend([query / scale, key, value], attention=attend)  # (tokens, heads, size)
    return attended.flatten(1)[None], None


def _project_tokens(module: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of DeBERTa's attention, shape (tokens, heads, size) each."""
    heads = module.num_attention_heads
    if not _is_first_version(module):
        query = _split_heads(module.query_proj(hidden), heads)
        key = _split_heads(module.key_proj(hidden), heads)
        value = _split_heads(module.value_proj(hidden), heads)
        return query, key, value
    # The first version has one layer for all three, and adds biases to queries and values afterwards.
    query, key, value = _split_heads(module.in_proj(hidden), heads).chunk(3, -1)
    query = query + _split_heads(module.q_bias, heads)
    value = value + _split_heads(module.v_bias, heads)
    return query, key, value


def _project_positions(module: Any, rel_embeddings: Tensor, longest: int, scale: float) -> dict[str, Tensor]:
    """Return the projected vectors of all distances between tokens, shape (heads, size, distances), by kind of product.

    The kinds are "c2p" and "p2c", as in :func:`_deberta`, as far as the model has them.
    """
    span = getattr(module, "max_relative_positions", 0)
    # Distance of a query's position from a key's, from the first query and last key to the last query and first key.
    distances = torch.arange(1 - longest, longest, device=rel_embeddings.device)  # (distances,)
    num_buckets = getattr(module, "position_buckets", 0)
    if num_buckets > 0:
        # Far distances share a vector, in buckets that grow logarithmically.
        from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

        distances = make_log_bucket_position(distances, num_buckets, span).long()
        span = num_buckets
    rows = (distances + span).clamp(0, 2 * span - 1)  # rows of the table of vectors, (distances,)
    projected = {}
    if "c2p" in module.pos_att_type:
        # A row has the products of one query. Reverse the order, because the distance falls from each key to the next.
        projected["c2p"] = _project_table(module, "c2p", rel_embeddings[rows.flip(0)])
    if "p2c" in module.pos_att_type:
        # A row has the products of one key, and the distance rises from each query to the next. Scale these vectors,
        # because keys are not scaled. Queries are, so the vectors of "c2p" need no scale.
        projected["p2c"] = _project_table(module, "p2c", rel_embeddings[rows]) / scale
    positions = {}
    for kind, vectors in projected.items():
        positions[kind] = vectors.permute(1, 2, 0).contiguous()
    return positions


def _project_table(module: Any, kind: str, table: Tensor) -> Tensor:
    """Project vectors of distances by the layer for a kind of product, shape (distances, heads, size)."""
    if _is_first_version(module):
        names = {"c2p": "pos_proj", "p2c": "pos_q_proj"}
    elif module.share_att_key:
        names = {"c2p": "key_proj", "p2c": "query_proj"}
    else:
        names = {"c2p": "pos_key_proj", "p2c": "pos_query_proj"}
    project = getattr(module, names[kind])
    return _split_heads(project(table), module.num_attention_heads)


def _is_first_version(module: Any) -> bool:
    """Return whether a module is of DeBERTa, not of DeBERTa-v2 or v3."""
    return hasattr(module, "in_proj")


def _by_pairs(products: Tensor, length: int) -> Tensor:
    """Select the product of each pair of tokens from products with all distances, as a view.

    Args:
        products: shape (..., length, distances), where there are 2 * length - 1 distances.
        length: number of tokens of a text.

    Returns:
        Shape (..., length, length). Row i of the result starts at column ``length - 1 - i`` of row i of the products.
    """
    products = products.contiguous()
    # To go one row down and one column back is a step of one stride less than to go one row down.
    row_stride = products.stride(-2) - 1
    strides = [*products.stride()[:-2], row_stride, 1]
    shape = [*products.shape[:-1], length]
    return products.as_strided(shape, strides, products.storage_offset() + length - 1)


_ATTENTIONS = {
    "DisentangledSelfAttention": _deberta,
    "MPNetSelfAttention": _mpnet,
    "MT5Attention": _t5,
    "T5Attention": _t5,
}
_MIXINS: dict[str, Any] = {
    **dict.fromkeys(_ATTENTIONS, _AttendsInRow),
    **dict.fromkeys(("DebertaEncoder", "DebertaV2Encoder", "MPNetEncoder"), _SkipsPairs),
}
