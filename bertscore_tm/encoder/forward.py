"""Run the model on a flat batch of tokens (all texts concatenated), packed, grouped or one text at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from inspect import Parameter, signature
from operator import attrgetter
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from bertscore_tm.device.locks import Lock
from bertscore_tm.device.memory import is_out_of_memory, send
from bertscore_tm.device.onednn import find_packed_weight, is_eager, missing_rows
from bertscore_tm.device.precision import may_use_tf32
from bertscore_tm.encoder.families import PACKED, PADDED, Batching, ForwardFunction, ModelSpec
from bertscore_tm.encoder.packing import UNLIMITED, Row, group_texts, has_attention_kernel, row
from bertscore_tm.encoder.relative_attention import is_packed, switch_attention
from bertscore_tm.matching.vectors import Ints, places_of, unit_vectors
from bertscore_tm.utilities.warnings import warn_user

# Keyword arguments that models may lack.
_OPTIONS = ("attention_mask", "position_ids", "output_hidden_states", "return_dict")
# Special tokens that texts may hold.
_SPECIAL_ROLES = ("pad", "mask", "unk", "bos", "eos", "cls", "sep")
# Positions of a padded group of texts. On a CPU, larger groups do not fit into the caches.
_PADDED_POSITIONS_CPU = 512
_PADDED_POSITIONS = 8192
# Distance between unit vectors that rounding explains: 1e-6 in float32, 0.01 in bfloat16 (MiniLM).
_TOLERANCE = 1e-5
_TOLERANCE_IN_EPS = 8


class Trial(NamedTuple):
    """Result of running a few texts together and alone when a model is loaded.

    Args:
        batching: the first candidate with which texts get the same vectors together as alone, or ``None``.
        has_kernel: see :class:`ForwardPass`, as the next two.
        draws_numbers: the model changes torch's random state.
        recorded: path of the layers whose states have to be recorded by hooks, if any.
    """

    batching: Batching | None
    has_kernel: bool
    draws_numbers: bool
    recorded: str | None


@dataclass(eq=False)
class ForwardPass:
    """The forward pass of a model in memory: hidden states of a layer, or of all layers up to it, of several texts.

    Args:
        model: the encoder, whose attention is already switched to packed rows if ``batching`` needs it.
        spec: configuration, family and chosen layer of the model.
        batching: which texts share a forward pass.
        has_kernel: torch's kernel for texts of different lengths attends within the texts of a row.
        draws_numbers: the model draws random numbers that it does not use, as LED, FSMT and NLLB-MoE do in some
            versions of transformers.
        recorded: path of the list of layers whose states are recorded by hooks, because the model does not return
            them; ``None`` if it does. States of probed families are always recorded.
        lock: held by calls that change the model by hooks or by another attention.
        shared: the forward pass of the first encoder that loaded this model. Holding a reference keeps it in the cache
            of models.

    Attributes:
        options: keyword arguments that the model accepts.
        wants_states: the states of several layers are needed, or of another one than the model's last layer.
        switches_attention: the model changes its attention with the length of the longest text (BigBird).
        rope_switch: see :func:`_rope_switch`.
        packed_weight: weight of the model's first layer that oneDNN has packed, if any.
        first_position: position id of a text's first token.
    """

    model: nn.Module
    spec: ModelSpec
    batching: Batching = PADDED
    has_kernel: bool = False
    draws_numbers: bool = False
    recorded: str | None = None
    lock: Lock = field(default_factory=Lock)
    shared: ForwardPass | None = None

    def __post_init__(self) -> None:
        spec = self.spec
        family = spec.family
        # Read the method of the class, because hooks that wrap the method of an instance may hide its arguments.
        parameters = signature(type(self.model).forward).parameters
        kinds = [parameter.kind for parameter in parameters.values()]
        accepts_any = Parameter.VAR_KEYWORD in kinds  # forward(self, ..., **kwargs)
        self.options = [name for name in _OPTIONS if accepts_any or name in parameters]

        # The model returns the state of its last layer in memory. That is not the chosen one for layer 0 of most
        # models, because they fail without any layer and keep layer 1.
        is_last_state_enough = spec.layers_kept == spec.num_layers and not spec.all_layers
        # The user's function returns the vectors themselves.
        has_own_function = spec.forward_fn is not None
        self.wants_states = not is_last_state_enough and not has_own_function

        # Record the states of a probed family by hooks, because what the model returns as hidden_states differs between
        # models: Mamba's lacks the embeddings' output. Layers in several lists, such as XLM's, have no single output.
        has_one_list = len(family.layer_paths) == 1
        if family.probed and has_one_list:
            self.recorded = family.layer_paths[0]

        self.switches_attention = hasattr(self.model, "set_attention_type")
        self.rope_switch = _rope_switch(spec.config)
        self.packed_weight = find_packed_weight(self.model)
        self.first_position = family.first_position(spec.config)

    def run(self, inputs: Tensor, lengths: Ints) -> Tensor:
        """Run texts, which do not affect each other, together.

        Takes ids or input embeddings of all tokens, shape (tokens, ...), and the lengths of the texts, longest first.
        Returns hidden states in the order of the tokens, shape (layers, tokens, width).
        """
        num_long = int((lengths > self.rope_switch).sum())
        has_long_and_short = 0 < num_long < len(lengths)
        if has_long_and_short:
            # Run the long texts apart, because they would change the position frequencies of the others.
            tokens_of_long = int(lengths[:num_long].sum())
            long = self.run(inputs[:tokens_of_long], lengths[:num_long])
            short = self.run(inputs[tokens_of_long:], lengths[num_long:])
            return torch.cat([long, short], 1)
        # Texts of equal lengths are a batch without padding, which is as fast as a row.
        has_equal_lengths = lengths[0] == lengths[-1]
        if self.batching != PACKED or has_equal_lengths:
            return self._run_groups(inputs, lengths)

        # Run the texts one after the other in a row without padding.
        num_tokens = len(inputs)
        num_added = missing_rows(self.packed_weight, num_tokens)
        if num_added:
            # Append texts of one token so that the number of rows needs no padding in oneDNN.
            inputs = torch.cat([inputs, inputs.new_zeros(num_added, *inputs.shape[1:])])
            lengths = np.concatenate([lengths, np.ones(num_added, np.int64)])
        has_ids = not inputs.is_floating_point()
        if self.spec.family.positions_after_padding and has_ids:
            positions = _number_after(self.first_position - 1, inputs, lengths)  # (tokens,)
        else:
            # Count from the first position in each text: 0, 1, 2, 0, 1 for texts of 3 and 2 tokens.
            first_positions = np.full_like(lengths, self.first_position)  # (texts,)
            positions = send(places_of(first_positions, lengths), inputs.device)  # (tokens,)
        token = row.set(Row(lengths, inputs.device, has_kernel=self.has_kernel))
        try:
            states = self(inputs[None], position_ids=positions[None])  # (layers, 1, tokens, width)
        finally:
            row.reset(token)
        # Leave out the added texts, which follow the others.
        return states[:, 0, :num_tokens]  # (layers, tokens, width)

    def _run_groups(self, inputs: Tensor, lengths: Ints) -> Tensor:
        """Run groups of texts as batches."""
        batching = self.batching
        positions = UNLIMITED
        if batching.padding:
            is_cpu = inputs.device.type == "cpu"
            positions = _PADDED_POSITIONS_CPU if is_cpu else _PADDED_POSITIONS
        # Any id can pad, because padding is masked, but the model needs an embedding of it.
        padding_id = getattr(self.spec.config, "pad_token_id", None) or 0
        parts = []  # (layers, tokens, width) each
        for group in group_texts(lengths, padding=batching.padding, positions=positions, texts=batching.texts):
            if not group.is_padded:
                batch = group.pad(inputs, places=None)  # (texts, positions, ...)
                states = self(batch)  # (layers, texts, positions, width)
                parts.append(states.flatten(1, 2))
                continue
            # The places of the tokens in the flattened batch, (texts * positions): to pad, tokens are put there, and to
            # drop the states of padding, theirs are read from there.
            places = group.places(inputs.device)  # (tokens,)
            batch = group.pad(inputs, places=places, value=padding_id)  # (texts, positions, ...)
            states = self(batch, send(group.real, inputs.device))  # (layers, texts, positions, width)
            parts.append(states.flatten(1, 2).index_select(1, places))
            # Free the states of padding before the next group runs.
            del batch, states
        # Do not copy the states of a single group, which is the usual case.
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts, 1)

    def run_soft(self, embeds: Tensor, mask: Tensor) -> Tensor:
        """Run texts of soft tokens, with a gradient; the states of padding have no meaning.

        Takes input embeddings, shape (batch, positions, width), and the mask of real positions. Returns hidden states,
        shape (layers, batch, positions, width).
        """
        batch_size, num_positions = mask.shape
        # Packing needs the lengths. Compiled code cannot read them, and an accelerator would have to synchronize.
        can_read_lengths = embeds.device.type == "cpu" and is_eager()
        packs = self.batching == PACKED and can_read_lengths
        may_pad = self.batching in (PACKED, PADDED) and num_positions <= self.rope_switch
        if may_pad and not packs:
            return self(embeds, mask)

        # Run the real positions only, text by text: the longest text first, as run() needs it, and none without tokens.
        lengths = np.array(mask.sum(-1).tolist())  # (batch,)
        order = np.argsort(-lengths, kind="stable")  # (batch,)
        order = order[lengths[order] > 0]  # (texts,)
        texts = torch.tensor(order, device=mask.device)
        # Places of the tokens in the flattened batch, (batch * positions). With 4 positions and texts of 2 and 3 tokens
        # they are 4, 5, 6, 0, 1, because the second text is longer.
        first_places = texts[:, None] * num_positions  # (texts, 1)
        all_places = first_places + torch.arange(num_positions, device=mask.device)  # (texts, positions)
        places = all_places[mask[texts]]  # (tokens,)
        tokens = embeds.flatten(0, 1)[places]  # (tokens, width)
        states = self.run(tokens, lengths[order])  # (layers, tokens, width)

        # Put the states back to the places of their tokens, with zeros as those of padding.
        num_layers, _, width = states.shape
        padded = states.new_zeros(num_layers, batch_size * num_positions, width).index_copy(1, places, states)
        return padded.view(num_layers, batch_size, num_positions, width)

    def __call__(self, inputs: Tensor, mask: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
        """Return hidden states, shape (layers, batch, positions, width).

        Takes token ids or input embeddings, shape (batch, positions, ...), the mask of real positions, by default all,
        and position ids of a packed row, both of shape (batch, positions).
        """
        if mask is None:
            mask = torch.ones(inputs.shape[:2], dtype=torch.bool, device=inputs.device)
        with torch.autocast(device_type=mask.device.type, enabled=False):
            if self.spec.forward_fn is not None:
                return self._call_function(self.spec.forward_fn, inputs, mask)
            last, states = self._run_model(inputs, mask, position_ids)
            if not self.wants_states:
                return last[None]
            chosen = self._choose_layers(self._check_states(states), length=mask.shape[1])
            return torch.stack(self._apply_final_modules(chosen, last))

    def _call_function(self, forward_fn: ForwardFunction, ids: Tensor, mask: Tensor) -> Tensor:
        """Run the model by the user's function; return its vectors as one layer."""
        try:
            vectors = forward_fn(self.model, {"input_ids": ids, "attention_mask": mask.long()})
        except IndexError as error:
            # Models define the embeddings of tokens before others, such as those of positions.
            tables = (module for module in self.model.modules() if isinstance(module, nn.Embedding))
            table = next(tables, None)
            # Any other IndexError is one of the user's code.
            if table is None or int(ids.max()) < table.num_embeddings:
                raise
            num_embeddings = table.num_embeddings
            raise ValueError(
                f"forward_fn failed because the model has embeddings of {num_embeddings} tokens, and the tokenizer "
                f"has {self.spec.config.vocab_size} tokens. Use the tokenizer that the model was trained with"
            ) from error
        if vectors.ndim != 3 or vectors.shape[:2] != mask.shape:
            raise ValueError(
                f"forward_fn must return one vector per token, shape {(*mask.shape, 'width')}, but returned "
                f"shape {tuple(vectors.shape)}"
            )
        return vectors[None]  # (1, texts, tokens, width)

    def _run_model(
        self, inputs: Tensor, mask: Tensor, position_ids: Tensor | None
    ) -> tuple[Tensor, Sequence[Tensor] | None]:
        """Return the last hidden state, and the states of all layers, returned or recorded, if they are wanted."""
        records = self.wants_states and self.recorded is not None
        passed: dict[str, Any] = {
            "attention_mask": mask.long(),
            "position_ids": position_ids,
            "output_hidden_states": self.wants_states and not records,
            "return_dict": True,
        }
        arguments = {name: passed[name] for name in self.options if passed[name] is not None}
        input_name = "inputs_embeds" if inputs.is_floating_point() else "input_ids"
        arguments[input_name] = inputs

        restores_random_state = self.draws_numbers and is_eager()
        needs_lock = records or self.switches_attention or restores_random_state
        if not needs_lock:
            # Earlier versions of torch.compile do not trace an ExitStack (pytorch/pytorch#146506).
            output = self.model(**arguments)
            return output.last_hidden_state, getattr(output, "hidden_states", None)
        with ExitStack() as contexts:
            # Hooks and another attention change the model, and draws change torch's random state. Threads share both.
            contexts.enter_context(self.lock)
            if restores_random_state:
                contexts.enter_context(torch.random.fork_rng(devices=[]))
            if self.switches_attention:
                _choose_attention(self.model, self.spec.config, length=mask.shape[1])
            if records:
                layers = self.model.get_submodule(cast(str, self.recorded))
                states: Sequence[Tensor] | None = contexts.enter_context(_record_states(layers))
            output = self.model(**arguments)
        if not records:
            states = getattr(output, "hidden_states", None)
        return output.last_hidden_state, states

    def _check_states(self, states: Sequence[Tensor] | None) -> Sequence[Tensor]:
        """Return the states; raise an error unless there is one of each layer, and the one before the first layer."""
        name = type(self.model).__name__
        num_layers = self.spec.layers_kept
        if not states:
            raise ValueError(
                f"the forward pass of {name} does not return the hidden states of its layers. Let it accept "
                f"output_hidden_states, or pass forward_fn=, a function that returns token vectors"
            )
        if len(states) != num_layers + 1:
            raise ValueError(
                f"{name} returned {len(states)} hidden states, not {num_layers + 1} for {num_layers} layers. Set "
                f"config.num_hidden_layers to the number of its layers"
            )
        return states

    def _choose_layers(self, states: Sequence[Tensor], length: int) -> list[Tensor]:
        """Return the states of the layers that the encoder wants, shape (batch, positions, width) each."""
        last = self.spec.num_layers
        first = last
        if self.spec.all_layers:
            first = 0
        # states[0] is the embeddings' output, and states[n] that of layer n. BigBird pads texts to whole blocks and
        # leaves the padding in its states, which is cut off here.
        chosen = [state[:, :length] for state in states[first : last + 1]]
        lengths = [state.shape[1] for state in chosen]
        if set(lengths) != {length}:
            raise ValueError(
                f"the layers of {type(self.model).__name__} return {', '.join(map(str, lengths))} vectors for a text "
                f"of {length} tokens, not one per token"
            )
        return chosen

    def _apply_final_modules(self, states: list[Tensor], last: Tensor) -> list[Tensor]:
        """Apply what follows the last layer, such as a norm, to every layer."""
        family = self.spec.family
        for path in family.final_modules:
            module = attrgetter(path)(self.model)
            if module is not None:  # an OPT may lack it
                states = [module(state) for state in states]
        ends_with_last_layer = self.spec.layers_kept == self.spec.num_layers
        if family.final_modules and ends_with_last_layer:
            # The model has applied the modules to the output of its last layer itself, so they must not be applied to
            # it twice.
            states[-1] = last
        return states

    def find_batching(self, texts: Sequence[Tensor], candidates: Sequence[Batching], dtype: torch.dtype) -> Trial:
        """Find the first way in which texts, longest first, get the same vectors together as alone.

        Changes nothing but torch's random state, if the model draws numbers: the caller applies what was found.
        """
        random_state = torch.get_rng_state()
        recorded = self.find_recorded(texts[-1])
        forward = replace(self, recorded=recorded)
        alone = torch.cat([forward(text[None])[:, 0] for text in texts], 1)  # (layers, tokens, width)
        draws_numbers = not torch.equal(random_state, torch.get_rng_state())
        for batching in candidates:
            is_row = batching == PACKED
            with _switched_attention(self.model, packed=is_row) as can_pack:
                if is_row and not can_pack:
                    continue
                # If the kernel fails, retry without it: attention is padded then, and nothing else.
                kernels = [False]
                if is_row and has_attention_kernel(alone.device, dtype):
                    kernels = [True, False]
                for has_kernel in kernels:
                    tried = replace(forward, batching=batching, has_kernel=has_kernel)
                    difference = tried._compare(texts, alone, dtype)
                    if difference is None:
                        return Trial(batching, has_kernel, draws_numbers, recorded)
                    if has_kernel:
                        warn_user(
                            f"torch's attention for texts of different lengths does not take "
                            f"{type(self.model).__name__} ({difference}). Attention has more steps, and scores are "
                            f"unaffected"
                        )
        return Trial(None, has_kernel=False, draws_numbers=draws_numbers, recorded=recorded)

    def find_recorded(self, ids: Tensor) -> str | None:
        """Return the path of the layers to record by hooks, or ``None`` if the model returns a state of each itself.

        Takes the ids of a text, shape (tokens,), on which the model is tried.
        """
        if self.recorded is not None:
            return self.recorded
        layer_paths = self.spec.family.layer_paths
        has_one_list = len(layer_paths) == 1
        if not self.wants_states or not has_one_list:
            return None
        mask = torch.ones(1, len(ids), dtype=torch.bool, device=ids.device)
        with torch.autocast(device_type=ids.device.type, enabled=False):
            _, states = self._run_model(ids[None], mask, position_ids=None)
        if states is None:
            # A model that returns no states at all is refused by _check_states, with a remedy.
            return None
        # transformers collects the states by hooks on the layers' own classes. If the user replaced a layer by a module
        # of another class, it has no hook, and its state is missing.
        lacks_states = len(states) != self.spec.layers_kept + 1
        if lacks_states:
            return layer_paths[0]
        return None

    def _compare(self, texts: Sequence[Tensor], alone: Tensor, dtype: torch.dtype) -> str | None:
        """Run texts together; return how the result differs from that of texts alone, or ``None`` if it does not."""
        lengths = np.array([len(text) for text in texts])
        forward = self
        if self.batching.padding:
            # Allow any share of padding, because the question is whether padding changes a vector at all.
            forward = replace(self, batching=self.batching._replace(padding=1.0))
        try:
            together = forward.run(torch.cat(list(texts)), lengths)
        except Exception as error:
            # Models that do not call our attention, or not as expected, fail in many ways.
            if self.batching != PACKED or is_out_of_memory(error):
                raise
            return f"{type(error).__name__}: {error}"
        if are_same_vectors(alone, together, dtype):
            return None
        return "it gives other vectors"


