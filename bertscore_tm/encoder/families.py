"""Properties of each model family, listed by ``config.model_type`` or found in a model's structure and by a probe."""

from collections.abc import Callable, Hashable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import AutoModel, PretrainedConfig, PreTrainedTokenizerBase

from bertscore_tm.encoder.packing import UNLIMITED

# An adapter that is saved into the folder of its merged model would be applied twice.
MERGE_REMEDY = "merge the adapter with merge_and_unload() and save the merged model into a folder of its own"
# Names of tables of absolute positions.
_POSITION_TABLES = ("position_embeddings", "embed_positions", "wpe")


class Batching(NamedTuple):
    """Which texts of different lengths share a forward pass, in one of three ways.

    Args:
        way: ``"packed"`` in a row without padding, where positions and attention allow it; ``"grouped"`` as a batch of
            texts of similar length; or ``"alone"``, as dynamic quantization depends on all texts of a batch.
        padding: largest share of padding in a group; 0 where padding affects real tokens, as through convolutions or
            blocks of attention, so that texts of equal length share a pass.
        texts: largest number of texts in a group.
    """

    way: Literal["packed", "grouped", "alone"]
    padding: float = 0.0
    texts: int = UNLIMITED


PACKED, PADDED = Batching("packed"), Batching("grouped", 0.1, 64)
EQUAL, ALONE = Batching("grouped"), Batching("alone", texts=1)
# The fastest first, in the order in which they are tried.
BATCHINGS = PACKED, PADDED, EQUAL, ALONE


@dataclass(frozen=True)
class Family:
    """Properties of one family of encoders.

    Args:
        layers: dotted paths from the encoder to each ``nn.ModuleList`` that holds one module per layer, or modules that
            are called for several layers each.
        counter: dotted path of the number of layers that the forward pass runs, for families that have one.
        encoder_class: the family has a class that loads the encoder alone (``AutoModelForTextEncoding``).
        final_modules: dotted paths from the encoder to the modules after the last layer, in order: a norm, and what
            follows it. Every layer is returned as their output, as a single layer is in the reference package.
        absolute_positions: attribute of the configuration with the number of positions; ``None`` for models whose
            positions are relative only.
        positions_after_padding: position ids count from ``pad_token_id + 1`` (RoBERTa's convention).
        padding_id: the id after which positions are numbered, for models that do not read it from their configuration.
        prefix_space: published scores put a space before every text (RoBERTa's and GPT-2's tokenizers).
        batching: which texts share a forward pass, at best; a trial decides when the model is loaded.
        takes_embeddings: input embeddings instead of token ids give the same vectors.
        fits_float16: hidden states stay below the largest number of float16.
        probed: the properties come from the model's structure and a probe.
    """

    layers: tuple[str, ...] = ("encoder.layer",)
    counter: str | None = None
    encoder_class: bool = False
    final_modules: tuple[str, ...] = ()
    absolute_positions: str | None = "max_position_embeddings"
    positions_after_padding: bool = False
    padding_id: int | None = None
    prefix_space: bool = False
    batching: Batching = PACKED
    takes_embeddings: bool = True
    fits_float16: bool = True
    probed: bool = False

    def first_position(self, config: PretrainedConfig) -> int:
        """Return the position id of a text's first token: 0, or the padding id plus 1 where positions follow it."""
        if not self.positions_after_padding:
            return 0
        return int(config.pad_token_id if self.padding_id is None else self.padding_id) + 1

    def max_positions(self, config: PretrainedConfig) -> int | None:
        """Return the largest number of tokens per text, special ones included; ``None`` for relative positions only."""
        if self.absolute_positions is None or not getattr(config, "position_biased_input", True):
            return None
        return int(getattr(config, self.absolute_positions)) - self.first_position(config)

    def layers_to_keep(self, num_layers: int, config: PretrainedConfig) -> int:
        """Return how many layers must be in memory to get layer ``num_layers``."""
        if getattr(config, "num_hidden_groups", 1) > 1:  # the group of a layer of ALBERT depends on their number
            return int(config.num_hidden_layers)
        # Layer 0 is the input of the first layer: some families fail without any layer.
        return num_layers if self.final_modules and not self.probed else max(num_layers, 1)

    def cut(self, encoder: nn.Module, layers: int) -> None:
        """Drop an encoder's layers above a number, its pooler and its cache for generation, in place."""
        lists = {path: cast(nn.ModuleList, encoder.get_submodule(path)) for path in self.layers}
        self.set_layers(encoder, {path: modules[:layers] for path, modules in lists.items()}, layers)
        if getattr(encoder, "pooler", None) is not None:
            # Some families call it without checking whether there is one.
            encoder.pooler = nn.Identity()
        # Decoders would keep keys and values for later calls.
        cast(Any, encoder).config.use_cache = False

    def set_layers(self, encoder: nn.Module, lists: Mapping[str, nn.Module], layers: int) -> None:
        """Replace an encoder's layers, by the path of their list, and the number of layers that it runs, in place."""
        values: dict[str, object] = {**lists} if self.counter is None else {**lists, self.counter: layers}
        for path, value in values.items():
            parent_path, _, name = path.rpartition(".")
            # A configuration is not a module.
            setattr(attrgetter(parent_path)(encoder) if parent_path else encoder, name, value)


