"""A model's weights in memory: loaded quietly, cut at a layer, frozen, and one copy per process for all who ask.

The pool holds them weakly, so that they go when the last encoder that uses them goes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from bertscore_tm.core.batching import is_out_of_memory
from bertscore_tm.core.packed_linear import pack_linears
from bertscore_tm.encoder.families import Family

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = [
    "Weights",
    "absent_parameters",
    "as_dtype",
    "choose_attention",
    "cut",
    "digest",
    "folder_digest",
    "has_native_bfloat16",
    "is_ready",
    "quiet",
    "quiet_loading",
    "ready_source",
    "require_loaded",
    "shared_model",
]

_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_READY_PREFIX = "ready model "


@dataclass(frozen=True)
class Weights:
    """What identifies one set of weights, apart from the device it lies on.

    Args:
        source: hub name, resolved folder, or what :func:`ready_source` named a ready model.
        revision: revision on the hub.
        trust_remote_code: whether code that comes with the model runs.
        layers_kept: layers that are in memory.
        dtype: precision.
    """

    source: str
    revision: str | None
    trust_remote_code: bool
    layers_kept: int
    dtype: torch.dtype


_pool: WeakValueDictionary[tuple[Weights, torch.device], nn.Module] = WeakValueDictionary()
_ready_models: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
_ready_models_seen = 0
_lock = threading.RLock()


def shared_model(weights: Weights, device: torch.device, load: Callable[[], nn.Module]) -> nn.Module:
    """Return the model of this process with these weights on this device, loading it when nobody holds it.

    Loading happens outside inference mode, where it would make tensors that no loss can differentiate through, and
    leaves torch's random state as it was.

    Args:
        weights: which weights.
        device: where they shall lie.
        load: gives the model, on any device.

    Returns:
        The model, frozen and in evaluation mode.
    """
    with _lock:
        model = _pool.get((weights, device))
        if model is None:
            with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng(devices=[]):
                model = load()
                # The methods of nn.Module itself: those of transformers wrap them without types.
                nn.Module.to(model, device)
            model.requires_grad_(False)
            nn.Module.eval(model)
            pack_linears(model)
            _pool[weights, device] = model
        return model


def absent_parameters(model: nn.Module, missing: Iterable[str]) -> dict[Tensor, str]:
    """Return the parameters of a model that its file did not hold, which transformers has filled with random numbers.

    Args:
        model: the model as it was loaded.
        missing: names that transformers missed in the file.

    Returns:
        Their names, by parameter.
    """
    given = dict(model.named_parameters(remove_duplicate=False))
    return {given[name]: name for name in missing if name in given}


def require_loaded(model: nn.Module, absent: Mapping[Tensor, str], name: str) -> None:
    """Make sure that nothing random is part of the scores.

    Args:
        model: the encoder, without the parts that are not used.
        absent: what :func:`absent_parameters` found when it was whole.
        name: the model as the user called it.

    Raises:
        OSError: a parameter was not in the model's file.
    """
    lost = [absent[parameter] for parameter in model.parameters() if parameter in absent]
    if lost:
        shown = ", ".join(lost[:3]) + (", ..." if len(lost) > 3 else "")
        raise OSError(
            f"could not load the weights of {name!r}: its file lacks {len(lost)} of them ({shown}), which would be "
            f"random numbers. Get the model again, or save it with save_pretrained(folder) from where it is whole"
        )


def cut(model: PreTrainedModel, family: Family, layers: int) -> None:
    """Make an encoder ready for use, in place: drop its layers above a number, its pooler and what depends on history.

    Args:
        model: the encoder.
        family: where its layers are.
        layers: how many to keep.
    """
    for path in family.layers:
        parent_path, _, name = path.rpartition(".")
        parent = model.get_submodule(parent_path)
        setattr(parent, name, getattr(parent, name)[:layers])
    if family.counter is not None:
        parent_path, _, name = family.counter.rpartition(".")
        setattr(getattr(model, parent_path) if parent_path else model, name, layers)
    if getattr(model, "pooler", None) is not None:
        model.register_module("pooler", nn.Identity() if family.always_pools else None)
    # Decoders would keep keys and values for texts to come.
    model.config.use_cache = False


def choose_attention(model: nn.Module, config: PretrainedConfig, length: int) -> None:
    """Give BigBird the kind of attention that it has for texts of a length; other models have one kind only.

    By itself it changes to full attention at the first batch of short texts, and stays with it from then on.

    Args:
        model: the encoder.
        config: configuration of the model as it was loaded.
        length: tokens per text.
    """
    if not hasattr(model, "set_attention_type"):
        return
    sparse = config.attention_type == "block_sparse" and length > (5 + 2 * config.num_random_blocks) * config.block_size
    # The new attention modules take over the weights of the old; their own are not needed, nor the random numbers.
    with torch.device("meta"):
        cast(Any, model).set_attention_type("block_sparse" if sparse else "original_full")


def ready_source(model: nn.Module) -> str:
    """Give each ready model a name that no other object of this process has had.

    Args:
        model: the model.

    Returns:
        The name; the same for the same object.
    """
    global _ready_models_seen
    with _lock:
        if model not in _ready_models:
            _ready_models_seen += 1
            _ready_models[model] = f"{_READY_PREFIX}{_ready_models_seen}"
        return _ready_models[model]


def is_ready(source: str) -> bool:
    """Tell whether a source is a ready model, which cannot be loaded again."""
    return source.startswith(_READY_PREFIX)


def digest(model: nn.Module | None, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a short hash of a ready model's weights and a ready tokenizer's vocabulary.

    Args:
        model: the model, or ``None`` where only the tokenizer is ready.
        tokenizer: its tokenizer.

    Returns:
        Eight hexadecimal digits, equal in every process for equal contents.
    """
    content = hashlib.sha256(repr(sorted(tokenizer.get_vocab().items())).encode())
    for name, tensor in model.state_dict().items() if model is not None else ():
        content.update(name.encode())
        content.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return content.hexdigest()[:8]


