"""The forward pass of texts of different lengths: packed in a row, padded, or only with texts of equal length.

A packed row has no padding: linear layers, norms and activations run on real tokens only, and attention alone is
computed text by text, by a function that transformers calls through its interface of attention implementations.
Callers pass tokens one after the other and get vectors in the same form, whichever way they were computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from inspect import Parameter, signature
from itertools import groupby
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from bertscore_tm.core.memory import is_out_of_memory, send
from bertscore_tm.core.onednn import is_eager, missing_rows
from bertscore_tm.core.precision import may_use_tf32
from bertscore_tm.core.token_vectors import unit_vectors
from bertscore_tm.encoder.families import Batching, Family
from bertscore_tm.encoder.packed_rows import (
    Row,
    attend_by_length,
    attend_padded,
    lengths_of,
    pad,
    real_positions,
    row,
)
from bertscore_tm.encoder.relative_attention import adapt_relative_attention

# Returns token vectors, shape (batch, tokens, width), given a model and its input_ids and attention_mask.
ForwardFunction = Callable[[nn.Module, dict[str, Tensor]], Tensor]

# Keyword arguments that models may lack.
_OPTIONS = ("attention_mask", "position_ids", "output_hidden_states", "return_dict")
# Name under which transformers finds our attention.
_NAME = "bertscore_tm_packed"
# Distance between unit vectors that rounding explains: 1e-6 in float32, 0.01 in bfloat16 (MiniLM).
_TOLERANCE = 1e-5
_TOLERANCE_IN_EPS = 8


@dataclass(eq=False)
class ForwardPass:
    """The forward pass of a model in memory: hidden states of a layer, or of all layers up to it, of several texts.

    The model has ``layers_in_memory`` of its layers. ``has_kernel``: torch's kernel attends within the texts of a row.
    ``shared`` is the same for the encoder that loaded the model, which stays in memory as long as this one.
    """

    model: nn.Module
    family: Family
    config: PretrainedConfig
    num_layers: int
    all_layers: bool
    layers_in_memory: int
    forward_fn: ForwardFunction | None = None
    batching: Batching = "padded"
    has_kernel: bool = False
    shared: ForwardPass | None = None

    def __post_init__(self) -> None:
        # Hooks that wrap the method of an instance may hide its arguments.
        parameters = signature(type(self.model).forward).parameters
        accepts_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
        self.options = [name for name in _OPTIONS if accepts_any or name in parameters]
        self.rope_switch = _rope_switch(self.config)

    def run(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """Run texts, which do not affect each other.

        Takes ids or input embeddings of all tokens and the lengths of the texts, longest first. Returns hidden states
        in the order of the tokens, shape (layers, tokens, width).
        """
        longer = sum(length > self.rope_switch for length in lengths)
        groups = [group for group in (lengths[:longer], lengths[longer:]) if group]
        parts = [
            self.run_texts(part, group, self.batching)
            for part, group in zip(torch.split(ids, list(map(sum, groups))), groups, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def run_soft(self, embeds: Tensor, mask: Tensor) -> Tensor:
        """Run texts of soft tokens, with a gradient; the states of padding have no meaning.

        Takes input embeddings, shape (batch, positions, width), and the mask of real positions. Returns hidden states,
        shape (layers, batch, positions, width).
        """
        # Compiled code and accelerators would have to wait for the lengths.
        packs = self.batching == "packed" and embeds.device.type == "cpu" and is_eager()
        if not packs and self.batching != "equal" and mask.shape[1] <= self.rope_switch:
            return self(embeds, mask)
        lengths = mask.sum(-1).tolist()
        order = sorted((i for i, length in enumerate(lengths) if length), key=lambda i: -lengths[i])
        rows = torch.tensor(order, dtype=torch.long, device=mask.device)
        places = rows[:, None] * mask.shape[1] + torch.arange(mask.shape[1], device=mask.device)  # (texts, positions)
        places = places[mask[rows]]  # (tokens,)
        packed = self.run(embeds.flatten(0, 1)[places], [lengths[i] for i in order])  # (layers, tokens, width)
        states = packed.new_zeros(len(packed), mask.numel(), packed.shape[-1]).index_copy(1, places, packed)
        return states.view(len(packed), *mask.shape, -1)  # (layers, batch, positions, width)

    def run_texts(self, inputs: Tensor, lengths: Sequence[int], batching: Batching) -> Tensor:
        """Run texts together, whose tokens follow each other, longest text first, in a way that is chosen."""
        device, num_tokens = inputs.device, len(inputs)
        if batching == "packed" and lengths[0] > lengths[-1]:
            # Further texts of a token, so that no product has to add rows and drop them.
            added = missing_rows(self.model, num_tokens)
            inputs = torch.cat([inputs, inputs.new_zeros(added, *inputs.shape[1:])])
            lengths = [*lengths, *[1] * added]
        groups = [(length, len(list(texts))) for length, texts in groupby(lengths)]
        if batching == "equal" or len(groups) == 1:
            parts = []
            sizes = [length * count for length, count in groups]
            for part, (length, count) in zip(torch.split(inputs, sizes), groups, strict=True):
                parts.append(self(part.reshape(count, length, *part.shape[1:])).flatten(1, 2))
            return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        real = real_positions(lengths)
        if batching == "packed":
            positions = torch.arange(lengths[0], device="cpu") + self.family.first_position(self.config)
            positions = send(positions.expand_as(real)[real][None], device)  # (1, tokens)
            token = row.set(Row(groups, has_kernel=self.has_kernel))
            try:
                return self(inputs[None], position_ids=positions)[:, 0, :num_tokens]
            finally:
                row.reset(token)
        places = send(real.flatten().nonzero().squeeze(1), device)  # (tokens,)
        padded = pad(inputs, places, real.shape, int(getattr(self.config, "pad_token_id", None) or 0))
        return self(padded, send(real, device)).flatten(1, 2).index_select(1, places)

    def __call__(self, inputs: Tensor, mask: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
        """Return hidden states, shape (layers, batch, positions, width).

        Takes token ids or input embeddings, shape (batch, positions, ...), the mask of real positions, by default all,
        and position ids of a packed row, both of shape (batch, positions).
        """
        if mask is None:
            mask = torch.ones(inputs.shape[:2], dtype=torch.bool, device=inputs.device)
        if self.forward_fn is not None:
            return self._call_function(self.forward_fn, inputs, mask)
        # Layer 0 is the state before the first layer.
        wants_states = self.all_layers or self.layers_in_memory > self.num_layers
        length, paths = mask.shape[1], self.family.layers
        if hasattr(self.model, "set_attention_type"):
            _choose_attention(self.model, self.config, length)
        # What hidden_states holds differs between models: Mamba's lacks the embedding output.
        recorded = paths[0] if wants_states and self.family.probed and len(paths) == 1 else None
        passed: dict[str, Any] = {"attention_mask": mask.long(), "return_dict": True}
        passed["output_hidden_states"] = wants_states and recorded is None
        if position_ids is not None:
            passed["position_ids"] = position_ids
        name = "inputs_embeds" if inputs.is_floating_point() else "input_ids"
        with torch.autocast(device_type=mask.device.type, enabled=False):
            with nullcontext() if recorded is None else _record_states(self.model.get_submodule(recorded)) as states:
                output = self.model(**{name: inputs}, **{key: passed[key] for key in passed if key in self.options})
            last: Tensor = output.last_hidden_state
            if not wants_states:
                return last[None]
            states = states or output.hidden_states
            if states is None:
                raise ValueError(
                    f"the forward pass of {type(self.model).__name__} does not return the hidden states of its layers: "
                    f"let it accept output_hidden_states, or pass forward_fn=, a function that returns token vectors"
                )
            # BigBird pads texts to whole blocks and keeps the padding in its states.
            states = [state[:, :length] for state in states[: self.num_layers + 1]]  # (batch, positions, width) each
            for path in self.family.final_modules:
                module = attrgetter(path)(self.model)
                if module is not None:  # an OPT may lack it
                    states = [module(state) for state in states]
            if self.family.final_modules and self.layers_in_memory == self.num_layers:
                states[-1] = last  # the model has applied them itself
        return torch.stack(states)

    def _call_function(self, forward_fn: ForwardFunction, ids: Tensor, mask: Tensor) -> Tensor:
        with torch.autocast(device_type=ids.device.type, enabled=False):
            vectors = forward_fn(self.model, {"input_ids": ids, "attention_mask": mask.long()})
        if vectors.ndim != 3 or vectors.shape[:2] != mask.shape:
            raise ValueError(
                f"forward_fn must return one vector per token, shape {(*mask.shape, 'width')}; it returned "
                f"shape {tuple(vectors.shape)}"
            )
        return vectors[None]  # (1, texts, tokens, width)

    def find_batching(
        self, texts: Sequence[Tensor], candidates: Sequence[Batching], dtype: torch.dtype
    ) -> Batching | None:
        """Find the first way in which texts, longest first, get the same vectors together as alone, or ``None``.

        If texts are packed, the model calls our attention afterwards.
        """
        lengths = [len(text) for text in texts]
        alone = torch.cat([self(text[None])[:, 0] for text in texts], 1)  # (layers, tokens, width)
        for batching in candidates:
            if batching == "packed":
                is_adapted = adapt_relative_attention(self.model)
                if not _switch_attention(self.model, packed=True) and not is_adapted:
                    continue
            # Where the kernel refuses, attention is padded, and nothing else.
            for has_kernel in (True, False) if has_attention_kernel(alone.device, dtype) else (False,):
                self.has_kernel = has_kernel
                try:
                    if are_same_vectors(alone, self.run_texts(torch.cat(list(texts)), lengths, batching), dtype):
                        return batching
                except Exception as error:
                    # Models that do not call our attention, or not as expected, fail in many ways.
                    if batching != "packed" or is_out_of_memory(error):
                        raise
            # Models may look at the name of their attention without packed rows too.
            _switch_attention(self.model, packed=False)
        return None


def draw_texts(
    config: PretrainedConfig, lengths: Sequence[int], limit: int | None, device: torch.device
) -> list[Tensor]:
    """Return texts of random tokens that are not special, cut to a limit, shape (tokens,) each."""
    reserved = {0} | {
        value for name, value in config.to_dict().items() if name.endswith("_token_id") and isinstance(value, int)
    }
    ids = [i for i in range(int(getattr(config, "vocab_size", 256))) if i not in reserved]
    allowed = torch.tensor(ids, dtype=torch.long, device="cpu")
    generator = torch.Generator("cpu").manual_seed(0)
    drawn = [torch.randint(len(ids), (min(n, limit or n),), generator=generator, device="cpu") for n in lengths]
    return [allowed[numbers].to(device) for numbers in drawn]


def are_same_vectors(first: Tensor, second: Tensor, dtype: torch.dtype) -> bool:
    """Check whether token vectors, shape (..., width), are equal but for rounding; NaN is equal to nothing."""
    if first.shape != second.shape:
        return False
    distance = (unit_vectors(first) - unit_vectors(second)).norm(dim=-1).max()
    # TF32 has the exponent of float32 and the mantissa of float16.
    eps = torch.finfo(torch.float16 if dtype == torch.float32 and may_use_tf32(first.device) else dtype).eps
    return float(distance) <= max(_TOLERANCE, _TOLERANCE_IN_EPS * eps)


def _switch_attention(model: nn.Module, *, packed: bool) -> bool:
    """Let a model that calls torch's attention call ours, or torch's again; return whether it calls either."""
    register_attention()
    configs: dict[int, Any] = {id(part.config): part.config for part in model.modules() if hasattr(part, "config")}
    switched = [part for part in configs.values() if getattr(part, "_attn_implementation", None) in ("sdpa", _NAME)]
    for config in switched:
        config._attn_implementation = _NAME if packed else "sdpa"
    return bool(switched)


@dataclass(frozen=True)
class _Pattern:
    """What a token of a packed text attends to: the whole text, what precedes it, or what a mask says.

    The mask is that of a text at least as long as the longest, shape (tokens, tokens); its corner is the mask of a
    shorter one. ``window`` are the tokens before and after one that it attends to, where that is the rule.
    """

    is_causal: bool = False
    mask: Tensor | None = None
    window: tuple[int, int] | None = None


# By the rule of a model, a length and a device: a mask of all pairs of tokens of a long text takes a second.
_patterns: dict[Hashable, _Pattern] = {}


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

    current = None if torch.compiler.is_compiling() else row.get()
    if current is None:
        # To see whether a mask has padding, an accelerator would have to be waited for.
        skips = ("allow_is_causal_skip", "allow_is_bidirectional_skip")
        on_cpu = torch.device(arguments["device"]).type == "cpu"
        return sdpa_mask(**arguments if on_cpu else arguments | dict.fromkeys(skips, False))
    longest, rule, device = current.groups[0][0], arguments["mask_function"], arguments["device"]
    length = 1 << (longest - 1).bit_length()  # so that few lengths are evaluated
    key = _describe_rule(rule), length, str(device)
    pattern = _patterns.get(key)
    if pattern is None:
        pattern = _find_pattern(rule, length, device)
        if None not in key:
            _patterns[key] = pattern
    before, after = pattern.window or (0, 0)
    if before < longest - 1:
        return pattern
    # The window is as wide as the texts are long.
    return _Pattern(is_causal=True) if after == 0 and longest > 1 else _Pattern() if after >= longest - 1 else pattern


def _describe_rule(rule: Any) -> Hashable:
    """Return what tells a function of positions from others: its code and what it captured; ``None`` if unknown."""
    if isinstance(rule, int | float | str):
        return rule
    parts = rule
    code = None
    if not isinstance(rule, tuple | list):
        code = getattr(rule, "__code__", None)
        if code is None or rule.__defaults__ or rule.__kwdefaults__:
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
    return _Pattern(mask=mask, window=(before, after) if is_window else None)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, None]:
    """Attend within each text of a packed row; as torch's attention does outside such rows."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    current = None if torch.compiler.is_compiling() else row.get()
    if current is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    has_extras = any(options.get(name) is not None for name in ("position_bias", "softcap", "s_aux"))
    if has_extras or not isinstance(attention_mask, _Pattern):
        raise NotImplementedError(f"{type(module).__name__} cannot attend within packed texts")
    states = [state[0].transpose(0, 1) for state in (query, key, value)]  # (tokens, heads, size) each
    pattern, scale = attention_mask, options.get("scaling")
    is_window = pattern.mask is None or pattern.window is not None
    if is_window and current.has_kernel:
        return _attend_by_kernel(states, current, pattern, scale)[None], None
    attend = attend_by_length if query.device.type == "cpu" else attend_padded
    return attend(states, current, pattern.mask, is_causal=pattern.is_causal, scale=scale)[None], None


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


