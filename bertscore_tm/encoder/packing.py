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
_MOST_PADDING = 0.1
_MOST_POSITIONS = 16_384
UNLIMITED = 2**60
# Groups of at most this part of the positions may have more padding.
_SMALL_GROUP = 16
# Queries for which a mask function is evaluated at a time.
_ROWS_PER_STEP = 512

# Tokens that a token attends to: how many before it and how many after it, -1 for all.
Window = tuple[int, int]
_ALL = (-1, -1)
_CAUSAL = (-1, 0)
# Attends as :func:`dot_product` does, given queries, keys and values, and a mask.
Attention = Callable[..., Tensor]


def dot_product(
    batch: Sequence[Tensor], mask: Tensor | None, *, is_causal: bool = False, scale: float | None = None
) -> Tensor:
    """Attend, given queries, keys and values, shape (texts, heads, length, size), and a mask or bias of the scores."""
    query, key, value = batch
    dtype = value.dtype
    has_equal_heads = query.shape[1] == key.shape[1]
    # The plain products below can add a bias to the scores, but know neither bool masks nor causal ones.
    has_bool_mask = mask is not None and not mask.is_floating_point()
    needs_torch = is_causal or has_bool_mask or not has_equal_heads
    is_short = query.device.type == "cpu" and query.shape[2] <= _SHORT
    # If a gradient follows, plain products are faster in bfloat16 only: in float32, torch's own gradient is.
    is_slow_with_gradient = query.requires_grad and query.dtype != torch.bfloat16
    if needs_torch or not is_short or is_slow_with_gradient:
        return nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=not has_equal_heads
        )

    # Plain products are 1.3 to 2 times as fast as torch's function for short texts on a CPU.
    query, key, value = (state.to(torch.promote_types(state.dtype, torch.float32)) for state in batch)
    if scale is None:
        scale = query.shape[-1] ** -0.5
    scores = (query * scale) @ key.transpose(-1, -2)  # (texts, heads, length, length)
    if mask is not None:
        scores = scores + mask
    attended = scores.softmax(-1) @ value  # (texts, heads, length, size)
    # Return the dtype that the values had before they were converted, because torch's function does so.
    return attended.to(dtype)


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
        """Return the places of the tokens among all positions of the flattened batch, shape (tokens,).

        Texts of 3 and 2 tokens are 2 x 3 positions, of which position 5 is padding: the places are 0, 1, 2, 3, 4.
        """
        return send(np.flatnonzero(self.real), device)

    def pad(self, states: Tensor, *, places: Tensor | None, value: int = 0) -> Tensor:
        """Return the group's part of a row, shape (tokens, ...), as a batch, shape (texts, longest, ...).

        Args:
            states: ids or vectors of the whole row.
            places: output of :meth:`places`; ``None`` for a group of texts of equal length, which needs no padding.
            value: what padding holds.
        """
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
    small = 0  # positions up to which a group may have any share of padding
    if padding > 0:
        small = positions // _SMALL_GROUP
    sizes = []  # texts in each finished group
    size = 0  # texts in the current group
    num_tokens = 0  # tokens in the current group
    longest = int(lengths[0])
    different, counts = np.unique(lengths, return_counts=True)
    # Texts of one length are added together, because splitting them without need would only make more groups.
    for length, count in zip(reversed(different.tolist()), reversed(counts.tolist()), strict=True):
        while count > 0:
            # A text longer than the limit of positions is a group alone.
            capacity = min(max(positions // longest, 1), texts)
            added = min(count, capacity - size)
            num_positions = (size + added) * longest
            is_full = added < 1
            has_few_tokens = num_tokens + added * length < (1 - padding) * num_positions
            has_much_padding = has_few_tokens and num_positions > small
            if size > 0 and (is_full or has_much_padding):
                # Start the next group, and try again.
                sizes.append(size)
                size = 0
                num_tokens = 0
                longest = length
                continue
            size += added
            num_tokens += added * length
            count -= added
    sizes.append(size)

    groups = []
    first_text = 0
    first_token = 0
    for size in sizes:
        group_lengths = lengths[first_text : first_text + size]
        end = first_token + int(group_lengths.sum())
        longest = int(group_lengths[0])
        shortest = int(group_lengths[-1])
        groups.append(Group(slice(first_token, end), group_lengths, longest, is_padded=longest > shortest))
        first_text += size
        first_token = end
    return groups


@dataclass(frozen=True)
class Pattern:
    """Which tokens of its text a token of a packed row attends to.

    Args:
        window: the sliding window that ``rule`` implements, or ``None`` if it is not a window.
        rule: mask function of transformers: a function of batch, head, query and key.
    """

    window: Window | None
    rule: Any

    def mask(self, length: int) -> Tensor:
        """Return which pairs of tokens of a text attend, shape (tokens, tokens), on the CPU."""
        steps = torch.arange(length, device="cpu")
        if self.window is None:
            return _evaluate(self.rule, steps, steps)
        before, after = self.window
        if before < 0:
            before = length
        if after < 0:
            after = length
        distance = steps[:, None] - steps  # (tokens, tokens)
        return (distance <= before) & (distance >= -after)


# Sliding windows found so far, by (mask function, length): testing all token pairs of a long text takes a second.
_windows: dict[Hashable, Window | None] = {}


class Row:
    """Texts whose tokens follow each other, longest text first, and what several layers need to know of them.

    Attributes:
        groups: texts that attend in one step.
    """

    def __init__(self, lengths: Ints, device: torch.device, *, has_kernel: bool = False) -> None:
        self.lengths = lengths
        self.longest = int(lengths[0])
        self.device = device
        self.has_kernel = has_kernel
        if device.type == "cpu":
            self.groups = group_texts(lengths, padding=0.0, positions=UNLIMITED)
        else:
            # An accelerator computes padding faster than it launches the kernels of a further group.
            self.groups = group_texts(lengths, padding=_MOST_PADDING, positions=_MOST_POSITIONS)
        # Tensors that all layers need, each of which is made once, because a copy to an accelerator takes time.
        self._masks: dict[tuple[Group, Pattern | None], Tensor] = {}
        self._places: dict[Group, Tensor] = {}

    @cached_property
    def ends(self) -> Tensor:
        """Where texts start and end in the row, shape (texts + 1,), in the form that torch's kernel takes."""
        return send(np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32), self.device)

    def attend(
        self,
        states: Sequence[Tensor],
        *,
        pattern: Pattern | None = None,
        scale: float | None = None,
        bias: Tensor | None = None,
        attention: Attention | None = None,
    ) -> Tensor:
        """Attend within each text.

        ==========================  ============================================  ======================================
        the model gives             found                                         way
        ==========================  ============================================  ======================================
        a pattern (transformers)    the trial allows torch's kernel, which takes  all texts in one step
                                    the pattern's window
        a pattern                   anything else                                 a step per group, by
                                                                                  :func:`dot_product`, with a mask
        a bias (MPNet, T5)          anything                                      the same, with the bias
        an attention (DeBERTa)      anything                                      a step per group, by this function
        ==========================  ============================================  ======================================

        Args:
            states: queries, keys and values, shape (tokens, heads, size) each.
            pattern: which tokens of its text a token attends to. Default: all.
            scale: factor of the products of queries and keys. Default: that of torch.
            bias: added to the scores of the longest text, shape (..., longest, longest); the upper left part of it is
                that of a shorter text.
            attention: attends in a group instead of :func:`dot_product`.

        Returns:
            The attended values, shape (tokens, heads, size), contiguous.
        """
        window: Window | None = None
        if pattern is not None:
            window = pattern.window
        if window is not None and self.has_kernel and _kernel_takes(window):
            return _attend_by_kernel(states, self, scale, window)
        if window == _ALL:
            pattern = None
        if attention is None:
            attention = partial(dot_product, scale=scale)
        parts = []
        for group in self.groups:
            places: Tensor | None = None
            if group.is_padded:
                places = self._find_places(group)
            # (texts, heads, longest, size) each
            batch = [group.pad(state, places=places).transpose(1, 2) for state in states]
            if window == _CAUSAL and not group.is_padded:
                # torch needs no mask for this.
                attended = attention(batch, None, is_causal=True)
            else:
                attended = attention(batch, self._mask_scores(group, pattern, bias))
            attended = attended.transpose(1, 2).flatten(0, 1)  # (positions, heads, size)
            if places is not None:
                attended = attended.index_select(0, places)  # (tokens of the group, heads, size)
            parts.append(attended)
        # Do not copy the values of a single group.
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts)

    def _find_places(self, group: Group) -> Tensor:
        """Return the places of a group's tokens among its positions, shape (tokens,)."""
        if group not in self._places:
            self._places[group] = group.places(self.device)
        return self._places[group]

    def _mask_scores(self, group: Group, pattern: Pattern | None, bias: Tensor | None) -> Tensor | None:
        """Return the mask of a group's scores, or their bias with the mask applied; ``None`` if all scores count."""
        mask: Tensor | None = None
        if pattern is not None or group.is_padded:
            mask = self._mask(group, pattern)
        if bias is None:
            return mask
        # The model computed the bias for the longest text of the row, and the texts of this group may be shorter. The
        # bias of two tokens depends on their distance only, so that the upper left part is that of shorter texts.
        bias = bias[..., : group.longest, : group.longest]
        if mask is None:
            return bias
        return bias.masked_fill(~mask, -math.inf)

    def _mask(self, group: Group, pattern: Pattern | None) -> Tensor:
        """Return which pairs of tokens of a group attend, shape (texts or 1, 1, longest, longest)."""
        if (group, pattern) in self._masks:
            return self._masks[group, pattern]
        allowed = torch.ones((), dtype=torch.bool, device=self.device)  # one value for all pairs
        if pattern is not None:
            allowed = send(pattern.mask(group.longest), self.device)[None, None]
        if group.is_padded:
            real = send(group.real, self.device)  # (texts, longest)
            is_real_key = real[:, None, None, :]  # (texts, 1, 1, longest)
            is_padded_query = ~real[:, None, :, None]  # (texts, 1, longest, 1)
            # Let padding attend everywhere: a fully masked row would give NaN.
            allowed = (allowed & is_real_key) | is_padded_query  # (texts, 1, longest, longest)
        self._masks[group, pattern] = allowed
        return allowed


