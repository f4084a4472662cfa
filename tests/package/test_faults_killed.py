"""Killed and interrupted processes: complete files stay, and the next run is correct."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback
from bertscore_tm.cli import main
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.metric.test_interrupted import die
from tests.package.test_faults_files import PAIRS
from tests.support.lightning_modules import Steady, chooser, trainer, weights
from tests.support.models import save_tiny_model
from tests.support.ranks import run_separate_ranks

pytestmark = pytest.mark.usefixtures("one_thread")

KILLED = -signal.SIGKILL
LAYER = 2
EPOCHS = 3


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return save_tiny_model("bert", tmp_path_factory.mktemp("tiny"))


def die_at_rename(rank: int, report: dict[str, Any], work: Any, *args: Any) -> None:
    """Run a function, and die when its output file is complete but not yet renamed."""
    Path.replace = lambda *_: die()  # type: ignore[assignment]
    work(*args)


def score_to(folder: Path, model: str) -> int:
    files = ["-c", str(folder / "c.txt"), "-r", str(folder / "r.txt"), "-o", str(folder / "scores.json")]
    return main(["score", *files, "-m", model, "-l", str(LAYER), "--device", "cpu", "--json"])


@pytest.mark.distributed
def test_command_killed_while_writing_keeps_the_old_file(tiny, tmp_path, capsys):
    for name, lines in zip(("c.txt", "r.txt"), PAIRS, strict=True):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    target = tmp_path / "scores.json"
    target.write_text("old content")
    (ended,) = run_separate_ranks(die_at_rename, 1, score_to, tmp_path, tiny)
    assert ended.exit_code == KILLED
    assert target.read_text() == "old content"
    assert score_to(tmp_path, tiny) == 0
    written = target.read_text()
    target.unlink()
    assert score_to(tmp_path, tiny) == 0
    assert target.read_text() == written


class ScoresOfSteps(pl.Callback):
    """Keeps the score of each validation by step."""

    def __init__(self) -> None:
        self.scores: dict[int, float] = {}

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.scores[trainer.global_step] = trainer.callback_metrics["val_bertscore_f1"].item()


def fit(folder: Path, model: str, generate: Any = None, resume: bool = False) -> tuple[dict[int, float], torch.Tensor]:
    module = chooser(PAIRS, kind=Steady)
    record = ScoresOfSteps()
    checkpoint = ModelCheckpoint(folder, every_n_train_steps=1, save_last=True)
    callbacks = [BERTScoreCallback(BERTScore(FrozenEncoder(model, num_layers=LAYER)), generate), record, checkpoint]
    run = trainer(folder, callbacks, max_epochs=EPOCHS)
    run.fit(module, ckpt_path=folder / "last.ckpt" if resume else None)
    return record.scores, weights(module)


class Interrupted:
    """Generates, until the user interrupts it in the second validation, in the middle of a batch."""

    def __init__(self) -> None:
        self.calls = 0
        self.before: list[Any] = []
        self.module: pl.LightningModule | None = None

    @staticmethod
    def state(module: pl.LightningModule) -> list[Any]:
        flags = [part.training for part in module.modules()]
        return [flags, torch.get_rng_state().tolist(), random.getstate(), torch.is_inference_mode_enabled()]

    def __call__(self, module: Any, batch: torch.Tensor) -> tuple[list[str], list[str]]:
        self.calls += 1
        texts = module.choose(batch)
        if self.calls == 5:
            module.train()
            torch.rand(3)
            random.random()
            self.module = module
            # Handled here; after a signal from outside, the interrupt could be raised in a callback that ignores it.
            signal.raise_signal(signal.SIGINT)
        return texts


class StateBefore(pl.Callback):
    """Keeps the state that the next callback must restore."""

    def __init__(self, generate: Interrupted) -> None:
        self.generate = generate

    def on_validation_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        self.generate.before = Interrupted.state(pl_module)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        assert isinstance(exception, KeyboardInterrupt)
        self.generate.before = [self.generate.before, Interrupted.state(pl_module)]


def test_interrupt_in_validation_restores_the_training_state(tiny, tmp_path):
    scores, wanted = fit(tmp_path / "unbroken", tiny, lambda module, batch: module.choose(batch))
    generate = Interrupted()
    module = chooser(PAIRS, kind=Steady)
    scorer = BERTScoreCallback(BERTScore(FrozenEncoder(tiny, num_layers=LAYER)), generate)
    checkpoint = ModelCheckpoint(tmp_path / "broken", every_n_train_steps=1, save_last=True)
    run = trainer(tmp_path / "broken", [StateBefore(generate), scorer, checkpoint], max_epochs=EPOCHS)
    # As in a program; processes of pytest-xdist ignore interrupts.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            run.fit(module)
    finally:
        # Lightning ignores further interrupts from then on.
        signal.signal(signal.SIGINT, handler)
    assert run.interrupted
    before, after = generate.before
    assert after == before
    # The same callback scores the next run correctly.
    run = trainer(tmp_path / "again", [scorer], max_epochs=EPOCHS)
    run.validate(chooser(PAIRS, kind=Steady), verbose=False)
    first = run.callback_metrics["val_bertscore_f1"].item()
    fresh = trainer(
        tmp_path / "fresh", [BERTScoreCallback(BERTScore(FrozenEncoder(tiny, num_layers=LAYER)))], max_epochs=EPOCHS
    )
    fresh.validate(chooser(PAIRS, kind=Steady), verbose=False)
    assert first == pytest.approx(fresh.callback_metrics["val_bertscore_f1"].item(), abs=1e-6)
    # The checkpoint is that of the last step, and the resumed training ends like the uninterrupted run.
    assert torch.load(tmp_path / "broken" / "last.ckpt", weights_only=True)["global_step"] == 6
    found_scores, found = fit(tmp_path / "broken", tiny, lambda module, batch: module.choose(batch), resume=True)
    assert torch.equal(found, wanted)
    assert found_scores[9] == pytest.approx(scores[9], abs=1e-6)


def test_interrupt_in_the_backward_pass_changes_no_gradient(tiny):
    encoder = FrozenEncoder(tiny, num_layers=LAYER)
    loss = SoftBERTScoreLoss(encoder)
    logits = torch.randn(2, 6, encoder.tokenizer.vocab_size, generator=torch.Generator().manual_seed(0))
    logits.requires_grad_()
    wanted = torch.autograd.grad(loss(logits, PAIRS[1][:2]), logits)[0]
    part = encoder.backbone(torch.device("cpu")).encoder.layer[0]

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    hook = part.register_full_backward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        loss(logits, PAIRS[1][:2]).backward()
    hook.remove()
    assert logits.grad is None
    loss(logits, PAIRS[1][:2]).backward()
    assert torch.equal(logits.grad, wanted)
    assert all(parameter.grad is None for parameter in encoder.backbone(torch.device("cpu")).parameters())
