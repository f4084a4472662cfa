"""BERTScoreCallback scores every n-th validation only, and repeats a validation that was interrupted."""

import json
import warnings

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreEarlyStopping, SampleLogger, ScoredTextWriter
from tests.support.lightning_runs import Quality, Record, Returns, Steady, chooser, generate, loader, trainer

EPOCHS = 7
MONITOR = {"monitor": "val_bertscore_f1", "mode": "max"}
# Lightning's ModelCheckpoint says so of each folder that has files.
pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")


class Generations:
    """The epochs in which texts were generated; -1 is the sanity check."""

    def __init__(self):
        self.epochs = []

    def __call__(self, pl_module, batch):
        self.epochs.append(-1 if pl_module.trainer.sanity_checking else pl_module.current_epoch)
        return generate(pl_module, batch)


@pytest.mark.parametrize(
    ("settings", "scored"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6]),
        ({"every_n_validations": 3}, [0, 3, 6]),
        ({"first_validation": 5}, [4, 5, 6]),
        ({"every_n_validations": 2, "first_validation": 4}, [3, 5]),
    ],
)
@pytest.mark.parametrize("val_sizes", [(3,), (3, 2)])
def test_skipped_validations_generate_and_log_nothing(pairs, encoder, tmp_path, settings, scored, val_sizes):
    texts = Generations()
    scorer = BERTScoreCallback(BERTScore(encoder), texts, **settings)
    callbacks = [SampleLogger(1), ScoredTextWriter(tmp_path / "texts"), scorer]
    run = trainer(tmp_path, callbacks, max_epochs=EPOCHS, num_sanity_val_steps=1)

    run.fit(chooser(pairs, kind=Returns, val_sizes=val_sizes))

    assert sorted(set(texts.epochs)) == [-1, *scored]
    assert len(list((tmp_path / "texts").iterdir())) == len(scored) * len(val_sizes)
    # A validation outside of the training is scored, and not counted.
    run.validate(chooser(pairs, kind=Returns), verbose=False)
    assert "val_bertscore_f1" in run.callback_metrics
    assert scorer.state_dict()["validations"] == EPOCHS


def test_early_stopping_counts_scored_validations_only(pairs, encoder, tmp_path):
    scorer = BERTScoreCallback(BERTScore(encoder), every_n_validations=2)
    checkpoint = ModelCheckpoint(tmp_path, "{epoch}", **MONITOR)
    stopping = BERTScoreEarlyStopping(patience=3)
    module = chooser(pairs, [2, 8, 6, 0, 1, 9, 1, 0, 1, 9, 9, 9], kind=Quality)

    trainer(tmp_path, [scorer, stopping, checkpoint], max_epochs=12).fit(module, loader(2), loader(9))

    assert checkpoint.best_model_path.endswith("epoch=2.ckpt")
    assert stopping.stopped_epoch == 8
    assert stopping.wait_count == 3


def test_checkpoints_of_scored_epochs_when_the_first_are_not(pairs, encoder, tmp_path):
    """With the remedy of the page for ModelCheckpoint; early stopping needs none."""
    scorer = BERTScoreCallback(BERTScore(encoder), every_n_validations=3, first_validation=3)
    checkpoint = ModelCheckpoint(tmp_path, "{epoch}", **MONITOR, save_top_k=3, every_n_epochs=3)
    module = chooser(pairs, [9, 9, 2, 9, 9, 6, 9], kind=Quality)

    run = trainer(tmp_path, [scorer, BERTScoreEarlyStopping(), checkpoint], max_epochs=EPOCHS)
    run.fit(module, loader(2), loader(9))

    assert {path.name for path in tmp_path.glob("*.ckpt")} == {"epoch=2.ckpt", "epoch=5.ckpt"}
    assert checkpoint.best_model_path.endswith("epoch=5.ckpt")


