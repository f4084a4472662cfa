"""BERTScoreEarlyStopping on two ranks: they stop together, for one reason, as one process does."""

from __future__ import annotations

import logging
import os
import random

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreEarlyStopping
from tests.support.lightning_modules import Chooser, chooser, loader, trainer
from tests.support.separate_ranks import run_separate_ranks

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

NAN = float("nan")


class Differing(pl.LightningModule):
    """Logs a value per epoch, which differs between ranks; ``None`` logs nothing."""

    def __init__(self, values):
        super().__init__()
        self.values, self.layer = values, nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch.float()[:, None]).sum()

    def validation_step(self, batch, batch_idx):
        pass

    def on_validation_epoch_end(self):
        value = self.values[self.global_rank][self.current_epoch]
        if value is not None:
            self.log("score", torch.tensor(value))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

    def train_dataloader(self):
        return loader(2)

    val_dataloader = train_dataloader


# name: (values of each rank, arguments, reason, its message, stopped epoch, wait count of each rank)
RISING, FALLING = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
DISAGREEMENTS = {
    "the second is out of patience": ((RISING, FALLING), {}, "PATIENCE_EXHAUSTED", "Best score: 0.900", 2, (0, 2)),
    "the first is out of patience": ((FALLING, RISING), {}, "PATIENCE_EXHAUSTED", "Best score: 0.900", 2, (2, 0)),
    "the second is not finite": (
        (RISING, [0.1, 0.2, NAN]),
        {},
        "NON_FINITE_METRIC",
        "Previous best value was 0.200",
        2,
        (0, 0),
    ),
    "each for another reason": (
        ([0.1, 0.2, 0.6], [0.5, 0.4, NAN]),
        {"stopping_threshold": 0.55},
        "STOPPING_THRESHOLD",
        "> 0.55",
        2,
        (0, 1),
    ),
    "each for another reason, the other way round": (
        ([0.5, 0.4, NAN], [0.1, 0.2, 0.6]),
        {"stopping_threshold": 0.55},
        "NON_FINITE_METRIC",
        "Previous best value was 0.500",
        2,
        (1, 0),
    ),
    "the second never logs it": (
        (FALLING, [None] * 6),
        {"strict": False},
        "PATIENCE_EXHAUSTED",
        "Best score: 0.900",
        2,
        (2, 0),
    ),
    "the first never logs it": (
        ([None] * 6, FALLING),
        {"strict": False},
        "PATIENCE_EXHAUSTED",
        "Best score: 0.900",
        2,
        (0, 2),
    ),
    "none logs it": (([None] * 6, [None] * 6), {"strict": False}, "NOT_STOPPED", None, 0, (0, 0)),
    "they log it in different epochs": (
        ([0.5, None, 0.4, None, 0.3, None], [0.9, None, None, 0.8, None, None]),
        {},
        "PATIENCE_EXHAUSTED",
        "Best score: 0.500",
        4,
        (2, 1),
    ),
    "the last epoch": (([0.9] * 5 + [0.1], RISING), {"patience": 5}, "PATIENCE_EXHAUSTED", "0.900", 5, (5, 0)),
    "neither": ((RISING, RISING), {}, "NOT_STOPPED", None, 0, (0, 0)),
}


def two_devices():
    return {"devices": 2, "strategy": DDPStrategy(process_group_backend="gloo")}


def stopped(stopping):
    return {
        "reason": stopping.stopping_reason,
        "message": stopping.stopping_reason_message,
        "epoch": stopping.stopped_epoch,
        "waited": stopping.wait_count,
        "state": stopping.state_dict(),
    }


def outcome(kind, folder, values, **arguments):
    stopping, module = kind("score", mode="max", **{"patience": 2} | arguments), Differing(values)
    run = trainer(folder, [stopping], max_epochs=6, **two_devices())
    run.fit(module)
    return stopped(stopping) | {"epochs": run.current_epoch}


