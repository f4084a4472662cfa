"""Schedules of temperature and weight: values at each step, in the log and after a resume."""

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

from bertscore_tm.callbacks import LossWeightSchedule, TemperatureAnnealing
from bertscore_tm.callbacks.schedules import interpolate_value
from bertscore_tm.losses import SoftBERTScoreLoss


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


def fit(module, *callbacks, ckpt_path=None, logger=False, **options):
    trainer = pl.Trainer(
        callbacks=list(callbacks),
        logger=logger,
        accelerator="cpu",
        enable_checkpointing=any(isinstance(callback, ModelCheckpoint) for callback in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        **options,
    )
    trainer.fit(module, ckpt_path=ckpt_path)
    return trainer


SHAPES = ["linear", "cosine", "exponential"]


@given(st.floats(0.01, 10), st.floats(0.01, 10), st.floats(-1, 2), st.sampled_from(SHAPES))
def test_values_lie_between_the_ends_and_reach_them(start, end, progress, shape):
    value = interpolate_value(start, end, progress, shape)
    assert min(start, end) - 1e-9 <= value <= max(start, end) + 1e-9
    if progress <= 0:
        assert value == pytest.approx(start)
    if progress >= 1:
        assert value == pytest.approx(end)
    if shape == "cosine":
        t = min(max(progress, 0), 1)
        assert value == pytest.approx(end + (start - end) * (1 + math.cos(math.pi * t)) / 2)


def test_every_step_has_its_value(encoder):
    """Eight steps, of which the weight warms up in two; the values by hand."""
    module = Watched(encoder)
    fit(
        module,
        TemperatureAnnealing(1.0, 0.2, over=8),
        LossWeightSchedule(1.0, 0.5, over=6, warmup=2, shape="cosine"),
        max_epochs=2,
    )
    half = [0.5 + 0.5 * (1 + math.cos(math.pi * k / 4)) / 2 for k in range(4)]
    assert [t for t, _ in module.seen] == pytest.approx([1.0 - 0.1 * k for k in range(8)])
    assert [w for _, w in module.seen] == pytest.approx([0.0, 0.5, *half, 0.5, 0.5], abs=1e-6)


def test_default_length_is_all_of_training(encoder):
    module = Watched(encoder)
    fit(module, TemperatureAnnealing(1.0, 0.25, shape="exponential"), max_epochs=2)
    assert [t for t, _ in module.seen] == pytest.approx([0.25 ** (k / 8) for k in range(8)], abs=1e-6)
    module = Watched(encoder)
    fit(module, LossWeightSchedule(by="epoch"), max_epochs=3)
    assert [w for _, w in module.seen] == [0.0] * 4 + [0.5] * 4 + [1.0] * 4


def test_steps_are_those_of_the_optimizer(encoder):
    module = Watched(encoder)
    fit(module, LossWeightSchedule(over=4), max_epochs=2, accumulate_grad_batches=2)
    assert [w for _, w in module.seen] == [0.0, 0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75]
    module = Watched(encoder, optimizers=2)  # each batch is one step, though the trainer counts two
    fit(module, LossWeightSchedule(over=4), max_epochs=1)
    assert [w for _, w in module.seen] == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("by", ["step", "epoch"])
def test_values_are_logged(encoder, tmp_path, by):
    module = Watched(encoder)
    logger = CSVLogger(tmp_path)
    fit(module, TemperatureAnnealing(1.0, 0.2, over=2, by=by, name="heat"), logger=logger, max_epochs=2)
    header, *rows = [line.split(",") for line in (tmp_path / logger.log_dir / "metrics.csv").read_text().splitlines()]
    values = [float(row[header.index("heat")]) for row in rows if row[header.index("heat")]]
    expected = [1.0, 0.6] if by == "epoch" else [1.0, 0.6, *[0.2] * 6]
    assert values == pytest.approx(expected)


@pytest.mark.parametrize("by", ["step", "epoch"])
def test_resumed_run_continues_the_schedule(encoder, tmp_path, by):
    def callbacks():
        return (
            TemperatureAnnealing(1.0, 0.2, over=12 if by == "step" else 3, by=by),
            LossWeightSchedule(over=12 if by == "step" else 3, by=by),
        )

    whole = Watched(encoder)
    fit(whole, *callbacks(), max_epochs=3)
    first, rest = Watched(encoder), Watched(encoder)
    fit(first, *callbacks(), ModelCheckpoint(tmp_path, save_last=True), max_epochs=1)
    fit(rest, *callbacks(), ckpt_path=tmp_path / "last.ckpt", max_epochs=3)
    assert first.seen + rest.seen == whole.seen
    assert len(set(whole.seen)) > 2


def test_another_trainer_starts_the_schedule_again(encoder):
    """As for each fold of a cross-validation; the same trainer continues."""
    schedules = TemperatureAnnealing(1.0, 0.2, over=8), LossWeightSchedule(over=8)
    once, again = Watched(encoder), Watched(encoder)
    fit(once, *schedules, max_epochs=1)
    trainer = fit(again, *schedules, max_epochs=1)
    assert again.seen == once.seen
    trainer.fit_loop.max_epochs = 2
    trainer.fit(again)
    assert [t for t, _ in again.seen] == pytest.approx([1.0 - 0.1 * k for k in range(8)])


@pytest.mark.parametrize("shape", SHAPES)
def test_schedules_pickle(shape):
    schedule = pickle.loads(pickle.dumps(TemperatureAnnealing(2.0, 1.0, over=10, shape=shape)))
    assert schedule.value_at(5) == TemperatureAnnealing(2.0, 1.0, over=10, shape=shape).value_at(5)


def test_two_schedules_keep_their_own_state():
    keys = {TemperatureAnnealing(attribute=f"loss.{name}").state_key for name in ("a", "b")}
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (TemperatureAnnealing(attribute="loss.temperature"), r"pl_module\.loss\.temperature, which does not exist"),
        (LossWeightSchedule(attribute="weight_of_loss"), r"set it in the module's __init__"),
        (LossWeightSchedule(attribute="bertscore_loss"), "which must be an int or a float, got SoftBERTScoreLoss"),
        (LossWeightSchedule(attribute="automatic_optimization"), "which must be an int or a float, got True"),
    ],
)
def test_a_missing_number_is_an_error_before_training(encoder, schedule, message):
    module = Watched(encoder)
    with pytest.raises(MisconfigurationException, match=message):
        fit(module, schedule, max_epochs=1)
    assert module.seen == []


def test_endless_training_needs_a_length(encoder):
    with pytest.raises(MisconfigurationException, match="pass over=, the number of steps"):
        fit(Watched(encoder), LossWeightSchedule(), max_epochs=-1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TemperatureAnnealing(start=0.0), "start is a temperature and must be above 0, got 0.0"),
        (lambda: TemperatureAnnealing(end=-1.0), "end is a temperature"),
        (lambda: LossWeightSchedule(end=-1.0), "end is a loss weight and must be at least 0"),
        (lambda: LossWeightSchedule(shape="exponential"), "needs start and end above 0, got start=0.0"),
        (lambda: LossWeightSchedule(shape="steps"), "shape='steps' is not one of 'linear', 'cosine', 'exponential'"),
        (lambda: LossWeightSchedule(by="batch"), "by='batch' is not one of 'step', 'epoch'"),
        (lambda: LossWeightSchedule(warmup=-1), "warmup must be at least 0"),
        (lambda: LossWeightSchedule(over=5, warmup=5), "over must be above warmup=5, got 5"),
    ],
)
def test_settings_out_of_range_are_an_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()
