"""Identity of an encoder: its model's source, the settings of its vectors, content hashes, and the signature."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bertscore_tm import catalog
from bertscore_tm.encoder.tokenization import TokenizerSettings

__all__ = [
    "EncoderSettings",
    "ModelSource",
    "ModelVersion",
    "Signature",
    "hash_contents",
    "hash_folder",
    "listed_name",
]

# Files of a folder that determine scores besides the weights: configuration and tokenizer.
_LOADED_FILES = (
    *("config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json"),
    *("vocab*", "merges.txt", "*.model", "*.py"),
)
# Numbers of the ready models of this process. An id() would be reused once a model is gone.
_ready_numbers: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
_next_ready_number = count(1)


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from; encoders with equal sources may share a model.

    Args:
        kind: a name on the hub, a local folder, or a ready model, which cannot be loaded again.
        location: hub name, or absolute path of the folder; empty for a ready model.
        revision: revision on the hub.
        trust_remote_code: run code that comes with the model.
        ready_number: number of the ready model, never used twice in a process.
        is_whole: the ready model keeps all its parts, since a function of the user runs it.

    Example:
        >>> ModelSource.from_name("roberta-large", revision="main").kind
        'hub'
    """

    kind: Literal["hub", "folder", "ready"]
    location: str = ""
    revision: str | None = None
    trust_remote_code: bool = False
    ready_number: int | None = None
    is_whole: bool = False

    @classmethod
    def from_name(cls, name: str, revision: str | None = None, trust_remote_code: bool = False) -> ModelSource:
        """Return the source of a hub name or a folder; equal for all paths of the same folder."""
        if Path(name).is_dir():
            return cls("folder", str(Path(name).resolve()), revision, trust_remote_code)
        return cls("hub", name, revision, trust_remote_code)

    @classmethod
    def from_ready(cls, model: nn.Module, is_whole: bool = False) -> ModelSource:
        """Return the source of a ready model; equal for the same object only."""
        return cls("ready", ready_number=_ready_numbers.setdefault(model, next(_next_ready_number)), is_whole=is_whole)


@dataclass(frozen=True)
class EncoderSettings:
    """Everything that token vectors depend on, besides the text and the device.

    Args:
        source: the model's source.
        tokenizer_id: ``id()`` of the tokenizer passed by the user, or of ``None``.
        forward_id: ``id()`` of the forward function passed by the user, or of ``None``.
        tokenizer: settings of the tokenizer.
        dtype: precision of the encoder.
        num_layers: the encoder layer.
        all_layers: whether all layers up to it are given out.
    """

    source: ModelSource
    tokenizer_id: int
    forward_id: int
    tokenizer: TokenizerSettings
    dtype: torch.dtype | Literal["auto"]
    num_layers: int
    all_layers: bool


@dataclass(frozen=True)
class ModelVersion:
    """A model's name, with the hashes and the revision that distinguish its versions.

    Args:
        name: hub name, name of the folder, or class of a ready model.
        content_hash: hash of a folder's or a ready model's contents.
        tokenizer_hash: hash of a tokenizer passed by the user.
        revision: revision or commit on the hub.

    Example:
        >>> str(ModelVersion("roberta-large", revision="main"))
        'roberta-large@main'
    """

    name: str
    content_hash: str | None = None
    tokenizer_hash: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        hashed = "#".join(part for part in (self.name, self.content_hash, self.tokenizer_hash) if part)
        return f"{hashed}@{self.revision}" if self.revision else hashed


@dataclass(frozen=True)
class Signature:
    """Everything that changes a score; equal signatures mean equal scores.

    The encoder fills in the fields up to ``forward``, scoring the others. Fields that are ``None`` are left out.

    Args:
        model: the model's version.
        layers: the encoder layer that is compared.
        dtype: precision of the encoder.
        prefix_space: whether a space precedes every text.
        max_length: length limit in tokens.
        long_text: treatment of longer texts, with the stride of windows.
        forward: name of a forward function passed by the user.
        idf: source of the token weights.
        rescale: the baseline.
        bertscore_tm: version of this package.
        transformers: version of transformers.

    Example:
        >>> str(Signature(ModelVersion("roberta-large"), "17", "float32", True, 512, "truncate", idf="no"))
        'model:roberta-large|layer:17|dtype:float32|space:yes|limit:512|long:truncate|idf:no'
    """

    model: ModelVersion
    layers: str
    dtype: str
    prefix_space: bool
    max_length: int | None
    long_text: str
    forward: str | None = None
    idf: str | None = None
    rescale: str | None = None
    bertscore_tm: str | None = None
    transformers: str | None = None

    def __str__(self) -> str:
        entries = {
            "model": self.model,
            "layer": self.layers,
            "dtype": self.dtype,
            "space": "yes" if self.prefix_space else "no",
            "limit": self.max_length or "none",
            "long": self.long_text,
            "forward": self.forward,
            "idf": self.idf,
            "rescale": self.rescale,
            "bertscore-tm": self.bertscore_tm,
            "transformers": self.transformers,
        }
        return "|".join(f"{name}:{value}" for name, value in entries.items() if value is not None)


def hash_contents(model: nn.Module | None, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a short hash of a ready model's weights and a tokenizer's vocabulary.

    Args:
        model: the model, or ``None`` to hash the tokenizer alone.
        tokenizer: the tokenizer.

    Returns:
        Eight hexadecimal digits, equal in every process for equal contents.
    """
    content = hashlib.sha256(repr(sorted(tokenizer.get_vocab().items())).encode())
    for name, tensor in model.state_dict().items() if model is not None else ():
        content.update(name.encode())
        content.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return content.hexdigest()[:8]


def hash_folder(folder: str) -> str:
    """Return a short hash of what is loaded from a model's folder: weights, configuration and tokenizer.

    Args:
        folder: path of the folder.

    Returns:
        Eight hexadecimal digits, equal for equal contents at any path.
    """
    path = Path(folder)
    # transformers prefers safetensors to other formats in the same folder.
    weights = sorted(path.glob("model*.safetensors*")) or sorted(path.glob("pytorch_model*"))
    others = sorted({file for pattern in _LOADED_FILES for file in path.glob(pattern) if file.is_file()})
    stats = [(file.name, file.stat()) for file in [*weights, *others]]
    return _hash_files(folder, tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats))


# Bounded, as files may change; size and time of change identify the contents.
@lru_cache(maxsize=64)
def _hash_files(folder: str, files: tuple[tuple[str, int, int], ...]) -> str:
    content = hashlib.sha256()
    for name, _, _ in files:
        content.update(name.encode())
        with (Path(folder) / name).open("rb") as stream:
            content.update(hashlib.file_digest(stream, "sha256").digest())
    return content.hexdigest()[:8]


def listed_name(name: str) -> str:
    """Return the name under which the published tables may list a model.

    Args:
        name: hub name or path of a folder.

    Returns:
        The name of the model that a folder's configuration names as its origin, where it is listed; else the name.
    """
    config_path = Path(name) / "config.json"
    if catalog.listed_as(name) is None and config_path.is_file():
        # Read here, since from_pretrained replaces the origin by the folder.
        origin = str(json.loads(config_path.read_text(encoding="utf-8")).get("_name_or_path", ""))
        if catalog.listed_as(origin) is not None:
            return origin
    return name
