"""The frozen model of an encoder: cut, placed on a device, run, and shared by all encoders that need the same."""

import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import InitVar, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from bertscore_tm.device.memory import device_with_index, is_out_of_memory
from bertscore_tm.device.onednn import adapt_layers
from bertscore_tm.device.precision import fast_half_precision
from bertscore_tm.encoder.cache import SharedObjects
from bertscore_tm.encoder.families import ALONE, BATCHINGS, PACKED, PADDED, Batching, ModelSpec
from bertscore_tm.encoder.forward import ForwardPass, draw_texts
from bertscore_tm.encoder.identity import (
    CAPTURING_MODULE,
    ModelSource,
    computed_buffers,
    hash_files,
    hash_model,
    hash_structure,
)
from bertscore_tm.encoder.loading import load_encoder, quiet_transformers
from bertscore_tm.encoder.packing import register_attention
from bertscore_tm.encoder.probe import complete_family, needs_probe
from bertscore_tm.encoder.relative_attention import switch_attention
from bertscore_tm.utilities.compilation import untraced
from bertscore_tm.utilities.warnings import warn_user

_LOGGER = logging.getLogger(__name__)

# Tokens of the texts that are tried together and alone when a model is loaded: more than a small row holds.
_TRIED_LENGTHS = (29, 12, 12, 5)


# The models in memory, by source, layers kept, dtype and device; the last one stays for the next encoder, as each task
# of Spark unpickles its own.
_models: SharedObjects[ForwardPass] = SharedObjects()


