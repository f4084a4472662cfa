"""Attention with relative positions within the texts of a packed row: DeBERTa, DeBERTa-v2 and v3, MPNet and T5."""

from collections.abc import Sequence
from functools import cache
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor, nn

from bertscore_tm.encoder.packing import (
    Row,
    calls_packed_attention,
    current_row,
    switch_torch_attention,
)


def switch_attention(model: nn.Module, *, packed: bool) -> bool:
    """Let a model attend within the texts of packed rows, or as transformers does; return whether it is packed.

    A model without relative positions calls our attention by its name. One with relative positions gets other classes.
    """
    switch_torch_attention(model, packed=packed)
    for module in model.modules():
        name = type(module).__name__
        if packed and name in _MIXINS and not getattr(module, "talking_head", False):
            cast(Any, module).__class__ = _derive_class(_MIXINS[name], cast(Any, type(module)))
        elif not packed and isinstance(module, _Adapted):
            cast(Any, module).__class__ = module.original
    return is_packed(model)


def is_packed(model: nn.Module) -> bool:
    """Return whether a model attends within the texts of packed rows."""
    return calls_packed_attention(model) or any(isinstance(module, _AttendsInRow) for module in model.modules())


@cache
def _derive_class(mixin: Any, original: Any) -> Any:
    return type(f"Packed{original.__name__}", (mixin, original), {"original": original})


def _create(mixin: Any, original: Any) -> Any:
    derived = _derive_class(mixin, original)
    return derived.__new__(derived)


class _Adapted(nn.Module):
    """A module of transformers whose class was replaced; copies and pickles derive the class again."""

    original: Any

    def __reduce__(self) -> Any:
        return _create, (type(self).__mro__[1], self.original), self.__dict__


class _AttendsInRow(_Adapted):
    def forward(self, hidden_states: Tensor, *arguments: Any, **options: Any) -> Any:
        """Attend within each text of a packed row; outside of one as the original does."""
        row = current_row()
        if row is None:
            return super().forward(hidden_states, *arguments, **options)
        # The places of arguments differ between versions of transformers.
        named = signature(self.original.forward).bind(self, hidden_states, *arguments, **options).arguments
        attend: Any = _ATTENTIONS[self.original.__name__]
        return attend(self, row, hidden_states[0], named.get("position_bias", named.get("rel_embeddings")))


class _SkipsPairs(_Adapted):
    """An encoder that skips the (tokens x tokens) masks and position biases of the original in a packed row.

    MPNet makes a bias for the longest text only.
    """

    def get_attention_mask(self, mask: Tensor) -> Any:
        if current_row() is not None:
            return mask
        return self.original.get_attention_mask(self, mask)

    def get_rel_pos(self, states: Tensor, *arguments: Any) -> Any:
        if current_row() is not None:
            return states
        return self.original.get_rel_pos(self, states, *arguments)

    def compute_position_bias(self, states: Tensor, *arguments: Any) -> Any:
        row = current_row()
        if row is not None:
            states = states[:, : row.longest]
        return self.original.compute_position_bias(self, states, *arguments)


def _split_heads(states: Tensor, heads: int) -> Tensor:
    return states.view(*states.shape[:-1], heads, -1)  # (..., heads, size)


def _mpnet(module: Any, row: Row, hidden: Tensor, position_bias: Tensor) -> tuple[Tensor]:
    states = [_split_heads(project(hidden), module.num_attention_heads) for project in (module.q, module.k, module.v)]
    attended = row.attend(states, bias=position_bias).flatten(1)  # (tokens, width)
    return (module.o(attended)[None],)


def _t5(module: Any, row: Row, hidden: Tensor, position_bias: Tensor | None) -> tuple[Tensor, Tensor, None]:
    if position_bias is None:
        position_bias = module.compute_bias(row.longest, row.longest, device=hidden.device)
    states = [_split_heads(project(hidden), module.n_heads) for project in (module.q, module.k, module.v)]
    attended = row.attend(states, bias=position_bias, scale=1.0).flatten(1)  # (tokens, width)
    return module.o(attended)[None], position_bias, None


def _deberta(module: Any, row: Row, hidden: Tensor, rel_embeddings: Tensor | None) -> tuple[Tensor, None]:
    """Add products with relative positions' vectors to scores (He et al., 2021, https://arxiv.org/abs/2006.03654)."""
    query, key, value = _project_tokens(module, hidden)
    # Compute in float32, because the model does so in every precision.
    sum_of_sizes = torch.tensor(query.shape[-1] * (1.0 + len(module.pos_att_type)), dtype=torch.float32, device="cpu")
    scale = float(sum_of_sizes.sqrt())
    longest = row.longest
    positions: dict[str, Tensor] = {}
    if module.relative_attention and rel_embeddings is not None:
        positions = _project_positions(module, rel_embeddings, longest, scale)

    def attend(batch: Sequence[Tensor], mask: Tensor | None) -> Tensor:
        queries, keys, values = batch
        length = queries.shape[2]
        used = slice(longest - length, longest + length - 1)
        scores = queries @ keys.mT  # (texts, heads, length, length)
        if "c2p" in positions:
            scores += _by_pairs(queries @ positions["c2p"][..., used], length)
        if "p2c" in positions:
            scores += _by_pairs(keys @ positions["p2c"][..., used], length).mT
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return scores.softmax(-1) @ values

    return row.attend([query / scale, key, value], attention=attend).flatten(1)[None], None


def _project_tokens(module: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of DeBERTa's attention, shape (tokens, heads, size) each."""
    heads = module.num_attention_heads
    if not _is_first_version(module):
        query, key, value = (
            _split_heads(project(hidden), heads) for project in (module.query_proj, module.key_proj, module.value_proj)
        )
        return query, key, value
    query, key, value = _split_heads(module.in_proj(hidden), heads).chunk(3, -1)
    query = query + _split_heads(module.q_bias, heads)
    value = value + _split_heads(module.v_bias, heads)
    return query, key, value


def _project_positions(module: Any, rel_embeddings: Tensor, longest: int, scale: float) -> dict[str, Tensor]:
    """Return projected vectors of the distances between tokens, shape (heads, size, distances), by kind of product.

    The kinds are "c2p", products of queries with vectors of positions, and "p2c", those of keys.
    """
    span = getattr(module, "max_relative_positions", 0)
    distances = torch.arange(1 - longest, longest, device=rel_embeddings.device)  # of a key's position from a query's
    if getattr(module, "position_buckets", 0) > 0:
        from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

        distances = make_log_bucket_position(distances, module.position_buckets, span).long()
        span = module.position_buckets
    rows = (distances + span).clamp(0, 2 * span - 1)
    positions = {}
    if "c2p" in module.pos_att_type:
        # Row i of the products with keys' positions begins at the distance of the last token.
        positions["c2p"] = _project_table(module, "c2p", rel_embeddings[rows.flip(0)])
    if "p2c" in module.pos_att_type:
        positions["p2c"] = _project_table(module, "p2c", rel_embeddings[rows]) / scale
    return {kind: projected.permute(1, 2, 0).contiguous() for kind, projected in positions.items()}


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
    """Return products with all distances, shape (..., length, distances), as a view: those of each pair of tokens.

    Row i of the result begins at column ``length - 1 - i``.
    """
    products = products.contiguous()
    strides = [*products.stride()[:-2], products.stride(-2) - 1, 1]
    return products.as_strided(
        [*products.shape[:-1], length], strides, products.storage_offset() + length - 1
    )  # (..., length, length)


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
