"""BERTScoreEarlyStopping on two ranks: they stop together, for one reason, as one process does."""

from __future__ import annotations

import logging

import pytest
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from lightning.pytorch.strategies import DDPStrategy

from bertscore_tm.callbacks import BERTScoreEarlyStopping
from tests.support.lightning_modules import Logs, trainer
from tests.support.ranks import run_separate_ranks

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

NAN = float("nan")


class Differing(Logs):
    """Logs a value per epoch, which differs between ranks."""

    def __init__(self, values):
        super().__init__([], "score")
        self.of_ranks = values

    def log_value(self, hook):
        self.values = self.of_ranks[self.global_rank]
        super().log_value(hook)


# name: (values of each rank, arguments, reason, its message, stopped epoch, wait count of each rank)
RISING, FALLING, NONE = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.9, 0.8, 0.7, 0.6, 0.5, 0.4], [None] * 6
LENIENT = {"strict": False}
OUT, FINITE, REACHED = "PATIENCE_EXHAUSTED", "NON_FINITE_METRIC", "STOPPING_THRESHOLD"
BEST, ABOVE = "Best score: 0.900", {"stopping_threshold": 0.55}
UP, BROKEN = [0.1, 0.2, 0.6], [0.5, 0.4, NAN]
LATE, LATER = [0.5, None, 0.4, None, 0.3, None], [0.9, None, None, 0.8, None, None]
DISAGREEMENTS = {
    "the second is out of patience": ((RISING, FALLING), {}, OUT, BEST, 2, (0, 2)),
    "the first is out of patience": ((FALLING, RISING), {}, OUT, BEST, 2, (2, 0)),
    "each for another reason": ((UP, BROKEN), ABOVE, REACHED, "> 0.55", 2, (0, 1)),
    "the other way round": ((BROKEN, UP), ABOVE, FINITE, "Previous best value was 0.500", 2, (1, 0)),
    "the second never logs it": ((FALLING, NONE), LENIENT, OUT, BEST, 2, (2, 0)),
    "the first never logs it": ((NONE, FALLING), LENIENT, OUT, BEST, 2, (0, 2)),
    "none logs it": ((NONE, NONE), LENIENT, "NOT_STOPPED", None, 0, (0, 0)),
    "in different epochs": ((LATE, LATER), {}, OUT, "Best score: 0.500", 4, (2, 1)),
    "the last epoch": (([0.9] * 5 + [0.1], RISING), {"patience": 5}, OUT, "0.900", 5, (5, 0)),
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


def outcome(folder, values, **arguments):
    stopping, module = BERTScoreEarlyStopping("score", mode="max", **{"patience": 2} | arguments), Differing(values)
    run = trainer(folder, [stopping], max_epochs=6, **two_devices())
    run.fit(module)
    return stopped(stopping) | {"epochs": run.current_epoch}


def disagree(rank, report, folder):
    for name, (values, arguments, *_) in DISAGREEMENTS.items():
        report[name] = outcome(folder, values, **arguments)
    for name, values in {"one lacks it": (RISING, NONE), "all lack it": (NONE, NONE)}.items():
        try:
            report[name] = outcome(folder, values)
        except RuntimeError as error:
            report[name] = str(error)
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("lightning.pytorch.callbacks.early_stopping")
    logger.addHandler(handler)
    for only_first in (False, True):
        outcome(folder, (RISING, FALLING), verbose=True, log_rank_zero_only=only_first)
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