def disagree(rank, report, folder):
    for name, (values, arguments, *_) in DISAGREEMENTS.items():
        report[name] = outcome(BERTScoreEarlyStopping, folder, values, **arguments)
    report["lightning"] = outcome(EarlyStopping, folder, (RISING, FALLING))
    for name, values in {"one lacks it": (RISING, [None] * 6), "all lack it": ([None] * 6, [None] * 6)}.items():
        try:
            report[name] = outcome(BERTScoreEarlyStopping, folder, values)
        except RuntimeError as error:
            report[name] = str(error)
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("lightning.pytorch.callbacks.early_stopping")
    logger.addHandler(handler)
    for only_first in (False, True):
        outcome(BERTScoreEarlyStopping, folder, (RISING, FALLING), verbose=True, log_rank_zero_only=only_first)
        report["said", only_first] = said.copy()
        said.clear()
    pair = [BERTScoreEarlyStopping("score", patience=2), BERTScoreEarlyStopping("score", patience=1, mode="min")]
    trainer(folder, pair, max_epochs=6, **two_devices()).fit(Differing((RISING, FALLING)))
    report["several"] = [stopped(one) for one in pair]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    ended = run_separate_ranks(disagree, 2, tmp_path_factory.mktemp("ranks"))
    assert [one.exit_code for one in ended] == [0, 0]
    return [one.report for one in ended]


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_all_ranks_report_the_reason_of_the_first_that_stops(ranks, name):
    _, _, reason, message, epoch, waited = DISAGREEMENTS[name]
    for rank, found in enumerate(ranks):
        one = found[name]
        assert one["reason"] is EarlyStoppingReason[reason]
        assert one["message"] is None if message is None else message in one["message"]
        assert one["epoch"] == epoch
        assert one["epochs"] == (6 if reason == "NOT_STOPPED" else epoch + 1)
        assert one["waited"] == waited[rank]
        assert one["state"]["stopping_reason"] == EarlyStoppingReason[reason].value
    assert ranks[0][name]["message"] == ranks[1][name]["message"]


def test_lightning_gives_other_ranks_no_reason(ranks):
    """What ours is measured against."""
    assert [one["lightning"]["reason"].name for one in ranks] == ["NOT_STOPPED", "PATIENCE_EXHAUSTED"]
    assert ranks[0]["lightning"]["message"] != ranks[1]["lightning"]["message"]


def test_key_missing_on_a_rank_is_an_error_on_all(ranks):
    first, second = (one["one lacks it"] for one in ranks)
    assert "`score` which is not available on all ranks, but on rank 0" in first
    assert "`score` which is not available. Pass in" in second
    for one in ranks:
        assert "`score` which is not available. Pass in" in one["all lack it"]


def test_all_ranks_or_only_rank_zero_log(ranks):
    reason = ranks[0]["the second is out of patience"]["message"]
    for rank, one in enumerate(ranks):
        assert one["said", False][-1] == f"[rank: {rank}] {reason}"
    # Lightning's first rank would have nothing to say, and the second must not.
    assert ranks[0]["said", True][-1] == f"[rank: 0] {reason}"
    assert ranks[1]["said", True] == []


def test_callback_that_does_not_stop_has_no_reason(ranks):
    for one in ranks:
        rising, falling = one["several"]
        assert (rising["reason"].name, falling["reason"].name) == ("NOT_STOPPED", "PATIENCE_EXHAUSTED")
        assert (rising["message"], rising["epoch"], falling["epoch"]) == (None, 0, 1)
    assert ranks[0]["several"][1]["message"] == ranks[1]["several"][1]["message"]


COUNT, EPOCHS, FIRST_SHARE = 21, 8, 13
# How many of all are right in each epoch, and others each time.
SIZES = (9, 10, 8, 17, 18, 16, 18, 21)


class Scripted(Chooser):
    """In epoch e the predictions of ``right[e]`` are right; each rank's data come from a sampler, or are its own."""

    def __init__(self, choices, references, shares):
        super().__init__(choices, references)
        drawn = random.Random(1)
        self.right = [set(drawn.sample(range(COUNT), size)) for size in SIZES]
        self.shares = shares

    def choose(self, numbers):
        right = self.right[self.current_epoch]
        references = [self.references[i] for i in numbers.tolist()]
        preds = [r if i in right else self.choices[-1] for i, r in zip(numbers.tolist(), references, strict=True)]
        return preds, references

    def train_dataloader(self):
        return loader(2)

    def val_dataloader(self):
        first, count = self.shares[self.trainer.global_rank % len(self.shares)]
        return loader(count, first=first, batch_size=5)


