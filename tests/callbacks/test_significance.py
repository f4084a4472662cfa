"""BERTScoreEarlyStopping with a significance test."""

import pickle
import random

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint
from scipy import stats
from torch.utils.data import DataLoader

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreEarlyStopping
from tests.support.lightning_modules import Chooser, Numbers, Record, chooser, loader, trainer

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


def scorer_of(encoder):
    return BERTScoreCallback(BERTScore(encoder, reduction="none"))


def run(pairs, encoder, folder, right, stopping, *more, **options):
    module = chooser(pairs, right, count=COUNT, kind=Scripted)
    record = Record()
    callbacks = [scorer_of(encoder), stopping, record, *more]
    trainer(folder, callbacks, max_epochs=EPOCHS, num_sanity_val_steps=0).fit(
        module, loader(2), loader(COUNT, batch_size=20), **options
    )
    return module.epochs, record.scores


class Watch(pl.Callback):
    """Keeps the pairs of every validation, and what was decided on them."""

    def __init__(self, stopping):
        self.stopping, self.pairs, self.waited = stopping, [], []

    def on_train_epoch_end(self, trainer, pl_module):
        scorer = next(one for one in trainer.callbacks if isinstance(one, BERTScoreCallback))
        self.pairs.append(scorer.pairs["val_bertscore_f1"].double().numpy())
        self.waited.append(self.stopping.wait_count)


def scipys_decisions(pairs, significance, min_delta):
    """How many epochs were waited for an improvement after each, by SciPy's paired t-test."""
    best, waited = pairs[0], [0]
    for now in pairs[1:]:
        change = now - best
        better = change.mean() > min_delta
        if better:
            better = stats.ttest_rel(now, best, alternative="greater").pvalue < significance
        best, waited = (now, [*waited, 0]) if better else (best, [*waited, waited[-1] + 1])
    return waited


@pytest.mark.parametrize(
    ("script", "significance", "min_delta"),
    [(noise_around_a_plateau, 0.05, 0), (slow_progress, 0.05, 0), (slow_progress, 0.05, 0.1)],
)
def test_decisions_are_those_of_scipys_t_test(pairs, shallow, tmp_path, script, significance, min_delta):
    stopping = BERTScoreEarlyStopping(patience=2 * EPOCHS, significance=significance, min_delta=min_delta)
    watch = Watch(stopping)
    run(pairs, shallow, tmp_path, script(), stopping, watch)
    assert watch.waited == scipys_decisions(watch.pairs, significance, min_delta)
    counted = watch.waited.count(0) - 1
    assert (counted == 0) == (script is noise_around_a_plateau)
    assert min_delta == 0 or counted < scipys_decisions(watch.pairs, significance, 0).count(0) - 1


def test_non_finite_score_keeps_the_best_pairs(pairs, shallow, tmp_path):
    stopping = BERTScoreEarlyStopping(patience=2 * EPOCHS, significance=0.05, check_finite=False)
    run(pairs, shallow, tmp_path, [set(range(5))] * EPOCHS, stopping)
    best, waited = stopping.state_dict()["best_pairs"], stopping.wait_count
    assert stopping._evaluate_stopping_criteria(torch.tensor(float("nan"))) == (False, None)
    assert stopping.wait_count == waited + 1
    assert stopping.state_dict()["best_pairs"] is best


def test_a_worse_score_than_the_divergence_threshold_stops():
    stopping = BERTScoreEarlyStopping(min_delta=0.1, divergence_threshold=0.5, significance=0.05)
    stopping.best_score, stopping._best_pairs = torch.tensor(0.55), torch.full((COUNT,), 0.55)
    stopping._pairs = torch.full((COUNT,), 0.49)
    should_stop, reason = stopping._evaluate_stopping_criteria(torch.tensor(0.49))
    assert should_stop
    assert reason.startswith("Divergence threshold reached")


def test_threshold_applies_without_significance(pairs, shallow, tmp_path):
    right = noise_around_a_plateau()
    _, scores = run(pairs, shallow, tmp_path, right, BERTScoreEarlyStopping(patience=3))
    stopping = BERTScoreEarlyStopping(patience=9, significance=0.05, stopping_threshold=scores[3] - 1e-4)
    assert run(pairs, shallow, tmp_path, right, stopping)[0] == 4
    assert "threshold reached" in stopping.stopping_reason_message
    # It is no improvement, as in Lightning's: score and pairs stay those of the first epoch.
    assert stopping.best_score.item() == pytest.approx(scores[0], abs=1e-6)
    assert stopping.state_dict()["best_pairs"].mean().item() == pytest.approx(scores[0], abs=1e-6)


