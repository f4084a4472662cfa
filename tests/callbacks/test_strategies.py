"""Training is bitwise unchanged by scoring: precisions, compilation, intervals, checkpoints and schedulers."""

from __future__ import annotations

import random
import time
from datetime import timedelta
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback, CausalGenerate, Seq2SeqGenerate
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.callback_runs import (
    Keep,
    ShardedChooser,
    Writer,
    differences,
    logged,
    means,
    numpy_state,
    texts_of,
    whole_weights,
    write_wildly,
)
from tests.support.lightning_modules import Chooser, Quality, Record, Steady, chooser, loader, trainer

pytestmark = pytest.mark.usefixtures("one_thread")

PRECISIONS = ["32-true", "bf16-mixed", "bf16-true"]
COUNT = 9


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture(scope="module")
def shallow(minilm):
    return FrozenEncoder(minilm, num_layers=2)


# Precisions, and ways to train


class Partly(ShardedChooser):
    """One of its layers is in evaluation mode all the time."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.net[1].eval()

    def training_step(self, batch, batch_idx):
        # `self.log` cannot be compiled.
        return nn.functional.cross_entropy(self.net(self.inputs[batch]), batch)


class Manual(Partly):
    """Steps two optimizers by itself."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        first, second = self.optimizers()
        self.manual_backward(loss)
        first.step()
        first.zero_grad()
        if batch_idx % 2:
            second.step()
            second.zero_grad()

    def configure_optimizers(self):
        return [torch.optim.Adam(self.net[0].parameters(), self.lr), torch.optim.SGD(self.net[3].parameters(), self.lr)]


class Graphs:
    """A backend of torch.compile that runs what was traced as it is, and counts it."""

    def __init__(self):
        self.count = 0

    def __call__(self, graph, inputs):
        self.count += 1
        return graph.forward


GRAPHS = Graphs()


def compiled_whole(module):
    return torch.compile(module, backend=GRAPHS)


def compiled_net(module):
    module.net = torch.compile(module.net, backend=GRAPHS)
    return module


WAYS = {
    "plain": (Partly, lambda module: module, {}),
    "accumulated": (Partly, lambda module: module, {"accumulate_grad_batches": 2}),
    "manual": (Manual, lambda module: module, {}),
    "compiled": (Partly, compiled_whole, {}),
    "compiled net": (ShardedChooser, compiled_net, {}),
}


def fitted(pairs, folder, way, precision, callbacks):
    kind, prepared, options = WAYS[way]
    module, keep = chooser(pairs, kind=kind, count=COUNT), Keep()
    first = whole_weights(module)
    run = trainer(folder, [keep, *callbacks], val_check_interval=1, precision=precision, **options)
    graphs = GRAPHS.count
    run.fit(prepared(module))
    assert (GRAPHS.count > graphs) == way.startswith("compiled")
    assert not torch.equal(whole_weights(module).float(), first)
    return module, keep.found, run


MATRIX = [("plain", precision) for precision in PRECISIONS]
MATRIX += [
    ("accumulated", "bf16-mixed"),
    ("manual", "bf16-true"),
    ("compiled", "32-true"),
    ("compiled net", "bf16-mixed"),
]


@pytest.mark.parametrize(("way", "precision"), MATRIX)
def test_training_is_bitwise_equal_to_a_run_without_the_callback(pairs, shallow, tmp_path, way, precision):
    _, plain, _ = fitted(pairs, tmp_path, way, precision, [])
    assert plain["weights"].dtype == (torch.bfloat16 if precision == "bf16-true" else torch.float32)
    assert len(plain["optimizers"]) == (2 if way == "manual" else 1)
    assert False in plain["flags"] or way == "compiled net"
    for generate in (None, write_wildly):
        callback = BERTScoreCallback(BERTScore(shallow, idf=True), generate)
        torch.compiler.reset()
        module, scored, run = fitted(pairs, tmp_path, way, precision, [callback])
        assert differences(plain, scored) == []
        texts = texts_of(module.written if generate else module.seen)
        assert len(texts[0]) == 7
        assert logged(run.callback_metrics) == pytest.approx(means(*texts, shallow, idf=True), abs=1e-6)


