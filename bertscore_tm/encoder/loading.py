"""Load configurations, tokenizers and encoders: without output, or with an error that names the remedy."""

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from tokenizers import Tokenizer, normalizers
from tokenizers.models import Unigram
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForTextEncoding,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers import __version__ as transformers_version
from transformers.convert_slow_tokenizer import import_protobuf
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file, extract_commit_hash
from transformers.utils.peft_utils import find_adapter_config_file

from bertscore_tm.device.locks import Lock
from bertscore_tm.device.memory import is_out_of_memory
from bertscore_tm.device.switches import ProcessSwitch
from bertscore_tm.encoder.families import Family
from bertscore_tm.encoder.identity import ModelSource, describe_tokenizer
from bertscore_tm.encoder.probe import MERGE_REMEDY, encoder_of
from bertscore_tm.utilities.checks import shorten
from bertscore_tm.utilities.warnings import warn_user

# Copies of tokenizers that users passed.
_copies: WeakKeyDictionary[PreTrainedTokenizerBase, PreTrainedTokenizerBase] = WeakKeyDictionary()
_copies_lock = Lock()
# Names of constants that old files hold and models compute themselves.
_CONSTANTS = ("position_ids", "inv_freq", "masked_bias")
# A text with capitals, accents, several spaces, digits, full width, punctuation and scripts without spaces.
_PROBE = (
    "The Caf\u00e9's  3rd   \uff21\uff22\uff23 cost 1,234.50: na\u00efve (\u65e5\u672c\u8a9e) \u0e20\u0e32\u0e29\u0e32!"
)
# Maximum number of tokens, besides the added ones, of tokenizers without words: such as the mark of a word's start.
_MOST_WITHOUT_WORDS = 16


def _show_progress_bars(shown: bool) -> None:
    if shown:
        transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    else:
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


# Suppresses warnings of transformers that need no action, such as that Longformer pads texts.
quiet_transformers = ProcessSwitch(
    transformers_logging.get_verbosity, transformers_logging.set_verbosity, logging.ERROR
)
_without_progress_bars = ProcessSwitch(
    transformers_logging.is_progress_bar_enabled,
    _show_progress_bars,
    value=False,
)


def load_config(source: ModelSource) -> PretrainedConfig:
    """Load a model's configuration; an adapter, which would be applied to the model when it is loaded, is an error."""
    with quiet_transformers.turned(), _without_progress_bars.turned():
        adapter_file = find_adapter_config_file(source.location, revision=source.revision)
    if adapter_file is not None:
        raise OSError(f"{source.name!r} holds a PEFT adapter (adapter_config.json): {MERGE_REMEDY}")
    config: PretrainedConfig = _load("configuration", AutoConfig, source)
    return config


def find_commit(source: ModelSource) -> str | None:
    """Return the commit of a model on the hub whose configuration is in the cache; a branch may move later."""
    path = cached_file(source.location, "config.json", revision=source.revision, local_files_only=True)
    return extract_commit_hash(path, None)


def _load(what: str, auto_class: Any, source: ModelSource, **options: Any) -> Any:
    """Load a part of a model without output; a failure is one error that names the remedy."""
    # trust_remote_code must be given: by default, transformers asks on standard input whether to run such code.
    options |= {"revision": source.revision, "trust_remote_code": source.trust_remote_code}
    try:
        with quiet_transformers.turned(), _without_progress_bars.turned():
            return auto_class.from_pretrained(source.location, **options)
    except Exception as error:
        names_remedy = isinstance(error, ImportError) or is_out_of_memory(error)
        if names_remedy:
            raise
        raise OSError(_describe_failure(what, source, error)) from error


