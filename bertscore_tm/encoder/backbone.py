"""The frozen model of an encoder: cut, placed on a device, and shared by all encoders that need the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from bertscore_tm import catalog
from bertscore_tm.core.onednn import pack_linears
from bertscore_tm.encoder.content_hash import hash_files, hash_model
from bertscore_tm.encoder.families import (
    FAMILIES,
    Family,
    OwnModelConfig,
    listed_family,
    text_config,
    text_part,
)
from bertscore_tm.encoder.forward_pass import accepted_options, may_ignore_mask, run_encoder
from bertscore_tm.encoder.identity import ModelSource, listed_name
from bertscore_tm.encoder.loading import load_encoder
from bertscore_tm.encoder.padding import mixes_padding, switches_rope
from bertscore_tm.encoder.precision import has_native_bfloat16, warn_of_slow_bfloat16
from bertscore_tm.encoder.probe import cut_probed, probed_family
from bertscore_tm.encoder.shared_objects import SharedObjects
from bertscore_tm.encoder.tokenization import TextTokenizer
from bertscore_tm.utilities.integers import as_integer

__all__ = [
    "Backbone",
    "ForwardFunction",
    "count_from_zero",
    "ready_config",
    "ready_encoder",
    "resolve_layer",
]

# Returns token vectors, shape (batch, tokens, width), given a model and its input_ids and attention_mask.
ForwardFunction = Callable[[nn.Module, dict[str, Tensor]], Tensor]


@dataclass(frozen=True)
class _ModelKey:
    """Key of a model in memory."""

    source: ModelSource
    layers_kept: int
    dtype: torch.dtype
    device: torch.device


# The models in memory.
_models: SharedObjects[nn.Module] = SharedObjects()


class Backbone:
    """The frozen model of one encoder, on every device on which the encoder has been used.

    Models are loaded on first use, outside inference mode (a loss could not differentiate through them otherwise) and
    without touching torch's random state. A pickle holds the weights of a ready model only.

    Args:
        source: where the model comes from.
        name: the model as the user calls it.
        config: its configuration.
        family: its family; of a probed one, what the structure shows.
        num_layers: the encoder layer whose output is returned.
        all_layers: return the outputs of all layers up to it.
        dtype: precision, or ``"auto"``.
        forward_fn: the user's function that runs the model.
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
        self._options: frozenset[str] = frozenset()
        self._may_ignore_mask = False
        # Of the user's code it is found out when texts of different lengths are first encoded.
        self._mixes_padding: bool | None = None
        self._hash: str | None = None
        # By the device's name, since torch.compile cannot look up devices in a dictionary.
        self.models: dict[str, nn.Module] = {}

    def on(self, device: torch.device) -> Any:
        """Return the model on a device, loaded if it is not in memory.

        Args:
            device: the device.

        Returns:
            The model, frozen and in evaluation mode.
        """
        device = _with_index(device)
        if str(device) not in self.models:
            self._place(device, self._load)
        model = self.models[str(device)]
        if model.training:  # a caller may have called .train()
            nn.Module.eval(model)
        return model

    def copy_ready(self, model: nn.Module) -> None:
        """Take a frozen copy of the ready model, on its device, so that training it later changes no score.

        Args:
            model: the ready model.
        """
        self._place(next(model.parameters()).device, lambda dtype: self._cut_copy(model))

    def resolve_dtype(self, device: torch.device) -> torch.dtype:
        """Return the precision used on a device.

        Args:
            device: the device.

        Returns:
            The dtype; for ``"auto"`` bfloat16 where the device computes it natively, else float32.
        """
        if isinstance(self.dtype, torch.dtype):
            return self.dtype
        return torch.bfloat16 if has_native_bfloat16(device) else torch.float32

    def needs_equal_lengths(self, sizes: Sequence[int], device: torch.device, tokenizer: TextTokenizer) -> bool:
        """Check whether only texts of equal length may share a batch.

        Args:
            sizes: lengths of the texts in tokens.
            device: where the model runs, if it has to be tried.
            tokenizer: its tokenizer.

        Returns:
            Whether texts of these lengths would affect each other.
        """
        if len(set(sizes)) < 2:
            return False
        return switches_rope(self.config, min(sizes), max(sizes)) or self.mixes_padding(device, tokenizer)

    def mixes_padding(self, device: torch.device, tokenizer: TextTokenizer) -> bool:
        """Check whether padding affects real tokens, so that only texts of equal length may share a batch.

        Args:
            device: where the model is loaded, and runs if it has to be tried.
            tokenizer: its tokenizer.

        Returns:
            Whether it does: a property of the family, or, where the user's code runs the model, of a short text that is
            encoded alone and next to a longer one.
        """
        if not self._may_ignore_mask or self.family.mixes_padding:
            return self.family.mixes_padding
        if self._mixes_padding is None:
            with torch.no_grad():
                self._mixes_padding = mixes_padding(
                    lambda ids, mask: self.run(device, mask, input_ids=ids).movedim(0, 2),
                    tokenizer(["a"]).ids[0],
                    tokenizer.pad_id,
                    max_length=tokenizer.max_length,
                    dtype=self.resolve_dtype(device),
                    device=device,
                )
        return self._mixes_padding

    def run(self, device: torch.device, mask: Tensor, **inputs: Tensor) -> Tensor:
        """Run the model, with autocast off.

        Args:
            device: where the inputs are.
            mask: real positions, shape (batch, positions), bool.
            **inputs: ``input_ids`` or ``inputs_embeds``.

        Returns:
            Hidden states, shape (layers, batch, positions, width).

        Raises:
            ValueError: the user's function returned another shape.
        """
        model = self.on(device)
        if self.forward_fn is not None:
            with torch.autocast(device_type=device.type, enabled=False):
                vectors = self.forward_fn(model, {**inputs, "attention_mask": mask.long()})
            if vectors.ndim != 3 or vectors.shape[:2] != mask.shape:
                raise ValueError(
                    f"forward_fn must return one vector per token, shape {(*mask.shape, 'width')}; it returned "
                    f"shape {tuple(vectors.shape)}"
                )
            return vectors[None]
        return run_encoder(
            model,
            self.family,
            self.config,
            mask,
            num_layers=self.num_layers,
            all_layers=self.all_layers,
            options=self._options,
            **inputs,
        )

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
            self._hash = hash_model(next(iter(self.models.values())))
        return self._hash

    def _place(self, device: torch.device, load: Callable[[torch.dtype], nn.Module]) -> None:
        device, dtype = _with_index(device), self.resolve_dtype(device)
        if dtype == torch.bfloat16 and device.type == "cpu" and not has_native_bfloat16(device):
            warn_of_slow_bfloat16()

        def frozen() -> nn.Module:
            # On another default device, transformers loads models there, and only if accelerate is installed.
            with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
                model = load(dtype)
                _move(model, device, dtype)
            model.requires_grad_(False)
            nn.Module.eval(model)
            pack_linears(model)
            return model

        model = _models.get(_ModelKey(self.source, self.layers_kept, dtype, device), frozen)
        if (probed := self._probed_family()) is not None:
            self.family = probed  # by this encoder or by another one that shares the model
        self._options = accepted_options(model)
        self._may_ignore_mask = self.forward_fn is not None or may_ignore_mask(model)
        self.models[str(device)] = model

    def _load(self, dtype: torch.dtype) -> nn.Module:
        # A copy in another precision has lost digits, but a ready model cannot be loaded again.
        ready = self.source.kind == "ready"
        for model in self.models.values():
            if ready or next(model.parameters()).dtype == dtype:
                return self._cut_copy(model)
        loaded_dtype = torch.float32 if self._needs_probe() else dtype
        return load_encoder(self.source, self.name, self.family, self._cut, loaded_dtype)

    def _cut_copy(self, model: nn.Module) -> nn.Module:
        copied = deepcopy(model)
        if not self.source.is_whole:
            if self._needs_probe():
                nn.Module.to(copied, torch.float32)
            self._cut(copied)
        return copied

    def _probed_family(self) -> Family | None:
        if not self.family.probed:
            return None
        return probed_family(self.config, self.layers_kept)

    def _needs_probe(self) -> bool:
        return self.family.probed and self._probed_family() is None

    def _cut(self, encoder: nn.Module) -> None:
        """Cut a whole encoder in place, after the probe of a configuration that this process has not seen yet."""
        if self._needs_probe():
            cut_probed(encoder, self.config, self.layers_kept, self.family)
        else:
            self.family.cut(encoder, self.layers_kept)

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "models": {}}
        if self.source.kind == "ready":
            model = next(iter(self.models.values()))
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


def ready_encoder(model: nn.Module) -> nn.Module:
    """Return the encoder within a ready model of transformers.

    Args:
        model: the model, with or without a head or a decoder.

    Returns:
        The encoder.

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
    """Return the configuration of a ready model.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        has_forward_fn: whether a function of the user runs the model.

    Returns:
        A copy of the model's configuration, or :class:`OwnModelConfig` where a function runs a model of no listed type.
    """
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
    """Return the number of the encoder layer that is compared.

    Args:
        config: the model's configuration.
        name: the model as the user calls it.
        num_layers: the layer; negative numbers count from the last. Default: the model's tuned layer, or its last one
            with ``all_layers``.
        all_layers: whether all layers up to it are returned.
        forward_fn: the user's function that runs the model.

    Returns:
        The number, counted from 0.

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
    """Return a layer's number counted from 0.

    Args:
        num_layers: the layer; negative numbers count from the model's last.
        config: the model's configuration.

    Returns:
        The number; it may not exist.
    """
    return num_layers + int(config.num_hidden_layers) + 1 if num_layers < 0 else num_layers


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
