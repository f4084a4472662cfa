"""Keys of the scores: each is logged once, and each is shown once to who monitors it."""

import inspect
import re
import warnings
from datetime import timedelta

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection
from torchmetrics.text import WordErrorRate

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreEarlyStopping
from tests.support.lightning_runs import Quality, Returns, Stream, chooser, generate, loader, trainer

# Lightning 2.5 has no intervals of time between validations.
ANNOTATION = inspect.signature(pl.Trainer.__init__).parameters["val_check_interval"].annotation
needs_intervals_of_time = pytest.mark.skipif("timedelta" not in str(ANNOTATION), reason="needs intervals of time")


class Counted(Returns):
    """Keeps the number of scores so far at each step of its ``ReduceLROnPlateau``; its batches have one example.

    ``scheduler`` is the scheduler's configuration.
    """

    def __init__(self, choices, references, scheduler):
        super().__init__(choices, references)
        self.scheduler, self.counts = scheduler, []

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max")
        config = {"scheduler": plateau, "monitor": "val_bertscore_f1", "strict": False} | self.scheduler
        return {"optimizer": optimizer, "lr_scheduler": config}

    def training_step(self, batch, batch_idx):
        # Learns nothing and logs nothing, because only the number of steps counts.
        return self.net[0].bias.sum()

    def lr_scheduler_step(self, scheduler, metric):
        self.counts.append(self.trainer.callbacks[0].num_scored_validations)


BATCHES = DataLoader(range(10), batch_size=1)
BATCHES_WITHOUT_LENGTH = DataLoader(Stream(range(10)), batch_size=1)
UNKNOWN = "Its right frequency= cannot be known, because the number of validations per epoch is unknown. Validate once"
EVERY_4_BATCHES = {"val_check_interval": 4, "check_val_every_n_epoch": None}
EVERY_15_BATCHES = {"val_check_interval": 15, "check_val_every_n_epoch": None}
# Enough epochs for two steps of a scheduler with frequency=4.
EVERY_2_EPOCHS = {"check_val_every_n_epoch": 2, "max_epochs": 8}


