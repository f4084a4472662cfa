"""The callbacks on two ranks: the score is that of the data set, and all ranks agree."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torchmetrics.text import BLEUScore

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreEarlyStopping
from tests.support.lightning_modules import (
    Quality,
    Record,
    Silent,
    SpawnedDDP,
    chooser,
    generate,
    generate_few,
    generate_wildly,
    loader,
    trainer,
    weights,
)
from tests.support.ranks import run_ranks

pytestmark = [
    pytest.mark.distributed,
    # With idf all tokens of a loader with one example weigh 0.
    pytest.mark.filterwarnings("ignore:1 candidate scored 0"),
]

COUNT = 9


def scoring_callbacks(encoder):
    return [
        BERTScoreCallback(BERTScore(encoder), name="returned"),
        BERTScoreCallback(BERTScore(encoder, idf=True), name="returned_idf"),
        BERTScoreCallback(BERTScore(encoder), generate, name="generated"),
        BERTScoreCallback(BERTScore(encoder, idf=True), generate, name="generated_idf"),
        BERTScoreCallback({"several": BERTScore(encoder), "bleu": BLEUScore(n_gram=1)}, generate),
    ]


def two_devices():
    return {"devices": 2, "strategy": DDPStrategy(process_group_backend="gloo")}


def scores_of_runs(pairs, minilm, folder, **arguments):
    """Scores of many runs, each as a dictionary of logged keys."""
    torch.set_num_threads(1)
    encoder = FrozenEncoder(minilm, num_layers=5)
    module = chooser(pairs, count=COUNT, val_sizes=(7,), lr=0.0)
    run = trainer(folder, scoring_callbacks(encoder), max_epochs=1, num_sanity_val_steps=1, **arguments)
    found = {}

    def keep(name):
        found[name] = {key: value.item() for key, value in run.callback_metrics.items() if "loss" not in key}

    run.fit(module)
    keep("fit")
    # Other data than those of fit, of which one loader has fewer examples than there are ranks.
    run.validate(module, [loader(9, batch_size=2), loader(1, first=4)], verbose=False)
    keep("validate")
    run.test(module, loader(5, first=2), verbose=False)
    keep("test")
    return found


def trained(pairs, minilm, folder, scored, **arguments):
    module = chooser(pairs, count=COUNT, kind=Silent)
    encoder = FrozenEncoder(minilm, num_layers=4)
    callbacks = [BERTScoreCallback(BERTScore(encoder), generate_wildly)] if scored else []
    trainer(folder, callbacks, max_epochs=2, num_sanity_val_steps=1, **arguments).fit(module)
    return weights(module)


def rank_main(rank, pairs, minilm, folder, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_RANK=str(rank), NODE_RANK="0")
    found = scores_of_runs(pairs, minilm, folder, **two_devices())
    found["weights"] = [trained(pairs, minilm, folder, scored, **two_devices()) for scored in (False, True)]
    for name, make in (("fewer", generate_few), ("none", lambda pl_module, batch: ([], []))):
        callback = BERTScoreCallback(BERTScore(minilm, num_layers=5), make)
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


@pytest.fixture(scope="module")
def alone(pairs, minilm, tmp_path_factory):
    threads = torch.get_num_threads()
    found = scores_of_runs(pairs, minilm, tmp_path_factory.mktemp("alone"))
    torch.set_num_threads(threads)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("call", ["fit", "validate", "test"])
def test_two_ranks_log_the_scores_of_one(ranks, alone, call):
    assert len(alone[call]) == (5 * 3 + 1) * (3 if call == "validate" else 1)
    for rank in ranks:
        assert rank[call] == pytest.approx(alone[call], abs=1e-6)
    assert ranks[0][call] == ranks[1][call]


@pytest.mark.slow
def test_training_on_two_ranks_is_bitwise_unchanged(ranks):
    for rank in ranks:
        without, with_callback = rank["weights"]
        assert torch.equal(without, with_callback)


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
