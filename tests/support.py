"""What several test files need: real texts, tiny models of other families, and runs on several processes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerFast

from examples.docstrings import collect_pairs


@cache
def _stdlib_pairs():
    return collect_pairs((), include_stdlib=True)


def real_pairs(count: int) -> tuple[list[str], list[str]]:
    """Real texts about the same thing: a docstring's summary, and the beginning of the text that it summarises."""
    pairs = _stdlib_pairs()
    chosen = pairs[:: len(pairs) // count][:count]
    return [pair.summary for pair in chosen], [" ".join(pair.document.split()[:30]) for pair in chosen]


def several_references(references: list[str]) -> list[list[str]]:
    """Ragged lists of one to three references per candidate, of which the first is the right one."""
    count = len(references)
    return [[references[(i + k) % count] for k in range(1 + i % 3)] for i in range(count)]


@cache
def tiny_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """A small tokenizer trained on real texts: ``"wordpiece"`` as of BERT, or ``"bytes"`` as of RoBERTa."""
    corpus = [text for side in real_pairs(240) for text in side]
    if kind == "wordpiece":
        names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=800, special_tokens=list(names.values()))
        first, last = "[CLS]", "[SEP]"
    else:
        names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
        names |= {"cls_token": "<s>", "sep_token": "</s>"}
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        specials = ["<s>", "<pad>", "</s>", "<unk>"]
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=specials, initial_alphabet=alphabet)
        first, last = "<s>", "</s>"
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (first, last)],
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **names)


# Family to the kind of tokenizer that its real models have.
FAMILIES = {
    "bert": "wordpiece",
    "roberta": "bytes",
    "distilbert": "wordpiece",
    "mpnet": "wordpiece",
    "electra": "wordpiece",
    "deberta": "bytes",
    "deberta-v2": "wordpiece",
    "camembert": "bytes",
    "xlm-roberta": "bytes",
}


@cache
def tiny_model(family: str, layers: int = 3) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A small random model of a family, with its tokenizer."""
    tokenizer = tiny_tokenizer(FAMILIES[family])
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 70,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if family == "distilbert":
        sizes |= {"dim": 32, "n_layers": layers, "n_heads": 4, "hidden_dim": 48}
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
            del sizes[name]
    if family == "electra":
        sizes |= {"embedding_size": 16}
    if family.startswith("deberta"):
        sizes |= {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
    if family == "deberta-v2":
        sizes |= {"position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm", "conv_kernel_size": 3}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModel.from_config(AutoConfig.for_model(family, **sizes)).eval()
        # The usual initialisation is so small that every layer does nearly nothing.
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.3)
    return model, tokenizer


def save_tiny_model(family: str, folder: Path) -> str:
    """Write a tiny model and its tokenizer to a folder and return its path."""
    model, tokenizer = tiny_model(family)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def run_ranks(function: Callable[..., Any], world_size: int, *args: Any, timeout_s: int = 60) -> list[Any]:
    """Run ``function(rank, *args)`` in one gloo process per rank and return what the ranks returned.

    The function must be importable (defined at the top of a module). An exception in any rank fails the call.
    """
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank_main, args=(world_size, folder, timeout_s, function, args), nprocs=world_size)
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(world_size)]


def _rank_main(
    rank: int, world_size: int, folder: str, timeout_s: int, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    try:
        torch.save(function(rank, *args), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()
