"""Tiny models and tokenizers of every family."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModel, BertModel, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from bertscore_tm import FrozenEncoder
from bertscore_tm.encoder.forward_pass import ForwardPass
from tests.support.texts import real_pairs


def encoded_texts(inputs: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Return the token ids of each text that a model gets, packed in a row or padded."""
    ids = inputs["input_ids"]
    if (positions := inputs.get("position_ids")) is not None:
        starts = (positions[0] == positions[0, 0]).nonzero().squeeze(1).tolist()
        texts = [tuple(ids[0, start:end].tolist()) for start, end in pairwise([*starts, ids.shape[1]])]
        return [text for text in texts if text != (0,)]  # what fills up a row
    return [tuple(row[real.bool()].tolist()) for row, real in zip(ids, inputs["attention_mask"], strict=True)]


@dataclass(frozen=True)
class TokenizerKind:
    """A family's tokenizers: the algorithm, the special tokens around a text and their roles."""

    algorithm: str
    template: str
    specials: tuple[str, ...]
    roles: dict[str, str]
    padding_side: str = "right"


def _kind(algorithm: str, template: str, specials: str, padding_side: str = "right", **roles: str) -> TokenizerKind:
    names = {f"{role}_token": token for role, token in roles.items()}
    return TokenizerKind(algorithm, template, tuple(specials.split()), names, padding_side)


_FAIRSEQ = {"bos": "<s>", "cls": "<s>", "pad": "<pad>", "eos": "</s>", "sep": "</s>", "unk": "<unk>"}
_GOOGLE = {"cls": "[CLS]", "sep": "[SEP]", "unk": "[UNK]"}
_END_OF_TEXT = {"bos": "<|endoftext|>", "eos": "<|endoftext|>", "unk": "<|endoftext|>"}

# Special tokens in the order of their ids.
KINDS = {
    "wordpiece": _kind("wordpiece", "[CLS] $A [SEP]", "[PAD] [UNK] [CLS] [SEP]", pad="[PAD]", **_GOOGLE),
    "mpnet": _kind("wordpiece", "<s> $A </s>", "<s> <pad> </s> [UNK]", **_FAIRSEQ | {"unk": "[UNK]"}),
    "prophetnet": _kind(
        "wordpiece", "$A [SEP]", "[PAD] [UNK] [CLS] [SEP]", pad="[PAD]", bos="[SEP]", eos="[SEP]", **_GOOGLE
    ),
    "bytes": _kind("bytes", "<s> $A </s>", "<s> <pad> </s> <unk>", **_FAIRSEQ),
    "deberta": _kind("bytes", "[CLS] $A [SEP]", "[PAD] [CLS] [SEP] [UNK]", pad="[PAD]", **_GOOGLE),
    "gpt2": _kind("bytes", "$A", "<|endoftext|>", **_END_OF_TEXT),
    "opt": _kind("bytes", "</s> $A", "<s> <pad> </s>", bos="</s>", eos="</s>", pad="<pad>", unk="</s>"),
    "qwen": _kind("bytes", "$A", "<|endoftext|> <|im_end|>", pad="<|endoftext|>", eos="<|im_end|>"),
    "olmo": _kind("bytes", "$A", "<|endoftext|> <|pad|>", pad="<|pad|>", **_END_OF_TEXT),
    "blenderbot": _kind("bytes", "$A </s>", "<pad> <s> </s> <unk>", **_FAIRSEQ),
    "deberta-v2": _kind("unigram", "[CLS] $A [SEP]", "[PAD] [CLS] [SEP] [UNK]", pad="[PAD]", **_GOOGLE),
    "albert": _kind("unigram", "[CLS] $A [SEP]", "<pad> <unk> [CLS] [SEP]", pad="<pad>", **_GOOGLE | {"unk": "<unk>"}),
    "big-bird": _kind(
        "unigram",
        "[CLS] $A [SEP]",
        "<pad> </s> <s> <unk> [CLS] [SEP]",
        **_FAIRSEQ | {"cls": "[CLS]", "sep": "[SEP]"},
    ),
    "camembert": _kind("unigram", "<s> $A </s>", "<unk> <pad> <s> </s>", **_FAIRSEQ),
    "xlm-roberta": _kind("unigram", "<s> $A </s>", "<s> <pad> </s> <unk>", **_FAIRSEQ),
    "mbart": _kind("unigram", "$A </s> en_XX", "<s> <pad> </s> <unk> en_XX", **_FAIRSEQ),
    "t5": _kind("unigram", "$A </s>", "<pad> </s> <unk>", pad="<pad>", eos="</s>", unk="<unk>"),
    "xlnet": _kind(
        "unigram",
        "$A <sep> <cls>",
        "<unk> <s> </s> <cls> <sep> <pad>",
        padding_side="left",
        **_FAIRSEQ | {"cls": "<cls>", "sep": "<sep>"},
    ),
    "xlm": _kind(
        "words", "<s> $A </s>", "<s> </s> <pad> <unk>", bos="<s>", cls="</s>", sep="</s>", pad="<pad>", unk="<unk>"
    ),
    "blenderbot-small": _kind(
        "words",
        "$A",
        "__null__ __start__ __end__ __unk__",
        pad="__null__",
        bos="__start__",
        eos="__end__",
        unk="__unk__",
    ),
    "llama": _kind("pieces", "<s> $A", "<unk> <s> </s>", bos="<s>", eos="</s>", unk="<unk>"),
    "gemma": _kind("pieces", "<bos> $A", "<pad> <eos> <bos> <unk>", pad="<pad>", eos="<eos>", bos="<bos>", unk="<unk>"),
    "phi3": _kind(
        "pieces", "$A", "<unk> <s> </s> <|endoftext|>", bos="<s>", pad="<|endoftext|>", eos="<|endoftext|>", unk="<unk>"
    ),
}

