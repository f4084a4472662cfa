"""Ranks that die: the others end with an error and keep their pairs, and a resumed run has equal scores."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.utils.data import DataLoader

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback
from bertscore_tm.functional import SCORES, bert_score
from tests.support.lightning_modules import Steady, chooser, loader, trainer
from tests.support.ranks import run_separate_ranks
from tests.support.texts import real_pairs

pytestmark = pytest.mark.distributed

LAYERS = 2
SHARES = ([0, 1, 2, 3], [4, 5, 6])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after_collectives(count: int) -> None:
    """Let this process take part in so many collectives and die before the next."""
    left = [count]

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def collective(*args: Any, **kwargs: Any) -> Any:
            if left[0] == 0:
                die()
            left[0] -= 1
            return function(*args, **kwargs)

        return collective

    for name in ("all_gather", "all_reduce", "barrier"):
        setattr(dist, name, dying(getattr(dist, name)))


def compute_without_the_other_rank(
    rank: int, report: dict[str, Any], model: str, pairs: Any, idf: bool, other: str
) -> None:
    """Rank 0 computes; the other rank dies or never calls ``compute``."""
    # A rank that dies is noticed at once, a silent one after this time.
    group = dist.new_group(timeout=timedelta(seconds=1 if other == "is silent" else 60))
    encoder = FrozenEncoder(model, num_layers=LAYERS)
    metric = BERTScore(encoder, idf=idf, process_group=group)
    metric.update(*([side[i] for i in SHARES[rank]] for side in pairs))
    # Lets both come this far, so that it is the metric's own collectives that fail.
    dist.barrier()
    if (rank, other) == (1, "dies within compute"):
        # A gather of torchmetrics takes three: the first is complete, and the document frequencies are not.
        die_after_collectives(3)
    while (rank, other) == (1, "is silent"):
        time.sleep(60)
    try:
        metric.compute()
    except Exception as error:
        report["error"] = (type(error).__name__, str(error))
        alone = BERTScore(encoder, idf=idf, sync_on_compute=False)
        alone.merge_state(metric)
        report["own"] = alone.compute()
        raise


@pytest.mark.slow
@pytest.mark.parametrize(
    ("idf", "other"),
    [(False, "is silent"), (True, "dies within compute")],
)
def test_a_rank_without_the_other_ends_with_an_error_and_its_pairs(minilm, idf, other):
    pairs = real_pairs(7)
    endless = (1,) if other == "is silent" else ()
    first, second = run_separate_ranks(compute_without_the_other_rank, 2, minilm, pairs, idf, other, endless=endless)
    assert second.exit_code == -signal.SIGKILL
    # A killed rank has the exit code of its signal, and this one ended by itself.
    assert first.exit_code == 1
    kind, message = first.report["error"]
    print(f"{other}: {kind}: {message}")
    assert kind in ("RuntimeError", "DistBackendError", "DistNetworkError")
    wanted = bert_score(
        *([side[i] for i in SHARES[0]] for side in pairs), FrozenEncoder(minilm, num_layers=LAYERS), idf=idf
    )
    for name in SCORES:
        assert first.report["own"][name].item() == pytest.approx(wanted[name].mean().item(), abs=1e-6)


EXAMPLES = 9
# Each epoch takes two steps and then validates in three batches.
EPOCHS = 3
DIES_AT = 4
KINDS = ("metric_", "kept_", "val_bertscore_")


class Scored(Steady):
    """Scores its texts with a metric that checkpoints leave out and one that they keep; one rank may die meanwhile."""

    def __init__(self, choices: list[str], references: list[str], encoder: FrozenEncoder, dies: bool) -> None:
        super().__init__(choices, references, lr=0.01)
        self.metric = BERTScore(encoder, idf=True)
        self.kept = BERTScore(encoder, idf=True)
        self.kept.persistent(True)
        self.dies = dies

    def validation_step(self, batch: Tensor, batch_idx: int) -> dict[str, Any]:
        texts = self.evaluation_step(batch, batch_idx)
        for metric in (self.metric, self.kept):
            metric.update(texts["preds"], texts["target"], indices=batch)
        return texts

    def on_validation_batch_end(self, outputs: Any, batch: Tensor, batch_idx: int) -> None:
        if self.dies and (self.global_step, batch_idx) == (DIES_AT, 1):
            self.trainer.save_checkpoint(Path(self.trainer.default_root_dir) / "middle.ckpt")
            if self.global_rank == 1:
                die()

    def on_validation_epoch_end(self) -> None:
        for name, metric in (("metric", self.metric), ("kept", self.kept)):
            self.log_dict({f"{name}_{score}": value for score, value in metric.compute().items()}, sync_dist=True)
            metric.reset()

    def val_dataloader(self) -> DataLoader[int]:
        return loader(EXAMPLES, batch_size=2)


class ScoresOfSteps(pl.Callback):
    """Keeps what each validation logged."""

    def __init__(self) -> None:
        self.scores: dict[int, dict[str, float]] = {}

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        logged = trainer.callback_metrics
        self.scores[trainer.global_step] = {k: v.item() for k, v in logged.items() if k.startswith(KINDS)}


def trainer_of(report: dict[str, Any], encoder: FrozenEncoder, folder: Path) -> pl.Trainer:
    record = ScoresOfSteps()
    report["scores"] = record.scores
    checkpoint = ModelCheckpoint(folder, every_n_train_steps=1, save_last=True)
    callbacks = [BERTScoreCallback(BERTScore(encoder)), record, checkpoint]
    two = {"devices": 2, "strategy": DDPStrategy(process_group_backend="gloo")}
    return trainer(folder, callbacks, max_epochs=EPOCHS, **two)


def train(rank: int, report: dict[str, Any], model: str, pairs: Any, folder: Path, dies: bool) -> None:
    encoder = FrozenEncoder(model, num_layers=LAYERS)
    trainer_of(report, encoder, folder).fit(chooser(pairs, encoder, dies, kind=Scored, count=EXAMPLES))


def resume(rank: int, report: dict[str, Any], model: str, pairs: Any, folder: Path) -> None:
    """Score the checkpoint from the middle of validation, and train on from the one before."""
    encoder = FrozenEncoder(model, num_layers=LAYERS)
    module = chooser(pairs, encoder, False, kind=Scored, count=EXAMPLES)
    report["middle"] = {}
    run = trainer_of(report["middle"], encoder, folder / "middle")
    run.validate(module, ckpt_path=folder / "middle.ckpt", verbose=False)
    module = chooser(pairs, encoder, False, kind=Scored, count=EXAMPLES)
    trainer_of(report, encoder, folder / "resumed").fit(module, ckpt_path=folder / "last.ckpt")


@pytest.mark.slow
def test_run_killed_in_validation_resumes_with_equal_scores(minilm, tmp_path):
    pairs = real_pairs(EXAMPLES)
    uninterrupted = run_separate_ranks(train, 2, minilm, pairs, tmp_path / "uninterrupted", False)
    assert [rank.exit_code for rank in uninterrupted] == [0, 0]
    wanted = uninterrupted[0].report["scores"]
    assert list(wanted) == [2, 4, 6]
    for kind in KINDS:
        # Each validation scores other texts than those before.
        assert len({scores[f"{kind}f1"] for scores in wanted.values()}) == EPOCHS

    first, second = run_separate_ranks(train, 2, minilm, pairs, tmp_path / "killed", True)
    assert (first.exit_code, second.exit_code) == (1, -signal.SIGKILL)
    assert first.report["scores"] == {2: pytest.approx(wanted[2], abs=1e-6)}
    saved = torch.load(tmp_path / "killed" / "middle.ckpt", weights_only=True)["state_dict"]
    assert not any(name.startswith("metric.") for name in saved)
    # What one rank had of the interrupted validation, which both then load.
    assert torch.cat(saved["kept.indices"]).tolist() == [0, 2, 4, 6]

    resumed = run_separate_ranks(resume, 2, minilm, pairs, tmp_path / "killed")
    for rank in resumed:
        assert rank.exit_code == 0
        # Lightning 2.6 does not repeat the validation that followed the checkpoint.
        assert 6 in rank.report["scores"]
        for step, scores in rank.report["scores"].items():
            assert scores == pytest.approx(wanted[step], abs=1e-6)
        assert list(rank.report["middle"]["scores"].values()) == [pytest.approx(wanted[DIES_AT], abs=1e-6)]
