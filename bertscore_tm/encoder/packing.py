"""Rows of texts without padding, and attention within each of their texts, which transformers calls by its name."""

import math
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, cached_property, partial
from inspect import signature
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from bertscore_tm.device.memory import send
from bertscore_tm.matching.vectors import Bools, Ints

# Name under which transformers finds our attention.
_NAME = "bertscore_tm_packed"
# Texts of so many tokens do not fill the blocks of torch's kernel.
_SHORT = 128
# Share of padding and number of positions of texts that an accelerator attends in together.
_MOST_PADDING, _MOST_POSITIONS = 0.1, 16_384
UNLIMITED = 2**60
# Groups of at most this part of the positions may have more padding.
_SMALL_GROUP = 16
# Queries for which a model's rule is evaluated at a time.
_ROWS_PER_STEP = 512

# Attends as :func:`dot_product` does, given queries, keys and values, and a mask.
Attention = Callable[..., Tensor]


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


@dataclass(frozen=True, eq=False)
class Group:
    """Neighbouring texts of a row that are computed as one batch, longest text first.

    Args:
        tokens: their tokens' places in the row.
        lengths: tokens per text, shape (texts,).
        longest: number of tokens of the longest text.
        is_padded: whether the texts differ in length.
    """

    tokens: slice
    lengths: Ints
    longest: int
    is_padded: bool

    @cached_property
    def real(self) -> Bools:
        """Which positions of the batch hold a token, shape (texts, longest)."""
        return np.arange(self.longest) < self.lengths[:, None]

    def places(self, device: torch.device) -> Tensor:
        """Return the places of the tokens among all positions of the batch, shape (tokens,)."""
        return send(np.flatnonzero(self.real), device)

    def pad(self, states: Tensor, places: Tensor | None, value: int = 0) -> Tensor:
        """Return the group's part of a row, shape (tokens, ...), as a batch, shape (texts, longest, ...)."""
        states = states[self.tokens]
        if places is not None:
            padded = states.new_full((self.real.size, *states.shape[1:]), value)
            states = padded.index_copy(0, places, states)
        return states.reshape(len(self.lengths), self.longest, *states.shape[1:])


