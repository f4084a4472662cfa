"""Hashes of what determines token vectors: a model's weights and configuration, a model's folder, a tokenizer.

They are equal in every process for equal contents.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedTokenizerBase

__all__ = ["hash_folder", "hash_model", "hash_tensors", "hash_tokenizer"]

# Files of a folder that determine scores besides the weights: configuration and tokenizer.
_LOADED_FILES = (
    *("config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json"),
    *("vocab*", "merges.txt", "*.model", "*.py"),
)
# Settings that transformers keeps outside a tokenizer's serialised form.
_TOKENIZER_SETTINGS = ("model_max_length", "truncation_side", "split_special_tokens")
_TOKENIZER_CONFIG = "tokenizer_config.json"
# Settings that name where a model or tokenizer was loaded from.
_ORIGIN = ("_name_or_path", "transformers_version", "name_or_path", "is_local", "local_files_only")


def hash_model(model: nn.Module) -> str:
    """Return a hash of a model's weights and, for one of transformers, its configuration.

    Args:
        model: the model.

    Returns:
        SHA-256 in hexadecimal digits.
    """
    content = hashlib.sha256()
    config = getattr(model, "config", None)
    if isinstance(config, PretrainedConfig):
        content.update(_as_json(_without_origin(config.to_dict())))
    _add_tensors(content, model.state_dict())
    return content.hexdigest()


def hash_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return a hash of named tensors, equal on any device.

    Args:
        tensors: the tensors, such as a model's ``state_dict()``.

    Returns:
        SHA-256 in hexadecimal digits.
    """
    content = hashlib.sha256()
    _add_tensors(content, tensors)
    return content.hexdigest()


def _add_tensors(content: hashlib._Hash, tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        content.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


def hash_folder(folder: str) -> str:
    """Return a hash of what is loaded from a model's folder: weights, configuration and tokenizer.

    Args:
        folder: path of the folder.

    Returns:
        SHA-256 in hexadecimal digits, equal for equal contents at any path.
    """
    path = Path(folder)
    # transformers prefers safetensors to other formats in the same folder.
    weights = sorted(path.glob("model*.safetensors*")) or sorted(path.glob("pytorch_model*"))
    others = sorted({file for pattern in _LOADED_FILES for file in path.glob(pattern) if file.is_file()})
    stats = [(file.name, file.stat()) for file in [*weights, *others]]
    # The time of change differs for copies that keep the time of modification.
    times = tuple((name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in stats)
    return _hash_files(folder, times)


# Bounded, as files may change; size and times identify the contents.
@lru_cache(maxsize=64)
def _hash_files(folder: str, files: tuple[tuple[str, int, int, int], ...]) -> str:
    content = hashlib.sha256()
    for name, *_ in files:
        content.update(name.encode())
        with (Path(folder) / name).open("rb") as stream:
            content.update(hashlib.file_digest(stream, "sha256").digest())
    return content.hexdigest()


def hash_tokenizer(tokenizer: PreTrainedTokenizerBase) -> tuple[str, bool]:
    """Return a hash of a tokenizer: vocabulary, normalisation, splitting, special tokens and limits.

    Args:
        tokenizer: the tokenizer.

    Returns:
        SHA-256 in hexadecimal digits; and whether it covers all that determines the tokens, which it does not for
        classes outside transformers and parts written in Python.
    """
    settings: dict[str, Any] = {name: getattr(tokenizer, name, None) for name in _TOKENIZER_SETTINGS}
    parts: list[Any] = [type(tokenizer).__qualname__, settings, tokenizer.special_tokens_map, tokenizer.get_vocab()]
    is_covered = type(tokenizer).__module__.startswith("transformers.")
    if tokenizer.is_fast:
        backend = _serialize_backend(tokenizer)
        parts.append(backend)
        is_covered = is_covered and backend is not None
    elif is_covered:
        parts += _serialize_files(tokenizer)
    return hashlib.sha256(_as_json(parts)).hexdigest(), is_covered


def _serialize_backend(tokenizer: Any) -> dict[str, Any] | None:
    """Return the serialised form of a fast tokenizer; ``None`` if a part of it is written in Python."""
    try:
        serialized = tokenizer.backend_tokenizer.to_str()
    except Exception as error:
        # The tokenizers package raises Exception itself.
        if "cannot be serialized" in str(error):
            return None
        raise
    # Truncation and padding are what the latest call left in it.
    return {key: value for key, value in json.loads(serialized).items() if key not in ("truncation", "padding")}


def _serialize_files(tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """Return the names and contents of the files of a tokenizer written in Python."""
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = [(file.name, file.read_bytes()) for file in sorted(Path(folder).iterdir())]
    return [
        (name, _without_origin(json.loads(text)) if name == _TOKENIZER_CONFIG else text.hex()) for name, text in files
    ]


def _without_origin(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None and name not in _ORIGIN}


def _as_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()
