"""Identity of an encoder: its model's source, and hashes of contents for the signature."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from bertscore_tm import catalog
from bertscore_tm.device.memory import is_out_of_memory
from bertscore_tm.utilities.checks import shorten
from bertscore_tm.utilities.files import expand_home

_next_ready_number = count(1)

# (name, size, mtime, ctime). Files are compared by these, because hashing the weights takes several times as long as
# creating an encoder. The ctime also changes when a copy preserves the mtime.
_FileIdentity = tuple[str, int, int, int]

# Files that are not part of a model. All others count, because a tokenizer or remote code may load them.
_NOT_LOADED = (
    *(".*", "README*", "LICENSE*", "*.md", "*.log", "*.partial", "*.lock", "*.png", "*.html"),
    # Results and states of a training.
    *("trainer_log*", "all_results*", "*_results.json", "*_results.txt", "trainer_state*", "training_args*"),
    *("optimizer*", "scheduler*", "scaler*", "rng_state*", "events.*"),
    # Weights for other frameworks.
    *("tf_model*", "flax_model*", "rust_model*", "*.msgpack", "*.h5", "*.onnx", "*.ot"),
)
# Tables, which only remote code reads.
_TABLES = ("*.csv", "*.tsv", "*.jsonl")
# Settings that transformers keeps outside a tokenizer's serialised form.
_TOKENIZER_SETTINGS = ("model_max_length", "truncation_side", "split_special_tokens")
# Settings of where and how a model or an adapter was loaded. The signature has the dtype.
_ORIGIN = (
    *("_name_or_path", "name_or_path", "base_model_name_or_path", "transformers_version", "architectures", "dtype"),
    *("_is_hf_initialized", "_weight_conversions", "_use_kernels"),
)
# Attributes that a model computes from others, or from the texts that it has encoded.
_COMPUTED = re.compile("cache|hook|inv_freq|warnings_issued")
# Attributes of every module: its training mode, parameters, parts and hooks.
_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
# The hooks by which transformers records hidden states.
CAPTURING_MODULE = "transformers.utils.output_capturing"


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from; encoders with equal sources may share a model.

    Args:
        kind: a name on the hub, a local folder, or a model object that the user passed.
        name: name in messages.
        location: the hub name, or the absolute path of the folder.
        revision: revision of a hub model.
        trust_remote_code: whether code from the model's repository may run.
        ready_number: a number of its own for each copy of a ready model, which cannot be loaded again.
        files: names, sizes and times of the folder's files when the encoder was made.
    """

    kind: Literal["hub", "folder", "ready"]
    name: str = field(compare=False)
    location: str = ""
    revision: str | None = None
    trust_remote_code: bool = False
    ready_number: int | None = None
    files: tuple[_FileIdentity, ...] = ()

    @classmethod
    def from_name(cls, name: str, revision: str | None = None, trust_remote_code: bool = False) -> ModelSource:
        """Return the source of a hub name or a folder; equal for all paths of the same unchanged folder."""
        name = expand_home(name)
        if Path(name).is_file():
            raise OSError(_describe_file(name))
        if Path(name).is_dir():
            folder = Path(name).resolve()
            files = _identify_files(folder, trust_remote_code)
            return cls("folder", name, str(folder), revision, trust_remote_code, files=files)
        catalog.require_no_hash("model", name)
        return cls("hub", name, name, revision, trust_remote_code)

    @classmethod
    def from_ready(cls, name: str) -> ModelSource:
        """Return the source of a new copy of a ready model."""
        return cls("ready", name, ready_number=next(_next_ready_number))

    def check_unchanged(self) -> None:
        """Raise an error if a folder was saved again since the encoder was made."""
        current = self._current_files()
        if current != self.files:
            differing = {*current} ^ {*self.files}  # identities on one side only
            changed = sorted({file[0] for file in differing})
            raise OSError(
                f"the contents of {self.location!r} have changed since the encoder was made, or differ on this "
                f"machine ({shorten(changed)}). Create the encoder again, or copy the folder to all machines"
            )

    def identify_again(self, content_hash: str | None) -> ModelSource:
        """Return the source with the folder's times on this machine, if it has the sizes and contents that it had.

        Contents are compared if they were hashed, by :func:`hash_files`.
        """
        files = self._current_files()
        if files == self.files:
            return self
        names_and_sizes = [file[:2] for file in files]
        if names_and_sizes != [file[:2] for file in self.files]:
            return self
        was_hashed = content_hash is not None
        if was_hashed and hash_files(Path(self.location), files) != content_hash:
            return self
        return replace(self, files=files)

    def file_hashes(self) -> dict[str, str]:
        """Return a SHA-256 of each file of a folder by its name; empty for other sources."""
        folder = Path(self.location)
        return {file[0]: _hash_file(folder, file) for file in self.files}

    def _current_files(self) -> tuple[_FileIdentity, ...]:
        if self.kind != "folder":
            return self.files
        return _identify_files(Path(self.location), self.trust_remote_code)