def group_texts(lengths: Ints, padding: float, positions: int, texts: int = UNLIMITED) -> list[Group]:
    """Divide texts, longest first, into groups with at most a share of padding, and at most some positions and texts.

    A group of at most a sixteenth of the positions may have more padding, unless none is allowed.

    Example:
        >>> lengths = np.array([40, 38, 36, 8, 7])
        >>> [group.lengths.tolist() for group in group_texts(lengths, 0.1, 512)]
        [[40, 38, 36], [8, 7]]
        >>> [group.lengths.tolist() for group in group_texts(lengths, 0.1, 8192)]
        [[40, 38, 36, 8, 7]]
    """
    different, counts = np.unique(lengths, return_counts=True)
    small = positions // _SMALL_GROUP if padding else 0
    sizes, real = [0], 0  # texts of each group, and tokens of the last one
    longest = int(different[-1])
    for length, count in zip(different[::-1].tolist(), counts[::-1].tolist(), strict=True):
        while count:
            size = sizes[-1]
            added = min(count, max(positions // longest, 1) - size, texts - size)
            padded = (size + added) * longest
            if size and (added < 1 or (padded > small and real + added * length < (1 - padding) * padded)):
                sizes.append(0)
                longest, real = length, 0
                continue
            sizes[-1] += added
            real += added * length
            count -= added
    groups, done, start = [], 0, 0
    for size in sizes:
        of_group = lengths[done : done + size]
        stop, longest = start + int(of_group.sum()), int(of_group[0])
        groups.append(Group(slice(start, stop), of_group, longest, longest > int(of_group[-1])))
        done, start = done + size, stop
    return groups


@dataclass(frozen=True)
class Pattern:
    """What a token of a packed text attends to: the tokens before and after it in a window, or those of a rule.

    A number of the window is -1 for all; the rule is a function of batch, head, query and key, as of transformers.
    """

    window: tuple[int, int] | None
    rule: Any

    def mask(self, length: int) -> Tensor:
        """Return which pairs of tokens of a text attend, shape (tokens, tokens), on the CPU."""
        steps = torch.arange(length, device="cpu")
        if self.window is None:
            return _evaluate(self.rule, steps, steps)
        before, after = (size if size >= 0 else length for size in self.window)
        distance = steps[:, None] - steps
        return (distance <= before) & (distance >= -after)


# By the rule of a model and a length; to look at all pairs of tokens of a long text takes a second.
_windows: dict[Hashable, tuple[int, int] | None] = {}


class Row:
    """Texts whose tokens follow each other, longest text first, and what several layers need to know of them."""

    def __init__(self, lengths: Ints, device: torch.device, *, has_kernel: bool = False) -> None:
        self.lengths, self.longest, self.device, self.has_kernel = lengths, int(lengths[0]), device, has_kernel
        self._places: list[Tensor | None] = []
        self._masks: dict[tuple[Group, Pattern | None], Tensor] = {}

    @cached_property
    def groups(self) -> list[Group]:
        """Texts that attend in one step: of equal lengths on a CPU, of like ones on an accelerator."""
        limits = (0.0, UNLIMITED) if self.device.type == "cpu" else (_MOST_PADDING, _MOST_POSITIONS)
        return group_texts(self.lengths, *limits)

    @cached_property
    def ends(self) -> Tensor:
        """Where texts start and end in the row, shape (texts + 1,), as torch's kernel takes it."""
        return send(np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32), self.device)

    def attend(
        self,
        states: Sequence[Tensor],
        bias: Tensor | None = None,
        attention: Attention = dot_product,
        pattern: Pattern | None = None,
    ) -> Tensor:
        """Attend within each text, in one step per group.

        Takes queries, keys and values, shape (tokens, heads, size) each, and a pattern, or a bias of the scores of the
        longest text, shape (..., longest, longest), whose corner is that of a shorter one.
        """
        parts = []
        self._places = self._places or [group.places(self.device) if group.is_padded else None for group in self.groups]
        for group, places in zip(self.groups, self._places, strict=True):
            batch = [group.pad(state, places).transpose(1, 2) for state in states]  # (texts, heads, longest, size) each
            # Without padding, torch needs no mask to attend to what precedes a token.
            is_causal = pattern is not None and pattern.window == (-1, 0) and places is None
            is_full = pattern is None or pattern.window == (-1, -1)
            needs_mask = places is not None or not (is_full or is_causal)
            mask = self._mask(group, None if is_full else pattern) if needs_mask else None
            if bias is not None:
                corner = bias[..., : group.longest, : group.longest]
                mask = corner if mask is None else corner.masked_fill(~mask, -math.inf)
            attended = attention(batch, mask, **({"is_causal": True} if is_causal else {}))
            attended = attended.transpose(1, 2).flatten(0, 1)  # (positions, heads, size)
            parts.append(attended if places is None else attended.index_select(0, places))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _mask(self, group: Group, pattern: Pattern | None) -> Tensor:
        """Return which pairs of tokens of a group attend, shape (texts or 1, 1, longest, longest)."""
        if (group, pattern) not in self._masks:
            allowed = torch.ones((), dtype=torch.bool, device=self.device)
            if pattern is not None:
                allowed = send(pattern.mask(group.longest), self.device)[None, None]
            if group.is_padded:
                real = send(group.real, self.device)
                # Padding attends to all, as a softmax over nothing is NaN.
                allowed = (allowed & real[:, None, None, :]) | ~real[:, None, :, None]
            self._masks[group, pattern] = allowed
        return self._masks[group, pattern]


# The packed row that a model runs on, if it does.
row: ContextVar[Row | None] = ContextVar("row", default=None)


def current_row() -> Row | None:
    """Return the packed row that a model runs on, if it does."""
    return None if torch.compiler.is_compiling() else row.get()


def switch_torch_attention(model: nn.Module, *, packed: bool) -> None:
    """Let a model that calls torch's attention call ours, or torch's again."""
    if packed:
        register_attention()
        before, after = "sdpa", _NAME
    else:
        before, after = _NAME, "sdpa"
    for config in _configs(model):
        if getattr(config, "_attn_implementation", None) == before:
            config._attn_implementation = after


def calls_packed_attention(model: nn.Module) -> bool:
    """Return whether a model, or a part of it, calls our attention."""
    return any(getattr(config, "_attn_implementation", None) == _NAME for config in _configs(model))


def _configs(model: nn.Module) -> list[Any]:
    """Return the configurations of a model and its parts."""
    return [module.config for module in model.modules() if hasattr(module, "config")]


@cache
def register_attention() -> None:
    """Let transformers find our attention by its name, which the configuration of a model with packed texts holds."""
    # Slow to import; already imported once a model is loaded.
    from transformers import AttentionInterface, AttentionMaskInterface, masking_utils

    AttentionInterface.register(_NAME, _attend)
    # Not imported where it is traced, which torch before 2.13 cannot.
    AttentionMaskInterface.register(_NAME, partial(_make_pattern, masking_utils))


def _make_pattern(masking_utils: Any, **arguments: Any) -> Any:
    """Return the attention mask of transformers, or the pattern of the texts in a packed row."""
    current = current_row()
    if current is None:
        on_cpu, real = torch.device(arguments["device"]).type == "cpu", arguments["attention_mask"]
        attends_to_all = arguments["mask_function"] is getattr(masking_utils, "bidirectional_mask_function", None)
        if attends_to_all and not on_cpu and real is not None:
            return real.bool()[:, None, None, :].expand(-1, -1, real.shape[1], -1)
        # To see whether a mask has padding, an accelerator would have to be waited for.
        skips = ("allow_is_causal_skip", "allow_is_bidirectional_skip")
        return masking_utils.sdpa_mask(**arguments if on_cpu else arguments | dict.fromkeys(skips, False))
    longest, rule = current.longest, arguments["mask_function"]
    length = 1 << (longest - 1).bit_length()  # so that few lengths are evaluated
    key = _describe_rule(rule), length
    window = _windows[key] if key in _windows else _find_window(rule, length)
    if None not in key:
        _windows[key] = window
    if window is not None:  # one as wide as the texts are long is none
        before, after = (-1 if size >= longest - 1 else size for size in window)
        window = before, after
    return Pattern(window, rule)


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


def _find_window(rule: Any, length: int) -> tuple[int, int] | None:
    """Return how many tokens before and after one the rule of a model allows, if that is all it says."""
    steps = torch.arange(length, device="cpu")
    before, after = (int(_evaluate(rule, steps[row : row + 1], steps).sum()) - 1 for row in (length - 1, 0))
    for rows in torch.split(steps, _ROWS_PER_STEP):
        distance = rows[:, None] - steps
        if not torch.equal(_evaluate(rule, rows, steps), (distance <= before) & (distance >= -after)):
            return None
    return before, after


def _evaluate(rule: Any, queries: Tensor, keys: Tensor) -> Tensor:
    """Return which keys each query of a text attends to by a rule, shape (queries, keys)."""
    zero = torch.zeros((), dtype=torch.long, device="cpu")
    allowed: Tensor = rule(zero, zero, queries[:, None], keys[None, :])
    return allowed.expand(len(queries), len(keys))


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, None]:
    """Attend within each text of a packed row; as torch's attention does outside such rows."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    current = current_row()
    if current is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    has_extras = any(options.get(name) is not None for name in ("position_bias", "softcap", "s_aux"))
    if has_extras or not isinstance(attention_mask, Pattern):
        raise NotImplementedError(f"{type(module).__name__} cannot attend within packed texts")
    scale, window = options.get("scaling"), attention_mask.window
    states = [state[0].transpose(0, 1) for state in (query, key, value)]  # (tokens, heads, size) each
    attended = _attend_by_kernel(states, current, scale, window) if current.has_kernel else None
    if attended is None:
        attended = current.attend(states, attention=partial(dot_product, scale=scale), pattern=attention_mask)
    return attended[None], None


def has_attention_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Check whether torch has a kernel for texts of different lengths, which may still refuse a model's heads."""
    if device.type != "cuda" or dtype == torch.float32 or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    return _find_kernel() is not None


