"""Full disks and damaged files: a clear message, and no result is lost."""

from __future__ import annotations

import resource
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from safetensors.torch import load_file, save_file

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback, SampleLogger
from bertscore_tm.cli import main
from tests.support.lightning_runs import chooser, trainer, weights
from tests.support.models import save_tiny_model

WORDS = [f"{a} {b} {c}" for a in ("a cat", "the dog") for b in ("sat", "ran") for c in ("here", "there", "home")]
PAIRS = (WORDS[:9], WORDS[3:])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model("bert", folder)
    return folder


@contextmanager
def limit_file_size(size: int) -> Generator[None, None, None]:
    """Limit the size of files in bytes, as on a full disk: the system writes what fits and then fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def command(tiny, tmp_path, capsys):
    """Function that scores two files and returns the printed output."""
    for name, lines in zip(("c.txt", "r.txt"), PAIRS, strict=True):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))

    def run(*arguments: str, exit_code: int = 0):
        files = ["-c", str(tmp_path / "c.txt"), "-r", str(tmp_path / "r.txt")]
        capsys.readouterr()
        assert main(["score", *files, "-m", str(tiny), "-l", "2", "--device", "cpu", *arguments]) == exit_code
        return capsys.readouterr()

    return run


def test_full_disk_keeps_the_old_file_and_prints_the_result(command, tmp_path):
    wanted = command("--json").out
    target = tmp_path / "scores.json"
    target.write_text("old content")
    before = sorted(tmp_path.iterdir())
    with limit_file_size(100):
        printed = command("--json", "-o", str(target), exit_code=1)
    assert printed.err == f"bertscore-tm: error: {target}: File too large; the file keeps its old content\n"
    assert printed.out == wanted
    assert target.read_text() == "old content"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_full_standard_output(command, monkeypatch):
    full = open("/dev/full", "w")  # noqa: PTH123, SIM115
    monkeypatch.setattr(sys, "stdout", full)
    printed = command(exit_code=2)
    assert printed.err == "bertscore-tm: error: [Errno 28] No space left on device\n"
    with suppress(OSError):
        full.close()


def test_training_continues_when_samples_cannot_be_written(tiny, tmp_path):
    def train(name: str):
        module = chooser(PAIRS)
        scorer = BERTScoreCallback(BERTScore(FrozenEncoder(tiny, num_layers=2)))
        run = trainer(tmp_path / name, [scorer, SampleLogger(3, 0)], logger=CSVLogger(tmp_path / name, version=0))
        run.fit(module)
        return module, run.callback_metrics["val_bertscore_f1"]

    wanted, score = train("enough")
    assert len(list((tmp_path / "enough").rglob("samples/*.csv"))) == 2
    # The metrics of the same logger are smaller.
    with (
        limit_file_size(300),
        pytest.warns(UserWarning, match="SampleLogger could not write .*/val_samples_step") as said,
    ):
        module, limited_score = train("full")
    messages = [str(warning.message) for warning in said if "SampleLogger" in str(warning.message)]
    assert len(messages) == 2
    assert "File too large; no file was written); training continues without it" in messages[0]
    assert torch.equal(weights(module), weights(wanted))
    assert torch.equal(limited_score, score)
    assert list((tmp_path / "full").rglob("samples/*")) == []


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def replace_by_html(path: Path) -> None:
    path.write_text("<html>Sign in to the network</html>")


def replace_by_empty_json(path: Path) -> None:
    path.write_text("{}")


@pytest.mark.parametrize(
    ("what", "file", "damage"),
    [
        ("weights", "model.safetensors", truncate),
        ("weights", "model.safetensors", Path.unlink),
        ("configuration", "config.json", Path.unlink),
        ("configuration", "config.json", replace_by_html),
        ("tokenizer", "tokenizer.json", truncate),
        ("tokenizer", "tokenizer.json", replace_by_empty_json),
    ],
)
def test_a_damaged_file_is_an_error_with_the_remedy(tiny, tmp_path, what, file, damage):
    folder = shutil.copytree(tiny, tmp_path / "model")
    damage(folder / file)
    said = rf"^could not load the {what} of .*model' from that folder\. Pass a name on the hub, or .*merge_and_unload"
    with pytest.raises(OSError, match=said):
        FrozenEncoder(folder, num_layers=2).encode(["a cat"])


def test_missing_weights_are_an_error(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    for name in ("pooler.dense.weight", "encoder.layer.2.output.dense.weight"):
        del tensors[name]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    # What is not used may be missing.
    wanted, incomplete = (FrozenEncoder(place, num_layers=2).encode(["a cat"]) for place in (tiny, folder))
    assert torch.equal(incomplete.vectors, wanted.vectors)
    with pytest.raises(OSError, match=r"its file lacks 1 of them \(encoder\.layer\.2\.output\.dense\.weight\)"):
        FrozenEncoder(folder, num_layers=3).encode(["a cat"])
