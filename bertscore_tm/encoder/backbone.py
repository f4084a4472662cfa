"""The frozen model of an encoder: cut, placed on a device, run, and shared by all encoders that need the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from bertscore_tm import catalog
from bertscore_tm.core.onednn import is_eager, pack_linears
from bertscore_tm.encoder.families import (
    FAMILIES,
    Batching,
    Family,
    OwnModelConfig,
    listed_family,
    text_config,
    text_part,
)
from bertscore_tm.encoder.forward_pass import accepted_options, draw_texts, find_batching, run_encoder, run_texts
from bertscore_tm.encoder.identity import ModelSource, hash_files, hash_model, listed_name
from bertscore_tm.encoder.loading import load_encoder, quiet_transformers
from bertscore_tm.encoder.probe import cut_probed, needs_probe
from bertscore_tm.encoder.vector_cache import SharedObjects
from bertscore_tm.utilities.integers import as_integer
from bertscore_tm.utilities.user_warnings import warn_user

__all__ = [
    "Backbone",
    "ForwardFunction",
    "count_from_zero",
    "has_native_bfloat16",
    "ready_config",
    "ready_encoder",
    "resolve_layer",
]

# Returns token vectors, shape (batch, tokens, width), given a model and its input_ids and attention_mask.
ForwardFunction = Callable[[nn.Module, dict[str, Tensor]], Tensor]

# Tokens of the texts that are tried together and alone when a model is loaded.
_TRIED_LENGTHS = (21, 4, 4, 2)


@dataclass
class _LoadedModel:
    """A frozen model, its completed family, how its texts share a forward pass, and the options that it accepts."""

    model: nn.Module
    family: Family
    batching: Batching
    options: frozenset[str]


# The models in memory, by source, layers kept, dtype and device.
_models: SharedObjects[_LoadedModel] = SharedObjects()


class Backbone:
    """The frozen model of one encoder, on every device on which the encoder has been used.

    Models are loaded on first use, outside inference mode (a loss could not differentiate through them otherwise) and
    without touching torch's random state. A pickle holds the weights of a ready model only. Arguments are those of
    :class:`bertscore_tm.FrozenEncoder`, resolved; of a probed family, what the structure shows.
    """

    def __init__(
        self,
        source: ModelSource,
        name: str,
        config: PretrainedConfig,
        family: Family,
        *,
        num_layers: int,
        all_layers: bool,
        dtype: torch.dtype | Literal["auto"],
        forward_fn: ForwardFunction | None = None,
    ) -> None:
        self.source = source
        self.name = name
        self.config = config
        self.family = family
        self.num_layers = num_layers
        self.all_layers = all_layers
        self.layers_kept = self.family.layers_to_keep(num_layers)
        self.dtype = dtype
        self.forward_fn = forward_fn
        self._hash: str | None = None
        # By the device's name, since torch.compile cannot look up devices in a dictionary.
        self.models: dict[str, _LoadedModel] = {}

    def on(self, device: torch.device) -> Any:
        """Return the model on a device, loaded if it is not in memory, frozen and in evaluation mode."""
        return self._loaded(device).model

    def batching(self, device: torch.device) -> Batching:
        """Return how texts of different lengths share a forward pass."""
        return self._loaded(device).batching

    def copy_ready(self, model: nn.Module) -> None:
        """Take a frozen copy of the ready model, on its device, so that training it later changes no score."""
        self._place(next(model.parameters()).device, lambda dtype: self._cut_copy(model))

    def resolve_dtype(self, device: torch.device) -> torch.dtype:
        """Return the precision used on a device."""
        if isinstance(self.dtype, torch.dtype):
            return self.dtype
        return torch.bfloat16 if has_native_bfloat16(device) else torch.float32

    def run(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """Run texts, which do not affect each other.

        Args:
            ids: token ids of all texts, one after the other, shape (tokens,); or input embeddings, (tokens, width).
            lengths: tokens of each text, longest first.

        Returns:
            Hidden states in the order of the tokens, shape (layers, tokens, width).
        """
        loaded = self._loaded(ids.device)
        forward = partial(self._forward, loaded)
        longer = sum(length > _rope_switch(self.config) for length in lengths)
        several = [some for some in (lengths[:longer], lengths[longer:]) if some]
        parts = [
            run_texts(forward, part, some, loaded.batching, self.family, self.config)
            for part, some in zip(ids.split(list(map(sum, several))), several, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def run_soft(self, embeds: Tensor, mask: Tensor) -> Tensor:
        """Run texts of soft tokens, with a gradient; the states of padding have no meaning.

        Args:
            embeds: input embeddings, shape (batch, positions, width).
            mask: real positions, shape (batch, positions), bool.

        Returns:
            Hidden states, shape (layers, batch, positions, width).
        """
        loaded = self._loaded(embeds.device)
        # Compiled code and accelerators would have to wait for the lengths.
        packs = loaded.batching == "packed" and embeds.device.type == "cpu" and is_eager()
        if not packs and loaded.batching != "equal" and mask.shape[1] <= _rope_switch(self.config):
            return self._forward(loaded, embeds, mask, None)
        lengths = mask.sum(-1).tolist()
        order = sorted((i for i, length in enumerate(lengths) if length), key=lambda i: -lengths[i])
        rows = torch.tensor(order, dtype=torch.long, device=mask.device)
        places = (rows[:, None] * mask.shape[1] + torch.arange(mask.shape[1], device=mask.device))[mask[rows]]
        found = self.run(embeds.flatten(0, 1)[places], [lengths[i] for i in order])
        states = found.new_zeros(len(found), mask.numel(), found.shape[-1]).index_copy(1, places, found)
        return states.view(len(found), *mask.shape, -1)

    def _forward(self, loaded: _LoadedModel, inputs: Tensor, mask: Tensor, position_ids: Tensor | None) -> Tensor:
        if self.forward_fn is None:
            given = loaded.model, loaded.options, self.family, self.config, inputs, mask, position_ids
            return run_encoder(*given, self.num_layers, self.all_layers)
        with torch.autocast(device_type=inputs.device.type, enabled=False):
            vectors = self.forward_fn(loaded.model, {"input_ids": inputs, "attention_mask": mask.long()})
        if vectors.ndim != 3 or vectors.shape[:2] != mask.shape:
            raise ValueError(
                f"forward_fn must return one vector per token, shape {(*mask.shape, 'width')}; it returned "
                f"shape {tuple(vectors.shape)}"
            )
        return vectors[None]

    def content_hash(self) -> str | None:
        """Return a hash of the model: of a folder's files, or of a ready model's frozen copy; ``None`` of a hub name.

        Raises:
            OSError: the folder was saved again since the encoder was made.
        """
        if self.source.kind == "hub":
            return None
        if self.source.kind == "folder":
            self.source.check_unchanged()
            return hash_files(self.source.folder, self.source.files)
        if self._hash is None:
            self._hash = hash_model(next(iter(self.models.values())).model)
        return self._hash

    def _loaded(self, device: torch.device) -> _LoadedModel:
        device = _with_index(device)
        if str(device) not in self.models:
            self._place(device, self._load)
        loaded = self.models[str(device)]
        if loaded.model.training:  # a caller may have called .train()
            nn.Module.eval(loaded.model)
        return loaded

    def _place(self, device: torch.device, load: Callable[[torch.dtype], nn.Module]) -> None:
        device, dtype = _with_index(device), self.resolve_dtype(device)
        if dtype == torch.bfloat16 and device.type == "cpu" and not has_native_bfloat16(device):
            warn_of_slow_bfloat16()

        def create() -> _LoadedModel:
            # On another default device, transformers loads models there, and only if accelerate is installed.
            with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
                model = load(dtype)
                _move(model, device, dtype)
                model.requires_grad_(False)
                nn.Module.eval(model)
                pack_linears(model)
                with quiet_transformers():
                    return self._try_batching(model, device, dtype)

        loaded = _models.get((self.source, self.layers_kept, dtype, device), create)
        self.family = loaded.family  # a probe, by this encoder or by another one, completes it
        self.models[str(device)] = loaded

    def _try_batching(self, model: nn.Module, device: torch.device, dtype: torch.dtype) -> _LoadedModel:
        """Find out how texts share a forward pass: the table and the probe say it, unless the code is the user's."""
        family = self.family
        loaded = _LoadedModel(model, family, family.batching, accepted_options(model))
        is_own = self.forward_fn is not None or _is_own_code(model, loaded.options)
        tried: list[Batching] = ["packed"] if family.batching == "packed" and self.forward_fn is None else []
        if is_own and family.batching != "equal":
            tried += ["padded", "equal"]
        if tried and device.type != "meta":  # without values, there is nothing to compare
            texts = draw_texts(self.config, _TRIED_LENGTHS, family.max_positions(self.config), device)
            found = find_batching(model, partial(self._forward, loaded), family, self.config, texts, tried, dtype)
            if found is None and is_own:
                raise ValueError(f"{self.name} gives a text other vectors next to texts of equal length than alone")
            loaded.batching = found or "padded"
        return loaded

    def _load(self, dtype: torch.dtype) -> nn.Module:
        # A copy in another precision has lost digits, but a ready model cannot be loaded again.
        ready = self.source.kind == "ready"
        for loaded in self.models.values():
            if ready or next(loaded.model.parameters()).dtype == dtype:
                return self._cut_copy(loaded.model)
        probes = needs_probe(self.family, self.config, self.layers_kept)
        return load_encoder(self.source, self.name, self.family, self._cut, torch.float32 if probes else dtype)

    def _cut_copy(self, model: nn.Module) -> nn.Module:
        copied = deepcopy(model)
        if not self.source.is_whole:
            if needs_probe(self.family, self.config, self.layers_kept):
                nn.Module.to(copied, torch.float32)
            self._cut(copied)
        return copied

    def _cut(self, encoder: nn.Module) -> None:
        if self.family.probed:
            self.family = cut_probed(encoder, self.config, self.layers_kept, self.family)
        else:
            self.family.cut(encoder, self.layers_kept)

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "models": {}}
        if self.source.kind == "ready":
            model = next(iter(self.models.values())).model
            state["ready"] = model if self.source.is_whole else _ModelParts.of(cast(Any, model))
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        ready = state.pop("ready", None)
        self.__dict__.update(state)
        if ready is not None:
            model, device = (
                ready.build(self.family, self.layers_kept) if isinstance(ready, _ModelParts) else (ready, None)
            )
            self.source = ModelSource.from_ready(self.source.is_whole)
            self._place(device or next(model.parameters()).device, lambda dtype: model)


