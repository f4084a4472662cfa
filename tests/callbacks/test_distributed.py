"""The callbacks on two ranks: the score is that of the data set, and all ranks agree."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreEarlyStopping
from tests.support.lightning_modules import (
    Quality,
    Record,
    SpawnedDDP,
    chooser,
    generate_few,
    trainer,
)
from tests.support.ranks import run_ranks

pytestmark = [
    pytest.mark.distributed,
    # With idf all tokens of a loader with one example weigh 0.
    pytest.mark.filterwarnings("ignore:1 candidate scored 0"),
]

COUNT = 9


def two_devices():
    return {"devices": 2, "strategy": DDPStrategy(process_group_backend="gloo")}


def rank_main(rank, pairs, minilm, folder, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_RANK=str(rank), NODE_RANK="0")
    found = {}
    for name, make in (("fewer", generate_few), ("none", lambda pl_module, batch: ([], []))):
        callback = BERTScoreCallback(BERTScore(FrozenEncoder(minilm, num_layers=5)), make)
        try:
            trainer(folder, [callback], **two_devices()).validate(chooser(pairs, count=COUNT), verbose=False)
        except Exception as error:  # noqa: BLE001 - what it is, is the result
            found[name] = f"{type(error).__name__}: {error}"
    return found


@pytest.fixture(scope="module")
def ranks(pairs, minilm, tmp_path_factory):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    few = tuple(side[:COUNT] for side in pairs)
    return run_ranks(rank_main, 2, few, minilm, tmp_path_factory.mktemp("ranks"), port)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("fewer", 2), ("none", 0)])
def test_fewer_predictions_than_examples_are_an_error_on_all_ranks(ranks, name, count):
    for rank in ranks:
        assert f"MisconfigurationException: got {count} predictions for a batch of 3 examples" in rank[name]
        assert "return one prediction per example" in rank[name]


class Worse(Quality):
    """Writes from each rank where training ended."""

    def on_fit_end(self):
        stopping = next(c for c in self.trainer.callbacks if isinstance(c, BERTScoreEarlyStopping))
        record = next(c for c in self.trainer.callbacks if isinstance(c, Record))
        found = (stopping.stopped_epoch, stopping.wait_count, stopping.best_score.item(), record.scores)
        torch.save(found, Path(self.trainer.default_root_dir) / f"rank{self.global_rank}.pt")


@pytest.mark.slow
def test_spawned_ranks_stop_together_and_keep_the_best(pairs, encoder, tmp_path):
    few = tuple(side[:COUNT] for side in pairs)
    module = chooser(few, [2, 7, 3, 3, 7], kind=Worse, count=COUNT)
    checkpoint = ModelCheckpoint(tmp_path, "{epoch}", monitor="val_bertscore_f1", mode="max")
    callbacks = [BERTScoreCallback(BERTScore(encoder)), BERTScoreEarlyStopping(patience=2), checkpoint, Record()]
    run = trainer(tmp_path, callbacks, max_epochs=5, devices=2, strategy=SpawnedDDP())
    run.fit(module)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=False) for rank in (0, 1))
    assert first == second
    stopped, waited, best, scores = first
    assert (stopped, waited, len(scores)) == (3, 2, 4)
    assert best == scores[1] == max(scores)
    assert best == pytest.approx(1.0, abs=1e-5)  # all 7 are right, and the sampler's eighth is a copy
    assert run.callback_metrics["val_bertscore_f1"].item() == scores[-1]
    assert Path(checkpoint.best_model_path).name == "epoch=1.ckpt"