# Returns token vectors, shape (batch, tokens, width), given a model and its input_ids and attention_mask.
ForwardFunction = Callable[[nn.Module, dict[str, Tensor]], Tensor]


@dataclass(eq=False)
class ModelSpec:
    """What is known of an encoder's model besides its weights: the only object that holds its family.

    A probe completes the family when the model is loaded. The model of a user may have a function that runs it, whole.
    ``code`` distinguishes models of one configuration that run other code than the classes of transformers.
    """

    config: PretrainedConfig
    family: Family
    num_layers: int
    all_layers: bool
    forward_fn: ForwardFunction | None = None
    code: Hashable = None

    @cached_property
    def layers_kept(self) -> int:
        """Number of layers in memory."""
        return self.family.layers_to_keep(self.num_layers, self.config)

    @property
    def max_positions(self) -> int | None:
        """Largest number of tokens per text, special ones included; ``None`` for relative positions only."""
        return self.family.max_positions(self.config)


_BART = Family(layers=("layers",), batching=PADDED)
_BART_WITH_FINAL_NORM = replace(_BART, final_modules=("layer_norm",))
_T5 = Family(
    encoder_class=True,
    layers=("block",),
    final_modules=("final_layer_norm",),
    absolute_positions=None,
    fits_float16=False,
)
_LLAMA = Family(layers=("layers",), final_modules=("norm",))

FAMILIES: dict[str, Family] = {
    "albert": Family(layers=("encoder.albert_layer_groups",), counter="config.num_hidden_layers"),
    "bart": _BART,
    "bert": Family(),
    "big_bird": Family(batching=EQUAL),
    "blenderbot": _BART_WITH_FINAL_NORM,
    "blenderbot-small": _BART,
    "camembert": Family(positions_after_padding=True),
    "convbert": Family(batching=EQUAL),
    "deberta": Family(),
    "deberta-v2": Family(),
    "distilbert": Family(layers=("transformer.layer",)),
    "electra": Family(),
    "gemma": _LLAMA,
    "gemma2": replace(_LLAMA, batching=PADDED),
    "gpt2": Family(layers=("h",), final_modules=("ln_f",), prefix_space=True),
    "led": replace(_BART, absolute_positions="max_encoder_position_embeddings"),
    "llama": _LLAMA,
    "longformer": Family(positions_after_padding=True, batching=PADDED),
    "mbart": _BART_WITH_FINAL_NORM,
    "megatron-bert": Family(final_modules=("encoder.ln",), batching=PADDED),
    "mistral": _LLAMA,
    "modernbert": replace(_LLAMA, final_modules=("final_norm",)),
    "mpnet": Family(positions_after_padding=True, padding_id=1),
    "mt5": _T5,
    "olmo2": _LLAMA,
    "opt": Family(layers=("decoder.layers",), final_modules=("decoder.final_layer_norm",), prefix_space=True),
    "pegasus": _BART_WITH_FINAL_NORM,
    "phi3": _LLAMA,
    "prophetnet": _BART,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "roberta": Family(positions_after_padding=True, prefix_space=True),
    "squeezebert": Family(layers=("encoder.layers",), batching=PADDED),
    "t5": _T5,
    "umt5": replace(_T5, batching=PADDED),
    "xlm": Family(layers=("attentions", "layer_norm1", "ffns", "layer_norm2"), counter="n_layers", batching=PADDED),
    "xlm-roberta": Family(positions_after_padding=True),
    "xlm-roberta-xl": Family(positions_after_padding=True, final_modules=("encoder.LayerNorm",)),
    "xlnet": Family(layers=("layer",), absolute_positions=None, batching=PADDED),
}


class OwnModelConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """Configuration of a model that transformers does not know, which a function of the user runs."""

    model_type = "user_forward_fn"
    vocab_size: int = 0
    # The width is known after the first forward pass; until then, memory is planned for this one.
    hidden_size: int = 1024
    num_hidden_layers: int = 0


_OWN = Family(layers=(), absolute_positions=None)


def text_config(config: PretrainedConfig) -> PretrainedConfig:
    """Return the part of a configuration for texts: that of an encoder, or one of several, next to images or sound."""
    if config.model_type in FAMILIES:
        return config
    if getattr(config, "is_encoder_decoder", False):
        encoder_config = getattr(config, "encoder", None)
        return text_config(encoder_config) if isinstance(encoder_config, PretrainedConfig) else config
    return config.get_text_config()


def encoder_of(model: nn.Module) -> nn.Module:
    """Return the encoder of texts within a base model of transformers, with or without a decoder."""
    config = cast(Any, model).config
    if getattr(config, "is_encoder_decoder", False):
        encoder: nn.Module | None = getattr(model, "encoder", None)
        if encoder is None:
            return model
        if not hasattr(encoder, "config"):  # FSMT
            config = cast(Any, model).config
            raise ValueError(describe_refusal(config, "structure", "its encoder has no configuration"))
        return encoder_of(encoder)
    part = text_config(config)
    if part is config:
        listed = FAMILIES.get(config.model_type)
        inner: nn.Module = getattr(model, "encoder", model)
        return inner if listed is not None and listed.encoder_class else model
    types = ((module, getattr(getattr(module, "config", None), "model_type", None)) for module in model.modules())
    text_model: Any = next((module for module, model_type in types if model_type == part.model_type), model)
    return model if text_model is model else encoder_of(text_model.base_model)


def ready_encoder(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, *, has_forward_fn: bool
) -> tuple[nn.Module, PretrainedConfig]:
    """Return the encoder within a ready model, or the whole that a function runs, and a copy of its configuration."""
    # Slow to import; already imported by anyone who has a model of transformers.
    from transformers import PreTrainedModel

    if not has_forward_fn and not isinstance(model, PreTrainedModel):
        raise ValueError(f"{type(model).__name__} is not a model of transformers: {_find_remedy(model)}")
    encoder = model if has_forward_fn else encoder_of(cast(Any, model).base_model)
    config: Any = getattr(encoder, "config", None)
    if not has_forward_fn or (isinstance(config, PretrainedConfig) and config.model_type in FAMILIES):
        return encoder, deepcopy(config)
    return encoder, OwnModelConfig(vocab_size=len(tokenizer))


def _find_remedy(model: nn.Module) -> str:
    """Return what to pass instead of a wrapper of a model, or together with a model of the user."""
    if hasattr(model, "get_base_model"):  # PEFT
        return f"pass the model that merge_and_unload() returns, or {MERGE_REMEDY}"
    if type(model).__name__ == "FullyShardedDataParallel":
        return "pass the model before it is wrapped, because FSDP has sharded its weights"
    for attribute in ("_orig_mod", "module"):  # torch.compile and DDP
        if isinstance(getattr(model, attribute, None), nn.Module):
            return f"pass its .{attribute}"
    return (
        "pass forward_fn= too, a function of the model and a dictionary of input_ids and attention_mask that returns "
        "token vectors"
    )


