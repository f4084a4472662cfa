"""AttributeSchedule: values at each step, in the log and after a resume."""

import math
import pickle

import lightning.pytorch as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader

from bertscore_tm.callbacks import AttributeSchedule
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.lightning_modules import trainer


class Watched(pl.LightningModule):
    """Keeps what the schedules have set at every step."""

    def __init__(self, encoder, optimizers=1):
        super().__init__()
        self.bertscore_loss = SoftBERTScoreLoss(encoder)
        self.bertscore_weight = 0.5
        self.layer = nn.Linear(1, 1)
        self.seen = []
        self.count = optimizers
        self.automatic_optimization = optimizers == 1

    def training_step(self, batch, batch_idx):
        self.seen.append((round(self.bertscore_loss.temperature, 6), round(self.bertscore_weight, 6)))
        loss = self.layer(batch).mean()
        if not self.automatic_optimization:
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(self.layer(batch).mean())
                optimizer.step()
        return loss

    def configure_optimizers(self):
        made = [torch.optim.SGD(self.parameters(), 0.1) for _ in range(self.count)]
        return made[0] if self.count == 1 else made

    def train_dataloader(self):
        return DataLoader(torch.zeros(8, 1), batch_size=2)


def fit(module, *callbacks, ckpt_path=None, **options):
    run = trainer(".", callbacks, **options)
    run.fit(module, ckpt_path=ckpt_path)
    return run


TEMPERATURE, WEIGHT = "bertscore_loss.temperature", "bertscore_weight"


@given(
    st.floats(0.01, 10),
    st.floats(0.01, 10),
    st.integers(0, 12),
    st.integers(0, 3),
    st.sampled_from(["linear", "cosine", "exponential"]),
)
def test_values_lie_between_the_ends_and_reach_them(start, end, position, delay, shape):
    schedule = AttributeSchedule("x", start, end, shape=shape, total_iters=9, delay=delay)
    value = pickle.loads(pickle.dumps(schedule)).value_at(position)
    assert min(start, end) - 1e-9 <= value <= max(start, end) + 1e-9
    t = min(max((position - delay) / (9 - delay), 0), 1)
    expected = {
        "linear": (1 - t) * start + t * end,
        "cosine": end + (start - end) * (1 + math.cos(math.pi * t)) / 2,
        "exponential": math.exp((1 - t) * math.log(start) + t * math.log(end)),
    }
    assert value == pytest.approx(expected[shape])


def test_default_length_is_all_of_training(encoder):
    module = Watched(encoder)
    fit(module, AttributeSchedule(TEMPERATURE, 1.0, 0.25, shape="exponential"), max_epochs=2)
    assert [t for t, _ in module.seen] == pytest.approx([0.25 ** (k / 8) for k in range(8)], abs=1e-6)
    module = Watched(encoder)
    fit(module, AttributeSchedule(WEIGHT, 0.0, 1.0, interval="epoch"), max_epochs=3)
    assert [w for _, w in module.seen] == [0.0] * 4 + [0.5] * 4 + [1.0] * 4
    with pytest.raises(MisconfigurationException, match="pass total_iters=, the number of steps"):
        fit(Watched(encoder), AttributeSchedule(WEIGHT, 0.0, 1.0), max_epochs=-1)


def test_steps_are_those_of_the_optimizer(encoder):
    module = Watched(encoder)
    fit(module, AttributeSchedule(WEIGHT, 0.0, 1.0, total_iters=4), max_epochs=2, accumulate_grad_batches=2)
    assert [w for _, w in module.seen] == [0.0, 0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75]
    module = Watched(encoder, optimizers=2)  # each batch is one step, though the trainer counts two
    fit(module, AttributeSchedule(WEIGHT, 0.0, 1.0, total_iters=4), max_epochs=1)
    assert [w for _, w in module.seen] == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_values_are_logged(encoder, tmp_path, interval):
    module = Watched(encoder)
    logger = CSVLogger(tmp_path)
    schedule = AttributeSchedule(TEMPERATURE, 1.0, 0.2, total_iters=2, interval=interval, name="heat")
    fit(module, schedule, logger=logger, max_epochs=2)
    header, *rows = [line.split(",") for line in (tmp_path / logger.log_dir / "metrics.csv").read_text().splitlines()]
    values = [float(row[header.index("heat")]) for row in rows if row[header.index("heat")]]
    assert values == pytest.approx([1.0, 0.6] if interval == "epoch" else [1.0, 0.6, *[0.2] * 6])
    assert AttributeSchedule(TEMPERATURE, 1.0, 0.2).name == "bertscore_loss_temperature"


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_resumed_run_continues_the_schedule(encoder, tmp_path, interval):
    def schedule():
        return AttributeSchedule(WEIGHT, 0.0, 1.0, total_iters=12 if interval == "step" else 3, interval=interval)

    whole = Watched(encoder)
    fit(whole, schedule(), max_epochs=3)
    first, rest = Watched(encoder), Watched(encoder)
    fit(first, schedule(), ModelCheckpoint(tmp_path, save_last=True), max_epochs=1)
    fit(rest, schedule(), ckpt_path=tmp_path / "last.ckpt", max_epochs=3)
    assert first.seen + rest.seen == whole.seen
    assert len(set(whole.seen)) > 2


def test_another_trainer_starts_the_schedule_again(encoder):
    """As for each fold of a cross-validation; the same trainer continues."""
    schedule = AttributeSchedule(TEMPERATURE, 1.0, 0.2, total_iters=8)
    once, again = Watched(encoder), Watched(encoder)
    fit(once, schedule, max_epochs=1)
    run = fit(again, schedule, max_epochs=1)
    assert again.seen == once.seen
    run.fit_loop.max_epochs = 2
    run.fit(again)
    assert [t for t, _ in again.seen] == pytest.approx([1.0 - 0.1 * k for k in range(8)])


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("loss.temperature", r"pl_module\.loss\.temperature, which does not exist .*set it in the module's __init__"),
        ("bertscore_loss", "which must be an int or a float, got SoftBERTScoreLoss"),
        ("automatic_optimization", "which must be an int or a float, got True"),
    ],
)
def test_a_missing_number_is_an_error_before_training(encoder, attribute, message):
    module = Watched(encoder)
    with pytest.raises(MisconfigurationException, match=message):
        fit(module, AttributeSchedule(attribute, 0.0, 1.0), max_epochs=1)
    assert module.seen == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": "exponential"}, "needs start and end above 0, got start=0.0"),
        ({"shape": "steps"}, "shape='steps' is not one of 'linear', 'cosine', 'exponential'"),
        ({"interval": "batch"}, "interval='batch' is not one of 'step', 'epoch'"),
        ({"delay": -1}, "delay must be at least 0"),
        ({"total_iters": 5, "delay": 5}, "total_iters must be above delay=5, got 5"),
    ],
)
def test_settings_out_of_range_are_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        AttributeSchedule(WEIGHT, 0.0, 1.0, **options)