class Watch(pl.Callback):
    """Writes down what was decided after each validation."""

    def __init__(self, stopping):
        self.stopping, self.decisions = stopping, []

    def on_train_epoch_end(self, trainer, pl_module):
        scores = (trainer.callback_metrics["val_bertscore_f1"].item(), self.stopping.best_score.item())
        self.decisions.append((self.stopping.wait_count, *scores, self.stopping._best_pairs.clone()))


def significant_run(pairs, encoder, folder, shares, **options):
    stopping = BERTScoreEarlyStopping(patience=3, significance=0.05)
    watch = Watch(stopping)
    callbacks = [BERTScoreCallback(BERTScore(encoder, reduction="none")), stopping, watch]
    run = trainer(folder, callbacks, max_epochs=EPOCHS, **options)
    run.fit(chooser(pairs, shares, count=COUNT, kind=Scripted))
    return {"decisions": watch.decisions, "epochs": run.current_epoch, **stopped(stopping)}


OWN_DATA = ((0, FIRST_SHARE), (FIRST_SHARE, COUNT - FIRST_SHARE))
ORDERS = {
    "sampler": list(range(COUNT)),
    "own data": sorted(range(COUNT), key=lambda i: (i % FIRST_SHARE, i // FIRST_SHARE)),
}


def significance_on_ranks(rank, report, pairs, minilm, folder):
    os.environ["HF_HUB_OFFLINE"] = "1"
    encoder = FrozenEncoder(minilm, num_layers=1)
    report["sampler"] = significant_run(pairs, encoder, folder, ((0, COUNT),), **two_devices())
    report["own data"] = significant_run(
        pairs, encoder, folder, OWN_DATA, use_distributed_sampler=False, **two_devices()
    )


@pytest.fixture(scope="module")
def significant(pairs, minilm, tmp_path_factory):
    few = tuple(side[:COUNT] for side in pairs)
    ended = run_separate_ranks(significance_on_ranks, 2, few, minilm, tmp_path_factory.mktemp("significant"))
    assert [one.exit_code for one in ended] == [0, 0]
    alone = significant_run(few, FrozenEncoder(minilm, num_layers=1), tmp_path_factory.mktemp("one"), ((0, COUNT),))
    return [one.report for one in ended], alone


@pytest.mark.parametrize("data", ["sampler", "own data"])
def test_two_ranks_decide_as_one(significant, one_thread, data):
    ranks, alone = significant
    # Better by chance, worse, better, better by chance, worse, better by chance.
    waited, scores, *_ = zip(*alone["decisions"], strict=True)
    assert waited == (0, 1, 2, 0, 1, 2, 3)
    assert scores[2] < scores[0] < scores[1]
    assert scores[5] < scores[3] < scores[4]
    for rank in ranks:
        found = rank[data]
        assert (found["epochs"], found["message"]) == (alone["epochs"], alone["message"])
        for one, expected in zip(found["decisions"], alone["decisions"], strict=True):
            assert one[0] == expected[0]
            assert one[1:3] == pytest.approx(expected[1:3], abs=1e-6)
            # Of the data set, in its order or that of alternating ranks: the sampler's twenty-second is dropped.
            assert one[3].shape == (COUNT,)
            torch.testing.assert_close(one[3], expected[3][ORDERS[data]], atol=1e-6, rtol=0)
    first, second = (rank[data]["decisions"] for rank in ranks)
    for one, other in zip(first, second, strict=True):
        assert one[:3] == other[:3]
        assert torch.equal(one[3], other[3])


def test_the_pairs_take_four_bytes_each(significant):
    for rank in significant[0]:
        for data in ("sampler", "own data"):
            best = rank[data]["state"]["best_pairs"]
            assert best.nbytes == best.untyped_storage().nbytes() == 4 * COUNT