# The packed row that a model runs on, if it does.
row: ContextVar[Row | None] = ContextVar("row", default=None)


def current_row() -> Row | None:
    """Return the packed row that a model runs on, if it does."""
    # torch.compile cannot trace context variables. Compiled code has no packed rows, because it pads its texts.
    if torch.compiler.is_compiling():
        return None
    return row.get()


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
    # The module is passed on, because torch before 2.13 cannot trace its import.
    AttentionMaskInterface.register(_NAME, partial(_make_pattern, masking_utils))


def _make_pattern(masking_utils: Any, **arguments: Any) -> Any:
    """Return the pattern of the texts in a packed row, or the mask of a padded batch.

    transformers calls this instead of its own functions that make masks.
    """
    current = current_row()
    if current is None:
        return _mask_padded(masking_utils, arguments)
    rule = arguments["mask_function"]
    return Pattern(_find_window(rule, current.longest), rule)


def _mask_padded(masking_utils: Any, arguments: dict[str, Any]) -> Tensor | None:
    """Return the attention mask of a padded batch, without a synchronization on an accelerator."""
    if torch.device(arguments["device"]).type == "cpu":
        return cast(Tensor | None, masking_utils.sdpa_mask(**arguments))
    real: Tensor | None = arguments["attention_mask"]  # (texts, length)
    bidirectional = getattr(masking_utils, "bidirectional_mask_function", None)
    if real is not None and arguments["mask_function"] is bidirectional:
        is_real_key = real.bool()[:, None, None, :]  # (texts, 1, 1, length)
        return is_real_key.expand(-1, -1, real.shape[1], -1)  # (texts, 1, length, length)
    # transformers drops masks that allow everything, but has to read the mask from the accelerator to find out.
    never_dropped = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return cast(Tensor | None, masking_utils.sdpa_mask(**{**arguments, **never_dropped}))