def _describe_failure(what: str, source: ModelSource, error: Exception) -> str:
    """Return the message about a part of a model that could not be loaded."""
    tried = "that folder" if source.kind == "folder" else "the hub, as there is no such folder"
    remedy = (
        "Pass a name on the hub, or a folder that holds what save_pretrained(folder) of the model and of its "
        "tokenizer wrote, made where the hub can be reached"
    )
    if "trust_remote_code" in str(error):
        remedy = "To run the code that is stored with the model, pass trust_remote_code=True (--trust-remote-code)"
    cause = f"{type(error).__name__}: {error}"
    if type(error).__name__ == "UnpicklingError":
        # torch's own message advises to run any code that the file holds.
        cause = "a .bin file holds more than tensors, or is damaged; .safetensors files are safe"
    return f"could not load the {what} of {source.name!r} from {tried}. {remedy}. The cause: {cause}"


def load_tokenizer(source: ModelSource) -> PreTrainedTokenizerBase:
    """Load a tokenizer, whose folder must be unchanged since the encoder was made."""
    source.check_unchanged()
    tokenizer: PreTrainedTokenizerBase = _load("tokenizer", AutoTokenizer, source)
    if not _has_vocabulary(tokenizer):
        raise OSError(
            f"could not load the tokenizer of {source.name!r}, because its files are missing. Save the model's own "
            f"tokenizer next to the weights with tokenizer.save_pretrained(folder)"
        )
    file = _find_file(source, "tokenizer.json")
    saved: Tokenizer | None = None
    if file is not None:
        saved = Tokenizer.from_file(file)
    is_class_of_transformers = tokenizer.is_fast and type(tokenizer).__module__.startswith("transformers.")
    if is_class_of_transformers and _makes_backends(tokenizer):
        # transformers makes the parts of the backend from the class, whatever the model was trained with.
        if saved is None:
            _restore_normalizer(tokenizer, source)
        else:
            _restore_backend(tokenizer, saved)
    elif saved is not None and not is_class_of_transformers:
        # A class of the user may differ from the file on purpose, so only warn.
        tokens = tokenizer.convert_ids_to_tokens(tokenizer(_PROBE)["input_ids"])
        _check_tokens(source.name, type(tokenizer).__name__, tuple(tokens), tuple(saved.encode(_PROBE).tokens))
    return tokenizer


