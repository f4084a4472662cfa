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

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreEarlyStopping
from tests.support.lightning_modules import Chooser, Numbers, Record, chooser, loader, trainer

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


def test_noise_stops_and_progress_continues(pairs, shallow, tmp_path):
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
    [(noise_around_a_plateau, 0.05, 0), (slow_progress, 0.05, 0), (slow_progress, 0.4, 0), (slow_progress, 0.05, 0.1)],
)
def test_decisions_are_those_of_scipys_t_test(pairs, shallow, tmp_path, script, significance, min_delta):
    stopping = BERTScoreEarlyStopping(patience=2 * EPOCHS, significance=significance, min_delta=min_delta)
    watch = Watch(stopping)
    run(pairs, shallow, tmp_path, script(), stopping, watch)
    assert watch.waited == scipys_decisions(watch.pairs, significance, min_delta)
    counted = watch.waited.count(0) - 1
    print(f"{script.__name__}, significance={significance}, min_delta={min_delta}: {counted} epochs counted")
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
        options = {"ckpt_path": tmp_path / "last.ckpt", "weights_only": True}
        assert run(pairs, shallow, tmp_path, right, rest, **options)[0] == epochs
        assert rest.patience == patience
    # What a run without significance has no use for it does not carry along.
    plain = BERTScoreEarlyStopping()
    plain.load_state_dict(first.state_dict())
    assert plain.state_dict().keys() == first.state_dict().keys() - {"best_pairs"}
    copied = pickle.loads(pickle.dumps(first))
    assert torch.equal(copied.state_dict()["best_pairs"], saved["best_pairs"])


@pytest.mark.parametrize(
    ("first", "rest", "epochs"),
    [
        (0.05, 0.05, 2),  # the record of the fourth epoch does not count, and is the third without improvement
        (None, 0.05, 5),  # it counts, since what it is compared with is unknown, and that of the seventh does not
        (0.05, None, EPOCHS - 2),  # all count
    ],
)
def test_significance_may_change_in_a_resumed_run(pairs, shallow, tmp_path, first, rest, epochs):
    right = noise_around_a_plateau()
    module = chooser(pairs, right, count=COUNT, kind=Scripted)
    callbacks = [
        BERTScoreCallback(BERTScore(shallow, reduction="none")),
        BERTScoreEarlyStopping(significance=first),
        ModelCheckpoint(tmp_path, save_last=True),
    ]
    trainer(tmp_path, callbacks, max_epochs=2).fit(module, loader(2), loader(COUNT, batch_size=20))
    stopping = BERTScoreEarlyStopping(significance=rest)
    assert run(pairs, shallow, tmp_path, right, stopping, ckpt_path=tmp_path / "last.ckpt")[0] == epochs
    assert ("best_pairs" in stopping.state_dict()) == (rest is not None)


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
    callbacks = [BERTScoreCallback(BERTScore(shallow, reduction="none")), BERTScoreEarlyStopping(significance=0.05)]
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


def test_other_data_is_an_error(pairs, shallow, tmp_path):
    module = chooser(pairs, slow_progress(), count=COUNT, kind=Scripted)
    callbacks = [
        BERTScoreCallback(BERTScore(shallow, reduction="none")),
        BERTScoreEarlyStopping(significance=0.05),
        ModelCheckpoint(tmp_path, save_last=True),
    ]
    trainer(tmp_path, callbacks, max_epochs=1).fit(module, loader(2), loader(COUNT))
    rest = [callbacks[0], BERTScoreEarlyStopping(significance=0.05)]
    with pytest.raises(MisconfigurationException, match="has 30 pairs, but had 40 in the best epoch"):
        trainer(tmp_path, rest, max_epochs=2).fit(module, loader(2), loader(30), ckpt_path=tmp_path / "last.ckpt")


def test_a_single_pair_is_an_error(pairs, shallow, tmp_path):
    module = chooser(pairs, slow_progress(), count=COUNT, kind=Scripted)
    callbacks = [BERTScoreCallback(BERTScore(shallow, reduction="none")), BERTScoreEarlyStopping(significance=0.05)]
    with pytest.raises(MisconfigurationException, match="'val_bertscore_f1' has 1: validate on at least 2 pairs"):
        trainer(tmp_path, callbacks, max_epochs=3).fit(module, loader(2), loader(1))
    trainer(tmp_path, callbacks, max_epochs=1).fit(module, loader(2), loader(2))
