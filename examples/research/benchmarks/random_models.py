"""Models with random weights in the shapes of published ones, and a tokenizer for them, without downloads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
)

from examples.research.benchmarks.package import MODEL

_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}

# T5-small's sizes are T5's defaults.
T5_SMALL = T5Config(decoder_start_token_id=1, **_IDS)
BART_BASE = BartConfig(
    d_model=768,
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 6),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 12),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 3072),
    **_IDS,
)


def build_model(config: PreTrainedConfig) -> PreTrainedModel:
    """Return a model with random weights, the same in every call, and the special tokens of ``train_tokenizer``."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return AutoModelForSeq2SeqLM.from_config(config)


def train_tokenizer(config: PreTrainedConfig, texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer of a model's size; smaller if texts and MiniLM's words are too few."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=_SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    vocabulary = AutoTokenizer.from_pretrained(MODEL).get_vocab()
    words = [word for word in sorted(vocabulary, key=vocabulary.__getitem__) if word.isalpha()]
    # As often as in natural texts, by Zipf's law, since vocabularies are sorted by frequency; some in capitals.
    counts = [(word, 1 + 5_000 // (1 + rank)) for rank, word in enumerate(words)]
    further = [f" {word}" * 4 * count + f" {word.capitalize()}" * count for word, count in counts]
    tokenizer.train_from_iterator([*texts, *further], trainer)
    begin, padding, end = _SPECIALS[:3]
    tokenizer.post_processor = processors.RobertaProcessing(
        (end, _IDS["eos_token_id"]), (begin, _IDS["bos_token_id"]), trim_offsets=False, add_prefix_space=True
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        add_prefix_space=True,
        model_max_length=512,
        mask_token="<mask>",
        unk_token="<unk>",
        pad_token=padding,
        **{f"{role}_token": begin for role in ("bos", "cls")},
        **{f"{role}_token": end for role in ("eos", "sep")},
    )
