"""BERTScoreCallback scores every n-th validation only, and repeats a validation that was interrupted."""

import json

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreEarlyStopping, SampleLogger, ScoredTextWriter
from tests.support.lightning_runs import Quality, Record, Returns, Steady, chooser, generate, loader, trainer

EPOCHS = 7


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
    run.validate(chooser(pairs, kind=Returns), verbose=False)
    assert "val_bertscore_f1" in run.callback_metrics
    assert scorer.state_dict() == {"validations": EPOCHS}


def test_early_stopping_waits_and_the_best_checkpoint_is_that_of_a_scored_validation(pairs, encoder, tmp_path):
    scorer = BERTScoreCallback(BERTScore(encoder), every_n_validations=2)
    checkpoint = ModelCheckpoint(tmp_path, "{epoch}", monitor="val_bertscore_f1", mode="max")
    stopping = BERTScoreEarlyStopping(patience=3)
    run = trainer(tmp_path, [scorer, stopping, checkpoint], max_epochs=12)
    run.fit(chooser(pairs, [2, 8, 6, 0, 1, 9, 1, 0, 1, 9, 9, 9], kind=Quality), loader(2), loader(9))
    assert checkpoint.best_model_path.endswith("epoch=2.ckpt")
    assert (stopping.stopped_epoch, stopping.wait_count) == (8, 3)


def test_checkpoints_of_scored_epochs_when_the_first_are_not(pairs, encoder, tmp_path):
    """With the remedy of the page for ModelCheckpoint; early stopping needs none."""
    scorer = BERTScoreCallback(BERTScore(encoder), every_n_validations=3, first_validation=3)
    options = {"monitor": "val_bertscore_f1", "mode": "max", "save_top_k": 3, "every_n_epochs": 3}
    checkpoint = ModelCheckpoint(tmp_path, "{epoch}", **options)
    run = trainer(tmp_path, [scorer, BERTScoreEarlyStopping(), checkpoint], max_epochs=EPOCHS)
    run.fit(chooser(pairs, [9, 9, 2, 9, 9, 6, 9], kind=Quality), loader(2), loader(9))
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


class Interrupted(Steady):
    """Stops at the fourth batch of the second validation."""

    def evaluation_step(self, batch, batch_idx, dataloader_idx=0):
        if self.current_epoch == 1 and batch_idx == 3:
            raise KeyError("interrupted")
        return super().evaluation_step(batch, batch_idx, dataloader_idx)


def test_a_validation_in_which_a_training_was_interrupted_is_repeated_as_a_whole(pairs, encoder, tmp_path):
    unbroken, resumed = Record(), Record()
    train, val = loader(2), loader(8, batch_size=1)
    scorer, writer = BERTScoreCallback(BERTScore(encoder)), ScoredTextWriter(tmp_path / "texts")
    trainer(tmp_path, [scorer, unbroken], max_epochs=3).fit(chooser(pairs, kind=Steady), train, val)
    tables = []
    samples = SampleLogger(1, every_n_validations=3, writer=lambda logger, table: tables.append(table.step))
    broken = trainer(tmp_path, [scorer, samples, OnExceptionCheckpoint(tmp_path, "stopped")], enable_checkpointing=True)
    with pytest.raises(KeyError, match="interrupted"):
        broken.fit(chooser(pairs, kind=Interrupted), train, val)
    run = trainer(tmp_path, [scorer, samples, resumed, writer], max_epochs=3)
    run.fit(chooser(pairs, kind=Steady), train, val, ckpt_path=tmp_path / "stopped.ckpt")
    lines = [path.read_text(encoding="utf-8").splitlines() for path in sorted((tmp_path / "texts").iterdir())]
    assert [[json.loads(line)["example"] for line in part] for part in lines] == [list(range(1, 9))] * 2
    assert resumed.scores == unbroken.scores[1:]
    assert tables == [2]
