"""Load configurations, tokenizers and encoders: without output, or with an error that names the remedy."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForTextEncoding,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from bertscore_tm import catalog
from bertscore_tm.core.memory import is_out_of_memory
from bertscore_tm.encoder.families import Family
from bertscore_tm.encoder.identity import ModelSource

__all__ = [
    "load_config",
    "load_encoder",
    "load_tokenizer",
    "quiet_loading",
    "quiet_transformers",
    "require_tokenizer",
    "resolve_tokenizer",
]

# Tokens that tokenizers without words have besides the added ones, such as special tokens that are listed twice.
_MOST_WITHOUT_WORDS = 16


def load_config(source: ModelSource, name: str) -> PretrainedConfig:
    """Load a model's configuration."""
    with quiet_loading("configuration", name, source.location):
        config: PretrainedConfig = AutoConfig.from_pretrained(
            source.location,
            revision=source.revision,
            trust_remote_code=source.trust_remote_code,
            subfolder=source.subfolder,
        )
    return config


def load_tokenizer(source: ModelSource, name: str) -> PreTrainedTokenizerBase:
    """Load a tokenizer.

    Raises:
        OSError: it cannot be loaded, its files are missing, or its folder has changed since the encoder was made.
    """
    source.check_unchanged()
    with quiet_loading("tokenizer", name, source.location):
        # trust_remote_code must be given: by default, transformers asks on standard input whether to run such code.
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source.location,
            revision=source.revision,
            trust_remote_code=source.trust_remote_code,
            subfolder=source.subfolder,
        )
    if not _has_vocabulary(tokenizer):
        raise OSError(
            f"could not load the tokenizer of {name!r}: its files are missing. Save the model's own tokenizer next to "
            f"the weights with tokenizer.save_pretrained(folder)"
        )
    return tokenizer


def load_encoder(
    source: ModelSource,
    name: str,
    family: Family,
    cut: Callable[[nn.Module], None],
    dtype: torch.dtype,
) -> nn.Module:
    """Load an encoder on the CPU, and drop the layers that are not needed.

    Raises:
        OSError: it cannot be loaded, its folder has changed since the encoder was made, or the file lacks weights,
            which transformers would fill with random numbers.
    """
    source.check_unchanged()
    auto_class = AutoModelForTextEncoding if family.encoder_class else AutoModel
    with quiet_loading("weights", name, source.location):
        model, info = auto_class.from_pretrained(
            source.location,
            dtype=dtype,
            revision=source.revision,
            trust_remote_code=source.trust_remote_code,
            subfolder=source.subfolder,
            output_loading_info=True,
        )
    # Compared by object, since the names change when the encoder is taken out of the model.
    parameters = dict(model.named_parameters(remove_duplicate=False))
    random = {parameters[key]: key for key in info["missing_keys"] if key in parameters}
    encoder = family.encoder_of(model.base_model)
    cut(encoder)
    missing = [random[parameter] for parameter in encoder.parameters() if parameter in random]
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise OSError(
            f"could not load the weights of {name!r}: its file lacks {len(missing)} of them ({shown}), which would be "
            f"random numbers. Download the model again, or save a complete one with save_pretrained(folder)"
        )
    return encoder


def resolve_tokenizer(
    tokenizer: PreTrainedTokenizerBase | str | os.PathLike[str], argument: str
) -> PreTrainedTokenizerBase:
    """Return a tokenizer of transformers, loaded if only its hub name or folder is given.

    Raises:
        TypeError: it is something else; the error names the caller's argument.
        OSError: it cannot be loaded.
    """
    if isinstance(tokenizer, str | os.PathLike):
        name = os.fspath(tokenizer)
        return load_tokenizer(ModelSource.from_name(name), name)
    return require_tokenizer(tokenizer, argument, "a tokenizer of transformers or its name")


