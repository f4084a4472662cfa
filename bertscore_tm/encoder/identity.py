"""Identity of an encoder: its model's source, the settings of its vectors, and the signature."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Literal

import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from transformers import PreTrainedTokenizerBase

from bertscore_tm import catalog
from bertscore_tm.encoder.content_hash import FileIdentity, identify_files
from bertscore_tm.encoder.tokenization import TokenizerSettings
from bertscore_tm.utilities.user_warnings import warn_user

__all__ = [
    "EncoderSettings",
    "ModelSource",
    "ModelVersion",
    "Signature",
    "listed_name",
]

_next_ready_number = count(1)


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from; encoders with equal sources may share a model.

    Args:
        kind: a name on the hub, a local folder, or a ready model, which cannot be loaded again.
        location: hub name, or absolute path of the folder; empty for a ready model.
        revision: revision on the hub.
        trust_remote_code: run code that comes with the model.
        ready_number: number of a copy of a ready model, never used twice in a process.
        is_whole: the ready model keeps all its parts, since a function of the user runs it.
        files: names, sizes and times of a folder's files when the encoder was made.
        subfolder: folder of the transformer within a folder of Sentence-Transformers.

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
    files: tuple[FileIdentity, ...] = ()
    subfolder: str = ""

    @classmethod
    def from_name(cls, name: str, revision: str | None = None, trust_remote_code: bool = False) -> ModelSource:
        """Return the source of a hub name or a folder; equal for all paths of the same unchanged folder.

        Warns:
            UserWarning: the name is that of a folder in the current directory and of a known model on the hub.
        """
        if Path(name).is_dir():
            folder = Path(name).resolve()
            if _is_known_on_hub(name):
                warn_user(
                    f"{name!r} is a model on the hub and a folder in the current directory; using the folder. Pass "
                    f"{str(folder)!r} to use it without this warning, or rename it to use the model on the hub"
                )
            subfolder = _transformer_subfolder(folder)
            files = identify_files(folder / subfolder)
            return cls("folder", str(folder), revision, trust_remote_code, files=files, subfolder=subfolder)
        return cls("hub", name, revision, trust_remote_code)

    @classmethod
    def from_ready(cls, is_whole: bool = False) -> ModelSource:
        """Return the source of a new copy of a ready model."""
        return cls("ready", ready_number=next(_next_ready_number), is_whole=is_whole)

    @property
    def folder(self) -> Path:
        """The folder that holds the files."""
        return Path(self.location, self.subfolder)

    def check_unchanged(self) -> None:
        """Check that a folder has the files that it had when the encoder was made.

        Raises:
            OSError: it was saved again meanwhile.
        """
        if self.kind == "folder" and self.files != identify_files(self.folder):
            raise OSError(
                f"the contents of {self.location!r} have changed since the encoder was made: create the encoder again"
            )


@dataclass(frozen=True)
class EncoderSettings:
    """Everything that token vectors depend on, besides the text and the device.

    Args:
        source: the model's source.
        given_tokenizer: the tokenizer passed by the user, equal to itself alone.
        tokenizer: settings of the tokenizer.
        dtype: precision of the encoder.
        num_layers: the encoder layer.
        all_layers: whether all layers up to it are given out.
    """

    source: ModelSource
    given_tokenizer: PreTrainedTokenizerBase | None
    tokenizer: TokenizerSettings
    dtype: torch.dtype | Literal["auto"]
    num_layers: int
    all_layers: bool


@dataclass(frozen=True)
class ModelVersion:
    """A model's name, with the hashes and the revision that distinguish its versions.

    Args:
        name: hub name, name of the folder, or class of a ready model.
        content_hash: hash of a folder's or a ready model's contents, of which the first 8 digits are shown.
        tokenizer_hash: hash of a tokenizer passed by the user, likewise.
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
        hashed = "#".join([self.name, *(part[:8] for part in (self.content_hash, self.tokenizer_hash) if part)])
        return f"{hashed}@{self.revision}" if self.revision else hashed


@dataclass(frozen=True)
class Signature:
    """Everything that changes a score; equal signatures mean equal scores.

    The encoder fills in the fields up to ``family``, scoring the others. Fields that are ``None`` are left out.

    Args:
        model: the model's version.
        layers: the encoder layer that is compared.
        dtype: precision of the encoder.
        prefix_space: whether a space precedes every text.
        max_length: length limit in tokens.
        long_text: treatment of longer texts, with the stride of windows.
        special: ``"excluded"`` if the special tokens around a text are not compared.
        forward: name of a forward function passed by the user.
        family: ``"probed"`` if the model's type is not listed, so that its properties come from a probe.
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
    special: str | None = None
    forward: str | None = None
    family: str | None = None
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
            "special": self.special,
            "forward": self.forward,
            "family": self.family,
            "idf": self.idf,
            "rescale": self.rescale,
            "bertscore-tm": self.bertscore_tm,
            "transformers": self.transformers,
        }
        return "|".join(f"{name}:{value}" for name, value in entries.items() if value is not None)


def _transformer_subfolder(folder: Path) -> str:
    """Return where a folder of Sentence-Transformers keeps its transformer; empty for other folders."""
    modules = folder / "modules.json"
    if (folder / "config.json").is_file() or not modules.is_file():
        return ""
    first = min(json.loads(modules.read_text(encoding="utf-8")), key=lambda module: int(module["idx"]))
    return str(first["path"])


def _is_known_on_hub(name: str) -> bool:
    """Return whether a name, without asking the hub, is known to be that of a model there."""
    if Path(name).is_absolute() or name.startswith("."):
        return False
    # Names that cannot be on the hub, such as those with several slashes.
    with suppress(HFValidationError):
        return catalog.listed_as(name) is not None or isinstance(try_to_load_from_cache(name, "config.json"), str)
    return False


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
