"""Hashes of what determines token vectors, for signatures: equal in every process for equal contents."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedTokenizerBase

__all__ = ["FileIdentity", "hash_files", "hash_model", "hash_tokenizer", "identify_files"]

# Name, size, and times of modification and change, which differs for copies that keep the time of modification.
FileIdentity = tuple[str, int, int, int]

# Files of a folder that determine scores besides the weights: configuration and tokenizer.
_LOADED_FILES = (
    *("config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json"),
    *("vocab*", "merges.txt", "*.model", "*.py"),
)
# Settings that transformers keeps outside a tokenizer's serialised form.
_TOKENIZER_SETTINGS = ("model_max_length", "truncation_side", "split_special_tokens")
# Settings that name where a model was loaded from.
_ORIGIN = ("_name_or_path", "transformers_version")


def identify_files(folder: Path) -> tuple[FileIdentity, ...]:
    """Return the identity of the files that are loaded from a model's folder: weights, configuration and tokenizer.

    Args:
        folder: the folder.

    Returns:
        One entry per file; equal as long as no file is written.
    """
    # transformers prefers safetensors to other formats in the same folder.
    weights = sorted(folder.glob("model*.safetensors*")) or sorted(folder.glob("pytorch_model*"))
    others = sorted({file for pattern in _LOADED_FILES for file in folder.glob(pattern) if file.is_file()})
    stats = [(file.name, file.stat()) for file in [*weights, *others]]
    return tuple((name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in stats)


# Bounded, as files may change.
@lru_cache(maxsize=64)
def hash_files(folder: Path, files: tuple[FileIdentity, ...]) -> str:
    """Return a hash of the contents of files.

    Args:
        folder: their folder.
        files: output of :func:`identify_files`.

    Returns:
        SHA-256 in hexadecimal digits, equal for equal contents at any path.
    """
    content = hashlib.sha256()
    for name, *_ in files:
        content.update(name.encode())
        with (folder / name).open("rb") as stream:
            content.update(hashlib.file_digest(stream, "sha256").digest())
    return content.hexdigest()


def hash_model(model: nn.Module) -> str:
    """Return a hash of a model's weights, equal on any device, and of its configuration, for one of transformers.

    Args:
        model: the model.

    Returns:
        SHA-256 in hexadecimal digits.
    """
    content = hashlib.sha256()
    config = getattr(model, "config", None)
    if isinstance(config, PretrainedConfig):
        settings = {name: value for name, value in config.to_dict().items() if name not in _ORIGIN}
        content.update(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, tensor in model.state_dict().items():
        content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        content.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return content.hexdigest()


def hash_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of a tokenizer: vocabulary, normalisation, splitting, special tokens and limits.

    Of a tokenizer with parts written in Python, the class's name stands for its code.

    Args:
        tokenizer: the tokenizer.

    Returns:
        SHA-256 in hexadecimal digits.
    """
    settings = {name: getattr(tokenizer, name, None) for name in _TOKENIZER_SETTINGS}
    parts: list[Any] = [type(tokenizer).__qualname__, settings, tokenizer.special_tokens_map, tokenizer.get_vocab()]
    if tokenizer.is_fast:
        parts.append(_serialize_backend(tokenizer))
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


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