def find_own_classes(model: nn.Module) -> frozenset[type[nn.Module]]:
    """Return the classes of a model's modules that belong neither to transformers nor to torch."""
    classes = {type(module) for module in model.modules()}
    return frozenset(kind for kind in classes if kind.__module__.partition(".")[0] not in ("transformers", "torch"))


def require_whole(encoder: nn.Module, config: PretrainedConfig, family: Family) -> None:
    """Raise an error if a ready model has fewer layers or positions than its configuration says, as after a cut."""
    layers = "num_hidden_groups" if hasattr(config, "num_hidden_groups") else "num_hidden_layers"  # of ALBERT
    counts = [(layers, path, len(cast(Any, encoder.get_submodule(path)))) for path in family.layers]
    for path, module in encoder.named_modules():
        if isinstance(module, nn.Embedding) and path.rpartition(".")[2] in _POSITION_TABLES:
            rows = len(module.weight) - getattr(module, "offset", 0)  # BART's first two are not in use
            counts.append((family.absolute_positions or "", path, rows))
    for name, path, count in counts:
        number = getattr(config, name, count)
        if count < number:
            raise ValueError(
                f"{type(encoder).__name__} has {count} entries in {path}, but its configuration says {name}={number}: "
                f"set model.config.{name} = {count}, or pass the whole model"
            )


def family_of(config: PretrainedConfig, encoder: nn.Module | None = None, *, trust_remote_code: bool = False) -> Family:
    """Return the family of a model's configuration; of a type that is not listed, what its structure shows.

    Without the encoder, a type that is not listed is built without weights; a ValueError if its layers are not found.
    """
    if isinstance(config, OwnModelConfig):
        return _OWN
    part = text_config(config)
    # With this option, as in PaliGemma, Gemma's attention is bidirectional without padding and causal with it.
    if part.model_type in FAMILIES and not getattr(part, "use_bidirectional_attention", False):
        return FAMILIES[part.model_type]
    if encoder is None:
        try:
            with torch.random.fork_rng(devices=[]), torch.device("meta"):
                auto: Any = AutoModel
                base: nn.Module = auto.from_config(config, trust_remote_code=trust_remote_code).base_model
        except (AttributeError, ImportError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(describe_refusal(part, "structure", f"{type(error).__name__}: {error}")) from error
        encoder = encoder_of(base)
    return _find_family(encoder, part)


def _find_family(encoder: nn.Module, config: PretrainedConfig) -> Family:
    """Find an encoder's layers and the convention of its positions in its structure, for a probe to complete."""
    count = getattr(config, "num_hidden_layers", 0)
    lists = {name: module for name, module in encoder.named_modules() if isinstance(module, nn.ModuleList)}
    outer = {name: module for name, module in lists.items() if not any(name.startswith(f"{path}.") for path in lists)}
    layers = tuple(name for name, module in outer.items() if len(module) == count > 0)
    if not layers:
        raise ValueError(describe_refusal(config, "structure", f"no list of {count} layers, one module each"))
    tables = (
        module
        for name, module in encoder.named_modules()
        if "position" in name.rpartition(".")[2] and isinstance(module, nn.Embedding)
    )
    padding_id = next((table.padding_idx for table in tables), None)
    return Family(
        layers=layers,
        counter=next((name for name in ("n_layers", "num_layers") if getattr(encoder, name, None) == count), None),
        absolute_positions="max_position_embeddings" if hasattr(config, "max_position_embeddings") else None,
        positions_after_padding=padding_id is not None,
        padding_id=padding_id,
        probed=True,
    )


def describe_refusal(config: PretrainedConfig, probe: str, finding: str) -> str:
    """Return the message of an error about a model that failed a probe, with the remedy."""
    return (
        f"models of type {config.model_type!r} are not supported as encoder: the probe of the {probe} failed "
        f"({finding}). Types that need no probe: {', '.join(sorted(FAMILIES))}. For any other model pass "
        f"FrozenEncoder(model, tokenizer, forward_fn=...), with a function that returns its token vectors"
    )