def test_comparison_detects_careless_generation(pairs, tmp_path):
    """The same generation in a callback without isolation."""

    class Careless(pl.Callback):
        def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            write_wildly(pl_module, batch)

    _, plain, _ = fitted(pairs, tmp_path, "plain", "32-true", [])
    _, disturbed, _ = fitted(pairs, tmp_path, "plain", "32-true", [Careless()])
    assert {"weights", "optimizers", "torch", "python", "numpy"} <= set(differences(plain, disturbed))


@pytest.mark.parametrize(("family", "precision"), [("bart", "32-true"), ("gpt2", "bf16-mixed"), ("bart", "bf16-true")])
def test_sampled_generation_of_a_real_model(minilm, shallow, tmp_path, family, precision):
    kind = CausalGenerate if family == "gpt2" else Seq2SeqGenerate

    def fit(scored):
        torch.manual_seed(0)
        module, keep, written = Writer(family), Keep(), []
        module.train()
        make = kind(module.tokenizer, max_new_tokens=4, do_sample=True)

        def remember(pl_module, batch):
            written.append((0, *make(pl_module, batch)))
            return written[-1][1:]

        callback = BERTScoreCallback(BERTScore(shallow), remember)
        run = trainer(tmp_path, [keep, callback] if scored else [keep], max_epochs=2, precision=precision)
        run.fit(module)
        return keep.found, written, run.callback_metrics

    plain, _, _ = fit(False)
    found, written, metrics = fit(True)
    assert len(written) == 8
    assert all(found["flags"])
    assert differences(plain, found) == []
    assert logged(metrics) == pytest.approx(means(*texts_of(written[4:]), shallow), abs=1e-6)


class Loss(Chooser):
    """Trains with the loss, whose encoder is loaded in the first training step, and validates with it too."""

    def __init__(self, choices, references, encoder, dtype):
        super().__init__(choices, references)
        self.soft = SoftBERTScoreLoss(encoder)
        self.head = nn.Linear(8, 30522)
        self.dtype_of_training = dtype

    def training_step(self, batch, batch_idx):
        logits = self.head(self.inputs[batch])[:, None].expand(-1, 4, -1)
        texts = [self.references[i] for i in batch.tolist()]
        return self.soft(logits, self.soft.encode_references(texts)) + super().training_step(batch, batch_idx)


@pytest.mark.parametrize(("precision", "sanity"), [("32-true", 0), ("32-true", 2), ("bf16-mixed", 2), ("bf16-true", 0)])
def test_a_loss_on_the_same_encoder(pairs, minilm, shallow, tmp_path, precision, sanity):
    """References are encoded in validation without, and in training with gradients, in either order."""
    encoder = FrozenEncoder(minilm, num_layers=2)
    module = chooser(pairs, encoder, precision, kind=Loss, count=COUNT)
    callback = BERTScoreCallback(BERTScore(encoder))
    run = trainer(tmp_path, [callback], num_sanity_val_steps=sanity, precision=precision)
    run.fit(module)
    assert logged(run.callback_metrics) == pytest.approx(means(*texts_of(module.seen), shallow), abs=1e-6)
    assert module.head.weight.dtype == (torch.bfloat16 if precision == "bf16-true" else torch.float32)


# Errors in the middle


class State(pl.Callback):
    """Keeps what scoring may not change, when each batch has been validated and when an error has ended the run."""

    def __init__(self):
        self.before, self.after = [], []

    def found(self, pl_module):
        return {
            "torch": torch.get_rng_state(),
            "python": random.getstate(),
            "numpy": numpy_state(),
            "flags": [part.training for part in pl_module.modules()],
        }

    def on_validation_batch_end(self, trainer, pl_module, *args):
        self.before.append(self.found(pl_module))

    def on_exception(self, trainer, pl_module, exception):
        modes = [torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_autocast_enabled("cpu")]
        self.after.append((self.found(pl_module), modes, torch.is_inference_mode_enabled()))