@dataclass(eq=False)
class Backbone:
    """The frozen model of one encoder, on every device on which the encoder has been used.

    Models are loaded on first use, outside inference mode (a loss could not differentiate through them otherwise) and
    without touching torch's random state; a ready model is copied at once, so that training it later changes no score.
    """

    source: ModelSource
    spec: ModelSpec
    dtype: torch.dtype | Literal["auto"]
    ready: InitVar[nn.Module | None]
    _hash: str | None = field(default=None, init=False)
    # Hash of all but the tensors of a ready model, before its layers are adapted.
    _structure: str = field(default="", init=False)
    # Keys are device names, because torch.compile cannot hash devices.
    models: dict[str, ForwardPass] = field(default_factory=dict, init=False)

    def __post_init__(self, ready: nn.Module | None) -> None:
        if ready is not None:
            self._place(next(ready.parameters()).device, partial(self._cut_copy, ready))

    def resolve_dtype(self, device: torch.device) -> torch.dtype:
        """Return the precision used on a device."""
        if isinstance(self.dtype, torch.dtype):
            return self.dtype
        fast = fast_half_precision(device)
        was_trained_in_bfloat16 = getattr(self.spec.config, "dtype", None) == torch.bfloat16
        fits_float16 = self.spec.family.fits_float16 and not was_trained_in_bfloat16
        if fast is None or (fast == torch.float16 and not fits_float16):
            return torch.float32
        return fast

    def content_hash(self) -> str | None:
        """Return a hash of a folder's files, which must be unchanged, or of a ready model; ``None`` of a hub name."""
        self.source.check_unchanged()
        if self._hash is None and self.source.kind == "folder":
            self._hash = hash_files(Path(self.source.location), self.source.files)
        elif self._hash is None and self.source.kind == "ready":
            self._hash = hash_model(next(iter(self.models.values())).model, self._structure)
        return self._hash

    def loaded(self, device: torch.device) -> ForwardPass:
        """Return the model on a device, loaded if it is not in memory, frozen and in evaluation mode."""
        device = device_with_index(device)
        if str(device) not in self.models:
            self._place(device, self._load)
        loaded = self.models[str(device)]
        if loaded.model.training:  # a caller may have called .train()
            nn.Module.eval(loaded.model)
        return loaded

    def unload(self, device: torch.device) -> None:
        """Free the model on a device; of a ready model, one stays in memory, on the CPU."""
        if self.source.kind == "ready" and len(self.models) == 1:
            if device.type == "cpu":
                return
            self.loaded(torch.device("cpu"))
        self.models.pop(str(device), None)
        _models.release(self._model_key(device))

    def _model_key(self, device: torch.device) -> Hashable:
        return self.source, self.spec.layers_kept, self.resolve_dtype(device), device

    # The trial of a model runs rows of texts, which must not be traced.
    @untraced
    def _place(self, device: torch.device, load: Callable[[torch.dtype], nn.Module]) -> None:
        """Add the model on a device to ``models``: shared with an encoder that has loaded it, or loaded now.

        Encoders of one model and precision share it. Each has a forward pass of its own, because each may use another
        layer.
        """
        device = device_with_index(device)
        dtype = self.resolve_dtype(device)
        if dtype == torch.bfloat16 and device.type == "cpu" and fast_half_precision(device) is None:
            warn_of_slow_bfloat16()

        def create() -> ForwardPass:
            with _isolated():
                model = load(dtype)
                _move(model, device, dtype)
                model.requires_grad_(False)
                # The subclass may have an `eval` of its own.
                nn.Module.eval(model)
                adapt_layers(model)
                with quiet_transformers.turned():
                    return self._try_batching(model, device, dtype)

        # A model object passed by the user cannot be reloaded, so do not keep an extra reference.
        shared = _models.get(self._model_key(device), create, keep=self.source.kind != "ready")
        # If the family was unknown, the encoder that loaded the model has probed it.
        self.spec.family = shared.spec.family
        # The copy refers to `shared`, because the cache of models holds only weak references.
        forward = replace(shared, spec=self.spec, shared=shared)
        has_untried_states = forward.wants_states and not shared.wants_states
        if has_untried_states and device.type != "meta":
            # The encoder that loaded the model uses its last layer, so its trial did not look at other layers' states.
            with _isolated(), quiet_transformers.turned():
                forward.recorded = forward.find_recorded(draw_texts(self.spec, _TRIED_LENGTHS[-1:], device)[0])
        self.models[str(device)] = forward

    def _try_batching(self, model: nn.Module, device: torch.device, dtype: torch.dtype) -> ForwardPass:
        """Find out which texts share a forward pass, and prepare the model for it."""
        loaded = ForwardPass(model, self.spec, self.spec.family.batching)
        # On the meta device tensors have no values, so there are no vectors to compare.
        if device.type != "meta":
            loaded = self._apply_trial(loaded, device, dtype)
        way, has_kernel = loaded.batching.way, loaded.has_kernel
        _LOGGER.debug("%s on %s: %s texts, has_kernel=%s", self.source.name, device, way, has_kernel)
        return loaded

    def _apply_trial(self, loaded: ForwardPass, device: torch.device, dtype: torch.dtype) -> ForwardPass:
        """Encode random texts together and alone, and return the forward pass with what this found."""
        # A function of the user gets padded batches, and so does a family that cannot be packed.
        padded = max(self.spec.family.batching, PADDED, key=BATCHINGS.index)
        has_function = self.spec.forward_fn is not None
        fastest = self.spec.family.batching
        if has_function:
            fastest = padded
        candidates = BATCHINGS[BATCHINGS.index(fastest) :]
        texts = draw_texts(self.spec, _TRIED_LENGTHS, device)
        trial = loaded.find_batching(texts, candidates, dtype)
        # Code of the user may ignore the attention mask, or not accept one.
        is_own_code = has_function or not _is_of_transformers(loaded.model)
        is_half = dtype in (torch.float16, torch.bfloat16)
        batching = self._choose_batching(trial.batching, padded, is_own_code=is_own_code, is_half=is_half)
        switch_attention(loaded.model, packed=batching == PACKED)
        return replace(
            loaded,
            batching=batching,
            has_kernel=trial.has_kernel,
            draws_numbers=trial.draws_numbers,
            recorded=trial.recorded,
        )

    def _choose_batching(
        self, found: Batching | None, padded: Batching, *, is_own_code: bool, is_half: bool
    ) -> Batching:
        """Choose the batching of a model, given the fastest one that the trial found to be exact.

        =================  ==============  ==========================  =======================================
        forward pass of    precision       found                       chosen
        =================  ==============  ==========================  =======================================
        transformers       half            nothing, or slower than     padded: in a deep model, rounding may
                                           padded                      exceed the tolerance
        transformers       other           nothing                     padded: NaN is an error when texts are
                                                                       encoded
        the user           any             nothing                     an error: vectors are random, or NaN
        any                any             anything else               as found, with a warning if texts are
                                                                       encoded alone
        =================  ==============  ==========================  =======================================
        """
        if found is None and is_own_code:
            raise ValueError(f"{self.source.name} gives a text other vectors each time, as with dropout, or NaN")
        if found is None:
            return padded
        is_slower = BATCHINGS.index(found) > BATCHINGS.index(padded)
        if is_half and is_slower and not is_own_code:
            return padded
        if found == ALONE:
            warn_user(
                f"{self.source.name} gives a text other vectors next to other texts, as with dynamic quantization, so "
                f"texts are encoded one at a time. Pass the model in float32 to encode them faster, in batches"
            )
        return found

    def _load(self, dtype: torch.dtype) -> nn.Module:
        """Return the model: a copy of one on another device if possible, or else read from its files."""
        is_ready = self.source.kind == "ready"
        for loaded in self.models.values():
            parameter = next(loaded.model.parameters())
            # The weights of another precision may be rounded, but a ready model cannot be loaded again.
            is_exact = parameter.dtype == dtype or is_ready
            if is_exact and not parameter.is_meta:
                return deepcopy(loaded.model)
        if needs_probe(self.spec):
            dtype = _probe_dtype(dtype)
        return load_encoder(self.source, self.spec.family, self._cut, dtype)

    def _cut_copy(self, model: nn.Module, dtype: torch.dtype) -> nn.Module:
        """Return a copy of a ready model without the layers that are not needed."""
        copied = _copy_model(model, self.source.name)
        for module, module_copy in zip(model.modules(), copied.modules(), strict=True):
            method = vars(module).get("forward")
            # Functions are not copied: one that replaces a method runs the original module, with all of its layers.
            if method is not None and method is vars(module_copy).get("forward"):
                raise ValueError(
                    f"a forward method of {self.source.name} was replaced by a function, which a copy of the model "
                    f"cannot call. Replace it in the class, or pass the model without it"
                )
        if self.spec.forward_fn is None:
            if needs_probe(self.spec):
                nn.Module.to(copied, _probe_dtype(dtype))
            self._cut(copied)
        self._structure = hash_structure(copied)
        return copied

    def _cut(self, encoder: nn.Module) -> None:
        """Drop the layers of an encoder that are not needed, and complete a family that has to be probed."""
        if self.spec.family.probed:
            complete_family(encoder, self.spec)
        self.spec.family.cut(encoder, self.spec.layers_kept)

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "models": {}}
        if self.source.kind == "ready":
            state["ready"] = _without_hooks(next(iter(self.models.values())).model)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        ready: nn.Module | None = state.pop("ready", None)
        self.__dict__.update(state)
        self.source = self.source.identify_again(self._hash)
        if ready is not None:
            register_attention()  # the model may have been packed
            _announce_classes(ready)
            self.source = ModelSource.from_ready(self.source.name)
            self._place(next(ready.parameters()).device, lambda dtype: ready)