@pytest.mark.parametrize(
    ("first", "rest", "patience", "epochs"),
    [
        (0.05, 0.05, 3, 2),  # the record of the fourth epoch does not count, and is the third without improvement
        (0.05, 0.05, 5, 4),
        (None, 0.05, 3, 5),  # it counts, since what it is compared with is unknown, and that of the seventh does not
        (0.05, None, 3, EPOCHS - 2),  # all count
    ],
)
def test_a_resumed_run_keeps_the_best_pairs(pairs, shallow, tmp_path, first, rest, patience, epochs):
    """And takes the new patience and significance."""
    right = noise_around_a_plateau()
    module = chooser(pairs, right, count=COUNT, kind=Scripted)
    before, after = (BERTScoreEarlyStopping(significance=one, patience=patience) for one in (first, rest))
    callbacks = [scorer_of(shallow), before, ModelCheckpoint(tmp_path, save_last=True)]
    trainer(tmp_path, callbacks, max_epochs=2).fit(module, loader(2), loader(COUNT, batch_size=20))
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"][before.state_key]
    if first:
        assert torch.equal(saved["best_pairs"], before._best_pairs)
        assert saved["best_pairs"].nbytes == 4 * COUNT
        assert torch.equal(pickle.loads(pickle.dumps(before)).state_dict()["best_pairs"], saved["best_pairs"])
    options = {"ckpt_path": tmp_path / "last.ckpt", "weights_only": True}
    assert run(pairs, shallow, tmp_path, right, after, **options)[0] == epochs
    assert ("best_pairs" in after.state_dict()) == (rest is not None)


def test_missing_pairs_are_an_error_before_training(pairs, shallow, tmp_path):
    for callback in ([], [BERTScoreCallback(BERTScore(shallow))]):
        stopping = BERTScoreEarlyStopping(significance=0.05)
        with pytest.raises(
            MisconfigurationException, match=r"the callbacks keep the pairs of no key.*reduction='none'"
        ):
            trainer(tmp_path, [*callback, stopping], max_epochs=1).fit(chooser(pairs))


@pytest.mark.parametrize(("sanity_steps", "names"), [(0, ()), (2, ("news", "books"))])
def test_the_mean_of_several_loaders_is_an_error_before_training(pairs, shallow, tmp_path, sanity_steps, names):
    def fit(monitor="val_bertscore_f1"):
        module = chooser(pairs, val_sizes=(4, 3))
        callbacks = [
            BERTScoreCallback(BERTScore(shallow, reduction="none"), loader_names=names),
            BERTScoreEarlyStopping(monitor, significance=0.05),
        ]
        run = trainer(tmp_path, callbacks, num_sanity_val_steps=sanity_steps)
        try:
            run.fit(module)
        finally:
            steps.append(run.global_step)

    steps = []
    one = "val_bertscore_f1_news" if names else "val_bertscore_f1_dataloader_idx_0"
    with pytest.raises(MisconfigurationException, match=f"is the mean over dataloaders: monitor .* such as '{one}'"):
        fit()
    fit("val_bertscore_f1_books" if names else "val_bertscore_f1_dataloader_idx_1")
    assert steps == [0, 2 * 3]


@pytest.mark.parametrize("every", [1, 2])
def test_shuffled_pairs_are_an_error_before_training_or_the_first_validation(pairs, shallow, tmp_path, every):
    callbacks = [scorer_of(shallow), BERTScoreEarlyStopping(significance=0.05)]
    run = trainer(tmp_path, callbacks, max_epochs=2, num_sanity_val_steps=0, check_val_every_n_epoch=every)
    with pytest.raises(MisconfigurationException, match="the validation dataloader 0 is shuffled"):
        run.fit(chooser(pairs), val_dataloaders=DataLoader(Numbers(4), shuffle=True))
    assert run.current_epoch == every - 1
    assert every == 2 or run.global_step == 0


def test_settings_out_of_range_are_an_error():
    for wrong in (0, 0.5, 1, -0.1):
        with pytest.raises(ValueError, match=r"significance must be between 0 and 0\.5, got"):
            BERTScoreEarlyStopping(significance=wrong)
    with pytest.raises(ValueError, match="mode='min'"):
        BERTScoreEarlyStopping(significance=0.05, mode="min")
    with pytest.raises(ValueError, match=r"min_delta must be at least 0, got -0\.1"):
        BERTScoreEarlyStopping(significance=0.05, min_delta=-0.1)


def test_other_data_and_a_single_pair_are_errors(pairs, shallow, tmp_path):
    def fit(count, **options):
        callbacks = [scorer_of(shallow), BERTScoreEarlyStopping(significance=0.05)]
        module = chooser(pairs, slow_progress(), count=COUNT, kind=Scripted)
        run = trainer(tmp_path, callbacks, **options)
        run.fit(
            module, loader(2), loader(count), ckpt_path=tmp_path / "last.ckpt" if options["max_epochs"] > 1 else None
        )
        return run

    fit(COUNT, max_epochs=1).save_checkpoint(tmp_path / "last.ckpt")
    with pytest.raises(MisconfigurationException, match="has 30 pairs, but had 40 in the best epoch"):
        fit(30, max_epochs=2)
    with pytest.raises(MisconfigurationException, match="'val_bertscore_f1' has 1: validate on at least 2 pairs"):
        fit(1, max_epochs=1)