@dataclass(frozen=True)
class _ModelParts:
    """Parts from which a ready model is rebuilt: transformers attaches hooks to models, which cannot be pickled."""

    model_class: type[nn.Module]
    config: PretrainedConfig
    dtype: torch.dtype
    weights: dict[str, Tensor]

    @classmethod
    def of(cls, model: Any) -> _ModelParts:
        return cls(type(model), model.config, model.dtype, model.state_dict())

    def build(self, family: Family, layers_kept: int) -> tuple[nn.Module, torch.device]:
        """Return the model, on the CPU, and the device that it was pickled from."""
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            before = torch.get_default_dtype()
            # As in from_pretrained: buffers that are not saved, such as Gemma's scale, are computed in this dtype.
            torch.set_default_dtype(self.dtype)
            try:
                model: Any = self.model_class(self.config)
            finally:
                torch.set_default_dtype(before)
            if model.get_input_embeddings() is None:  # before transformers 5, T5's encoder has none
                model.set_input_embeddings(nn.Embedding(self.config.vocab_size, self.config.hidden_size))
        family.cut(model, layers_kept)
        nn.Module.to(model, self.dtype).load_state_dict(self.weights)
        return model, next(iter(self.weights.values())).device


def _is_own_code(model: nn.Module, options: Collection[str]) -> bool:
    """Return whether a model's class is not one of transformers, and may drop the mask, or takes none."""
    owner = next(one for one in type(model).__mro__ if "forward" in vars(one))
    return owner.__module__.partition(".")[0] != "transformers" or "attention_mask" not in options


