"""Tiny models and tokenizers of every family."""

import gc
import inspect
import json
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BertModel,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from bertscore_tm import FrozenEncoder
from bertscore_tm.encoder.forward import ForwardPass
from bertscore_tm.encoder.soft_tokens import embedding_table
from bertscore_tm.encoder.tokenizer import TextTokenizer, Windows
from bertscore_tm.matching.vectors import TokenizedTexts
from examples.programs import docstrings
from tests.support.texts import read_or_make, real_pairs


def encoded_texts(inputs: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Return the token ids of each text that a model gets, packed in a row or padded."""
    ids = inputs["input_ids"]
    if (positions := inputs.get("position_ids")) is not None:
        starts = (positions[0] == positions[0, 0]).nonzero().squeeze(1).tolist()
        return [tuple(ids[0, start:end].tolist()) for start, end in pairwise([*starts, ids.shape[1]])]
    return [tuple(row[real.bool()].tolist()) for row, real in zip(ids, inputs["attention_mask"], strict=True)]


@dataclass(frozen=True)
class TokenizerKind:
    """A family's tokenizers: the algorithm, the special tokens around a text, and all by id with their roles."""

    algorithm: str
    template: str
    tokens: str
    padding_side: str = "right"

    @property
    def specials(self) -> list[str]:
        return [token.partition("=")[0] for token in self.tokens.split()]

    @property
    def roles(self) -> dict[str, str]:
        pairs = [token.partition("=")[::2] for token in self.tokens.split()]
        return {f"{role}_token": token for token, roles in pairs for role in roles.split(",") if role}


_ROWS = {
    "wordpiece": ("wordpiece", "[CLS] $A [SEP]", "[PAD]=pad [UNK]=unk [CLS]=cls [SEP]=sep"),
    "mpnet": ("wordpiece", "<s> $A </s>", "<s>=bos,cls <pad>=pad </s>=eos,sep [UNK]=unk"),
    "prophetnet": ("wordpiece", "$A [SEP]", "[PAD]=pad [UNK]=unk [CLS]=cls [SEP]=bos,eos,sep"),
    "bytes": ("bytes", "<s> $A </s>", "<s>=bos,cls <pad>=pad </s>=eos,sep <unk>=unk"),
    "deberta": ("bytes", "[CLS] $A [SEP]", "[PAD]=pad [CLS]=cls [SEP]=sep [UNK]=unk"),
    "gpt2": ("bytes", "$A", "<|endoftext|>=bos,eos,unk"),
    "opt": ("bytes", "</s> $A", "<s> <pad>=pad </s>=bos,eos,unk"),
    "qwen": ("bytes", "$A", "<|endoftext|>=pad <|im_end|>=eos"),
    "olmo": ("bytes", "$A", "<|endoftext|>=bos,eos,unk <|pad|>=pad"),
    "blenderbot": ("bytes", "$A </s>", "<pad>=pad <s>=bos,cls </s>=eos,sep <unk>=unk"),
    "deberta-v2": ("unigram", "[CLS] $A [SEP]", "[PAD]=pad [CLS]=cls [SEP]=sep [UNK]=unk"),
    "albert": ("unigram", "[CLS] $A [SEP]", "<pad>=pad <unk>=unk [CLS]=cls [SEP]=sep"),
    "big-bird": ("unigram", "[CLS] $A [SEP]", "<pad>=pad </s>=eos <s>=bos <unk>=unk [CLS]=cls [SEP]=sep"),
    "camembert": ("unigram", "<s> $A </s>", "<unk>=unk <pad>=pad <s>=bos,cls </s>=eos,sep"),
    "xlm-roberta": ("unigram", "<s> $A </s>", "<s>=bos,cls <pad>=pad </s>=eos,sep <unk>=unk"),
    "mbart": ("unigram", "$A </s> en_XX", "<s>=bos,cls <pad>=pad </s>=eos,sep <unk>=unk en_XX"),
    "t5": ("unigram", "$A </s>", "<pad>=pad </s>=eos <unk>=unk"),
    "xlnet": ("unigram", "$A <sep> <cls>", "<unk>=unk <s>=bos </s>=eos <cls>=cls <sep>=sep <pad>=pad", "left"),
    "xlm": ("words", "<s> $A </s>", "<s>=bos </s>=cls,sep <pad>=pad <unk>=unk"),
    "blenderbot-small": ("words", "$A", "__null__=pad __start__=bos __end__=eos __unk__=unk"),
    "llama": ("pieces", "<s> $A", "<unk>=unk <s>=bos </s>=eos"),
    "gemma": ("pieces", "<bos> $A", "<pad>=pad <eos>=eos <bos>=bos <unk>=unk"),
    "phi3": ("pieces", "$A", "<unk>=unk <s>=bos </s> <|endoftext|>=pad,eos"),
}
KINDS = {name: TokenizerKind(*row) for name, row in _ROWS.items()}

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
    # Training takes up to 0.4 s. Other versions of the library may not read each other's files.
    name = f"tokenizer_{kind}_{tokenizers.__version__}"
    saved = read_or_make(name, lambda: train_tokenizer(made).to_str(), __file__, docstrings.__file__)
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(saved), model_max_length=64, padding_side=made.padding_side, **made.roles
    )


