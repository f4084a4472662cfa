"""Soft tokens, which the losses encode: their input embeddings, and unit vectors with a gradient to these."""

import torch
from torch import Tensor, nn

from bertscore_tm.encoder.encoder import FrozenEncoder
from bertscore_tm.matching.vectors import unit_vectors


def require_soft_tokens(encoder: FrozenEncoder) -> None:
    """Raise an error if an encoder takes ids only, or returns different vectors for ids and for their embeddings."""
    if not encoder._backbone.spec.family.takes_embeddings:
        raise ValueError(
            f"soft tokens need inputs_embeds, but {encoder.name} (type {encoder.config.model_type!r}) takes input_ids "
            f"only, or gives other vectors for inputs_embeds. Use another encoder, or a sequence-level loss"
        )


def embedding_table(encoder: FrozenEncoder, device: torch.device | str) -> Tensor:
    """Return the input embedding of every token, shape (vocabulary, embedding width), without gradient.

    This is not the module's weight in families whose module scales the embeddings.
    """
    module = encoder.backbone(device).get_input_embeddings()
    weight: Tensor = module.get_parameter("weight").detach()
    if type(module) is nn.Embedding:
        return weight
    with torch.no_grad():
        table: Tensor = module(torch.arange(len(weight), device=weight.device))
    return table


def encode_soft(encoder: FrozenEncoder, inputs_embeds: Tensor, mask: Tensor) -> Tensor:
    """Return the unit vectors of soft tokens, shape (layers, batch, positions, width), float32 or wider.

    Args:
        encoder: the encoder.
        inputs_embeds: shape (batch, positions, embedding width); texts start at position 0, with special tokens.
        mask: real positions, shape (batch, positions), bool; padding follows the text.
    """
    backbone = encoder._backbone
    device = inputs_embeds.device
    # The family is complete only after the model was loaded, which may probe it.
    loaded = backbone.loaded(device)
    require_soft_tokens(encoder)
    states = loaded.run_soft(inputs_embeds.to(backbone.resolve_dtype(device)), mask)
    return unit_vectors(states)