def test_a_resumed_training_goes_on_counting(pairs, encoder, tmp_path):
    def run_of(texts, max_epochs):
        scorer = BERTScoreCallback(BERTScore(encoder), texts, every_n_validations=3)
        return trainer(tmp_path, [scorer, ModelCheckpoint(tmp_path, save_last=True)], max_epochs=max_epochs)

    run_of(Generations(), 4).fit(chooser(pairs, kind=Returns))
    texts = Generations()
    run_of(texts, EPOCHS).fit(chooser(pairs, kind=Returns), ckpt_path=tmp_path / "last.ckpt")

    assert set(texts.epochs) == {6}


class Monitored(Quality):
    """A Quality with a ReduceLROnPlateau that does not accept a missing score; ``scores`` holds those that it sees."""

    def __init__(self, choices, references, qualities):
        super().__init__(choices, references, qualities)
        self.scores = []

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max")
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_bertscore_f1"}}

    def lr_scheduler_step(self, scheduler, metric):
        self.scores.append(metric.item())


@pytest.mark.parametrize("stopping_first", [False, True])
@pytest.mark.parametrize("val_sizes", [(7,), (4, 3)])
@pytest.mark.filterwarnings("ignore:.*counts the last val_bertscore_f1 again")
def test_a_resumed_training_has_the_last_scores(pairs, encoder, tmp_path, stopping_first, val_sizes):
    """Each training ends after the third validation, which is scored, or continues until early stopping ends it."""
    qualities = [2, 0, 7, 0, 1, 0, 1, 0, 1, 0, 1, 0]

    def fit(folder, max_epochs, ckpt_path=None):
        scorer = BERTScoreCallback(BERTScore(encoder), every_n_validations=2)
        stopping = BERTScoreEarlyStopping(patience=3)
        checkpoint = ModelCheckpoint(folder, "{epoch}", **MONITOR, save_last=True)
        callbacks = [stopping, scorer] if stopping_first else [scorer, stopping]
        run = trainer(tmp_path, [*callbacks, checkpoint], max_epochs=max_epochs)
        module = chooser(pairs, qualities, kind=Monitored)
        module.val_sizes = val_sizes
        run.fit(module, ckpt_path=ckpt_path)
        return module.scores, checkpoint.best_model_score.item(), stopping.state_dict(), run.current_epoch

    unbroken = fit(tmp_path / "unbroken", 12)
    first = fit(tmp_path / "resumed", 3)
    resumed = fit(tmp_path / "resumed", 12, tmp_path / "resumed" / "last.ckpt")

    scores, *state = unbroken
    assert state[-1] == 9
    assert first[0] + resumed[0] == scores
    assert list(resumed[1:]) == state


def test_restored_scores_have_the_dtype_of_logged_ones(encoder, tmp_path):
    scorer = BERTScoreCallback(BERTScore(encoder))
    scorer.load_state_dict({"validations": 1, "scored_step": 3, "scores": {"val_bertscore_f1": 0.1}})
    run = trainer(tmp_path, [scorer])

    torch.set_default_dtype(torch.float64)
    try:
        scorer.restore_scores(run)
    finally:
        torch.set_default_dtype(torch.float32)

    restored = run.callback_metrics["val_bertscore_f1"]
    assert restored.dtype == torch.float32
    assert restored == torch.tensor(0.1, dtype=torch.float32)


def test_a_second_training_counts_anew(pairs, encoder, tmp_path):
    texts = Generations()
    scorer = BERTScoreCallback(BERTScore(encoder), texts, every_n_validations=2)
    tables = []
    samples = SampleLogger(1, every_n_validations=2, writer=lambda logger, table: tables.append(table.step))

    for number in range(2):
        checkpoint = ModelCheckpoint(tmp_path / str(number), monitor="val_bertscore_f1")
        trainer(tmp_path, [scorer, samples, checkpoint], max_epochs=3).fit(chooser(pairs, kind=Returns))

    assert texts.epochs == [0, 0, 0, 2, 2, 2] * 2
    assert tables == [8] * 2


class Interrupted(Steady):
    """Stops at the fourth batch of the second validation."""

    def evaluation_step(self, batch, batch_idx, dataloader_idx=0):
        if self.current_epoch == 1 and batch_idx == 3:
            raise KeyError("interrupted")
        return super().evaluation_step(batch, batch_idx, dataloader_idx)


