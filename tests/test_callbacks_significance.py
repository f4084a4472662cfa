"""Early stopping that does not take noise for progress."""

import random

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreEarlyStopping
from tests.lightning_modules import Chooser, Record, chooser, loader, trainer

pytestmark = pytest.mark.usefixtures("one_thread")

COUNT, EPOCHS = 40, 13


class Scripted(Chooser):
    """In epoch e the predictions of ``right[e]`` are right, and the others are all the same wrong text."""

    def __init__(self, choices, references, right):
        super().__init__(choices, references, val_sizes=(COUNT,))
        self.right, self.epochs = right, 0

    def choose(self, numbers):
        right = self.right[self.current_epoch]
        references = [self.references[i] for i in numbers.tolist()]
        preds = [r if i in right else self.choices[-1] for i, r in zip(numbers.tolist(), references, strict=True)]
        return preds, references

    def on_train_epoch_end(self):
        self.epochs += 1


def noise_around_a_plateau():
    """About half are right, others each time; every third epoch is a new record by chance."""
    drawn = random.Random(0)
    sizes = [20 + (epoch // 3 if epoch % 3 == 0 else -1) for epoch in range(EPOCHS)]
    return [set(drawn.sample(range(COUNT), size)) for size in sizes]


def slow_progress():
    """One more of them is right after each epoch, and stays right."""
    return [set(range(5 + epoch)) for epoch in range(EPOCHS)]


@pytest.fixture
def shallow(minilm):
    return FrozenEncoder(minilm, num_layers=1)


def run(pairs, encoder, folder, right, stopping, *more, **options):
    module = chooser(pairs, right, count=COUNT, kind=Scripted)
    record = Record()
    callbacks = [BERTScoreCallback(BERTScore(encoder, reduction="none")), stopping, record, *more]
    trainer(folder, callbacks, max_epochs=EPOCHS, num_sanity_val_steps=0).fit(
        module, loader(2), loader(COUNT, batch_size=20), **options
    )
    return module.epochs, record.scores


def test_noise_stops_and_progress_goes_on(pairs, shallow, tmp_path):
    plain, noise = run(pairs, shallow, tmp_path, noise_around_a_plateau(), BERTScoreEarlyStopping(patience=3))
    assert plain == EPOCHS  # each record starts the patience anew
    assert [noise.index(max(noise[: k + 1])) for k in (0, 3, 6, 9, 12)] == [0, 3, 6, 9, 12]
    doubting = BERTScoreEarlyStopping(patience=3, significance=0.05)
    stopped, _ = run(pairs, shallow, tmp_path, noise_around_a_plateau(), doubting)
    assert stopped == 4
    assert doubting.best_score.item() == pytest.approx(noise[0], abs=1e-6)
    assert "did not improve in the last 3 records" in doubting.stopping_reason_message
    patient = BERTScoreEarlyStopping(patience=4, significance=0.05)
    went_on, progress = run(pairs, shallow, tmp_path, slow_progress(), patient)
    assert went_on == EPOCHS
    assert progress == sorted(progress)
    print(f"noise: plain {plain} epochs, significance {stopped}; slow progress: {went_on} of {EPOCHS}")


def test_a_threshold_counts_by_chance_too(pairs, shallow, tmp_path):
    right = noise_around_a_plateau()
    _, scores = run(pairs, shallow, tmp_path, right, BERTScoreEarlyStopping(patience=3))
    stopping = BERTScoreEarlyStopping(patience=9, significance=0.05, stopping_threshold=scores[3] - 1e-4)
    assert run(pairs, shallow, tmp_path, right, stopping)[0] == 4
    assert "threshold reached" in stopping.stopping_reason_message


def test_a_resumed_run_keeps_the_best_pairs_and_takes_the_new_patience(pairs, shallow, tmp_path):
    right = noise_around_a_plateau()
    module = chooser(pairs, right, count=COUNT, kind=Scripted)
    first = BERTScoreEarlyStopping(patience=3, significance=0.05)
    callbacks = [
        BERTScoreCallback(BERTScore(shallow, reduction="none")),
        first,
        ModelCheckpoint(tmp_path, save_last=True),
    ]
    trainer(tmp_path, callbacks, max_epochs=2, num_sanity_val_steps=0).fit(
        module, loader(2), loader(COUNT, batch_size=20)
    )
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"][first.state_key]
    assert torch.equal(saved["best_pairs"], first._best_pairs)
    assert saved["best_pairs"].nbytes == 4 * COUNT
    for patience, epochs in ((3, 2), (5, 4)):
        # As if from the start: stopped after as many epochs in all.
        rest = BERTScoreEarlyStopping(patience=patience, significance=0.05)
        assert run(pairs, shallow, tmp_path, right, rest, ckpt_path=tmp_path / "last.ckpt")[0] == epochs
        assert rest.patience == patience


def test_what_is_needed_is_said_before_training(pairs, shallow, tmp_path):
    for callback in ([], [BERTScoreCallback(BERTScore(shallow))]):
        stopping = BERTScoreEarlyStopping(significance=0.05)
        with pytest.raises(
            MisconfigurationException, match=r"pairs that are kept are those of no score.*reduction='none'"
        ):
            trainer(tmp_path, [*callback, stopping], max_epochs=1).fit(chooser(pairs))
    module = chooser(pairs, val_sizes=(4, 3))
    callbacks = [BERTScoreCallback(BERTScore(shallow, reduction="none")), BERTScoreEarlyStopping(significance=0.05)]
    with pytest.raises(MisconfigurationException, match="several validation loaders monitor one of them"):
        trainer(tmp_path, callbacks, max_epochs=1, num_sanity_val_steps=0).fit(module)
    callbacks[1] = BERTScoreEarlyStopping("val_bertscore_f1_dataloader_idx_1", significance=0.05)
    trainer(tmp_path, callbacks, max_epochs=2, num_sanity_val_steps=0).fit(module)


def test_settings_that_cannot_be():
    for wrong in (0, 0.5, 1, -0.1):
        with pytest.raises(ValueError, match=r"significance must be between 0 and 0\.5, got"):
            BERTScoreEarlyStopping(significance=wrong)
    with pytest.raises(ValueError, match="mode='min'"):
        BERTScoreEarlyStopping(significance=0.05, mode="min")