@pytest.mark.parametrize(
    ("every_n", "interval", "options", "train", "settings"),
    [
        # The interval .34 of 10 batches is 3 batches: 3 validations per epoch.
        (3, "epoch", {"val_check_interval": 0.34}, BATCHES, {}),
        (4, "epoch", {"val_check_interval": 0.34, "max_epochs": 6}, BATCHES, {"frequency": 2}),
        (1, "epoch", {}, BATCHES, {}),
        (2, "epoch", {}, BATCHES, {"frequency": 2}),
        (2, "epoch", EVERY_2_EPOCHS, BATCHES, {"frequency": 4}),
        (3, "epoch", EVERY_2_EPOCHS | {"val_check_interval": 5}, BATCHES, {"frequency": 4}),
        (2, "epoch", EVERY_4_BATCHES, BATCHES, {}),
        (1, "epoch", EVERY_15_BATCHES, BATCHES, {"frequency": 2}),
        (2, "epoch", {}, BATCHES_WITHOUT_LENGTH, {"frequency": 2}),
        (1, "epoch", EVERY_4_BATCHES, BATCHES_WITHOUT_LENGTH, {"interval": "step", "frequency": 4}),
        (1, "step", {}, BATCHES, {"frequency": 10}),
        (2, "step", {"val_check_interval": 0.34}, BATCHES, {"frequency": 6}),
        (1, "step", EVERY_4_BATCHES, BATCHES, {"frequency": 4}),
        # Lightning starts to count batches again in each epoch.
        (2, "step", {}, BATCHES, {"interval": "epoch", "frequency": 2}),
        (1, "step", {"check_val_every_n_epoch": 2}, BATCHES, {"interval": "epoch", "frequency": 2}),
        (1, "step", EVERY_15_BATCHES, BATCHES, {"interval": "epoch", "frequency": 2}),
        (1, "step", {}, BATCHES_WITHOUT_LENGTH, {"interval": "epoch", "frequency": 1}),
        # Nothing is known.
        pytest.param(
            1, "epoch", {"val_check_interval": timedelta(days=1)}, BATCHES, None, marks=needs_intervals_of_time
        ),
        (1, "step", {"val_check_interval": 4, "check_val_every_n_epoch": 2}, BATCHES_WITHOUT_LENGTH, None),
    ],
)
def test_scheduler_warnings_name_settings_that_work(
    pairs, encoder, tmp_path, every_n, interval, options, train, settings
):
    def run(scheduler):
        """Return the warnings of a training, how many steps of the scheduler saw no new score, and all its steps."""
        module = chooser(pairs, scheduler, kind=Counted, count=10)
        scorer = BERTScoreCallback(BERTScore(encoder), generate, every_n_validations=every_n)
        fit = trainer(tmp_path, [scorer], **{"max_epochs": 4} | options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit.fit(module, train, loader(1))
        # Settings of the user are not changed.
        (config,) = fit.lr_scheduler_configs
        assert (config.interval, config.frequency) == (scheduler["interval"], scheduler.get("frequency", 1))
        messages = [str(warning.message) for warning in caught]
        said = [message for message in messages if "where there is no new one" in message]
        num_steps = len(module.counts)
        return said, num_steps - len(set(module.counts)), num_steps

    said, num_repeated, _ = run({"interval": interval})

    if settings is None:
        assert len(said) == 1
        assert UNKNOWN in said[0]
        return
    assert bool(said) == bool(settings)
    if train is BATCHES:
        assert (num_repeated > 0) == bool(said)
    if said:
        named = " and ".join(f"{name}={value!r}" for name, value in settings.items())
        assert said[0].endswith(f"where there is no new one. Set {named} in its configuration")
        said, num_repeated, num_steps = run({"interval": interval} | settings)
        assert said == []
        assert num_repeated == 0
        assert num_steps >= 2


STALE = r"counts the last val_bertscore_f1 again where there is no new one\. {}"
WATCH, SKIPS = {"monitor": "val_bertscore_f1", "mode": "max"}, {"every_n_validations": 2}
SPACED = {"every_n_validations": 2, "first_validation": 2}


@pytest.mark.parametrize(
    ("settings", "reader", "options", "remedy"),
    [
        (SKIPS, lambda path: EarlyStopping(**WATCH, patience=9), {}, "Use BERTScoreEarlyStopping"),
        (SKIPS, lambda path: ModelCheckpoint(path, save_top_k=2, **WATCH), {}, ".* save_top_k=1 or every_n_epochs=2 "),
        (
            SKIPS,
            lambda path: ModelCheckpoint(path, save_top_k=-1, **WATCH),
            {"check_val_every_n_epoch": 3},
            ".*epochs=6",
        ),
        ({}, lambda path: ModelCheckpoint(path, every_n_train_steps=3, **WATCH), {}, "Leave out every_n_train_steps"),
        ({}, lambda path: ModelCheckpoint(path, train_time_interval=timedelta(1), **WATCH), {}, "Leave out"),
        # These see each score once.
        ({}, lambda path: EarlyStopping(**WATCH), {}, None),
        (SKIPS, lambda path: EarlyStopping("train_loss"), {}, None),
        (SKIPS, lambda path: BERTScoreEarlyStopping(), {}, None),
        (SKIPS, lambda path: ModelCheckpoint(path, **WATCH), {}, None),
        (SKIPS, lambda path: ModelCheckpoint(path, every_n_train_steps=3), {}, None),
        (SPACED, lambda path: ModelCheckpoint(path, save_top_k=2, every_n_epochs=2, **WATCH), {}, None),
    ],
)
def test_others_that_see_a_score_again_are_a_warning(pairs, encoder, tmp_path, settings, reader, options, remedy):
    module = chooser(pairs, [5] * 9, kind=Quality)
    callbacks = [BERTScoreCallback(BERTScore(encoder), **settings), reader(tmp_path)]
    run = trainer(tmp_path, callbacks, max_epochs=2, **options)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.fit(module, loader(4, batch_size=1), loader(3))

    said = [str(warning.message) for warning in caught if "where there is no new one" in str(warning.message)]
    assert len(said) == (remedy is not None)
    if remedy:
        assert re.search(STALE.format(remedy), said[0])


@pytest.mark.parametrize(
    ("metrics", "key"),
    [
        ({"b_f1": WordErrorRate()}, "b_f1"),
        ({"a": MetricCollection({"wer": WordErrorRate()}), "a_wer": WordErrorRate()}, "a_wer"),
    ],
)
def test_two_metrics_with_one_key_are_an_error(encoder, metrics, key):
    with pytest.raises(ValueError, match=re.escape(f"several metrics log under ['{key}']. Give them different names")):
        BERTScoreCallback({"b": BERTScore(encoder)} | metrics)


@pytest.mark.parametrize(("names", "said"), [("bc", "b_empty', 'b_f1', 'b_precision', 'b_recall"), (["b_f1"], "b_f1")])
def test_two_callbacks_with_one_key_are_an_error(encoder, pairs, tmp_path, names, said):
    other = {name: BERTScore(encoder) if name != "b_f1" else WordErrorRate() for name in names}
    callbacks = [BERTScoreCallback({name: BERTScore(encoder) for name in "ab"}), BERTScoreCallback(other)]

    with pytest.raises(MisconfigurationException, match=re.escape(f"several BERTScoreCallbacks log under ['{said}']")):
        trainer(tmp_path, callbacks, max_epochs=1).fit(chooser(pairs), loader(3), loader(3))
