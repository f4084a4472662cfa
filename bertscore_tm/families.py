"""What the encoder needs to know about each model family: where its layers are and how it numbers positions.

A family is chosen by the model's configuration (``config.model_type``), never by the model's name or folder.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PretrainedConfig

__all__ = ["Family", "family_of"]


@dataclass(frozen=True)
class Family:
    """How to cut and feed one family of encoders.

    Args:
        layers: dotted path from the base model to the ``nn.ModuleList`` of its layers.
        positions_after_padding: position ids count from ``pad_token_id + 1`` (RoBERTa's convention).
        padding_id: the id that positions are numbered after, for models that do not take it from their configuration.
        prefix_space: published scores put a space before every text (byte-level BPE that marks word starts).
    """

    layers: str = "encoder.layer"
    positions_after_padding: bool = False
    padding_id: int | None = None
    prefix_space: bool = False

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
        """Return the largest number of tokens, special ones included, that the model has positions for.

        Args:
            config: configuration of the model.

        Returns:
            The limit in tokens, or ``None`` for models with relative positions only.
        """
        if not getattr(config, "position_biased_input", True):
            return None
        return int(config.max_position_embeddings) - self.first_position(config)


FAMILIES: dict[str, Family] = {
    "bert": Family(),
    "camembert": Family(positions_after_padding=True),
    "deberta": Family(),
    "deberta-v2": Family(),
    "distilbert": Family(layers="transformer.layer"),
    "electra": Family(),
    "mpnet": Family(positions_after_padding=True, padding_id=1),
    "roberta": Family(positions_after_padding=True, prefix_space=True),
    "xlm-roberta": Family(positions_after_padding=True),
}


def family_of(config: PretrainedConfig) -> Family:
    """Return the family of a model's configuration.

    Args:
        config: configuration of the model.

    Returns:
        The family's facts.

    Raises:
        ValueError: the model's type is not supported.

    Example:
        >>> from transformers import RobertaConfig
        >>> config = RobertaConfig(max_position_embeddings=514)
        >>> family_of(config).max_positions(config)
        512
    """
    try:
        return FAMILIES[config.model_type]
    except KeyError:
        supported = ", ".join(sorted(FAMILIES))
        raise ValueError(
            f"models of type {config.model_type!r} are not supported as encoder; supported types: {supported}"
        ) from None
