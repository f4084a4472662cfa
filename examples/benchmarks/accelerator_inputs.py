"""Encoder with the shape of roberta-large and random weights, and texts of given lengths."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from tokenizers import pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from examples.benchmarks.vocabularies import train

if TYPE_CHECKING:
    from transformers import RobertaConfig

__all__ = ["Shape", "save_encoder", "texts_of_length"]

# Per text: one before it and one after it.
_SPECIAL_TOKENS = 2
# RoBERTa numbers positions from padding id + 1.
_POSITIONS_NOT_USED = 2


@dataclass(frozen=True)
class Shape:
    """Shape of an encoder of RoBERTa's family; the defaults are those of roberta-large.

    Args:
        layers: number of layers.
        width: width of token vectors.
        heads: number of attention heads.
        inner: width inside feed-forward layers.
        vocabulary: number of input embeddings, at least the number of the tokenizer's tokens.
        compared: layer whose vectors are matched.
        positions: number of position embeddings.
        tokenizer: one of the byte-level BPE tokenizers of ``examples.benchmarks.vocabularies.KINDS``.
    """

    layers: int = 24
    width: int = 1024
    heads: int = 16
    inner: int = 4096
    vocabulary: int = 50_265
    compared: int = 17
    positions: int = 514
    tokenizer: str = "byte-BPE 50k"

    @property
    def operations_per_token(self) -> int:
        """Multiplications and additions with weights per token, up to the compared layer; attention is not counted."""
        return 2 * self.compared * (4 * self.width**2 + 2 * self.width * self.inner)


def save_encoder(shape: Shape, texts: Sequence[str], folder: str | os.PathLike[str]) -> None:
    """Save a model with fixed random weights and a tokenizer trained on texts, in the format of transformers.

    Args:
        shape: shape of the model.
        texts: training texts of the tokenizer.
        folder: folder to write to.

    Raises:
        ValueError: the tokenizer has more tokens than the shape's vocabulary.
    """
    from transformers import RobertaModel

    tokenizer = _tokenizer(shape, texts)
    if len(tokenizer) > shape.vocabulary:
        raise ValueError(
            f"tokenizer={shape.tokenizer!r} has {len(tokenizer)} tokens, but vocabulary={shape.vocabulary}: "
            "give a larger one"
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = RobertaModel(_config(shape, tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def texts_of_length(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, tokens: int, count: int) -> list[str]:
    """Cut texts into distinct pieces of whole words with exactly a given number of tokens.

    Args:
        texts: texts to cut, repeated with shuffled words if they are too short.
        tokenizer: one made by :func:`save_encoder`.
        tokens: tokens per piece, special tokens included.
        count: number of pieces.

    Returns:
        The pieces.

    Raises:
        ValueError: there are too few words.
    """
    # A special token in a text would absorb the space before it.
    words = [
        word for text in texts for word in text.split() if not any(s in word for s in tokenizer.all_special_tokens)
    ]
    distinct = list(dict.fromkeys(words))
    ids = tokenizer(distinct, add_special_tokens=False)["input_ids"] if distinct else []
    # Byte-level BPE does not merge across words, so the tokens of a piece are those of its words.
    sizes = {word: len(row) for word, row in zip(distinct, ids, strict=True)}
    chooser = random.Random(0)
    found: dict[str, None] = {}
    while len(found) < count:
        known = len(found)
        found |= dict.fromkeys(_pieces(words, sizes, tokens - _SPECIAL_TOKENS))
        if len(found) == known:
            raise ValueError(
                f"{len(words)} words are too few for {count} distinct pieces of {tokens} tokens: give more texts"
            )
        chooser.shuffle(words)
    return list(found)[:count]


def _pieces(words: Sequence[str], sizes: dict[str, int], tokens: int) -> Iterator[str]:
    piece: list[str] = []
    room = tokens
    for word in words:
        # Words that do not fit are skipped.
        if sizes[word] <= room:
            piece.append(word)
            room -= sizes[word]
        if room == 0:
            yield " ".join(piece)
            piece, room = [], tokens


def _tokenizer(shape: Shape, texts: Sequence[str]) -> PreTrainedTokenizerFast:
    trained = train(shape.tokenizer, texts)
    backend = trained.backend_tokenizer
    begin, end = ((token, trained.convert_tokens_to_ids(token)) for token in ("<s>", "</s>"))
    # A space before each text, as bert-score requests; RoBERTa's newer tokenizers ignore the request.
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.post_processor = processors.RobertaProcessing(end, begin, add_prefix_space=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        add_prefix_space=True,
        model_max_length=shape.positions - _POSITIONS_NOT_USED,
        mask_token="<mask>",
        pad_token="<pad>",
        **{f"{role}_token": begin[0] for role in ("bos", "cls")},
        **{f"{role}_token": end[0] for role in ("eos", "sep")},
    )


def _config(shape: Shape, tokenizer: PreTrainedTokenizerFast) -> RobertaConfig:
    from transformers import RobertaConfig

    return RobertaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.inner,
        max_position_embeddings=shape.positions,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        **{f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("bos", "eos", "pad")},
    )