# What a folder's scores depend on: weights and their index, configuration, tokenizer.
_LOADED_FILES = (
    *("config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json"),
    *("vocab*", "merges.txt", "*.model", "*.py"),
)
_digests: dict[tuple[str, tuple[tuple[str, int, int], ...]], str] = {}


def folder_digest(folder: str) -> str:
    """Return a short hash of what is loaded from a model's folder: weights, configuration and tokenizer.

    Args:
        folder: path of the folder.

    Returns:
        Eight hexadecimal digits, equal for equal contents wherever the folder lies.
    """
    path = Path(folder)
    # transformers prefers safetensors where there are both.
    weights = sorted(path.glob("model*.safetensors*")) or sorted(path.glob("pytorch_model*"))
    others = sorted({file for pattern in _LOADED_FILES for file in path.glob(pattern) if file.is_file()})
    files = [*weights, *others]
    stamps = tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    if (folder, stamps) not in _digests:
        content = hashlib.sha256()
        for file in files:
            content.update(file.name.encode())
            with file.open("rb") as stream:
                content.update(hashlib.file_digest(stream, "sha256").digest())
        _digests[folder, stamps] = content.hexdigest()[:8]
    return _digests[folder, stamps]


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return the dtype of a name.

    Args:
        dtype: a name such as ``"float32"``, or a dtype.

    Returns:
        The dtype.

    Raises:
        ValueError: the name is not known.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in _DTYPES:
        raise ValueError(f"dtype={dtype!r} is not one of 'auto', {', '.join(map(repr, _DTYPES))}")
    return _DTYPES[dtype]


def has_native_bfloat16(device: torch.device) -> bool:
    """Tell whether a device computes bfloat16 in hardware."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported())
    return False


_quiet_depth = 0
_verbosity = 0


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from warning of what is as it should be, such as texts that Longformer pads."""
    global _quiet_depth, _verbosity
    with _lock:
        if _quiet_depth == 0:
            _verbosity = transformers_logging.get_verbosity()
            transformers_logging.set_verbosity(logging.ERROR)
        _quiet_depth += 1
    try:
        yield
    finally:
        with _lock:
            _quiet_depth -= 1
            if _quiet_depth == 0:
                transformers_logging.set_verbosity(_verbosity)


@contextmanager
def quiet_loading(what: str, name: str, source: str) -> Iterator[None]:
    """Load something of a model without chatter, or end in one error that says what to do.

    Args:
        what: what is loaded, for the error.
        name: the model as the user called it.
        source: where it is looked for.

    Raises:
        OSError: it cannot be loaded.
    """
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with quiet():
            yield
    except Exception as error:
        # These say what to do already.
        if isinstance(error, ImportError) or is_out_of_memory(error):
            raise
        if Path(source).is_dir():
            tried = "the local folder"
            remedy = _remedy(Path(source))
        else:
            tried = "a local folder of that name, then the hub"
            remedy = (
                "To work offline, save model and tokenizer with save_pretrained(folder) where there is a network, and "
                "pass that folder"
            )
        if type(error).__name__ == "UnpicklingError":
            # What torch advises is to run whatever the file holds.
            cause = "a .bin file holds more than tensors, or is damaged; .safetensors files are safe"
        else:
            cause = f"{type(error).__name__}: {error}"
        raise OSError(f"could not load the {what} of {name!r}; tried {tried}. {remedy}. The cause: {cause}") from error
    finally:
        if bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _remedy(folder: Path) -> str:
    """Say what to do about a folder that cannot be loaded, and which of its files are not what their names say."""
    damaged = []
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("*.json")]):
        try:
            if file.suffix == ".json":
                json.loads(file.read_text(encoding="utf-8"))
            else:
                with safe_open(file, framework="pt"):
                    pass
        except (OSError, ValueError, SafetensorError):
            damaged.append(file.name)
    save = "save model and tokenizer there with save_pretrained(folder)"
    if not damaged:
        return save.capitalize()
    return f"{', '.join(damaged)} {'is' if len(damaged) == 1 else 'are'} damaged: copy the folder again, or {save}"