@cache
def warn_of_slow_bfloat16() -> None:
    """Warn, once per process, that the processor computes bfloat16 more slowly than float32."""
    warn_user(
        "this processor has no bfloat16 instructions, so that dtype='bfloat16' is slower than 'float32' on it: use "
        "dtype='auto', which chooses bfloat16 only where the device computes it natively"
    )


def has_native_bfloat16(device: torch.device) -> bool:
    """Return whether a device computes bfloat16 in hardware; unknown devices do not."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    # Private: a version of torch without it computes in float32.
    check: Callable[[], bool] = getattr(torch.cpu, "_is_avx512_bf16_supported", bool)
    return device.type == "cpu" and check()


def ready_encoder(model: nn.Module) -> nn.Module:
    """Return the encoder within a ready model of transformers, with or without a head or a decoder.

    Raises:
        ValueError: the model is not one of transformers.
    """
    # Slow to import; already imported by anyone who has a model of transformers.
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"{type(model).__name__} is not a model of transformers: pass forward_fn= too, a function of the "
            f"model and a dictionary of input_ids and attention_mask that returns token vectors"
        )
    base: nn.Module = model.base_model
    listed = listed_family(text_config(model.config))
    return text_part(base) if listed is None else listed.encoder_of(base)


def ready_config(model: nn.Module, tokenizer: PreTrainedTokenizerBase, *, has_forward_fn: bool) -> PretrainedConfig:
    """Return a copy of a ready model's configuration; one of ours where a function runs a type that is not listed."""
    config = getattr(model, "config", None)
    if isinstance(config, PretrainedConfig) and (not has_forward_fn or config.model_type in FAMILIES):
        return deepcopy(config)
    own = OwnModelConfig()
    own.vocab_size = len(tokenizer)
    return own


