"""The generator's tokens on each device: their embeddings in the encoder, their weights and their roles."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.losses.soft.bridge.vocabulary import VocabularyBridge
from bertscore_tm.losses.soft.predictions import OutputVocabulary
from bertscore_tm.scoring.token_weights import TokenWeights

__all__ = ["GeneratorVocabulary"]


class GeneratorVocabulary:
    """What the loss looks up about the generator's tokens, kept per device.

    Args:
        encoder: the encoder that compares.
        bridge: bridge from the generator's vocabulary. Default: the generator has the encoder's vocabulary.
        weights: weight of each of the encoder's tokens.

    Attributes:
        control_ids: tokens that are not content, such as special tokens.
        end_ids: tokens that end a text.
    """

    def __init__(self, encoder: FrozenEncoder, bridge: VocabularyBridge | None, weights: TokenWeights) -> None:
        tokens = encoder.tokenizer if bridge is None else bridge
        self.control_ids, self.end_ids = tokens.control_ids, tokens.end_ids
        self._encoder = encoder
        self._bridge = bridge
        self._weights = weights
        # Keyed by the device's name, as torch.compile cannot look up devices.
        self._loaded: dict[str, tuple[OutputVocabulary, Tensor]] = {}

    def load(self, device: torch.device) -> tuple[OutputVocabulary, Tensor]:
        """Return the generator's tokens, and the weight of each of the encoder's tokens.

        Args:
            device: where to put them. They are kept for the next call.

        Returns:
            The tokens; and weights of shape (encoder's vocabulary,).
        """
        name = str(device)
        self._load_once(name)
        return self._loaded[name]

    # Run while torch.compile traces the loss, rather than traced: loading a model is not part of the graph.
    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def _load_once(self, name: str) -> bool:
        if name in self._loaded:
            return True
        device, encoder = torch.device(name), self._encoder
        # Cached by the tokenizer here, since the graph must not ask it.
        _ = encoder.tokenizer.special_affixes, encoder.tokenizer.unweighted_ids
        with torch.inference_mode(False), torch.no_grad():
            encoder_weights = self._weights.to(device).table
            weights = None if self._weights.is_uniform else encoder_weights
            table = encoder.embedding_table(device)
            encoder_ids: Tensor | None = torch.arange(len(table), device=device)
            if self._bridge is not None:
                encoder_ids = self._bridge.encoder_ids(device)
                bridged = self._bridge.embedding_table(device)
                # Equal vocabularies share one table.
                if bridged.data_ptr() != table.data_ptr():
                    table, weights = bridged, self._bridge.average_weights(encoder_weights)
            if weights is not None:
                weights = weights[: len(table)].to(torch.promote_types(torch.float32, table.dtype))
            self._loaded[name] = OutputVocabulary(table, weights, self.control_ids, encoder_ids), encoder_weights
        return True

    def require_size(self, size: int, expected: int, subject: str) -> int:
        """Return how many outputs of the generator are tokens; output layers may be padded beyond the tokenizer.

        Args:
            size: the generator's outputs.
            expected: its tokens.
            subject: start of the error, such as ``"logits have"``.

        Returns:
            ``expected``.

        Raises:
            ValueError: there are fewer outputs than tokens, or, without a bridge, more.
        """
        if size == expected or (size > expected and self._bridge is not None):
            return expected
        if self._bridge is None:
            raise ValueError(
                f"{subject} a vocabulary of {size} but the encoder {self._encoder.name!r} has one of {expected}: pass "
                f"the generator's tokenizer as tokenizer="
            )
        raise ValueError(f"{subject} a vocabulary of {size}, the generator's tokenizer has {expected} tokens")

    def __getstate__(self) -> dict[str, Any]:
        # Copies take the tables from the encoder again.
        return {**self.__dict__, "_loaded": {}}