@contextmanager
def _switched_attention(model: nn.Module, *, packed: bool) -> Iterator[bool]:
    """Switch a model's attention, and back after the block; yield whether it can attend within packed rows."""
    was_packed = is_packed(model)
    try:
        yield switch_attention(model, packed=packed)
    finally:
        switch_attention(model, packed=was_packed)


def _number_after(padding_id: int, ids: Tensor, lengths: Ints) -> Tensor:
    """Return position ids as RoBERTa numbers them: padding in a text has the position of padding and is not counted."""
    # With the padding id 1, the texts [7, 1, 8] and [9, 6] have the positions 2, 1, 3 and 2, 3.
    counted = (ids != padding_id).long()  # 1, 0, 1, 1, 1 in the example, (tokens,)
    total = counted.cumsum(0)  # 1, 1, 2, 3, 4: counted tokens up to each one, of all texts, (tokens,)
    first_tokens = np.repeat(np.cumsum(lengths) - lengths, lengths)  # 0, 0, 0, 3, 3: place of a text's start, (tokens,)
    # Subtract what was counted before each text, so that the count restarts.
    before_text = (total - counted).index_select(0, send(first_tokens, ids.device))  # 0, 0, 0, 2, 2, (tokens,)
    return (total - before_text) * counted + padding_id