def _find_window(rule: Any, longest: int) -> Window | None:
    """Return the sliding window that a mask function implements for texts of a length, or ``None`` if it is none."""
    # Round up to a power of two, such as 37 to 64, so that the cache has few lengths.
    length = 1 << (longest - 1).bit_length()
    # The key is what defines the function, because models create it anew in each forward pass.
    key = _rule_key(rule)
    if key is None:
        window = _measure_window(rule, length)
    else:
        if (key, length) not in _windows:
            _windows[key, length] = _measure_window(rule, length)
        window = _windows[key, length]
    if window is None:
        return None
    before, after = window
    # A window at least as wide as the longest text allows everything.
    if before >= longest - 1:
        before = -1
    if after >= longest - 1:
        after = -1
    return before, after


def _rule_key(rule: Any) -> Hashable:
    """Return a hashable key for a mask function (its code and closure), or ``None`` if it has none."""
    if isinstance(rule, int | float | str):
        return rule
    if isinstance(rule, tuple | list):
        code = None
        parts = list(rule)
    else:
        code = getattr(rule, "__code__", None)
        if code is None:
            return None
        is_bound_method = getattr(rule, "__self__", None) is not None
        has_defaults = bool(rule.__defaults__ or rule.__kwdefaults__)
        # The object of a method and default values decide the result too, but are not in the closure.
        if is_bound_method or has_defaults:
            return None
        parts = [cell.cell_contents for cell in rule.__closure__ or ()]
    keys = [_rule_key(part) for part in parts]
    # A part without a key, such as a tensor, leaves the whole without one.
    if None in keys:
        return None
    return (code, *keys)


