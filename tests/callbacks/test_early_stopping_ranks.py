"""BERTScoreEarlyStopping on two ranks: they stop together."""

import pytest
from lightning.pytorch.strategies import DDPStrategy

from bertscore_tm.callbacks import BERTScoreEarlyStopping
from tests.support.lightning_runs import Logs, trainer
from tests.support.ranks import on_ranks

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

NAN = float("nan")


class Differing(Logs):
    """Logs a value per epoch, which differs between ranks."""

    def log_value(self, hook):
        self.values = self.of_ranks[self.global_rank]
        super().log_value(hook)


# name: (values of each rank, arguments, reason of each rank, stopped epoch, wait count of each rank)
RISING, FALLING, NONE = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.9, 0.8, 0.7, 0.6, 0.5, 0.4], [None] * 6
LENIENT = {"strict": False}
OUT, FINITE, REACHED, NOT = "PATIENCE_EXHAUSTED", "NON_FINITE_METRIC", "STOPPING_THRESHOLD", "NOT_STOPPED"
UP, BROKEN = [0.1, 0.2, 0.6], [0.5, 0.4, NAN]
LATE, LATER = [0.5, None, 0.4, None, 0.3, None], [0.9, None, None, 0.8, None, None]
DISAGREEMENTS = {
    "the second is out of patience": ((RISING, FALLING), {}, (NOT, OUT), 2, (0, 2)),
    "each for another reason": ((UP, BROKEN), {"stopping_threshold": 0.55}, (REACHED, FINITE), 2, (0, 1)),
    "the second never logs it": ((FALLING, NONE), LENIENT, (OUT, NOT), 2, (2, 0)),
    "the first never logs it": ((NONE, FALLING), LENIENT, (NOT, OUT), 2, (0, 2)),
    "none logs it": ((NONE, NONE), LENIENT, (NOT, NOT), 0, (0, 0)),
    "in different epochs": ((LATE, LATER), {}, (OUT, NOT), 4, (2, 1)),
    "the last epoch": (([0.9] * 5 + [0.1], RISING), {"patience": 5}, (OUT, NOT), 5, (5, 0)),
}


def outcome(folder, values, **arguments):
    stopping, module = BERTScoreEarlyStopping("score", **{"patience": 2} | arguments), Differing([], "score")
    module.of_ranks = values
    strategy = DDPStrategy(process_group_backend="gloo")
    run = trainer(folder, [stopping], max_epochs=6, devices=2, strategy=strategy)
    run.fit(module)
    return stopping.stopping_reason.name, stopping.stopped_epoch, stopping.wait_count, run.current_epoch


def disagree(rank, folder):
    for name, (values, arguments, *_) in DISAGREEMENTS.items():
        yield name, lambda values=values, arguments=arguments: outcome(folder, values, **arguments)
    for name, values in {"all lack it": (NONE, NONE), "one lacks it": (RISING, NONE)}.items():
        yield name, lambda values=values: outcome(folder, values)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return on_ranks(disagree, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_all_ranks_stop_with_the_first_that_stops(ranks, name):
    _, _, reasons, epoch, waited = DISAGREEMENTS[name]
    epochs = 6 if set(reasons) == {NOT} else epoch + 1
    expected = [(reason, epoch, count, epochs) for reason, count in zip(reasons, waited, strict=True)]
    assert [report[name] for report in ranks] == expected


def test_key_missing_on_a_rank_is_an_error_there_and_stops_the_others(ranks):
    said = "`score` which is not available. Pass in"
    assert ranks[0]["one lacks it"][-1] == 1
    assert said in ranks[1]["one lacks it"]
    assert all(said in report["all lack it"] for report in ranks)