def draw_texts(spec: ModelSpec, lengths: Sequence[int], device: torch.device) -> list[Tensor]:
    """Return texts of random tokens within a model's limit, shape (tokens,) each; every second has special ones.

    Models may derive numbers from special tokens, such as positions from padding, or a factor from masks.
    """
    settings = spec.config.to_dict()
    vocabulary = range(int(getattr(spec.config, "vocab_size", 256)))
    # Token 0 may be a padding that the configuration does not name.
    reserved = {0}
    for name, value in settings.items():
        if name.endswith("_token_id") and isinstance(value, int):
            reserved.add(value)
    ids = torch.tensor([token for token in vocabulary if token not in reserved], dtype=torch.long, device="cpu")
    roles = [settings.get(f"{role}_token_id") for role in _SPECIAL_ROLES]
    special = torch.tensor([token for token in roles if token in vocabulary], dtype=torch.long, device="cpu")
    generator = torch.Generator("cpu").manual_seed(0)
    texts = []
    for number, length in enumerate(lengths):
        length = min(length, spec.max_positions or length)
        text = ids[torch.randint(len(ids), (length,), generator=generator, device="cpu")]
        if number % 2 == 0:
            # The first and the last token stay ordinary ones.
            inner = special[: max(length - 2, 0)]
            text[1 : 1 + len(inner)] = inner
        texts.append(text.to(device))
    return texts