@cache
def _find_kernel() -> Callable[..., Any] | None:
    """Return torch's attention within texts of different lengths, which torch has from 2.10 on, or ``None``."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return cast(Callable[..., Any], varlen_attn)


def _attend_by_kernel(
    states: Sequence[Tensor], current: Row, scale: float | None, window: tuple[int, int] | None
) -> Tensor | None:
    """Attend by torch's kernel for texts of different lengths, unless its version does not take the window."""
    kernel: Any = _find_kernel()
    accepted = signature(kernel).parameters
    takes_window = "window_size" in accepted  # torch 2.11
    if window is None or not (takes_window or window in ((-1, -1), (-1, 0))):
        return None
    arguments: dict[str, Any] = {"window_size": window} if takes_window else {"is_causal": window == (-1, 0)}
    query, key, value = states
    if query.shape[1] != key.shape[1]:
        if "enable_gqa" in accepted:  # torch 2.13
            arguments["enable_gqa"] = True
        else:
            key, value = (state.repeat_interleave(query.shape[1] // key.shape[1], 1) for state in (key, value))
    if scale is not None and "scale" in accepted:
        arguments["scale"] = scale
    elif scale is not None:
        query = query * (scale * math.sqrt(query.shape[-1]))
    batch = [state.contiguous() for state in (query, key, value)]
    ends, longest = current.ends, current.longest
    return cast(Tensor, kernel(*batch, ends, ends, longest, longest, **arguments))
