"""Identity of an encoder: its model's source, and hashes of contents for the signature."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from bertscore_tm import catalog

_next_ready_number = count(1)

# Name, size, and times of modification and change, which differs for copies that keep the time of modification: reading
# the weights themselves takes several times as long as making an encoder.
_FileIdentity = tuple[str, int, int, int]

# Files of a folder that determine scores besides the weights: configuration and tokenizer.
_LOADED_FILES = (
    *("config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json"),
    *("vocab*", "merges.txt", "*.model", "*.py"),
)
# Settings that transformers keeps outside a tokenizer's serialised form.
_TOKENIZER_SETTINGS = ("model_max_length", "truncation_side", "split_special_tokens")
# Settings that name where a model was loaded from.
_ORIGIN = ("_name_or_path", "transformers_version")


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from; encoders with equal sources may share a model.

    ``name`` is for messages, ``location`` the hub name, or the absolute path of the folder, whose ``files`` had these
    names, sizes and times when the encoder was made. A ready model cannot be loaded again: ``ready_number`` is never
    used twice in a process.
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
        if Path(name).is_dir():
            folder = Path(name).resolve()
            return cls("folder", name, str(folder), revision, trust_remote_code, files=_identify_files(folder))
        catalog.require_no_hash("model", name)
        return cls("hub", name, name, revision, trust_remote_code)

    @classmethod
    def from_ready(cls, name: str) -> ModelSource:
        """Return the source of a new copy of a ready model."""
        return cls("ready", name, ready_number=next(_next_ready_number))

    def check_unchanged(self) -> None:
        """Raise an error if a folder was saved again since the encoder was made."""
        if self.kind == "folder" and self.files != _identify_files(Path(self.location)):
            raise OSError(
                f"the contents of {self.location!r} have changed since the encoder was made, or differ on this "
                f"machine: create the encoder again, or copy the folder to all machines"
            )

    def identify_again(self, content_hash: str | None) -> ModelSource:
        """Return the source with the folder's times on this machine, if it has the sizes and contents that it had.

        Contents are compared if they were hashed, by :func:`hash_files`.
        """
        files = _identify_files(Path(self.location)) if self.kind == "folder" else self.files
        if files == self.files or [file[:2] for file in files] != [file[:2] for file in self.files]:
            return self
        is_equal = content_hash is None or hash_files(Path(self.location), files) == content_hash
        return replace(self, files=files) if is_equal else self


def _identify_files(folder: Path) -> tuple[_FileIdentity, ...]:
    """Return the identity of the files that are loaded from a model's folder: weights, configuration, tokenizer."""
    # transformers prefers safetensors to other formats in the same folder.
    weights = sorted(folder.glob("model*.safetensors*")) or sorted(folder.glob("pytorch_model*"))
    others = sorted({file for pattern in _LOADED_FILES for file in folder.glob(pattern) if file.is_file()})
    stats = [(file.name, file.stat()) for file in [*weights, *others]]
    return tuple((name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in stats)


# Bounded, as files may change.
@lru_cache(maxsize=64)
def hash_files(folder: Path, files: tuple[_FileIdentity, ...]) -> str:
    """Return a SHA-256 of the contents of a folder's files, equal for equal contents at any path."""
    content = hashlib.sha256()
    for name, *_ in files:
        content.update(name.encode())
        with (folder / name).open("rb") as stream:
            content.update(hashlib.file_digest(stream, "sha256").digest())
    return content.hexdigest()


def hash_model(model: nn.Module) -> str:
    """Return a SHA-256 of a model's weights, equal on any device, and of its configuration, for one of transformers."""
    content = hashlib.sha256()
    config = getattr(model, "config", None)
    if isinstance(config, PretrainedConfig):
        settings = {name: value for name, value in config.to_dict().items() if name not in _ORIGIN}
        content.update(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, value in model.state_dict().items():
        # The state of a quantized layer is its weight and bias in a tuple, and other settings.
        for part in value if isinstance(value, tuple) else (value,):
            if not isinstance(part, torch.Tensor):
                content.update(f"{name} {part}".encode())
                continue
            content.update(f"{name} {part.dtype} {tuple(part.shape)}".encode())
            tensor = part.detach().dequantize() if part.is_quantized else part.detach()
            content.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return content.hexdigest()


def hash_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a SHA-256 of a tokenizer's settings and vocabulary; a class's name stands for its code in Python."""
    parts = describe_tokenizer(tokenizer)
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def describe_tokenizer(tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """Return a tokenizer's class, settings and vocabulary."""
    settings = {name: getattr(tokenizer, name, None) for name in _TOKENIZER_SETTINGS}
    parts: list[Any] = [type(tokenizer).__qualname__, settings, tokenizer.special_tokens_map, tokenizer.get_vocab()]
    if tokenizer.is_fast:
        serialized = json.loads(cast(Any, tokenizer).backend_tokenizer.to_str())
        # Truncation and padding are left out because each call changes them.
        parts.append({key: serialized[key] for key in serialized if key not in ("truncation", "padding")})
    return parts