def are_same_vectors(first: Tensor, second: Tensor, dtype: torch.dtype) -> bool:
    """Check whether token vectors, shape (..., width), are equal but for rounding; NaN is equal to nothing."""
    if first.shape != second.shape:
        return False
    distance = (unit_vectors(first) - unit_vectors(second)).norm(dim=-1).max()
    eps = torch.finfo(dtype).eps
    if dtype == torch.float32 and may_use_tf32(first.device):
        # TF32 has the exponent of float32 and the mantissa of float16.
        eps = torch.finfo(torch.float16).eps
    return float(distance) <= max(_TOLERANCE, _TOLERANCE_IN_EPS * eps)


@contextmanager
def _record_states(layers: nn.Module) -> Iterator[list[Tensor]]:
    """Record the input of the first of a model's layers and the output of each."""
    states: list[Tensor] = []

    def record_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A module may be called for several layers, and only its first input precedes the first layer.
        if states:
            return
        if args:
            states.append(args[0])
        else:
            states.append(kwargs["hidden_states"])

    def record_output(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        # Layers may return further values, such as the weights of their attention.
        if isinstance(output, tuple | list):
            output = output[0]
        states.append(output)

    with ExitStack() as hooks:
        for layer in layers.children():
            hooks.enter_context(layer.register_forward_hook(record_output))
        hooks.enter_context(next(layers.children()).register_forward_pre_hook(record_input, with_kwargs=True))
        yield states


def _choose_attention(model: nn.Module, config: PretrainedConfig, length: int) -> None:
    """Switch BigBird to its attention for a length, because it keeps that of the first short texts otherwise."""
    attention = "original_full"
    longest_full = (5 + 2 * config.num_random_blocks) * config.block_size
    if config.attention_type == "block_sparse" and length > longest_full:
        attention = "block_sparse"
    # The new attention modules take over the weights of the old ones, so that nothing has to be initialized.
    with torch.device("meta"):
        cast(Any, model).set_attention_type(attention)


def _rope_switch(config: PretrainedConfig) -> float:
    """Return the length above which a text changes the position frequencies of its batch (LongRoPE, as in Phi-3)."""
    # Before transformers 5, it was rope_scaling.
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    default = getattr(config, "original_max_position_embeddings", None)
    # Models with several kinds of layers, such as full and sliding attention, have a dictionary of settings for each.
    settings_of_kinds = [value for value in rope.values() if isinstance(value, Mapping)]
    for settings in (rope, *settings_of_kinds):
        if settings.get("rope_type", settings.get("type")) == "longrope":
            return float(settings.get("original_max_position_embeddings", default) or math.inf)
    return math.inf