# Kind of tokenizer to the families whose real models have it.
_FAMILIES = {
    "wordpiece": "bert convbert distilbert electra megatron-bert squeezebert",
    "bytes": "bart led longformer roberta",
    "t5": "mt5 pegasus t5 umt5",
    "llama": "llama mistral",
    "gemma": "gemma gemma2",
    "qwen": "qwen2 qwen3",
    "xlm-roberta": "xlm-roberta xlm-roberta-xl",
    "deberta": "deberta modernbert",
    "big-bird": "big_bird",
    "olmo": "olmo2",
    # Families that have a kind of their own.
    **{name: name for name in ("albert", "blenderbot", "blenderbot-small", "camembert", "deberta-v2", "gpt2", "mbart")},
    **{name: name for name in ("mpnet", "opt", "phi3", "prophetnet", "xlm", "xlnet")},
}
EVERY_FAMILY = dict(sorted((family, kind) for kind, families in _FAMILIES.items() for family in families.split()))

# Normalizer, splitter and decoder of each algorithm.
_PARTS: dict[str, tuple[Any, Any, Any]] = {
    "bytes": (None, pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()),
    "pieces": (None, pre_tokenizers.Metaspace(), decoders.Metaspace()),
    "unigram": (
        normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]),
        pre_tokenizers.Metaspace(),
        decoders.Metaspace(),
    ),
    "wordpiece": (normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()),
    "words": (normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer(), None),
}


@cache
def tiny_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """Return a small tokenizer of a kind, trained on real texts; the same in every process."""
    made = KINDS[kind]
    specials, unknown = list(made.specials), made.roles.get("unk_token")
    texts = [text for side in real_pairs(240) for text in side]
    is_bytes = made.algorithm == "bytes"
    tokenizer = Tokenizer(models.BPE(unk_token=None if is_bytes else unknown))
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = _PARTS[made.algorithm]
    if made.algorithm == "wordpiece":
        # The trainer for word pieces breaks ties at random.
        tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=(800 - len(specials)) // 2))
        pieces = sorted(tokenizer.get_vocab())
        names = [*specials, *pieces, *(f"##{piece}" for piece in pieces)]
        tokenizer.model = models.WordPiece({name: i for i, name in enumerate(names)}, unk_token=unknown)
        tokenizer.add_special_tokens(specials)
    elif made.algorithm == "unigram":
        tokenizer.model = models.Unigram()
        trainer = trainers.UnigramTrainer(vocab_size=800, special_tokens=specials, unk_token=unknown)
        tokenizer.train_from_iterator(texts, trainer)
        # Nearly equally probable pieces come in random order.
        pieces = json.loads(tokenizer.to_str())["model"]["vocab"]
        pieces[len(specials) :] = sorted(pieces[len(specials) :])
        tokenizer.model = models.Unigram([tuple(piece) for piece in pieces], unk_id=specials.index(unknown))
    else:
        alphabet = pre_tokenizers.ByteLevel.alphabet() if is_bytes else []
        trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=specials, initial_alphabet=alphabet)
        tokenizer.train_from_iterator(texts, trainer)
    around = sorted(set(made.template.split()) - {"$A"})
    tokenizer.post_processor = processors.TemplateProcessing(
        single=made.template, special_tokens=[(token, tokenizer.token_to_id(token)) for token in around]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=64, padding_side=made.padding_side, **made.roles
    )


