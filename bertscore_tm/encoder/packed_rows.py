"""Packed rows of texts, and attention within each of their texts, which transformers calls by its name.

A row has no padding: linear layers, norms and activations run on real tokens only.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from inspect import signature
from itertools import groupby
from typing import Any, cast

import torch
from torch import Tensor, nn

from bertscore_tm.core.memory import send

# Name under which transformers finds our attention.
_NAME = "bertscore_tm_packed"
# Texts of so many tokens do not fill the blocks of torch's kernel.
_SHORT = 128

# Attends as :func:`dot_product` does, given queries, keys and values, and a mask.
Attention = Callable[[Sequence[Tensor], Tensor | None], Tensor]


def dot_product(
    batch: Sequence[Tensor], mask: Tensor | None, *, is_causal: bool = False, scale: float | None = None
) -> Tensor:
    """Attend, given queries, keys and values, shape (texts, heads, length, size), and a mask or bias of the scores."""
    query, key, value = batch
    is_plain = query.shape[1] == key.shape[1] and not is_causal and (mask is None or mask.is_floating_point())
    is_short = query.device.type == "cpu" and query.shape[2] <= _SHORT
    # Plain products are 1.3 to 2 times faster for these, except for the gradient in float32.
    if is_plain and is_short and (query.dtype == torch.bfloat16 or not query.requires_grad):
        query, key, wide = (state.to(torch.promote_types(state.dtype, torch.float32)) for state in batch)
        scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-1, -2)
        return ((scores if mask is None else scores + mask).softmax(-1) @ wide).to(value.dtype)
    return nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )


class Row:
    """Texts whose tokens follow each other, longest text first, and what several layers need to know of them.

    ``group_lengths`` are the different lengths, ``group_sizes`` the tokens of each; ``real`` is which positions of the
    padded texts hold a token, shape (texts, longest), on the CPU. ``pads``: texts are padded inside of attention, which
    then takes one step, unless torch's kernel attends within texts (``has_kernel``).
    """

    def __init__(self, lengths: Sequence[int], device: torch.device, *, has_kernel: bool = False) -> None:
        self.lengths, self.longest = lengths, lengths[0]
        self.device, self.pads, self.has_kernel = device, device.type != "cpu", has_kernel
        groups = {length: sum(texts) for length, texts in groupby(lengths)}
        self.group_lengths, self.group_sizes = [*groups], [*groups.values()]
        ends = torch.tensor(lengths, dtype=torch.long, device="cpu")
        self.real = torch.arange(self.longest, device="cpu") < ends[:, None]  # (texts, longest)
        self._masks: dict[int, Tensor] = {}

    @cached_property
    def places(self) -> Tensor:
        """Places of the tokens among all positions of the padded texts, shape (tokens,)."""
        return send(self.real.flatten().nonzero().squeeze(1), self.device)

    @cached_property
    def ends(self) -> Tensor:
        """Where texts start and end in the row, shape (texts + 1,), as torch's kernel takes it."""
        ends = torch.tensor([0, *self.lengths], dtype=torch.int32, device="cpu")
        return send(ends.cumsum(0, dtype=torch.int32), self.device)

    def pad(self, tokens: Tensor, value: int = 0) -> Tensor:
        """Return the texts as a padded batch, shape (texts, longest, ...)."""
        padded = tokens.new_full((self.real.numel(), *tokens.shape[1:]), value).index_copy(0, self.places, tokens)
        return padded.view(*self.real.shape, *tokens.shape[1:])

    def attend(
        self, states: Sequence[Tensor], mask: Tensor | None = None, attention: Attention = dot_product
    ) -> Tensor:
        """Attend within each text: on a CPU in one step per length, which needs no padding, else padded.

        Takes queries, keys and values, shape (tokens, heads, size) each, and a mask or bias of the longest text or of a
        longer one, shape (..., longest, longest); its corner is that of a shorter text.
        """
        if self.pads:
            return self.attend_padded(states, mask, attention)
        parts = []
        for length, *of_states in zip(
            self.group_lengths, *(torch.split(x, self.group_sizes) for x in states), strict=True
        ):
            batch = [part.reshape(-1, length, *part.shape[1:]).transpose(1, 2) for part in of_states]
            corner = None if mask is None else mask[..., :length, :length]
            attended = attention(batch, corner)  # (texts, heads, length, size)
            parts.append(attended.transpose(1, 2).flatten(0, 1))
        return torch.cat(parts)

    def attend_padded(
        self, states: Sequence[Tensor], mask: Tensor | None = None, attention: Attention = dot_product
    ) -> Tensor:
        """Attend as :meth:`attend`, in one step with padding inside of attention."""
        # Alternating layers have several masks, which the caller keeps.
        if id(mask) not in self._masks:
            real = send(self.real, self.device)
            # Padding attends to all, as a softmax over nothing is NaN.
            allowed = real[:, None, None, :] | ~real[:, None, :, None]  # (texts, 1, longest, longest)
            if mask is not None:
                corner = mask[..., : self.longest, : self.longest]
                is_bias = mask.is_floating_point()
                allowed = corner.masked_fill(~allowed, -math.inf) if is_bias else allowed & corner
            self._masks[id(mask)] = allowed
        batch = [self.pad(state).transpose(1, 2) for state in states]  # (texts, heads, longest, size) each
        return attention(batch, self._masks[id(mask)]).transpose(1, 2).flatten(0, 1).index_select(0, self.places)


# The packed row that a model runs on, if it does.
row: ContextVar[Row | None] = ContextVar("row", default=None)