def _describe_file(name: str) -> str:
    """Return the error about a file in place of a model's folder."""
    path = Path(name)
    if path.suffix.lower() == ".gguf":
        remedy = "GGUF is not read. Pass the folder or hub name of the model from which this file was converted"
    elif (path.parent / "config.json").is_file():
        remedy = f"pass its folder, {str(path.parent)!r}"
    else:
        remedy = (
            "pass a folder with config.json, weights and tokenizer, as save_pretrained(folder) of the model and of its "
            "tokenizer writes them"
        )
    return f"model {name!r} is a file: {remedy}"


def _identify_files(folder: Path, trust_remote_code: bool) -> tuple[_FileIdentity, ...]:
    """Return the identity of the files in a model's folder that may be loaded, in the order of their names."""
    identities = []
    for file in sorted(folder.glob("*")):
        if file.is_file() and _may_be_loaded(file, trust_remote_code):
            stat = file.stat()
            identities.append((file.name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    return tuple(identities)


def _may_be_loaded(file: Path, trust_remote_code: bool) -> bool:
    if file.suffix == ".py":
        return True
    patterns = [*_NOT_LOADED]
    if not trust_remote_code:
        patterns.extend(_TABLES)
    return not any(fnmatchcase(file.name, pattern) for pattern in patterns)


def hash_files(folder: Path, files: tuple[_FileIdentity, ...]) -> str:
    """Return a SHA-256 of the names and contents of a folder's files, equal for equal contents at any path."""
    content = hashlib.sha256()
    for file in files:
        content.update(f"{file[0]} {_hash_file(folder, file)}".encode())
    return content.hexdigest()


# The cache is bounded, because files may change.
@lru_cache(maxsize=1024)
def _hash_file(folder: Path, file: _FileIdentity) -> str:
    with (folder / file[0]).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_structure(model: nn.Module) -> str:
    """Return a SHA-256 of all that decides a model's vectors, except the plain tensors that :func:`hash_model` reads.

    These are the configuration, the classes and settings of modules, such as active adapters with their scaling, and
    quantized weights. Functions count by name, and objects of other classes by their class.
    """
    configs: dict[int, PretrainedConfig] = {}  # by identity, because modules share them
    modules = {}
    for path, module in model.named_modules():
        config = getattr(module, "config", None)
        if isinstance(config, PretrainedConfig):
            configs[id(config)] = config
        modules[path] = _describe_module(module)
    # hash_model reads the plain tensors.
    special_tensors = {name: _describe(tensor) for name, tensor in _saved_tensors(model) if not _is_plain(tensor)}
    parts = {
        "configs": [_without_origin(config.to_dict()) for config in configs.values()],
        "modules": modules,
        "tensors": special_tensors,
    }
    return _hash_json(parts)


def _hash_json(parts: Any) -> str:
    """Return a SHA-256 of values, in which dictionaries are sorted by their keys."""
    # Values that JSON cannot hold, such as a dtype or a quantization method in a configuration, count by their string.
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def hash_model(model: nn.Module, structure: str) -> str:
    """Return a SHA-256 of a model's plain parameters and saved buffers, equal on any device, and of its structure.

    Other buffers are computed, and some of them change with the texts, such as those of dynamic rotary positions.
    ``state_dict()`` is not used, because it changes weights that bitsandbytes has packed for a CPU.
    """
    content = hashlib.sha256(structure.encode())
    for name, tensor in _saved_tensors(model):
        if _is_plain(tensor):
            content.update(f"{name} {_describe_tensor(tensor)}".encode())
    return content.hexdigest()


def _saved_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters of a model and the buffers that are saved with it, with their names."""
    yield from model.named_parameters(remove_duplicate=False)
    computed = computed_buffers(model)
    for name, buffer in model.named_buffers(remove_duplicate=False):
        if name not in computed:
            yield name, buffer


def computed_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers that are not saved with a model, by their names."""
    buffers = dict(model.named_buffers(remove_duplicate=False))
    computed = {}
    for path, module in model.named_modules(remove_duplicate=False):
        prefix = ""
        if path:
            prefix = f"{path}."
        for name in module._non_persistent_buffers_set:
            if prefix + name in buffers:
                computed[prefix + name] = buffers[prefix + name]
    return computed


def _describe_module(module: nn.Module) -> list[Any]:
    """Return a module's class, settings and hooks."""
    settings = {name: value for name, value in vars(module).items() if name not in _MODULE_ATTRIBUTES}
    described = {name: _describe(value) for name, value in _without_origin(settings).items()}
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    # transformers adds hooks when hidden states are requested, and these change no vector.
    changing_hooks = [hook for hook in hooks if getattr(hook, "__module__", "") != CAPTURING_MODULE]
    return [_class_name(type(module)), described, _describe(changing_hooks)]


def _without_origin(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without those that name the origin of a model, or what it computed before."""
    return {name: value for name, value in settings.items() if name not in _ORIGIN and not _COMPUTED.search(str(name))}


def _class_name(kind: type) -> str:
    """Return a class's name with its module, which has a hash of the files of remote code, in any process."""
    module = kind.__module__.replace("__mp_main__", "__main__")
    if module.startswith("transformers_modules."):
        # The first parts of the name come from the path of the folder.
        module = ".".join(module.split(".")[-2:])
    return f"{module}.{kind.__qualname__}"


def _describe(value: Any) -> Any:
    """Return a value for JSON that is equal for equal values in all processes."""
    if isinstance(value, torch.Tensor):
        return _describe_tensor(value)
    if isinstance(value, np.ndarray):
        return _describe_tensor(torch.from_numpy(np.ascontiguousarray(value)))
    if isinstance(value, torch.ScriptObject):  # the packed weights of torch's own quantization
        return _describe(cast(Any, value).__getstate__())
    if isinstance(value, partial):
        return [_describe(part) for part in (value.func, value.args, value.keywords)]
    if isinstance(value, Mapping):
        return {str(key): _describe(item) for key, item in _without_origin(value).items()}
    if isinstance(value, list | tuple):
        return [_describe(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(str(item) for item in value)
    # is_dataclass is also true for a class. Configurations count once, by hash_structure.
    is_settings = is_dataclass(value) and not isinstance(value, type | PretrainedConfig)
    if is_settings:
        return [_class_name(type(value)), _describe(vars(value))]
    if value is None or isinstance(value, str | int | float | np.generic | Enum | torch.dtype | torch.Size):
        return str(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    return _class_name(type(value))


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, nn.Parameter) and not tensor.is_quantized


def _describe_tensor(tensor: torch.Tensor) -> Any:
    """Return a tensor's class, dtype, shape and contents, with all parts of a quantized one."""
    kind = type(tensor)
    is_plain = _is_plain(tensor)
    parts: list[Any] = [str(tensor.dtype), list(tensor.shape)]
    if tensor.is_meta:
        return parts
    if not is_plain:
        parts.append(_class_name(kind))
    try:
        if hasattr(tensor, "__tensor_flatten__"):
            names, context = cast(Any, tensor).__tensor_flatten__()
            inner = {name: _describe(getattr(tensor, name)) for name in names}
            return [*parts, inner, _describe(context)]
        values = tensor.detach().as_subclass(torch.Tensor)
        if values.is_quantized:
            values = values.dequantize()
        data = values.cpu().contiguous().flatten().view(torch.uint8).numpy().data
    except (NotImplementedError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise ValueError(
            f"weights of class {kind.__qualname__} cannot be read ({error}). Pass the model before it is quantized or "
            f"sharded"
        ) from error
    parts.append(hashlib.sha256(data).hexdigest())
    if not is_plain:
        # Weights that bitsandbytes has quantized have their scales in attributes.
        parts.append(_describe_parts(vars(tensor)))
    return parts


def _describe_parts(value: Any) -> Any:
    """Return a description of a tensor's attributes, with those of objects in them."""
    if isinstance(value, dict):
        return {name: _describe_parts(part) for name, part in _without_origin(value).items()}
    if hasattr(value, "__dict__") and not callable(value) and not isinstance(value, torch.Tensor):
        return _describe_parts(vars(value))
    return _describe(value)


def hash_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a SHA-256 of a tokenizer's settings and vocabulary; a class's name stands for its code in Python."""
    return _hash_json(describe_tokenizer(tokenizer))


def describe_tokenizer(tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """Return a tokenizer's class, settings and vocabulary."""
    settings = {name: getattr(tokenizer, name, None) for name in _TOKENIZER_SETTINGS}
    parts: list[Any] = [type(tokenizer).__qualname__, settings, tokenizer.special_tokens_map, tokenizer.get_vocab()]
    if tokenizer.is_fast:
        serialized = json.loads(cast(Any, tokenizer).backend_tokenizer.to_str())
        # Truncation and padding are left out because each call changes them.
        parts.append({key: serialized[key] for key in serialized if key not in ("truncation", "padding")})
    return parts