def resolve_layer(
    config: PretrainedConfig,
    name: str,
    num_layers: int | None,
    all_layers: bool,
    forward_fn: ForwardFunction | None,
) -> int:
    """Return the number of the compared layer: by default the model's tuned one, or its last one with ``all_layers``.

    Raises:
        TypeError: ``num_layers`` is not an integer.
        ValueError: the layer does not exist, or the layers cannot be returned together.
    """
    if num_layers is not None:
        num_layers = as_integer("num_layers", num_layers)
    if forward_fn is not None:
        if all_layers:
            raise ValueError("forward_fn returns one layer: all_layers=True is not possible with it")
        return num_layers or 0
    available = int(config.num_hidden_layers)
    if num_layers is None:
        num_layers = available if all_layers else catalog.tuned_layer(listed_name(name))
    layer = count_from_zero(num_layers, config)
    if not 0 <= layer <= available:
        raise ValueError(f"num_layers={num_layers} does not exist: {name} has layers 0 to {available}")
    if all_layers and getattr(config, "word_embed_proj_dim", width := config.hidden_size) != width:
        raise ValueError(f"the layers of {name} differ in width: choose one with num_layers, not all_layers")
    return layer


def count_from_zero(num_layers: int, config: PretrainedConfig) -> int:
    """Return a layer's number counted from 0, of which negative ones count from the last; it may not exist."""
    return num_layers + int(config.num_hidden_layers) + 1 if num_layers < 0 else num_layers


def _rope_switch(config: PretrainedConfig) -> float:
    """Return the length above which a text changes the position frequencies of its batch (LongRoPE, as in Phi-3)."""
    # Before transformers 5, it was rope_scaling.
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    default = getattr(config, "original_max_position_embeddings", None)
    for settings in (rope, *(value for value in rope.values() if isinstance(value, Mapping))):
        if settings.get("rope_type", settings.get("type")) == "longrope":
            return float(settings.get("original_max_position_embeddings", default) or math.inf)
    return math.inf


def _move(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Move a model to a device and a dtype, and leave buffers that it computes itself in their own.

    The frequencies of rotary positions are such: rounded to bfloat16, they turn position 500 by up to a radian too far.
    """
    saved = model.state_dict().keys()
    computed = [
        (module, name, buffer)
        for prefix, module in model.named_modules()
        for name, buffer in module.named_buffers(prefix=prefix, recurse=False)
        if name not in saved
    ]
    # The methods of nn.Module, as those of transformers have no types.
    nn.Module.to(model, device, dtype)
    for module, name, buffer in computed:
        setattr(module, name.rpartition(".")[2], buffer.to(device))


def _with_index(device: torch.device) -> torch.device:
    """Return the device as tensors report it: ``cuda`` is ``cuda:0``."""
    return torch.empty(0, dtype=torch.float32, device=device).device