def current_row() -> Row | None:
    """Return the packed row that a model runs on, if it does."""
    return None if torch.compiler.is_compiling() else row.get()


@dataclass(frozen=True)
class _Pattern:
    """What a token of a packed text attends to.

    The mask is that of a text at least as long as the longest, shape (tokens, tokens); its corner is the mask of a
    shorter one. ``window`` are the tokens before and after one that it attends to, -1 for all, where that is the rule.
    """

    mask: Tensor
    window: tuple[int, int] | None


# By the rule of a model, a length and a device: a mask of all pairs of tokens of a long text takes a second.
_patterns: dict[Hashable, _Pattern] = {}


def switch_attention(model: nn.Module, *, packed: bool) -> bool:
    """Let a model that calls torch's attention call ours, or torch's again; return whether it calls either."""
    register_attention()
    configs: dict[int, Any] = {id(part.config): part.config for part in model.modules() if hasattr(part, "config")}
    switched = [part for part in configs.values() if getattr(part, "_attn_implementation", None) in ("sdpa", _NAME)]
    for config in switched:
        config._attn_implementation = _NAME if packed else "sdpa"
    return bool(switched)


@cache
def register_attention() -> None:
    """Let transformers find our attention by its name, which the configuration of a model with packed texts holds."""
    # Slow to import; already imported once a model is loaded.
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, _make_pattern)


def _make_pattern(**arguments: Any) -> Any:
    """Return the attention mask of transformers, or the pattern of the texts in a packed row."""
    from transformers.masking_utils import sdpa_mask

    current = current_row()
    if current is None:
        # To see whether a mask has padding, an accelerator would have to be waited for.
        skips = ("allow_is_causal_skip", "allow_is_bidirectional_skip")
        on_cpu = torch.device(arguments["device"]).type == "cpu"
        return sdpa_mask(**arguments if on_cpu else arguments | dict.fromkeys(skips, False))
    longest, rule, device = current.longest, arguments["mask_function"], arguments["device"]
    length = 1 << (longest - 1).bit_length()  # so that few lengths are evaluated
    key = _describe_rule(rule), length, str(device)
    pattern = _patterns.get(key) or _find_pattern(rule, length, device)
    if None not in key:
        _patterns[key] = pattern
    if pattern.window is None:
        return pattern
    # A window as wide as the texts are long is none.
    before, after = (-1 if size >= longest - 1 else size for size in pattern.window)
    return replace(pattern, window=(before, after))


def _describe_rule(rule: Any) -> Hashable:
    """Return what tells a function of positions from others: its code and what it captured; ``None`` if unknown."""
    if isinstance(rule, int | float | str):
        return rule
    parts = rule
    code = None
    if not isinstance(rule, tuple | list):
        code = getattr(rule, "__code__", None)
        is_bound = getattr(rule, "__self__", None) is not None
        if code is None or is_bound or rule.__defaults__ or rule.__kwdefaults__:
            return None
        parts = [cell.cell_contents for cell in rule.__closure__ or ()]
    described = tuple(map(_describe_rule, parts))
    return None if None in described else (code, *described)


def _find_pattern(rule: Any, length: int, device: torch.device) -> _Pattern:
    """Evaluate the rule of a model for a text of a length, without padding."""
    steps, zero = torch.arange(length, device="cpu"), torch.zeros((), dtype=torch.long, device="cpu")
    allowed = rule(zero, zero, steps[:, None], steps[None, :]).expand(length, length)
    before, after = int(allowed[-1].sum()) - 1, int(allowed[0].sum()) - 1
    distance = steps[:, None] - steps
    is_window = torch.equal(allowed, (distance <= before) & (distance >= -after))
    # A copy, which is not an inference tensor.
    with torch.inference_mode(False):
        mask = send(torch.empty_like(allowed).copy_(allowed), device)
    return _Pattern(mask, (before, after) if is_window else None)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, None]:
    """Attend within each text of a packed row; as torch's attention does outside such rows."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    current = current_row()
    if current is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    has_extras = any(options.get(name) is not None for name in ("position_bias", "softcap", "s_aux"))
    if has_extras or not isinstance(attention_mask, _Pattern):
        raise NotImplementedError(f"{type(module).__name__} cannot attend within packed texts")
    states = [state[0].transpose(0, 1) for state in (query, key, value)]  # (tokens, heads, size) each
    window, scale = attention_mask.window, options.get("scaling")
    if window is not None and current.has_kernel:
        return _attend_by_kernel(states, current, window, scale)[None], None
    # Without padding, torch needs no mask to attend to what precedes a token.
    is_causal = window == (-1, 0) and not current.pads
    mask = None if is_causal or window == (-1, -1) else attention_mask.mask
    return current.attend(states, mask, partial(dot_product, is_causal=is_causal, scale=scale))[None], None


def has_attention_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Check whether torch has a kernel for texts of different lengths, which may still refuse a model's heads."""
    if device.type != "cuda" or dtype == torch.float32 or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    # torch below 2.10 has no kernel, or one that takes no windows.
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return "window_size" in signature(varlen_attn).parameters


def _attend_by_kernel(states: Sequence[Tensor], current: Row, window: tuple[int, int], scale: float | None) -> Tensor:
    """Attend by torch's kernel for texts of different lengths."""
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = (state.contiguous() for state in states)
    ends, longest, grouped = current.ends, current.longest, query.shape[1] != key.shape[1]
    attended: Any = varlen_attn(
        query, key, value, ends, ends, longest, longest, scale=scale, window_size=window, enable_gqa=grouped
    )
    return cast(Tensor, attended)