# Lightning warns about what the test wants: to continue with the last model, without a checkpoint.
@pytest.mark.filterwarnings("ignore:.*fit.ckpt_path=")
def test_an_interrupted_validation_is_repeated_as_a_whole(pairs, encoder, tmp_path):
    unbroken, resumed = Record(), Record()
    data = loader(2), loader(8, batch_size=1)
    scorer = BERTScoreCallback(BERTScore(encoder))
    tables = []
    samples = SampleLogger(1, every_n_validations=3, writer=lambda logger, table: tables.append(table.step))
    stopped = OnExceptionCheckpoint(tmp_path, "stopped")
    writer = ScoredTextWriter(tmp_path / "texts")

    trainer(tmp_path, [scorer, unbroken], max_epochs=3).fit(chooser(pairs, kind=Steady), *data)
    broken = trainer(tmp_path, [scorer, samples, stopped], enable_checkpointing=True)
    with pytest.raises(KeyError, match="interrupted"):
        broken.fit(chooser(pairs, kind=Interrupted), *data)
    run = trainer(tmp_path, [scorer, samples, resumed, writer], max_epochs=3)
    run.fit(chooser(pairs, kind=Steady), *data, ckpt_path=tmp_path / "stopped.ckpt")

    paths = sorted((tmp_path / "texts").iterdir())
    assert len(paths) == 2
    for path in paths:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["example"] for line in lines] == list(range(1, 9))
    assert resumed.scores == unbroken.scores[1:]
    assert tables == [2]


class Scheduled(Quality):
    """A Quality whose learning rate falls by a tenth with the first score that is no better.

    ``rates`` and ``scores`` keep what each epoch has and sees.
    """

    def __init__(self, choices, references, qualities, **scheduler):
        super().__init__(choices, references, qualities)
        self.scheduler, self.rates, self.scores = scheduler, [], []

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 1.0)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.1, patience=0)
        config = {"scheduler": plateau, "monitor": "val_bertscore_f1", "strict": False} | self.scheduler
        return {"optimizer": optimizer, "lr_scheduler": config}

    def on_train_epoch_start(self):
        self.rates.append(self.optimizers().param_groups[0]["lr"])

    def on_train_epoch_end(self):
        self.scores.append(float(self.trainer.callback_metrics.get("val_bertscore_f1", 0)))


RISING = [0, 0, 2, 2, 5, 5, 7, 9, 9]


@pytest.mark.parametrize(
    ("settings", "options", "frequency", "qualities", "rates"),
    [
        ({"every_n_validations": 2}, {}, 2, RISING, [1.0] * 9),
        ({"every_n_validations": 2, "first_validation": 2}, {}, 2, [0, *RISING[:-1]], [1.0] * 9),
        ({}, {"check_val_every_n_epoch": 2}, 2, [0, *RISING[:-1]], [1.0] * 9),
        ({"every_n_validations": 2}, {"val_check_interval": 0.5}, 1, range(9), [1.0] * 9),
        ({"every_n_validations": 4}, {"val_check_interval": 0.5}, 2, RISING, [1.0] * 9),
        # The rate falls with the second score, and again with the fourth.
        ({"every_n_validations": 2}, {}, 2, [5, 5, 2, 2, 7, 7, 1, 1, 1], [1.0] * 4 + [0.1] * 4 + [0.01]),
    ],
)
def test_the_learning_rate_follows_the_score(pairs, encoder, tmp_path, settings, options, frequency, qualities, rates):
    module = chooser(pairs, qualities, kind=Scheduled, frequency=frequency)
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder), **settings)], max_epochs=9, **options)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="ReduceLROnPlateau")
        run.fit(module, loader(4, batch_size=1), loader(9))

    assert module.rates == pytest.approx(rates)
    assert (module.scores == sorted(module.scores)) == (rates[-1] == 1)
    assert len(set(module.scores)) >= 4
