"""Models with random weights in the shapes of published ones, and a tokenizer for them, without downloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5ForConditionalGeneration,
)

_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_BEGIN_ID, _PADDING_ID, _END_ID = 0, 1, 2


@dataclass(frozen=True)
class Shape:
    """Shape of a model.

    Args:
        name: name of the published model.
        family: its family.
        layers: number of layers; of encoder and decoder each, where there are both.
        width: width of token vectors.
        heads: number of attention heads.
        inner: width inside feed-forward layers.
        vocabulary: number of tokens.
        positions: largest number of tokens per text; T5 has no limit.
    """

    name: str
    family: Literal["t5", "bart", "roberta"]
    layers: int
    width: int
    heads: int
    inner: int
    vocabulary: int
    positions: int = 512


T5_SMALL = Shape("T5-small", "t5", layers=6, width=512, heads=8, inner=2048, vocabulary=32_128)
BART_BASE = Shape("BART-base", "bart", layers=6, width=768, heads=12, inner=3072, vocabulary=50_265, positions=1024)
# Of 24 layers, those up to the compared one: the others are not computed.
ROBERTA_LARGE = Shape("roberta-large", "roberta", layers=17, width=1024, heads=16, inner=4096, vocabulary=50_265)


def build_model(shape: Shape) -> PreTrainedModel:
    """Return a model with random weights, the same in every call, and the special tokens of ``train_tokenizer``."""
    ids = {"bos_token_id": _BEGIN_ID, "pad_token_id": _PADDING_ID, "eos_token_id": _END_ID}
    makers: dict[str, tuple[type[Any], Any]] = {
        "t5": (
            T5ForConditionalGeneration,
            lambda: T5Config(
                vocab_size=shape.vocabulary,
                d_model=shape.width,
                d_kv=shape.width // shape.heads,
                d_ff=shape.inner,
                num_layers=shape.layers,
                num_heads=shape.heads,
                decoder_start_token_id=_PADDING_ID,
                **ids,
            ),
        ),
        "bart": (
            BartForConditionalGeneration,
            lambda: BartConfig(
                vocab_size=shape.vocabulary,
                d_model=shape.width,
                encoder_layers=shape.layers,
                decoder_layers=shape.layers,
                encoder_attention_heads=shape.heads,
                decoder_attention_heads=shape.heads,
                encoder_ffn_dim=shape.inner,
                decoder_ffn_dim=shape.inner,
                max_position_embeddings=shape.positions,
                decoder_start_token_id=_END_ID,
                forced_eos_token_id=_END_ID,
                **ids,
            ),
        ),
        "roberta": (
            RobertaModel,
            lambda: RobertaConfig(
                vocab_size=shape.vocabulary,
                hidden_size=shape.width,
                num_hidden_layers=shape.layers,
                num_attention_heads=shape.heads,
                intermediate_size=shape.inner,
                # RoBERTa numbers positions from the padding id + 1.
                max_position_embeddings=shape.positions + _PADDING_ID + 1,
                type_vocab_size=1,
                layer_norm_eps=1e-5,
                **ids,
            ),
        ),
    }
    model_class, make_config = makers[shape.family]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model: PreTrainedModel = model_class(make_config())
    return model


def train_tokenizer(shape: Shape, texts: Sequence[str], other: str) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer of a model's size.

    Args:
        shape: shape of the model.
        texts: training texts.
        other: model whose tokenizer's words are trained on too, since the texts have too few.

    Returns:
        The tokenizer; smaller than the shape's vocabulary if the words are too few.
    """
    tokenizer = Tokenizer(models.BPE())
    # A space before each text, as bert-score requests; RoBERTa's newer tokenizers ignore the request.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocabulary,
        special_tokens=_SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    vocabulary = AutoTokenizer.from_pretrained(other).get_vocab()
    words = [word for word in sorted(vocabulary, key=vocabulary.__getitem__) if word.isalpha()]
    # As often as in natural texts, by Zipf's law, since vocabularies are sorted by frequency; some in capitals.
    counts = [(word, 1 + 5_000 // (1 + rank)) for rank, word in enumerate(words)]
    further = [f" {word}" * 4 * count + f" {word.capitalize()}" * count for word, count in counts]
    tokenizer.train_from_iterator([*texts, *further], trainer)
    begin, padding, end = _SPECIALS[:3]
    tokenizer.post_processor = processors.RobertaProcessing(
        (end, _END_ID), (begin, _BEGIN_ID), trim_offsets=False, add_prefix_space=True
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        add_prefix_space=True,
        model_max_length=shape.positions,
        mask_token="<mask>",
        unk_token="<unk>",
        pad_token=padding,
        **{f"{role}_token": begin for role in ("bos", "cls")},
        **{f"{role}_token": end for role in ("eos", "sep")},
    )