@contextmanager
def _isolated() -> Iterator[None]:
    """Load and try models without gradients, outside inference mode, and leave torch's random state as it was."""
    # On another default device, transformers loads models there, and only if accelerate is installed.
    with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
        yield


def _is_of_transformers(model: nn.Module) -> bool:
    """Return whether the forward method of a model is one of transformers, not of a subclass outside of it."""
    owner = next(base for base in type(model).__mro__ if "forward" in vars(base))
    return owner.__module__.partition(".")[0] == "transformers"


def _copy_model(model: nn.Module, name: str) -> nn.Module:
    """Return a copy of a ready model; a ValueError for classes of weights that cannot be copied."""
    try:
        return deepcopy(model)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        # Libraries for quantization and sharding raise errors of any class.
        raise ValueError(
            f"{name} cannot be copied ({type(error).__name__}). Pass the model before it is quantized or sharded"
        ) from error


def _probe_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the precision of a probe, to which no weight is rounded that is needed in ``dtype``."""
    return torch.promote_types(torch.float32, dtype)


def _announce_classes(model: nn.Module) -> None:
    """Instantiate each class of an unpickled model once, on the meta device.

    transformers registers how to record hidden states in the constructor, which unpickling skips.
    """
    from transformers import PreTrainedModel

    if isinstance(model, PreTrainedModel):
        parts = [model]
    else:
        parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    with torch.random.fork_rng(devices=[]), torch.device("meta"), quiet_transformers.turned():
        for part in parts:
            type(part)(part.config)


def _without_hooks(model: nn.Module) -> nn.Module:
    """Return a copy with the same tensors, without the hooks of transformers for states, which it adds when needed."""
    copied = deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
    for module in copied.modules():
        hooks = module._forward_hooks
        for number in [n for n, hook in hooks.items() if hook.__module__ == CAPTURING_MODULE]:
            del hooks[number]
        vars(module).pop("_output_capturing_hooks_installed", None)
    return copied


@cache
def warn_of_slow_bfloat16() -> None:
    """Warn, once per process, that the processor computes bfloat16 more slowly than float32."""
    warn_user(
        "this processor has no bfloat16 instructions, so bfloat16 is slower than float32 on it. Set dtype (--dtype) to "
        "'auto', which chooses bfloat16 only on devices that compute it natively"
    )


def _move(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Move a model to a device and a dtype, and leave frequencies that it computes itself in their own.

    Rounded to bfloat16, those of rotary positions turn position 500 by up to a radian too far. Tables of positions, as
    of M2M100, are added to states and need the dtype.
    """
    computed = {name: buffer for name, buffer in computed_buffers(model).items() if buffer.ndim < 2}
    # The methods of nn.Module, as those of transformers have no types.
    nn.Module.to(model, device, dtype)
    for name, buffer in computed.items():
        path, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(path), attribute, buffer.to(device))