# Sizes by each family's own names.
_BERT = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 70}
_ROBERTA = _BERT | {"max_position_embeddings": 72}
_LLAMA = _BERT | {"num_key_value_heads": 2, "head_dim": 8}
_SEQ2SEQ = {
    "d_model": 32,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 70,
}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_decoder_layers": 2}
_SIZES: dict[str, dict[str, Any]] = {
    "albert": _BERT | {"embedding_size": 16},
    "bart": _SEQ2SEQ,
    # Sparse attention begins beyond (5 + 2 * 1) * 3 tokens.
    "big_bird": _BERT | {"max_position_embeddings": 72, "block_size": 3, "num_random_blocks": 1},
    "blenderbot": _SEQ2SEQ,
    "blenderbot-small": _SEQ2SEQ,
    "camembert": _ROBERTA,
    "convbert": _BERT | {"embedding_size": 16, "conv_kernel_size": 5},
    "deberta": _BERT | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False},
    "deberta-v2": _BERT
    | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
    | {"position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    "distilbert": {"dim": 32, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 70},
    "electra": _BERT | {"embedding_size": 16},
    "gemma": _LLAMA,
    "gemma2": _LLAMA | {"query_pre_attn_scalar": 8, "sliding_window": 8},
    "gpt2": {"n_embd": 32, "n_head": 4, "n_positions": 70},
    "led": {name: size for name, size in _SEQ2SEQ.items() if name != "max_position_embeddings"}
    | {"max_encoder_position_embeddings": 72, "max_decoder_position_embeddings": 20, "attention_window": 8},
    "llama": _LLAMA,
    "longformer": _BERT | {"max_position_embeddings": 74, "attention_window": 8},
    "mbart": _SEQ2SEQ,
    "mistral": _LLAMA | {"sliding_window": 8},
    "modernbert": _BERT | {"local_attention": 8},
    "mpnet": _ROBERTA,
    "mt5": _T5,
    "opt": {"hidden_size": 32, "num_attention_heads": 4, "ffn_dim": 48, "max_position_embeddings": 70},
    "pegasus": _SEQ2SEQ,
    "prophetnet": {
        "hidden_size": 32,
        "num_encoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "num_decoder_layers": 2,
        "num_decoder_attention_heads": 4,
        "decoder_ffn_dim": 48,
        "max_position_embeddings": 70,
    },
    "roberta": _ROBERTA,
    "squeezebert": _BERT | {"embedding_size": 32},
    "t5": _T5,
    "umt5": _T5,
    "xlm": {"emb_dim": 32, "n_heads": 4, "max_position_embeddings": 70},
    "xlm-roberta": _ROBERTA,
    "xlm-roberta-xl": _ROBERTA,
    "xlnet": {"d_model": 32, "n_head": 4, "d_inner": 48},
}
_SIZES |= dict.fromkeys(("olmo2", "phi3", "qwen2", "qwen3"), _LLAMA)
_SIZES |= dict.fromkeys(("bert", "megatron-bert"), _BERT)
# Name of the number of (encoder) layers in families without num_hidden_layers.
_NUM_LAYERS = dict.fromkeys(("bart", "blenderbot", "blenderbot-small", "led", "mbart", "pegasus"), "encoder_layers")
_NUM_LAYERS |= dict.fromkeys(("t5", "mt5", "umt5"), "num_layers")
_NUM_LAYERS |= {"distilbert": "n_layers", "gpt2": "n_layer", "xlnet": "n_layer", "xlm": "n_layers"}
_NUM_LAYERS |= {"prophetnet": "num_encoder_layers"}


def tiny_config(family: str, layers: int = 3, **more: Any) -> PretrainedConfig:
    """Return the configuration of a small model."""
    tokenizer = tiny_tokenizer(EVERY_FAMILY[family])
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "bos", "eos", "cls", "sep")}
    sizes = {"vocab_size": len(tokenizer), _NUM_LAYERS.get(family, "num_hidden_layers"): layers, **_SIZES[family]}
    return AutoConfig.for_model(family, **ids | sizes | more)


def randomised(model: PreTrainedModel) -> PreTrainedModel:
    """Give a model larger random weights: with the usual ones, a layer hardly changes its input."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    return model.eval()


@cache
def tiny_model(family: str, layers: int = 3) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Return a small random model of a family, and its tokenizer; built once per process."""
    with torch.random.fork_rng(devices=[]):
        model = AutoModel.from_config(tiny_config(family, layers))
    return randomised(model), tiny_tokenizer(EVERY_FAMILY[family])


def tiny_encoder(family: str, **options: Any) -> FrozenEncoder:
    """Return an encoder of the tiny model of a family."""
    model, tokenizer = tiny_model(family)
    return FrozenEncoder(model, tokenizer, **options)


def save_tiny_model(family: str, folder: Path) -> str:
    """Write a tiny model and its tokenizer to a folder and return its path."""
    model, tokenizer = tiny_model(family)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@contextmanager
def counted_texts() -> Generator[Counter[tuple[int, ...]], None, None]:
    """How often each text, as its token ids, goes through a model; without those that are tried when it is loaded."""
    counts: Counter[tuple[int, ...]] = Counter()
    forward, find = BertModel.forward, ForwardPass.find_batching

    def counted(model: BertModel, **inputs: Any) -> Any:
        counts.update(encoded_texts(inputs) if "input_ids" in inputs else ())
        return forward(model, **inputs)

    def uncounted(*args: Any, **options: Any) -> Any:
        before = counts.copy()
        batching = find(*args, **options)
        counts.clear()
        counts.update(before)
        return batching

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BertModel, "forward", counted)
        patch.setattr(ForwardPass, "find_batching", uncounted)
        yield counts