def require_tokenizer(
    tokenizer: Any, argument: str, allowed: str = "a tokenizer of transformers"
) -> PreTrainedTokenizerBase:
    """Return an object that must be a tokenizer of transformers.

    Raises:
        TypeError: it is something else; the error names the caller's argument and what is allowed.
        ValueError: it was loaded from a folder without its files.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise TypeError(
            f"{argument} must be {allowed}, got a {type(tokenizer).__name__}; "
            f"wrap one of the tokenizers package with transformers.PreTrainedTokenizerFast(tokenizer_object=...)"
        )
    if not _has_vocabulary(tokenizer):
        raise ValueError(
            f"{argument} has special tokens only: it was loaded from a folder without the tokenizer's files"
        )
    return tokenizer


def _has_vocabulary(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer has tokens besides special ones.

    Of a model that was saved without its tokenizer, transformers 5 makes one without, to which all words are unknown.
    """
    added = tokenizer.added_tokens_decoder
    if len(tokenizer) - len(added) > _MOST_WITHOUT_WORDS:  # the vocabulary itself may take long to list
        return True
    # Those of T5 and mBART still have the mark of a word's start.
    return len(set(tokenizer.get_vocab().values()) - added.keys()) > 1


class _Verbosity:
    """The verbosity of transformers, which is global: lowered once, restored when the last thread is done."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.holders = 0
        self.before = 0

    def lower(self) -> None:
        with self.lock:
            if self.holders == 0:
                self.before = transformers_logging.get_verbosity()
                transformers_logging.set_verbosity(logging.ERROR)
            self.holders += 1

    def restore(self) -> None:
        with self.lock:
            self.holders -= 1
            if self.holders == 0:
                transformers_logging.set_verbosity(self.before)


_verbosity = _Verbosity()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppress warnings of transformers that need no action, such as that Longformer pads texts."""
    _verbosity.lower()
    try:
        yield
    finally:
        _verbosity.restore()


@contextmanager
def quiet_loading(what: str, name: str, location: str) -> Iterator[None]:
    """Suppress output while a part of a model is loaded, and turn failures into one error that names the remedy."""
    has_progress_bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with quiet_transformers():
            yield
    except Exception as error:
        # These name their remedy already.
        if isinstance(error, ImportError) or is_out_of_memory(error):
            raise
        if Path(location).is_dir():
            tried = "the local folder"
            remedy = _remedy(Path(location))
        elif Path(location).is_file():
            tried, remedy = "a local folder, but it is a file", "Pass the folder that save_pretrained wrote"
        elif location.startswith((".", "~")) or Path(location).is_absolute():
            tried = "a local folder, but there is none"
            remedy = "Pass a folder that save_pretrained wrote, or a name on the hub"
        else:
            tried = "a local folder of that name, then the hub"
            remedy = (
                "To work offline, save model and tokenizer with save_pretrained(folder) on a machine with network "
                "access, and pass that folder"
            )
            similar = [] if catalog.listed_as(name) else catalog.similar_names(name, catalog.models())
            if similar:
                remedy = f"Similar listed names: {', '.join(similar)}. {remedy}"
        if type(error).__name__ == "UnpicklingError":
            # The message of torch advises to run any code that the file holds.
            cause = "a .bin file holds more than tensors, or is damaged; .safetensors files are safe"
        else:
            cause = f"{type(error).__name__}: {error}"
        raise OSError(f"could not load the {what} of {name!r}; tried {tried}. {remedy}. The cause: {cause}") from error
    finally:
        if has_progress_bar:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _remedy(folder: Path) -> str:
    """Describe what to do about a folder that cannot be loaded, naming its damaged files."""
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
    if (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
        return (
            "It holds a PEFT adapter without its model: merge the two with merge_and_unload(), and save the merged "
            "model and its tokenizer with save_pretrained(folder)"
        )
    if not damaged:
        return save.capitalize()
    return f"{', '.join(damaged)} {'is' if len(damaged) == 1 else 'are'} damaged: copy the folder again, or {save}"
