"""The forward pass of texts, whose tokens follow each other in its input and its output, however they share passes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from inspect import Parameter, signature
from operator import attrgetter
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from bertscore_tm.device.locks import Lock
from bertscore_tm.device.memory import is_out_of_memory, send
from bertscore_tm.device.onednn import find_packed_weight, is_eager, missing_rows
from bertscore_tm.device.precision import may_use_tf32
from bertscore_tm.encoder.families import PACKED, PADDED, Batching, ForwardFunction, ModelSpec
from bertscore_tm.encoder.packing import UNLIMITED, Row, group_texts, has_attention_kernel, row, switch_attention
from bertscore_tm.encoder.relative_attention import adapt_relative_attention
from bertscore_tm.matching.vectors import Ints, places_of, unit_vectors
from bertscore_tm.utilities.warnings import warn_user

# Keyword arguments that models may lack.
_OPTIONS = ("attention_mask", "position_ids", "output_hidden_states", "return_dict")
# Special tokens that texts may hold.
_SPECIAL_ROLES = ("pad", "mask", "unk", "bos", "eos", "cls", "sep")
# Positions of a padded group of texts, by whether it is on a CPU, whose caches hold so many.
_PADDED_POSITIONS = {True: 512, False: 8192}
# Distance between unit vectors that rounding explains: 1e-6 in float32, 0.01 in bfloat16 (MiniLM).
_TOLERANCE = 1e-5
_TOLERANCE_IN_EPS = 8


@dataclass(eq=False)
class ForwardPass:
    """The forward pass of a model in memory: hidden states of a layer, or of all layers up to it, of several texts.

    ``has_kernel``: torch's kernel attends within the texts of a row. ``draws_numbers``: the model draws random numbers
    that it does not use, as LED, FSMT and NLLB-MoE in some versions of transformers. ``lock`` is held by calls that
    change the model by hooks or another attention. ``shared`` is that of the encoder that loaded the model, kept in
    memory by this one.
    """

    model: nn.Module
    spec: ModelSpec
    batching: Batching = PADDED
    has_kernel: bool = False
    draws_numbers: bool = False
    lock: Lock = field(default_factory=Lock)
    shared: ForwardPass | None = None

    def __post_init__(self) -> None:
        # Hooks that wrap the method of an instance may hide its arguments.
        parameters = signature(type(self.model).forward).parameters
        accepts_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
        self.options = [name for name in _OPTIONS if accepts_any or name in parameters]
        family, config = self.spec.family, self.spec.config
        # Hooked layers: what hidden_states holds differs between models, and Mamba's lacks the embedding output. An
        # ALBERT with inner groups returns the states of parts of layers.
        differs = family.probed or getattr(config, "inner_group_num", 1) > 1
        self.recorded = family.layers[0] if differs and len(family.layers) == 1 else None
        self.rope_switch = _rope_switch(config)
        self.packed_weight = find_packed_weight(self.model)
        self.first_position = family.first_position(config)

    def run(self, inputs: Tensor, lengths: Ints, trial: Batching | None = None) -> Tensor:
        """Run texts, which do not affect each other, together in the way found when it was loaded, or in one to try.

        Takes ids or input embeddings of all tokens and the lengths of the texts, longest first. Returns hidden states
        in the order of the tokens, shape (layers, tokens, width).
        """
        batching, device = trial or self.batching, inputs.device
        longer = int((lengths > self.rope_switch).sum())
        if 0 < longer < len(lengths):
            halves = lengths[:longer], lengths[longer:]
            split = zip(torch.split(inputs, [int(half.sum()) for half in halves]), halves, strict=True)
            return torch.cat([self.run(part, part_lengths, trial) for part, part_lengths in split], 1)
        if batching == PACKED and lengths[0] > lengths[-1]:
            num_tokens = len(inputs)
            num_added = missing_rows(self.packed_weight, num_tokens)
            if num_added:
                # Texts of one token fill the row up to a size that oneDNN has a kernel for.
                inputs = torch.cat([inputs, inputs.new_zeros(num_added, *inputs.shape[1:])])
                lengths = np.concatenate([lengths, np.ones(num_added, np.int64)])
            if self.spec.family.positions_after_padding and not inputs.is_floating_point():
                positions = _number_after(self.first_position - 1, inputs, lengths)
            else:
                positions = send(places_of(np.full_like(lengths, self.first_position), lengths), device)  # (tokens,)
            token = row.set(Row(lengths, device, has_kernel=self.has_kernel))
            try:
                return self(inputs[None], position_ids=positions[None])[:, 0, :num_tokens]
            finally:
                row.reset(token)
        positions_per_group = _PADDED_POSITIONS[device.type == "cpu"] if batching.padding else UNLIMITED
        padding_id, parts = int(getattr(self.spec.config, "pad_token_id", None) or 0), []
        for group in group_texts(lengths, batching.padding, positions_per_group, batching.texts):
            places = group.places(device) if group.is_padded else None
            mask = None if places is None else send(group.real, device)
            states = self(group.pad(inputs, places, padding_id), mask).flatten(1, 2)
            parts.append(states if places is None else states.index_select(1, places))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def run_soft(self, embeds: Tensor, mask: Tensor) -> Tensor:
        """Run texts of soft tokens, with a gradient; the states of padding have no meaning.

        Takes input embeddings, shape (batch, positions, width), and the mask of real positions. Returns hidden states,
        shape (layers, batch, positions, width).
        """
        # Compiled code and accelerators would have to wait for the lengths.
        packs = self.batching == PACKED and embeds.device.type == "cpu" and is_eager()
        if not packs and self.batching in (PACKED, PADDED) and mask.shape[1] <= self.rope_switch:
            return self(embeds, mask)
        lengths = mask.sum(-1).tolist()
        order = sorted((i for i, length in enumerate(lengths) if length), key=lambda i: -lengths[i])
        rows = torch.tensor(order, dtype=torch.long, device=mask.device)
        places = rows[:, None] * mask.shape[1] + torch.arange(mask.shape[1], device=mask.device)  # (texts, positions)
        places = places[mask[rows]]  # (tokens,)
        # Shape (layers, tokens, width).
        packed = self.run(embeds.flatten(0, 1)[places], np.array([lengths[i] for i in order]))
        states = packed.new_zeros(len(packed), mask.numel(), packed.shape[-1]).index_copy(1, places, packed)
        return states.view(len(packed), *mask.shape, -1)  # (layers, batch, positions, width)

    def __call__(self, inputs: Tensor, mask: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
        """Return hidden states, shape (layers, batch, positions, width).

        Takes token ids or input embeddings, shape (batch, positions, ...), the mask of real positions, by default all,
        and position ids of a packed row, both of shape (batch, positions).
        """
        if mask is None:
            mask = torch.ones(inputs.shape[:2], dtype=torch.bool, device=inputs.device)
        spec, family, layers = self.spec, self.spec.family, self.spec.layers_kept
        if spec.forward_fn is not None:
            return self._call_function(spec.forward_fn, inputs, mask)
        # Layer 0 is the state before the first layer.
        wants_states = spec.all_layers or layers > spec.num_layers
        length, recorded = mask.shape[1], self.recorded if wants_states else None
        switches = hasattr(self.model, "set_attention_type")
        passed: dict[str, Any] = {"attention_mask": mask.long(), "return_dict": True}
        passed["output_hidden_states"] = wants_states and recorded is None
        if position_ids is not None:
            passed["position_ids"] = position_ids
        name = "inputs_embeds" if inputs.is_floating_point() else "input_ids"
        with torch.autocast(device_type=mask.device.type, enabled=False):
            with (
                nullcontext() if recorded is None and not switches else self.lock,
                torch.random.fork_rng(devices=[]) if self.draws_numbers and is_eager() else nullcontext(),
                nullcontext() if recorded is None else _record_states(self.model.get_submodule(recorded)) as states,
            ):
                if switches:
                    _choose_attention(self.model, spec.config, length)
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
            if len(states) != layers + 1:
                if recorded is None and len(family.layers) == 1:  # layers were replaced after transformers hooked them
                    self.recorded = family.layers[0]
                    return self(inputs, mask, position_ids)
                raise ValueError(
                    f"{type(self.model).__name__} returned {len(states)} hidden states for {layers} "
                    f"layers, which must be one more: set config.num_hidden_layers to the number of its layers"
                )
            # BigBird pads texts to whole blocks and keeps the padding in its states.
            states = states[0 if spec.all_layers else spec.num_layers : spec.num_layers + 1]
            states = [state[:, :length] for state in states]  # (batch, positions, width) each
            if {state.shape[1] for state in states} != {length}:
                raise ValueError(
                    f"the layers of {type(self.model).__name__} return {', '.join(str(s.shape[1]) for s in states)} "
                    f"vectors for a text of {length} tokens, not one per token"
                )
            for path in family.final_modules:
                module = attrgetter(path)(self.model)
                if module is not None:  # an OPT may lack it
                    states = [module(state) for state in states]
            if family.final_modules and layers == spec.num_layers:
                states[-1] = last  # the model has applied them itself
        return torch.stack(states)

    def _call_function(self, forward_fn: ForwardFunction, ids: Tensor, mask: Tensor) -> Tensor:
        with torch.autocast(device_type=ids.device.type, enabled=False):
            try:
                vectors = forward_fn(self.model, {"input_ids": ids, "attention_mask": mask.long()})
            except IndexError as error:
                raise ValueError(
                    f"forward_fn failed for token ids of the tokenizer ({error}): the model needs an embedding of each "
                    f"of its {self.spec.config.vocab_size} tokens"
                ) from error
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
        lengths, random_state = np.array([len(text) for text in texts]), torch.get_rng_state()
        alone = torch.cat([self(text[None])[:, 0] for text in texts], 1)  # (layers, tokens, width)
        self.draws_numbers = not torch.equal(random_state, torch.get_rng_state())
        for batching in candidates:
            # Texts of any length are padded to see whether they may be.
            trial = batching._replace(padding=1.0) if batching.padding else batching
            if batching == PACKED:
                is_adapted = adapt_relative_attention(self.model)
                if not switch_attention(self.model, packed=True) and not is_adapted:
                    continue
            # Where the kernel refuses, attention is padded, and nothing else.
            for has_kernel in (True, False) if has_attention_kernel(alone.device, dtype) else (False,):
                self.has_kernel = has_kernel
                try:
                    if are_same_vectors(alone, self.run(torch.cat(list(texts)), lengths, trial), dtype):
                        return batching
                    reason = "it gives other vectors"
                except Exception as error:
                    # Models that do not call our attention, or not as expected, fail in many ways.
                    if batching != PACKED or is_out_of_memory(error):
                        raise
                    reason = f"{type(error).__name__}: {error}"
                if has_kernel:
                    warn_user(
                        f"torch's attention for texts of different lengths does not take {type(self.model).__name__} "
                        f"({reason}): attention has more steps; scores are unaffected"
                    )
            # Models may look at the name of their attention without packed rows too.
            switch_attention(self.model, packed=False)
        return None


def _number_after(padding_id: int, ids: Tensor, lengths: Ints) -> Tensor:
    """Return position ids as RoBERTa numbers them: padding in a text has the position of padding and is not counted."""
    counted = (ids != padding_id).long()  # (tokens,)
    total = counted.cumsum(0)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    before = (total - counted).index_select(0, send(starts, ids.device))
    return (total - before) * counted + padding_id


def draw_texts(spec: ModelSpec, lengths: Sequence[int], device: torch.device) -> list[Tensor]:
    """Return texts of random tokens within a model's limit, shape (tokens,) each; every second has special ones.

    Models may derive numbers from special tokens, such as positions from padding, or a factor from masks.
    """
    vocabulary, settings = range(int(getattr(spec.config, "vocab_size", 256))), spec.config.to_dict()
    reserved = {value for name, value in settings.items() if name.endswith("_token_id") and isinstance(value, int)}
    ids = torch.tensor([i for i in vocabulary if i not in reserved | {0}], dtype=torch.long, device="cpu")
    special = [i for role in _SPECIAL_ROLES if (i := settings.get(f"{role}_token_id")) in vocabulary]
    generator = torch.Generator("cpu").manual_seed(0)
    texts = []
    for number, length in enumerate(lengths):
        drawn = torch.randint(len(ids), (min(length, spec.max_positions or length),), generator=generator, device="cpu")
        text = ids[drawn]
        if number % 2 == 0:
            inner = special[: max(len(text) - 2, 0)]
            text[1 : 1 + len(inner)] = torch.tensor(inner, dtype=torch.long, device="cpu")
        texts.append(text.to(device))
    return texts


def are_same_vectors(first: Tensor, second: Tensor, dtype: torch.dtype) -> bool:
    """Check whether token vectors, shape (..., width), are equal but for rounding; NaN is equal to nothing."""
    if first.shape != second.shape:
        return False
    distance = (unit_vectors(first) - unit_vectors(second)).norm(dim=-1).max()
    # TF32 has the exponent of float32 and the mantissa of float16.
    eps = torch.finfo(torch.float16 if dtype == torch.float32 and may_use_tf32(first.device) else dtype).eps
    return float(distance) <= max(_TOLERANCE, _TOLERANCE_IN_EPS * eps)


@contextmanager
def _record_states(layers: nn.Module) -> Iterator[list[Tensor]]:
    """Record the input of the first of a model's layers and the output of each."""
    states: list[Tensor] = []

    def record_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not states:  # a module may be called for several layers
            states.append(args[0] if args else kwargs["hidden_states"])

    def record_output(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple | list) else output)

    with ExitStack() as hooks:
        for layer in layers.children():
            hooks.enter_context(layer.register_forward_hook(record_output))
        hooks.enter_context(next(layers.children()).register_forward_pre_hook(record_input, with_kwargs=True))
        yield states


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
