"""Properties of model families, and the table of the families that need no probe."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, Literal, NamedTuple, cast

from torch import Tensor, nn
from transformers import PretrainedConfig

from bertscore_tm.encoder.packing import UNLIMITED


class Batching(NamedTuple):
    """Which texts of different lengths share a forward pass, in one of three ways.

    Args:
        way: ``"packed"`` in a row without padding, where positions and attention allow it; ``"grouped"`` as a batch of
            texts of similar length; or ``"alone"``, for dynamically quantized models, whose activations are scaled per
            batch.
        padding: largest share of padding in a group; 0 where padding affects real tokens, as through convolutions or
            blocks of attention, so that texts of equal length share a pass.
        texts: largest number of texts in a group.
    """

    way: Literal["packed", "grouped", "alone"]
    padding: float = 0.0
    texts: int = UNLIMITED


PACKED = Batching("packed")
PADDED = Batching("grouped", padding=0.1, texts=64)
EQUAL = Batching("grouped")
ALONE = Batching("alone", texts=1)
# The fastest first, in the order in which they are tried.
BATCHINGS = (PACKED, PADDED, EQUAL, ALONE)


@dataclass(frozen=True)
class Family:
    """Properties of one family of encoders.

    Args:
        layer_paths: dotted paths from the encoder to each ``nn.ModuleList`` that holds one module per layer, or modules
            that are called for several layers each.
        counter_path: dotted path from the encoder to the number of layers that its forward pass runs, such as
            ``"config.num_hidden_layers"``; ``None`` for families that run all layers of the list.
        encoder_class: the family has a class that loads the encoder alone (``AutoModelForTextEncoding``).
        final_modules: dotted paths from the encoder to the modules after the last layer, in order: a norm, and what
            follows it. Every layer is returned as their output, as a single layer is in the reference package.
        absolute_positions: attribute of the configuration with the number of positions; ``None`` for models whose
            positions are relative only.
        positions_after_padding: position ids count from ``pad_token_id + 1`` (RoBERTa's convention).
        padding_id: the id after which positions are numbered, for models that do not read it from their configuration.
        prefix_space: published scores put a space before every text (RoBERTa's and GPT-2's tokenizers).
        batching: the fastest batching that the family may support; a trial when the model is loaded confirms it or
            falls back.
        takes_embeddings: input embeddings instead of token ids give the same vectors.
        fits_float16: hidden states stay below the largest number of float16.
        probed: the properties come from the model's structure and a probe.
    """

    layer_paths: tuple[str, ...] = ("encoder.layer",)
    counter_path: str | None = None
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
        padding_id = self.padding_id
        if padding_id is None:
            padding_id = config.pad_token_id
        return int(cast(int, padding_id)) + 1

    def max_positions(self, config: PretrainedConfig) -> int | None:
        """Return the largest number of tokens per text, special ones included; ``None`` for relative positions only."""
        # DeBERTa has positions in its configuration also if it adds no vectors of positions to its input.
        adds_positions = getattr(config, "position_biased_input", True)
        if self.absolute_positions is None or not adds_positions:
            return None
        return int(getattr(config, self.absolute_positions)) - self.first_position(config)

    def layers_to_keep(self, num_layers: int, config: PretrainedConfig) -> int:
        """Return how many layers must be in memory to get layer ``num_layers``."""
        has_layer_groups = getattr(config, "num_hidden_groups", 1) > 1
        if has_layer_groups:
            # ALBERT computes from the number of layers which group of weights a layer uses.
            return int(config.num_hidden_layers)
        # Models with final modules return layer 0 as their output. Others may fail without any layer.
        may_be_empty = bool(self.final_modules) and not self.probed
        if may_be_empty:
            return num_layers
        return max(num_layers, 1)

    def cut(self, encoder: nn.Module, num_layers: int) -> None:
        """Drop an encoder's layers above a number, its pooler and its cache for generation, in place."""
        shortened: dict[str, nn.Module] = {}
        for path in self.layer_paths:
            layers = cast(nn.ModuleList, encoder.get_submodule(path))
            shortened[path] = layers[:num_layers]
        self.set_layers(encoder, shortened, num_layers)
        if getattr(encoder, "pooler", None) is not None:
            # Some families call it without checking whether there is one.
            encoder.pooler = nn.Identity()
        # Decoders would keep keys and values for later calls.
        cast(Any, encoder).config.use_cache = False

    def set_layers(self, encoder: nn.Module, lists: Mapping[str, nn.Module], num_layers: int) -> None:
        """Replace an encoder's lists of layers, and the number of layers that it runs, in place.

        Args:
            encoder: the encoder.
            lists: the new list of layers for each path in ``layer_paths``.
            num_layers: the new number of layers.
        """
        new_attributes: dict[str, object] = {**lists}  # by their dotted path from the encoder
        if self.counter_path is not None:
            new_attributes[self.counter_path] = num_layers
        for path, attribute in new_attributes.items():
            # For "encoder.layer", the attribute "layer" of encoder.encoder is set.
            parent_path, _, name = path.rpartition(".")
            parent: Any = encoder
            if parent_path:
                # The parent may be a configuration, which get_submodule does not find.
                parent = attrgetter(parent_path)(encoder)
            setattr(parent, name, attribute)


# Returns token vectors, shape (batch, tokens, width), given a model and its input_ids and attention_mask.
ForwardFunction = Callable[[nn.Module, dict[str, Tensor]], Tensor]


@dataclass(eq=False)
class ModelSpec:
    """Configuration, family and chosen layer of a model: everything about it except the weights.

    Args:
        config: configuration of the encoder within the model.
        family: properties of its family, which a probe completes when the model is loaded.
        num_layers: number of the chosen layer.
        all_layers: all layers up to the chosen one are returned.
        forward_fn: function of the user that runs the whole model.
        code: distinguishes models of one configuration that run other code than the classes of transformers.
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


# Further properties of the families in the table.
_AFTER_PADDING: dict[str, Any] = {"positions_after_padding": True}
_PREFIX_SPACE: dict[str, Any] = {"prefix_space": True}
_ROBERTA: dict[str, Any] = {"positions_after_padding": True, "prefix_space": True}
_MPNET_POSITIONS: dict[str, Any] = {"positions_after_padding": True, "padding_id": 1}
_LED_POSITIONS: dict[str, Any] = {"absolute_positions": "max_encoder_position_embeddings"}
_RELATIVE: dict[str, Any] = {"absolute_positions": None}
_T5: dict[str, Any] = {"encoder_class": True, "absolute_positions": None, "fits_float16": False}
_ALBERT_COUNTER: dict[str, Any] = {"counter_path": "config.num_hidden_layers"}
_XLM_COUNTER: dict[str, Any] = {"counter_path": "n_layers"}
# XLM has a list for each part of a layer.
_XLM_LAYERS = "attentions layer_norm1 ffns layer_norm2"

# One family in each row:
#   model type: ``config.model_type`` in transformers.
#   layers: path of the list of layers within the encoder. Several paths are separated by spaces.
#   final module: path of the norm after the last layer, or "".
#   batch: the fastest batching that the family may support.
#   further properties: attributes of ``Family`` that differ from their defaults.
# fmt: off
_TABLE: list[tuple[str, str, str, Batching, dict[str, Any]]] = [
    # model type         layers                         final module                batch   further properties
    ("albert",           "encoder.albert_layer_groups", "",                         PACKED, _ALBERT_COUNTER),
    ("bart",             "layers",                      "",                         PADDED, {}),
    ("bert",             "encoder.layer",               "",                         PACKED, {}),
    ("big_bird",         "encoder.layer",               "",                         EQUAL,  {}),
    ("blenderbot",       "layers",                      "layer_norm",               PADDED, {}),
    ("blenderbot-small", "layers",                      "",                         PADDED, {}),
    ("camembert",        "encoder.layer",               "",                         PACKED, _AFTER_PADDING),
    ("convbert",         "encoder.layer",               "",                         EQUAL,  {}),
    ("deberta",          "encoder.layer",               "",                         PACKED, {}),
    ("deberta-v2",       "encoder.layer",               "",                         PACKED, {}),
    ("distilbert",       "transformer.layer",           "",                         PACKED, {}),
    ("electra",          "encoder.layer",               "",                         PACKED, {}),
    ("gemma",            "layers",                      "norm",                     PACKED, {}),
    ("gemma2",           "layers",                      "norm",                     PADDED, {}),
    ("gpt2",             "h",                           "ln_f",                     PACKED, _PREFIX_SPACE),
    ("led",              "layers",                      "",                         PADDED, _LED_POSITIONS),
    ("llama",            "layers",                      "norm",                     PACKED, {}),
    ("longformer",       "encoder.layer",               "",                         PADDED, _AFTER_PADDING),
    ("mbart",            "layers",                      "layer_norm",               PADDED, {}),
    ("megatron-bert",    "encoder.layer",               "encoder.ln",               PADDED, {}),
    ("mistral",          "layers",                      "norm",                     PACKED, {}),
    ("modernbert",       "layers",                      "final_norm",               PACKED, {}),
    ("mpnet",            "encoder.layer",               "",                         PACKED, _MPNET_POSITIONS),
    ("mt5",              "block",                       "final_layer_norm",         PACKED, _T5),
    ("olmo2",            "layers",                      "norm",                     PACKED, {}),
    ("opt",              "decoder.layers",              "decoder.final_layer_norm", PACKED, _PREFIX_SPACE),
    ("pegasus",          "layers",                      "layer_norm",               PADDED, {}),
    ("phi3",             "layers",                      "norm",                     PACKED, {}),
    ("prophetnet",       "layers",                      "",                         PADDED, {}),
    ("qwen2",            "layers",                      "norm",                     PACKED, {}),
    ("qwen3",            "layers",                      "norm",                     PACKED, {}),
    ("roberta",          "encoder.layer",               "",                         PACKED, _ROBERTA),
    ("squeezebert",      "encoder.layers",              "",                         PADDED, {}),
    ("t5",               "block",                       "final_layer_norm",         PACKED, _T5),
    ("umt5",             "block",                       "final_layer_norm",         PADDED, _T5),
    ("xlm",              _XLM_LAYERS,                   "",                         PADDED, _XLM_COUNTER),
    ("xlm-roberta",      "encoder.layer",               "",                         PACKED, _AFTER_PADDING),
    ("xlm-roberta-xl",   "encoder.layer",               "encoder.LayerNorm",        PACKED, _AFTER_PADDING),
    ("xlnet",            "layer",                       "",                         PADDED, _RELATIVE),
]
# fmt: on

FAMILIES = {
    model_type: Family(tuple(paths.split()), final_modules=tuple(final.split()), batching=batching, **further)
    for model_type, paths, final, batching, further in _TABLE
}


class OwnModelConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """Configuration of a model that transformers does not know, which a function of the user runs."""

    model_type = "user_forward_fn"
    vocab_size: int = 0
    # The width is known after the first forward pass; until then, memory is planned for this one.
    hidden_size: int = 1024
    num_hidden_layers: int = 0


OWN_FAMILY = Family(layer_paths=(), absolute_positions=None)