@pytest.mark.parametrize(("precision", "sanity"), [("32-true", 0), ("bf16-mixed", 2), ("bf16-true", 0)])
def test_state_after_failed_generation(pairs, shallow, tmp_path, precision, sanity):
    calls = []

    def generate(pl_module, batch):
        texts = write_wildly(pl_module, batch)
        calls.append((torch.get_default_dtype(), torch.is_autocast_enabled("cpu")))
        if len(calls) == 2:
            raise KeyError("no text")
        return texts

    state, module = State(), chooser(pairs, kind=Partly, count=COUNT)
    callback = BERTScoreCallback(BERTScore(shallow), generate)
    with pytest.raises(KeyError, match="no text"):
        trainer(tmp_path, [state, callback], num_sanity_val_steps=sanity, precision=precision).fit(module)
    inside = torch.bfloat16 if precision == "bf16-true" else torch.float32
    assert calls == [(inside, precision == "bf16-mixed")] * 2
    [(found, modes, inference)] = state.after
    assert len(state.before) == 2
    assert differences(state.before[-1], found) == []
    assert not any(found["flags"])  # as in every validation
    assert modes == [True, torch.float32, False]
    assert not inference


# When validation runs, and what of it


class History(Record):
    """Keeps what every validation has logged and seen."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_validation_end(self, trainer, pl_module):
        super().on_validation_end(trainer, pl_module)
        if not trainer.sanity_checking:
            self.seen.append((trainer.global_step, logged(trainer.callback_metrics), list(pl_module.seen)))


# The steps after which validation runs, and how many examples it has.
INTERVALS = {
    "count": ({"val_check_interval": 2}, [2, 5], 7),
    "fraction": ({"val_check_interval": 0.67}, [2, 5], 7),
    "across epochs": ({"val_check_interval": 2, "check_val_every_n_epoch": None, "max_epochs": 3}, [2, 4, 6, 8], 7),
    "beyond an epoch": ({"val_check_interval": 4, "check_val_every_n_epoch": None, "max_epochs": 3}, [4, 8], 7),
    "short epochs": ({"limit_train_batches": 2}, [2, 4], 7),
    "few steps": ({"max_steps": 5, "max_epochs": -1, "val_check_interval": 2}, [2, 5], 7),
    "fast_dev_run": ({"fast_dev_run": 2}, [2], 6),
    "overfit_batches": ({"overfit_batches": 2}, [2, 4], 6),
    "one batch": ({"limit_val_batches": 1, "val_check_interval": 2}, [2, 5], 3),
}


@pytest.mark.parametrize(("interval", "limit"), [*((name, None) for name in INTERVALS), ("across epochs", 1)])
def test_every_validation_is_scored(pairs, shallow, tmp_path, interval, limit):
    arguments, steps, examples = INTERVALS[interval]
    module, history = chooser(pairs, count=COUNT), History()
    callback = BERTScoreCallback(BERTScore(shallow), max_batches=limit)
    trainer(tmp_path, [callback, history], **arguments).fit(module)
    assert [step for step, _, _ in history.seen] == steps
    for _, scores, seen in history.seen:
        assert texts_of(seen)[1] == pairs[1][:examples]
        assert scores == pytest.approx(means(*texts_of(seen[:limit]), shallow), abs=1e-6)


class Slow(Chooser):
    """Each training step advances the patched clock by a second."""

    now = 0.0

    def training_step(self, batch, batch_idx):
        Slow.now += 1.0
        return super().training_step(batch, batch_idx)


def test_validation_every_so_many_seconds(pairs, shallow, tmp_path, monkeypatch):
    monkeypatch.setattr(Slow, "now", 0.0)
    monkeypatch.setattr(time, "monotonic", lambda: Slow.now)
    module, history = chooser(pairs, kind=Slow, count=COUNT), History()
    checkpoint = ModelCheckpoint(tmp_path, monitor="val_bertscore_f1", mode="max")
    callbacks = [BERTScoreCallback(BERTScore(shallow)), history, checkpoint]
    trainer(
        tmp_path, callbacks, val_check_interval=timedelta(seconds=2), check_val_every_n_epoch=None, max_epochs=3
    ).fit(module)
    assert [step for step, _, _ in history.seen] == [2, 4, 6, 8]
    for _, scores, seen in history.seen:
        assert scores == pytest.approx(means(*texts_of(seen), shallow), abs=1e-6)
    assert checkpoint.best_model_score.item() == max(history.scores)


@pytest.mark.parametrize("limit", [None, 2])
def test_several_loaders_and_the_sanity_check(pairs, shallow, tmp_path, limit):
    module, sanity = chooser(pairs, val_sizes=(9, 2, 4), count=COUNT), []

    class Watch(pl.Callback):
        def on_validation_end(self, trainer, pl_module):
            if trainer.sanity_checking:
                sanity.append((dict(trainer.callback_metrics), list(pl_module.seen)))

    callback = BERTScoreCallback(BERTScore(shallow), max_batches=limit)
    run = trainer(tmp_path, [callback, Watch()], num_sanity_val_steps=-1)
    run.fit(module)
    assert len(sanity) == 1
    for metrics, seen in [*sanity, (run.callback_metrics, module.seen)]:
        parts = []
        for number in range(3):
            own = [batch for batch in seen if batch[0] == number]
            parts.append(means(*texts_of(own[:limit]), shallow))
            assert logged(metrics, suffix=f"_dataloader_idx_{number}") == pytest.approx(parts[-1], abs=1e-6)
        assert logged(metrics) == pytest.approx(np.mean(parts, axis=0), abs=1e-6)


def test_prediction_is_not_scored(pairs, shallow, tmp_path):
    module = chooser(pairs, count=COUNT)
    module.predict_step = lambda batch, batch_idx: module.choose(batch)
    callback = BERTScoreCallback(BERTScore(shallow), write_wildly)
    run = trainer(tmp_path, [callback])
    predicted = run.predict(module, loader(7))
    assert [target for _, targets in predicted for target in targets] == pairs[1][:7]
    assert not run.callback_metrics


# Checkpoints


def best_scores(callback):
    return {Path(path).name: score.item() for path, score in callback.best_k_models.items()}


@pytest.mark.parametrize("scorer_first", [True, False])
def test_the_best_epochs_are_kept(pairs, shallow, tmp_path, scorer_first):
    checkpoint = ModelCheckpoint(tmp_path, monitor="val_bertscore_f1", mode="max", save_top_k=2, save_last=True)
    checkpoint.filename = "{epoch}-{val_bertscore_f1:.4f}"
    record, module = Record(), chooser(pairs, [3, 1, 6, 2, 5], kind=Quality, count=COUNT)
    scorer = BERTScoreCallback(BERTScore(shallow))
    callbacks = [scorer, checkpoint] if scorer_first else [checkpoint, scorer]
    run = trainer(tmp_path, [*callbacks, record], max_epochs=5, num_sanity_val_steps=2)
    run.fit(module)
    third, fifth = (f"epoch={e}-val_bertscore_f1={record.scores[e]:.4f}.ckpt" for e in (2, 4))
    assert sorted(record.scores)[-2:] == [record.scores[4], record.scores[2]]
    assert best_scores(checkpoint) == {third: record.scores[2], fifth: record.scores[4]}
    assert {path.name for path in tmp_path.iterdir()} == {third, fifth, "last.ckpt"}
    assert torch.load(tmp_path / "last.ckpt", weights_only=False)["epoch"] == 4
    assert Path(checkpoint.best_model_path).name == third


def test_run_continues_from_the_best_checkpoint(pairs, shallow, tmp_path):
    whole, rest = Record(), Record()
    checkpoint = ModelCheckpoint(tmp_path, monitor="val_bertscore_f1", mode="max")
    scorer = BERTScoreCallback(BERTScore(shallow))
    module = chooser(pairs, kind=Steady, count=COUNT)
    run = trainer(tmp_path, [checkpoint, scorer, whole], max_epochs=6)
    run.fit(module)
    last, scores = whole_weights(module), list(whole.scores)
    best = scores.index(max(scores))
    assert best < 5
    run.validate(module, ckpt_path="best", verbose=False)
    assert logged(run.callback_metrics)[-1] == checkpoint.best_model_score.item() == max(scores)
    run.test(module, ckpt_path="best", verbose=False)
    assert logged(run.callback_metrics, stage="test")[-1] == max(scores)
    resumed = chooser(pairs, kind=Steady, count=COUNT, lr=9.0)
    again = ModelCheckpoint(tmp_path, monitor="val_bertscore_f1", mode="max")
    callbacks = [again, BERTScoreCallback(BERTScore(shallow)), rest]
    trainer(tmp_path, callbacks, max_epochs=6, num_sanity_val_steps=1).fit(
        resumed, ckpt_path=checkpoint.best_model_path
    )
    assert rest.scores == scores[best + 1 :]
    assert torch.equal(whole_weights(resumed), last)
    assert again.best_model_score.item() == max(scores)
    assert again.best_model_path == checkpoint.best_model_path


def test_checkpoints_between_epochs(pairs, shallow, tmp_path):
    """After each validation, with its score."""
    checkpoint = ModelCheckpoint(tmp_path, "{step}", monitor="val_bertscore_f1", mode="max", save_top_k=-1)
    module, history = chooser(pairs, count=COUNT), History()
    callbacks = [checkpoint, BERTScoreCallback(BERTScore(shallow)), history]
    trainer(tmp_path, callbacks, val_check_interval=2, check_val_every_n_epoch=None, max_epochs=3).fit(module)
    assert best_scores(checkpoint) == {f"step={step}.ckpt": scores[-1] for step, scores, _ in history.seen}
    assert len(history.seen) == 4
    for step, _, _ in history.seen:
        assert torch.load(tmp_path / f"step={step}.ckpt", weights_only=False)["global_step"] == step


def test_checkpoints_after_so_many_steps(pairs, shallow, tmp_path):
    """Lightning saves them before the validation of that step, except where there was none yet, or an epoch ends."""
    checkpoint = ModelCheckpoint(
        tmp_path, "{step}", monitor="val_bertscore_f1", mode="max", every_n_train_steps=2, save_top_k=2
    )
    module, history = chooser(pairs, count=COUNT), History()
    callbacks = [checkpoint, BERTScoreCallback(BERTScore(shallow)), history]
    trainer(tmp_path, callbacks, val_check_interval=1, max_epochs=3).fit(module)
    scores = {step: scores[-1] for step, scores, _ in history.seen}
    assert list(scores) == list(range(1, 10))
    assert len(set(scores.values())) > 4
    saved = best_scores(checkpoint)
    assert len(saved) == 2
    for name, score in saved.items():
        step = int(name.removeprefix("step=").removesuffix(".ckpt"))
        assert step % 2 == 0
        assert score in (scores[step - 1], scores[step])
    assert checkpoint.best_model_score.item() == max(saved.values())


# Schedules


def plateau(optimizer, patience):
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=patience, threshold=0.0)


class Stepping(Quality):
    """Its learning rate follows the score; ``settings`` are those of the trainer's scheduler."""

    def __init__(self, choices, references, qualities, patience=1, **settings):
        super().__init__(choices, references, qualities)
        self.patience, self.settings = patience, settings

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 1.0)
        settings = {"scheduler": plateau(optimizer, self.patience), "monitor": "val_bertscore_f1", **self.settings}
        return {"optimizer": optimizer, "lr_scheduler": settings}


