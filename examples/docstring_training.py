"""Training of the docstring demo: generator, batches, and a module with cross-entropy and an added loss."""

from __future__ import annotations

import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, EncoderDecoderModel, PreTrainedModel
from transformers.utils import logging as transformers_logging

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.losses import BERTScoreReward, MinimumRiskLoss, SelfCriticalLoss, SoftBERTScoreLoss
from examples.docstrings import DocstringPair

__all__ = ["LOSSES", "AddedLoss", "Collate", "Summarizer", "load_generator", "quieten"]

SOURCE_TOKENS = 64
TARGET_TOKENS = 24
# Samples must come from the distribution of their log-probabilities, so no option may change it.
UNALTERED = {
    "num_beams": 1,
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
}


class Summarizer(pl.LightningModule):
    """A sequence-to-sequence model trained with cross-entropy and, optionally, an added loss.

    Args:
        model: the generator.
        tokenizer: the generator's tokenizer.
        encoder: the frozen encoder of the metric.
        learning_rate: learning rate of AdamW, after a linear warm-up.
        added: loss that is added to cross-entropy. Default: none.
        weight: weight of the added loss.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        encoder: FrozenEncoder,
        learning_rate: float,
        added: AddedLoss | None = None,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.model = model.train()  # transformers loads models in evaluation mode
        self.tokenizer = tokenizer
        self.per_pair = BERTScore(encoder, reduction="none")
        self.learning_rate = learning_rate
        self.added = added
        self.weight = weight
        self.scores: dict[str, Tensor] = {}
        self.summaries: dict[int, str] = {}

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        output = self.model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["labels"]
        )
        loss: Tensor = output.loss
        self.log("train_cross_entropy", loss, prog_bar=True)
        if self.added is not None:
            added, figures = self.added(self, batch, output.logits)
            loss = loss + self.weight * added
            self.log_dict({f"train_{name}": figure for name, figure in figures.items()}, prog_bar=True)
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, list[str]]:
        """Return generated summaries and references; the callback scores them."""
        return {"preds": self.summarize(batch), "target": batch["summary"]}

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Generate summaries and score each, for the comparison."""
        summaries = self.summarize(batch)
        self.per_pair.update(summaries, batch["summary"], indices=batch["index"])
        self.summaries.update(zip(batch["index"].tolist(), summaries, strict=True))

    def on_test_epoch_start(self) -> None:
        """Drop the summaries of the last run."""
        self.summaries = {}

    def on_test_epoch_end(self) -> None:
        """Keep the score of every pair, in the order of the data."""
        self.scores = {name: score.cpu() for name, score in self.per_pair.compute().items()}
        self.per_pair.reset()

    def summarize(self, batch: dict[str, Any]) -> list[str]:
        """Return greedily decoded summaries of a batch."""
        with evaluating(self.model):
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

    def sample(self, batch: dict[str, Any], count: int) -> tuple[list[str], Tensor, Tensor]:
        """Sample summaries for the sequence-level losses.

        Args:
            batch: documents.
            count: samples per document.

        Returns:
            The texts, ordered by document; the log-probabilities of their tokens, with gradient, and the mask of the
            tokens up to the end of each text, both of shape (batch, count, tokens).
        """
        model, rows = self.model, len(batch["input_ids"])
        # Without dropout, so that the pass with gradients computes the probabilities of the sampled distribution.
        with evaluating(model):
            sampled = model.generate(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                max_new_tokens=TARGET_TOKENS,
                do_sample=True,
                num_return_sequences=count,
                **UNALTERED,
            )
            logits = model(
                input_ids=batch["input_ids"].repeat_interleave(count, 0),
                attention_mask=batch["attention_mask"].repeat_interleave(count, 0),
                decoder_input_ids=sampled[:, :-1],
            ).logits
        tokens = sampled[:, 1:]
        log_probs = -torch.nn.functional.cross_entropy(logits.float().mT, tokens, reduction="none")
        ends = torch.isin(tokens, torch.tensor(model.generation_config.eos_token_id, device=tokens.device))
        mask = ends.cumsum(1) - ends.long() == 0  # no end before this token
        texts: list[str] = self.tokenizer.batch_decode(sampled, skip_special_tokens=True)
        return texts, log_probs.view(rows, count, -1), mask.view(rows, count, -1)

    def configure_optimizers(self) -> Any:
        """Return AdamW with a short linear warm-up."""
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=self.learning_rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class AddedLoss(ABC):
    """Base class of losses that are added to cross-entropy.

    Args:
        encoder: the frozen encoder.
        tokenizer: the generator's tokenizer.
        texts: summaries of training pairs.
    """

    title: str
    """Name in the report."""
    weight: float
    """Default weight; cross-entropy has weight 1."""

    @abstractmethod
    def __init__(self, encoder: FrozenEncoder, tokenizer: Any, texts: Sequence[str]) -> None: ...

    @abstractmethod
    def __call__(self, module: Summarizer, batch: dict[str, Any], logits: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a batch, and figures to log.

        Args:
            module: the trained module.
            batch: the batch.
            logits: teacher-forced logits, aligned with the labels.

        Returns:
            Loss with gradient, and detached figures by name.
        """


class Soft(AddedLoss):
    """BERTScore loss of the soft predictions."""

    title = "BERTScore loss"
    weight = 1.0

    def __init__(self, encoder: FrozenEncoder, tokenizer: Any, texts: Sequence[str]) -> None:
        self.loss = SoftBERTScoreLoss(encoder, generator_tokenizer=tokenizer, fidelity_texts=texts)

    def __call__(self, module: Summarizer, batch: dict[str, Any], logits: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and the teacher-forced F1."""
        loss, parts = self.loss(logits, batch["labels"], return_components=True)
        return loss, {"teacher_forced_f1": parts["teacher_forced_f1"]}


class SelfCritical(AddedLoss):
    """Self-critical loss: F1 of one sampled summary per document minus F1 of the greedy summary."""

    title = "self-critical loss"
    weight = 0.2

    def __init__(self, encoder: FrozenEncoder, tokenizer: Any, texts: Sequence[str]) -> None:
        self.reward, self.loss = BERTScoreReward(encoder), SelfCriticalLoss()

    def __call__(self, module: Summarizer, batch: dict[str, Any], logits: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and the mean rewards of sampled and greedy summaries."""
        texts, log_probs, mask = module.sample(batch, 1)
        sampled, greedy = rewards(self.reward, [*texts, *module.summarize(batch)], batch["summary"] * 2, logits).chunk(
            2
        )
        loss = self.loss(log_probs[:, 0], sampled, mask[:, 0], baseline=greedy)
        return loss, {"sampled_f1": sampled.mean(), "greedy_f1": greedy.mean()}


class MinimumRisk(AddedLoss):
    """Minimum-risk loss: expected 1 - F1 over several sampled summaries per document."""

    title = "minimum-risk loss"
    samples = 4
    # Log-probabilities of samples differ by about 30: at this alpha the most probable of four has about 0.4 of Q. The
    # gradient is alpha * weight * Q * (reward - mean), so alpha * weight corresponds to the self-critical weight.
    alpha = 0.02
    weight = 10.0

    def __init__(self, encoder: FrozenEncoder, tokenizer: Any, texts: Sequence[str]) -> None:
        self.reward, self.loss = BERTScoreReward(encoder), MinimumRiskLoss(self.alpha)

    def __call__(self, module: Summarizer, batch: dict[str, Any], logits: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and the mean reward of the samples."""
        texts, log_probs, mask = module.sample(batch, self.samples)
        references = [summary for summary in batch["summary"] for _ in range(self.samples)]
        sampled = rewards(self.reward, texts, references, logits).view(-1, self.samples)
        # The candidates are a set: a repeated sample counts once.
        for row in range(len(sampled)):
            candidates = texts[row * self.samples : (row + 1) * self.samples]
            for i, text in enumerate(candidates):
                mask[row, i] &= text not in candidates[:i]
        return self.loss(log_probs, sampled, mask), {"sampled_f1": sampled.mean()}


LOSSES: dict[str, type[AddedLoss] | None] = {
    "soft": Soft,
    "self-critical": SelfCritical,
    "minimum-risk": MinimumRisk,
    "none": None,
}
"""Added losses by the value of ``--loss``."""


def rewards(reward: BERTScoreReward, texts: Sequence[str], references: Sequence[str], like: Tensor) -> Tensor:
    """Return the rewards of texts, computed on the device of the tensor ``like``."""
    reward.device = like.device
    return torch.tensor(reward(texts, references), device=like.device)


@contextmanager
def evaluating(model: torch.nn.Module) -> Generator[None, None, None]:
    """Set a model to evaluation mode, and restore its mode afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@dataclass(frozen=True)
class Collate:
    """Collate pairs to a batch: tokenized documents, labels padded with -100, summaries, and the pairs' indices.

    Args:
        tokenizer: the generator's tokenizer.
        decoder_start: start token of decoding, which is removed from labels that begin with it.
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
        name: a sequence-to-sequence model, or an encoder, whose weights initialize both halves of an encoder-decoder.

    Returns:
        Model and tokenizer.
    """
    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    try:
        return AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=False), tokenizer
    except ValueError:
        # Not a sequence-to-sequence model: its weights initialize both halves, only the cross-attention is new.
        # Freezing the encoder half makes steps cheaper and the first results better.
        model = EncoderDecoderModel.from_encoder_decoder_pretrained(name, name)
        model.encoder.requires_grad_(False)
    start, end, padding = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
    for config in (model.config, model.generation_config):
        config.decoder_start_token_id, config.eos_token_id, config.pad_token_id = start, end, padding
    return model, tokenizer


def quieten() -> None:
    """Silence messages that repeat for each trainer or do not apply to small runs."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*but have no `val_dataloader`.*")
    warnings.filterwarnings("ignore", message=".*smaller than the logging interval.*")
    warnings.filterwarnings("ignore", message=".*better way to train encoder-decoder models.*")
    warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated.*")
    warnings.filterwarnings("ignore", message=".*Checkpoint directory .* exists and is not empty.*")
    warnings.filterwarnings("ignore", message=".*Experiment logs directory .* exists and is not empty.*")