def _attend_by_kernel(states: Sequence[Tensor], current: Row, pattern: _Pattern, scale: float | None) -> Tensor:
    """Attend by torch's kernel for texts of different lengths."""
    from torch.nn.attention.varlen import varlen_attn

    def make_ends() -> Tensor:
        ends = torch.tensor([0, *lengths_of(current.groups)], dtype=torch.int32, device="cpu")
        return send(ends.cumsum(0, dtype=torch.int32), states[0].device)

    ends, longest = current.once("ends", make_ends), current.longest
    query, key, value = (state.contiguous() for state in states)
    window = pattern.window or ((-1, 0) if pattern.is_causal else (-1, -1))
    grouped = query.shape[1] != key.shape[1]
    attended: Any = varlen_attn(
        query, key, value, ends, ends, longest, longest, scale=scale, window_size=window, enable_gqa=grouped
    )
    return cast(Tensor, attended)


@contextmanager
def _record_states(layers: nn.Module) -> Iterator[list[Tensor]]:
    """Record the input of the first of a model's layers and the output of each."""
    states: list[Tensor] = []

    def record_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states.append(args[0] if args else kwargs["hidden_states"])

    def record_output(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple | list) else output)

    hooks = [layer.register_forward_hook(record_output) for layer in layers.children()]
    hooks.append(next(layers.children()).register_forward_pre_hook(record_input, with_kwargs=True))
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()


def _choose_attention(model: nn.Module, config: PretrainedConfig, length: int) -> None:
    """Switch BigBird to its attention for a length: by itself, it keeps that of the first short texts."""
    sparse = config.attention_type == "block_sparse" and length > (5 + 2 * config.num_random_blocks) * config.block_size
    # The new attention modules take over the weights of the old ones: nothing is initialized.
    with torch.device("meta"):
        cast(Any, model).set_attention_type("block_sparse" if sparse else "original_full")


def _rope_switch(config: PretrainedConfig) -> float:
    """Return the length above which a text changes the position frequencies of its batch (LongRoPE, as in Phi-3)."""
    # Before transformers 5, it was rope_scaling.
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    default = getattr(config, "original_max_position_embeddings", None)
    for settings in (rope, *(value for value in rope.values() if isinstance(value, Mapping))):
        if settings.get("rope_type", settings.get("type")) == "longrope":
            return float(settings.get("original_max_position_embeddings", default) or math.inf)
    return math.inf