def train_tokenizer(made: TokenizerKind) -> Tokenizer:
    """Train a tokenizer of a kind."""
    specials, unknown = made.specials, made.roles.get("unk_token")
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
    return tokenizer


# Sizes by all names that families have for them, of which each takes its own.
_SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "dim", "emb_dim", "n_embd"), 32),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("d_ff", "d_inner"), 48),
    **dict.fromkeys(("num_attention_heads", "encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("num_heads", "n_heads", "n_head"), 4),
    **dict.fromkeys(("decoder_layers", "num_decoder_layers", "num_key_value_heads"), 2),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 70),
    **dict.fromkeys(("head_dim", "d_kv"), 8),
    "embedding_size": 16,
}
_NUM_LAYERS = ("num_hidden_layers", "num_encoder_layers", "encoder_layers", "num_layers", "n_layers", "n_layer")
_DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
# What a family has besides, or in another size.
_OPTIONS: dict[str, dict[str, Any]] = {
    # Sparse attention begins beyond (5 + 2 * 1) * 3 tokens.
    "big_bird": {"max_position_embeddings": 72, "block_size": 3, "num_random_blocks": 1},
    "convbert": {"conv_kernel_size": 5},
    "deberta": _DEBERTA,
    "deberta-v2": _DEBERTA | {"position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    "gemma2": {"query_pre_attn_scalar": 8, "sliding_window": 8},
    "led": {"max_encoder_position_embeddings": 72, "max_decoder_position_embeddings": 20, "attention_window": 8},
    "longformer": {"max_position_embeddings": 74, "attention_window": 8},
    "mistral": {"sliding_window": 8},
    "modernbert": {"local_attention": 8},
    "squeezebert": {"embedding_size": 32},
}
# The padding id shifts their positions.
_OPTIONS |= {name: {"max_position_embeddings": 72} for name in ("camembert", "mpnet", "roberta", "xlm-roberta")}
_OPTIONS["xlm-roberta-xl"] = _OPTIONS["xlm-roberta"]


def tiny_config(family: str, layers: int = 3, **more: Any) -> PretrainedConfig:
    """Return the configuration of a small model."""
    tokenizer = tiny_tokenizer(EVERY_FAMILY[family])
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "bos", "eos", "cls", "sep")}
    ids["vocab_size"] = len(tokenizer)
    names = inspect.signature(CONFIG_MAPPING[family]).parameters
    sizes = {name: size for name, size in (_SIZES | dict.fromkeys(_NUM_LAYERS, layers)).items() if name in names}
    return AutoConfig.for_model(family, **ids | sizes | _OPTIONS.get(family, {}) | more)


def randomised(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """Give a model larger random weights: with the usual ones, a layer hardly changes its input."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
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


def tiny_generator(family: str, **config: Any) -> PreTrainedModel:
    """Return a small random model that predicts tokens."""
    configuration = tiny_config(family, **config)
    auto = AutoModelForSeq2SeqLM if configuration.is_encoder_decoder else AutoModelForCausalLM
    return randomised(auto.from_config(configuration))


def padded(rows: Sequence[Sequence[int]], value: int = -100, side: str = "right") -> Tensor:
    """Return rows of token ids in one tensor."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value, padding_side=side)


def soft_texts(encoder: FrozenEncoder, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return the input embeddings of texts, padded, which require a gradient, and the mask of real positions."""
    rows = encoder.tokenizer(texts).rows()
    ids = padded(rows, encoder.tokenizer.tokenizer.pad_token_id or 0)
    embeds = embedding_table(encoder, "cpu")[ids].clone().requires_grad_()
    return embeds, padded([[1] * len(row) for row in rows], 0).bool()


def last_hidden_state(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the vectors of a forward function."""
    return model(**inputs).last_hidden_state


def save_tiny_model(family: str, folder: Path) -> str:
    """Write a tiny model and its tokenizer to a folder and return its path."""
    model, tokenizer = tiny_model(family)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def live_models() -> set[int]:
    """Return the ids of all models in memory."""
    gc.collect()
    return {id(thing) for thing in gc.get_objects() if issubclass(type(thing), PreTrainedModel)}


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


def windows_of(tokenized: TokenizedTexts, tokenizer: TextTokenizer) -> list[tuple[list[int], list[int]]]:
    """Ids of each window of texts, and the place of each vector among those of all texts, -1 for context."""
    windows = Windows.of(tokenized, tokenizer)
    borders = np.cumsum(windows.lengths)[:-1]
    vectors = np.where(windows.is_used, windows.tokens, -1)
    ids, places = (np.split(values, borders) for values in (tokenized.ids[windows.tokens], vectors))
    return [(of_window.tolist(), used.tolist()) for of_window, used in zip(ids, places, strict=True)]