def _measure_window(rule: Any, length: int) -> Window | None:
    """Return the sliding window of a mask function for texts of exactly a length, or ``None`` if it is none."""
    steps = torch.arange(length, device="cpu")
    # The last token attends to itself and all that precede it in the window, the first token to all that follow.
    before = int(_evaluate(rule, steps[-1:], steps).sum()) - 1
    after = int(_evaluate(rule, steps[:1], steps).sum()) - 1
    for queries in torch.split(steps, _ROWS_PER_STEP):
        distance = queries[:, None] - steps  # (queries, length)
        is_in_window = (distance <= before) & (distance >= -after)
        if not torch.equal(_evaluate(rule, queries, steps), is_in_window):
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
    states = [state[0].transpose(0, 1) for state in (query, key, value)]  # (tokens, heads, size) each
    attended = current.attend(states, pattern=attention_mask, scale=options.get("scaling"))
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


@cache
def _parameters(kernel: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the parameters of torch's kernel, which differ between versions of torch."""
    return frozenset(signature(kernel).parameters)


def _kernel_takes(window: Window) -> bool:
    """Return whether torch's kernel takes a sliding window."""
    kernel = _find_kernel()
    if kernel is None:
        return False
    takes_any_window = "window_size" in _parameters(kernel)  # torch 2.11
    return takes_any_window or window in (_ALL, _CAUSAL)


def _attend_by_kernel(states: Sequence[Tensor], current: Row, scale: float | None, window: Window) -> Tensor:
    """Attend by torch's kernel for texts of different lengths, given a window that it takes."""
    kernel: Any = _find_kernel()
    parameters = _parameters(kernel)
    query, key, value = states
    arguments: dict[str, Any] = {}
    if "window_size" in parameters:  # torch 2.11
        arguments["window_size"] = window
    else:
        arguments["is_causal"] = window == _CAUSAL
    queries_per_key = query.shape[1] // key.shape[1]
    if queries_per_key > 1 and "enable_gqa" in parameters:  # torch 2.13
        arguments["enable_gqa"] = True
    elif queries_per_key > 1:
        key = key.repeat_interleave(queries_per_key, 1)
        value = value.repeat_interleave(queries_per_key, 1)
    if scale is not None and "scale" in parameters:
        arguments["scale"] = scale
    elif scale is not None:
        # The kernel divides by the root of the size.
        query = query * (scale * math.sqrt(query.shape[-1]))
    batch = [state.contiguous() for state in (query, key, value)]
    return cast(Tensor, kernel(*batch, current.ends, current.ends, current.longest, current.longest, **arguments))
