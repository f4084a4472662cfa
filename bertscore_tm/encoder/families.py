"""Properties of each model family: where its layers are and how it numbers positions.

A family is chosen by the model's configuration (``config.model_type``), never by the model's name or folder.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

from torch import nn
from transformers import PretrainedConfig

__all__ = ["Family", "OwnModelConfig", "family_of"]


@dataclass(frozen=True)
class Family:
    """Properties of one family of encoders.

    Args:
        layers: dotted paths from the encoder to each ``nn.ModuleList`` that holds one module per layer.
        counter: dotted path of the number of layers that the forward pass runs, for families that have one.
        encoder: name of the encoder within the base model, for encoder-decoder models.
        encoder_class: the family has a class that loads the encoder alone (``AutoModelForTextEncoding``).
        final_norm: dotted path from the encoder to the norm after the last layer, for families that have one. Every
            layer is returned normed, as a single layer is in the reference package.
        absolute_positions: attribute of the configuration with the number of positions; ``None`` for models whose
            positions are relative only.
        positions_after_padding: position ids count from ``pad_token_id + 1`` (RoBERTa's convention).
        padding_id: the id after which positions are numbered, for models that do not read it from their configuration.
        prefix_space: published scores put a space before every text (RoBERTa's and GPT-2's tokenizers).
        mixes_padding: padding affects real tokens, through convolutions or blocks of attention, so that only texts of
            equal length may share a batch.
        always_pools: the forward pass calls the pooler without checking whether there is one.
        additive_mask: every layer takes a mask of shape (batch, 1, queries, keys) that is added to its attention, so
            that tokens may have a fractional weight in it.
    """

    layers: tuple[str, ...] = ("encoder.layer",)
    counter: str | None = None
    encoder: str | None = None
    encoder_class: bool = False
    final_norm: str | None = None
    absolute_positions: str | None = "max_position_embeddings"
    positions_after_padding: bool = False
    padding_id: int | None = None
    prefix_space: bool = False
    mixes_padding: bool = False
    always_pools: bool = False
    additive_mask: bool = False

    def first_position(self, config: PretrainedConfig) -> int:
        """Return the position id of a text's first token.

        Args:
            config: configuration of the model.

        Returns:
            0, or the padding id plus 1 for families that number positions after it.
        """
        if not self.positions_after_padding:
            return 0
        return int(config.pad_token_id if self.padding_id is None else self.padding_id) + 1

    def max_positions(self, config: PretrainedConfig) -> int | None:
        """Return the model's number of positions, that is, its largest number of tokens per text.

        Args:
            config: configuration of the model.

        Returns:
            The limit in tokens, special tokens included; ``None`` for models with relative positions only.
        """
        if self.absolute_positions is None or not getattr(config, "position_biased_input", True):
            return None
        return int(getattr(config, self.absolute_positions)) - self.first_position(config)

    def encoder_of(self, model: nn.Module) -> nn.Module:
        """Return the encoder within a base model.

        Args:
            model: the base model, or the encoder itself.

        Returns:
            The encoder; the model itself if it has no decoder.
        """
        found: nn.Module | None = None if self.encoder is None else getattr(model, self.encoder, None)
        return model if found is None else found

    def layers_to_keep(self, num_layers: int) -> int:
        """Return how many layers must be in memory to get layer ``num_layers``.

        Args:
            num_layers: the encoder layer.

        Returns:
            The number of layers.
        """
        # Layer 0 is the input of the first layer: some families fail without any layer.
        return num_layers if self.final_norm is not None else max(num_layers, 1)

    def cut(self, encoder: nn.Module, layers: int) -> None:
        """Drop an encoder's layers above a number, its pooler and its cache for generation, in place.

        Args:
            encoder: the encoder.
            layers: number of layers to keep.
        """
        for path in self.layers:
            parent_path, _, name = path.rpartition(".")
            parent = encoder.get_submodule(parent_path)
            setattr(parent, name, getattr(parent, name)[:layers])
        if self.counter is not None:
            parent_path, _, name = self.counter.rpartition(".")
            setattr(getattr(encoder, parent_path) if parent_path else encoder, name, layers)
        if getattr(encoder, "pooler", None) is not None:
            encoder.register_module("pooler", nn.Identity() if self.always_pools else None)
        # Decoders would keep keys and values for later calls.
        cast(Any, encoder).config.use_cache = False


_ROBERTA = Family(positions_after_padding=True, prefix_space=True, additive_mask=True)
_BART = Family(encoder="encoder", layers=("layers",), additive_mask=True)
_BART_WITH_FINAL_NORM = replace(_BART, final_norm="layer_norm")
_T5 = Family(
    encoder="encoder",
    encoder_class=True,
    layers=("block",),
    final_norm="final_layer_norm",
    absolute_positions=None,
    additive_mask=True,
)
_LLAMA = Family(layers=("layers",), final_norm="norm")

FAMILIES: dict[str, Family] = {
    "albert": Family(layers=(), counter="config.num_hidden_layers", additive_mask=True),
    "bart": _BART,
    "bert": Family(additive_mask=True),
    "big_bird": Family(mixes_padding=True),
    "blenderbot": _BART_WITH_FINAL_NORM,
    "blenderbot-small": _BART,
    "camembert": Family(positions_after_padding=True, additive_mask=True),
    "convbert": Family(mixes_padding=True),
    "deberta": Family(),
    "deberta-v2": Family(),
    "distilbert": Family(layers=("transformer.layer",), additive_mask=True),
    "electra": Family(additive_mask=True),
    "gemma": _LLAMA,
    "gemma2": _LLAMA,
    "gpt2": Family(layers=("h",), final_norm="ln_f", prefix_space=True),
    "led": Family(encoder="encoder", layers=("layers",), absolute_positions="max_encoder_position_embeddings"),
    "llama": _LLAMA,
    "longformer": Family(positions_after_padding=True),
    "mbart": _BART_WITH_FINAL_NORM,
    "megatron-bert": Family(final_norm="encoder.ln", additive_mask=True),
    "mistral": _LLAMA,
    "modernbert": replace(_LLAMA, final_norm="final_norm"),
    "mpnet": Family(positions_after_padding=True, padding_id=1, additive_mask=True),
    "mt5": _T5,
    "olmo2": _LLAMA,
    "opt": Family(layers=("decoder.layers",), final_norm="decoder.final_layer_norm", prefix_space=True),
    "pegasus": _BART_WITH_FINAL_NORM,
    "phi3": _LLAMA,
    "prophetnet": replace(_BART, additive_mask=False),
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "roberta": _ROBERTA,
    "squeezebert": Family(layers=("encoder.layers",), always_pools=True, additive_mask=True),
    "t5": _T5,
    "umt5": _T5,
    "xlm": Family(layers=("attentions", "layer_norm1", "ffns", "layer_norm2"), counter="n_layers"),
    "xlm-roberta": Family(positions_after_padding=True, additive_mask=True),
    "xlm-roberta-xl": Family(positions_after_padding=True, final_norm="encoder.LayerNorm", additive_mask=True),
    "xlnet": Family(layers=("layer",), absolute_positions=None),
}


class OwnModelConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """Configuration of a model that transformers does not know, which a function of the user runs."""

    model_type = "user_forward_fn"
    vocab_size: int = 0
    # The width is known after the first forward pass; until then, memory is planned for this one.
    hidden_size: int = 1024
    num_hidden_layers: int = 0


_OWN = Family(layers=(), absolute_positions=None)


def family_of(config: PretrainedConfig) -> Family:
    """Return the family of a model's configuration.

    Args:
        config: configuration of the model.

    Returns:
        The family.

    Raises:
        ValueError: the model's type is not supported.

    Example:
        >>> from transformers import RobertaConfig
        >>> config = RobertaConfig(max_position_embeddings=514)
        >>> family_of(config).max_positions(config)
        512
    """
    if isinstance(config, OwnModelConfig):
        return _OWN
    try:
        return FAMILIES[config.model_type]
    except KeyError:
        supported = ", ".join(sorted(FAMILIES))
        raise ValueError(
            f"models of type {config.model_type!r} are not supported as encoder; supported types: {supported}; for any "
            f"other model pass model=, user_tokenizer= and user_forward_fn=, a function that returns its token vectors"
        ) from None