class Rates(pl.Callback):
    """Keeps the learning rate of every epoch."""

    def __init__(self):
        self.rates = []

    def on_train_epoch_start(self, trainer, pl_module):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


def rates_of(scores, patience=1, frequency=1):
    """What torch's scheduler makes of the scores by itself."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 1.0)
    scheduler, found = plateau(optimizer, patience), []
    for epoch, score in enumerate(scores, 1):
        found.append(optimizer.param_groups[0]["lr"])
        if epoch % frequency == 0:
            scheduler.step(score)
    return found, counted(scheduler)


def counted(scheduler):
    return scheduler.best, scheduler.num_bad_epochs


FALLING = [5, 4, 3, 6, 2, 1, 7, 5]


@pytest.mark.parametrize(
    ("settings", "scorer_first"),
    [({}, True), ({}, False), ({"interval": "epoch", "frequency": 2, "patience": 0}, False), ({"strict": False}, True)],
    ids=str,
)
def test_the_learning_rate_follows_the_score(pairs, shallow, tmp_path, settings, scorer_first):
    record, rates = Record(), Rates()
    module = chooser(pairs, FALLING, kind=Stepping, count=COUNT, **settings)
    scorer = BERTScoreCallback(BERTScore(shallow))
    callbacks = [scorer, rates, record] if scorer_first else [rates, record, scorer]
    checkpoint = ModelCheckpoint(tmp_path, monitor="val_bertscore_f1", mode="max")
    run = trainer(tmp_path, [checkpoint, *callbacks], max_epochs=8, num_sanity_val_steps=1)
    run.fit(module)
    expected, state = rates_of(record.scores, settings.get("patience", 1), settings.get("frequency", 1))
    assert rates.rates == expected
    assert len(set(expected)) > 1
    assert counted(run.lr_scheduler_configs[0].scheduler) == state


def test_scheduler_without_a_score(pairs, shallow, tmp_path):
    module = chooser(pairs, FALLING, kind=Stepping, count=COUNT)
    with pytest.raises(MisconfigurationException, match="val_bertscore_f1"):
        trainer(tmp_path, [], max_epochs=1).fit(module)
    # Every second epoch has a score, and the schedule asks after each.
    record, module = Record(), chooser(pairs, FALLING, kind=Stepping, count=COUNT, strict=False)
    callbacks = [BERTScoreCallback(BERTScore(shallow)), record]
    run = trainer(tmp_path, callbacks, max_epochs=2, check_val_every_n_epoch=2)
    with pytest.warns(RuntimeWarning, match="conditioned on metric val_bertscore_f1 which is not available"):
        run.fit(module)
    assert len(record.scores) == 1
    assert run.lr_scheduler_configs[0].scheduler.best == record.scores[0]


@pytest.mark.parametrize("epochs", [2, 6])
def test_resumed_run_continues_the_scheduler(pairs, shallow, tmp_path, epochs):
    """Also in the middle of its patience."""

    def fit(last, **options):
        record, rates = Record(), Rates()
        callbacks = [rates, BERTScoreCallback(BERTScore(shallow)), record]
        run = trainer(tmp_path, callbacks, max_epochs=last)
        run.fit(chooser(pairs, FALLING, kind=Stepping, count=COUNT), **options)
        return run, record.scores, rates.rates

    first, scores, rates = fit(epochs)
    first.save_checkpoint(tmp_path / "first.ckpt")
    second, more, later = fit(8, ckpt_path=tmp_path / "first.ckpt")
    expected, state = rates_of(scores + more)
    assert rates + later == expected
    assert counted(second.lr_scheduler_configs[0].scheduler) == state