def _makes_backends(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether classes of tokenizers make their backends themselves, as from transformers 5 on."""
    return hasattr(tokenizer, "convert_to_native_format")


def _find_file(source: ModelSource, name: str) -> str | None:
    """Return the path of a file of a folder, or of one on the hub that is in the cache; ``None`` without one."""
    path: str | None = cached_file(
        source.location,
        name,
        revision=source.revision,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return path


def _restore_backend(tokenizer: Any, saved: Tokenizer) -> None:
    """Apply a tokenizer.json to the parts of a tokenizer that transformers 5 makes from its class instead.

    Options of BERT's normalizer, spaces before texts and source languages come from the configuration in all versions.
    """
    backend = tokenizer.backend_tokenizer
    backend.model = saved.model
    both = [backend.normalizer, saved.normalizer]
    are_of_bert = all(isinstance(normalizer, normalizers.BertNormalizer) for normalizer in both)
    if not are_of_bert:
        backend.normalizer = saved.normalizer
    if _without_prefix_space(backend.pre_tokenizer) != _without_prefix_space(saved.pre_tokenizer):
        backend.pre_tokenizer = saved.pre_tokenizer
    has_source_language = hasattr(tokenizer, "set_src_lang_special_tokens")
    if saved.post_processor is not None and not has_source_language:
        backend.post_processor = saved.post_processor
    if saved.decoder is not None:
        backend.decoder = saved.decoder


def _without_prefix_space(pre_tokenizer: Any) -> Any:
    """Return the settings of a pre-tokenizer without ``add_prefix_space``."""
    if pre_tokenizer is None:
        return None

    def drop(part: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in part.items() if key != "add_prefix_space"}

    return json.loads(pre_tokenizer.__getstate__(), object_hook=drop)


@cache
def _check_tokens(name: str, kind: str, tokens: tuple[str, ...], saved_tokens: tuple[str, ...]) -> None:
    """Warn, once per process, about a tokenizer that splits a text into other tokens than its tokenizer.json."""
    if tokens != saved_tokens:
        warn_user(
            f"{kind} of {name} splits {_PROBE!r} into {' '.join(tokens)}, but its tokenizer.json into "
            f"{' '.join(saved_tokens)}. Check which tokens the model was trained with, and pass tokenizer= if needed"
        )


def _restore_normalizer(tokenizer: Any, source: ModelSource) -> None:
    """Apply the normalization of a SentencePiece file where transformers 5 leaves it out: DeBERTa-v3, mBART, BigBird.

    Without it, no-break spaces, full-width letters, ligatures and ellipses are unknown tokens.
    """
    backend = tokenizer.backend_tokenizer
    if not isinstance(backend.model, Unigram) or _has_charsmap(backend.normalizer):
        return
    path = _find_file(source, tokenizer.vocab_files_names.get("vocab_file", ""))
    if path is None or not path.endswith(".model"):
        return
    proto = import_protobuf().ModelProto()  # type: ignore[no-untyped-call]
    proto.ParseFromString(Path(path).read_bytes())
    charsmap = proto.normalizer_spec.precompiled_charsmap
    if charsmap:
        rest = backend.normalizer or normalizers.Sequence([])
        backend.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap), rest])


def _has_charsmap(normalizer: Any) -> bool:
    return normalizer is not None and b"Precompiled" in normalizer.__getstate__()


def load_encoder(
    source: ModelSource, family: Family, cut: Callable[[nn.Module], None], dtype: torch.dtype
) -> nn.Module:
    """Load an encoder on the CPU from files that are complete and unchanged, and drop layers that are not needed."""
    source.check_unchanged()
    auto_class = AutoModelForTextEncoding if family.encoder_class else AutoModel
    model, info = _load("weights", auto_class, source, dtype=dtype, output_loading_info=True)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    # transformers initializes weights randomly if the file lacks them. The keys of this dictionary are the parameters,
    # because their names change when the encoder is taken out of the model.
    random_names = {parameters[name]: name for name in info["missing_keys"] if name in parameters}
    encoder = encoder_of(model.base_model)
    cut(encoder)
    # Dropped layers and decoders may be random.
    missing = [random_names[parameter] for parameter in encoder.parameters() if parameter in random_names]
    if missing:
        raise OSError(
            f"could not load the weights of {source.name!r}, because its file lacks {len(missing)} of them "
            f"({shorten(missing)}). Download the model again, or save a complete one "
            f"with save_pretrained(folder)"
        )
    unused = _find_unused(info["unexpected_keys"], model, encoder, family)
    if unused:
        raise OSError(
            f"could not load the weights of {source.name!r}, because {type(encoder).__name__} of transformers "
            f"{transformers_version} does not use {len(unused)} of them ({shorten(unused)}). Install a version that "
            f"uses them (before 5 for position_embedding_type='relative_key')"
        )
    return encoder


def _find_unused(names: Iterable[str], model: Any, encoder: nn.Module, family: Family) -> list[str]:
    """Return the weights of an encoder's layers or embeddings that a file has and the model does not use.

    For example, BART's encoder lacks a norm that a file has in layer 2:

    ======================  ==========================================
    name in the file        ``model.encoder.layers.2.attn.norm.weight``
    path in the model       ``encoder.layers.2.attn.norm.weight``, without the prefix of the base model
    root, path in encoder   ``encoder.`` and ``layers.2.attn.norm.weight``
    owner, rest             ``layers.2.attn``, the innermost module that exists, and ``norm.weight``
    ======================  ==========================================

    Args:
        names: names of all weights of the file that the model does not use.
        model: the model that was loaded.
        encoder: the encoder in it.
        family: properties of the model's family.
    """
    root = next(path for path, module in model.named_modules() if module is encoder)
    if root:
        root += "."  # else the encoder is the whole model
    modules = dict(encoder.named_modules())
    unused = []
    for name in sorted(names):
        path = name.removeprefix(f"{model.base_model_prefix}.")
        if not path.startswith(root):
            continue
        path_in_encoder = path.removeprefix(root)
        owner = _owner_of(path_in_encoder, modules)
        # The file may have more modules next to the layers than the cut encoder: heads, decoders and dropped layers.
        is_outside = any(_is_ancestor(owner, layer_path) for layer_path in family.layer_paths)
        # The configuration may switch a module off, which is an identity then, or an attribute that is None.
        rest = path_in_encoder.removeprefix(f"{owner}.")
        is_off = isinstance(modules[owner], nn.Identity) or hasattr(modules[owner], rest.split(".")[0])
        is_constant = rest.split(".")[-1] in _CONSTANTS
        is_expected = is_outside or is_off or is_constant
        if not is_expected:
            unused.append(name)
    return unused


def _owner_of(weight: str, modules: Mapping[str, nn.Module]) -> str:
    """Return the path of the innermost module that contains a weight; ``""`` is the path of the encoder itself."""
    owner, _, _ = weight.rpartition(".")
    while owner not in modules:
        owner, _, _ = owner.rpartition(".")
    return owner


def _is_ancestor(path: str, descendant: str) -> bool:
    """Return whether a module's path leads to another module, or is its path; ``""`` leads to all."""
    return path == "" or f"{descendant}.".startswith(f"{path}.")


def resolve_tokenizer(
    tokenizer: PreTrainedTokenizerBase | str | os.PathLike[str], argument: str
) -> PreTrainedTokenizerBase:
    """Return a tokenizer of transformers, loaded if only its hub name or folder is given."""
    if isinstance(tokenizer, str | os.PathLike):
        return load_tokenizer(ModelSource.from_name(os.fspath(tokenizer)))
    return require_tokenizer(tokenizer, argument)


def require_tokenizer(tokenizer: Any, argument: str) -> PreTrainedTokenizerBase:
    """Return an argument that must be a tokenizer of transformers, with its files."""
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise TypeError(
            f"{argument} must be a tokenizer of transformers, got a {type(tokenizer).__name__}. "
            f"Wrap one of the tokenizers package with transformers.PreTrainedTokenizerFast(tokenizer_object=...)"
        )
    if not _has_vocabulary(tokenizer):
        raise ValueError(
            f"{argument} has special tokens only: it was loaded from a folder without the tokenizer's files"
        )
    return tokenizer


def copy_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return a copy of a tokenizer; the same copy again while the tokenizer is unchanged.

    Raises:
        ValueError: the tokenizer cannot be copied, such as RoFormer's, a part of which is written in Python.
    """
    try:
        copied: Any = deepcopy(tokenizer)
    except Exception as error:  # the tokenizers package raises no narrower class
        raise ValueError(
            f"a {type(tokenizer).__name__} cannot be copied ({error}). Save it and the model with "
            f"save_pretrained(folder), and pass the folder as the model, without a tokenizer"
        ) from error
    if copied.is_fast:
        # The copy has the truncation and padding of the latest call, by any thread.
        copied.backend_tokenizer.no_truncation()
        copied.backend_tokenizer.no_padding()
    with _copies_lock:
        earlier = _copies.get(tokenizer)
        if earlier is not None and describe_tokenizer(earlier) == describe_tokenizer(copied):
            return earlier
        _copies[tokenizer] = copied
        return copied  # type: ignore[no-any-return]


def _has_vocabulary(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer has tokens besides special ones, which it lacks if its files are missing."""
    added: Any = getattr(tokenizer, "added_tokens_decoder", None)
    if not isinstance(added, Mapping):
        # transformers loads the tokenizer of mistral-common if the folder has a tekken.json.
        raise TypeError(
            f"a {type(tokenizer).__name__} lists no added tokens and cannot be used. Pass tokenizer= with "
            f"transformers.PreTrainedTokenizerFast.from_pretrained(folder), of a folder that has a tokenizer.json"
        )
    if len(tokenizer) - len(added) > _MOST_WITHOUT_WORDS:
        # Counting is enough, and listing a large vocabulary takes long.
        return True
    # If their files are missing, the tokenizers of T5 and mBART still have the mark of a word's start.
    return len(set(tokenizer.get_vocab().values()) - added.keys()) > 1
