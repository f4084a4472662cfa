"""Metric, loss and callback in one LightningModule: one frozen encoder, which training and checkpoints never see."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback
from bertscore_tm.functional import SCORES, bert_score
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.texts import real_pairs

VOCABULARY = 30522
# Odd, so that two processes get one example twice.
COUNT = 7


class Generator(pl.LightningModule):
    """A generator of one token after another, small enough to have next to no weights."""

    def __init__(self, model: str, num_layers: int = 2) -> None:
        super().__init__()
        encoder = FrozenEncoder(model, num_layers=num_layers)
        self.bertscore = BERTScore(encoder)
        self.loss_fn = SoftBERTScoreLoss(encoder)
        self.embedding, self.head = nn.Embedding(VOCABULARY, 2), nn.Linear(2, VOCABULARY)
        self.losses: list[float] = []
        # Kept here, as collecting the texts takes a while in each new process.
        self.pairs = real_pairs(COUNT)

    def loss(self, ids: Tensor) -> Tensor:
        return self.loss_fn(self.head(self.embedding(ids)), ids)

    def training_step(self, batch: list[int], batch_idx: int) -> Tensor:
        loss = self.loss(self.ids(batch))
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: list[int], batch_idx: int) -> dict[str, Any]:
        preds, target = self.texts(batch)
        self.bertscore.update(preds, target, indices=batch)
        self.log("val_loss", self.loss(self.ids(batch)), batch_size=len(batch), sync_dist=True)
        return {"preds": preds, "target": target}

    def texts(self, batch: list[int]) -> tuple[list[str], list[str]]:
        return [self.pairs[0][i] for i in batch], [self.pairs[1][i] for i in batch]

    def on_validation_epoch_end(self) -> None:
        self.log_dict(self.bertscore.compute(), sync_dist=True)
        self.bertscore.reset()

    def on_train_epoch_end(self) -> None:
        self.log("steps", float(self.global_step), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def ids(self, batch: list[int]) -> Tensor:
        rows = [row[:8] for row in self.bertscore.encoder.tokenizer(self.texts(batch)[1]).ids]
        return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True).to(self.device)

    def train_dataloader(self) -> DataLoader[int]:
        return DataLoader(list(range(COUNT)), batch_size=2, collate_fn=list)

    val_dataloader = train_dataloader


def trainer(tmp_path, **options: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return pl.Trainer(**quiet | {"max_epochs": 1, "devices": 1, "default_root_dir": tmp_path} | options)


def expected(model: str, num_layers: int = 2) -> dict[str, float]:
    return {
        name: value.mean().item()
        for name, value in bert_score(*real_pairs(COUNT), FrozenEncoder(model, num_layers=num_layers)).items()
    }


def scores(run: pl.Trainer, prefix: str = "") -> dict[str, float]:
    return {name: run.callback_metrics[prefix + name].item() for name in SCORES}


def test_training_and_checkpoints_never_see_the_encoder(minilm, tmp_path):
    module = Generator(minilm)
    callback = BERTScoreCallback(BERTScore(FrozenEncoder(minilm, num_layers=2)))
    # Validation comes first, in inference mode: the loss must still be able to train with the same encoder.
    run = trainer(tmp_path, callbacks=[callback], enable_checkpointing=False)
    run.validate(module, verbose=False)
    assert scores(run) == pytest.approx(expected(minilm), abs=1e-6)
    own = {name: value.clone() for name, value in module.named_parameters()}
    assert set(own) == {"embedding.weight", "head.weight", "head.bias"}

    run = trainer(tmp_path, callbacks=[callback], enable_checkpointing=False)
    run.fit(module)
    assert scores(run) == pytest.approx(expected(minilm), abs=1e-6)
    assert scores(run, "val_bertscore_") == pytest.approx(expected(minilm), abs=1e-6)
    assert len(module.losses) == 4
    assert all(not torch.equal(value, own[name]) for name, value in module.named_parameters())

    # One copy of the weights serves the metric, the loss and the callback.
    cpu = torch.device("cpu")
    held = [encoder.backbone(cpu) for encoder in (module.bertscore.encoder, module.loss_fn.encoder)]
    assert held[0] is held[1] is callback.metric.encoder.backbone(cpu)
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in held[0].parameters())

    run.save_checkpoint(tmp_path / "last.ckpt")
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    weights = sum(value.numel() * value.element_size() for value in own.values())
    assert set(saved["state_dict"]) == set(own)
    assert (tmp_path / "last.ckpt").stat().st_size < weights + 20_000
    optimized = [value for group in run.optimizers[0].param_groups for value in group["params"]]
    assert len(optimized) == len(own)
    assert set(map(id, optimized)) == set(map(id, module.parameters()))
    assert [name for name, _ in module.named_modules()] == ["", "bertscore", "loss_fn", "embedding", "head"]
    Generator(minilm).load_state_dict(saved["state_dict"])
