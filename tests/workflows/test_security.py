"""Untrusted input stays data: no code of models or pickles runs, no name leaves a folder."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import matplotlib
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from safetensors.torch import save_file

from bertscore_tm import BERTScore, FrozenEncoder, catalog
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreEarlyStopping, SampleLogger
from bertscore_tm.encoder.loading import resolve_tokenizer
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.lightning_runs import Chooser, generate, loader, trainer
from tests.support.markdown_blocks import ROOT
from tests.support.models import tiny_model
from tests.support.public_surface import package_modules
from tests.support.shell import run_here, write_lines

TEXTS = ["a list of names", "open the file", "it rains", "the dog ran home"]
PARTS = MODEL, TOKENIZER = tiny_model("bert")


# Both trainings write to one folder.
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning")
def test_a_checkpoint_of_everything_loads_as_weights_alone(tmp_path):
    own = {"inputs", "net.0.weight", "net.0.bias", "net.3.weight", "net.3.bias"}
    encoder = FrozenEncoder(*PARTS, num_layers=2)
    callbacks = [
        BERTScoreCallback(BERTScore(encoder, reduction="none"), generate),
        BERTScoreEarlyStopping(),
        SampleLogger(1),
        ModelCheckpoint(tmp_path, save_last=True),
    ]

    def fit(max_epochs: int, **options: Any) -> pl.Trainer:
        module = Chooser(TEXTS, TEXTS[::-1])
        module.metric, module.loss, module.weight = BERTScore(encoder), SoftBERTScoreLoss(encoder), 1.0
        run = trainer(tmp_path, callbacks, max_epochs=max_epochs, logger=CSVLogger(tmp_path, "csv"))
        run.fit(module, loader(4), loader(4), **options)
        return run

    fit(1)
    content = torch.load(tmp_path / "last.ckpt", weights_only=True)
    resumed = fit(2, ckpt_path=tmp_path / "last.ckpt", weights_only=True)

    assert len(content["callbacks"]) == 3
    assert set(content["state_dict"]) == own
    assert resumed.current_epoch == 2


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.fixture
def folder(tmp_path) -> Path:
    """Configuration and tokenizer of a model, but no weights."""
    MODEL.config.save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def marker(tmp_path) -> Path:
    """A file that exists as soon as untrusted code ran."""
    return tmp_path / "it ran"


@pytest.fixture
def pickled(folder, marker) -> Path:
    """Weights as a pickle with code."""
    path = folder / "pytorch_model.bin"
    torch.save(MODEL.state_dict() | {"more": Payload(marker)}, path)
    return path


def test_a_pickle_among_weights_never_runs(folder, pickled, marker):
    with pytest.raises(OSError, match=r"could not load the weights of '.*model'"):
        FrozenEncoder(folder, num_layers=1).encode(TEXTS)

    assert not marker.exists()
    # It does run where it may.
    torch.load(pickled, weights_only=False)
    assert marker.exists()


@pytest.mark.usefixtures("pickled")
def test_safetensors_are_read_instead_of_a_pickle(folder, marker):
    save_file(dict(MODEL.state_dict()), folder / "model.safetensors", {"format": "pt"})
    expected = FrozenEncoder(*PARTS, num_layers=1).encode(TEXTS).vectors

    vectors = FrozenEncoder(folder, num_layers=1).encode(TEXTS).vectors

    torch.testing.assert_close(vectors, expected)
    assert not marker.exists()


def write_code(folder: Path, marker: Path, name: str, auto_map: dict[str, Any], **changed: Any) -> None:
    """Write Python code to a model's folder, and a configuration file that leads to it."""
    code = f"""
import pathlib
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
pathlib.Path({str(marker)!r}).touch()
class OwnConfig(BertConfig):
    pass
class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""
    (folder / "own_code.py").write_text(code, encoding="utf-8")
    path = folder / name
    content = json.loads(path.read_text(encoding="utf-8")) | {"auto_map": auto_map} | changed
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def model_with_code(folder, marker) -> Path:
    """Folder of a model whose configuration is a class of its own code."""
    write_code(folder, marker, "config.json", {"AutoConfig": "own_code.OwnConfig"}, model_type="own")
    return folder


@pytest.fixture
def yes(monkeypatch):
    """Answer yes to every question: nobody must be asked."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))


@pytest.mark.usefixtures("yes")
@pytest.mark.parametrize("make", [FrozenEncoder, BERTScore, SoftBERTScoreLoss])
def test_code_in_a_models_folder_does_not_run(model_with_code, marker, make):
    with pytest.raises(OSError, match=r"(?s)could not load the configuration of '.*model'.*trust_remote_code=True"):
        make(model_with_code)

    assert not marker.exists()


@pytest.mark.usefixtures("yes")
def test_the_shell_names_the_option_that_trusts_code(model_with_code, marker, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "texts", TEXTS)

    printed = run_here(capsys, "score", "texts", "texts", "--model", model_with_code, "--num-layers", 1, exit_code=2)

    assert "--trust-remote-code" in printed.err
    assert not marker.exists()


def test_code_in_a_models_folder_runs_where_it_is_trusted(model_with_code, marker):
    with pytest.raises(ValueError, match="own"):
        FrozenEncoder(model_with_code, num_layers=1, trust_remote_code=True)

    assert marker.exists()


@pytest.mark.usefixtures("yes")
def test_code_next_to_a_tokenizer_never_runs(folder, marker):
    (folder / "config.json").unlink()
    auto_map = {"AutoTokenizer": ["own_code.OwnTokenizer", "own_code.OwnTokenizer"]}
    write_code(folder, marker, "tokenizer_config.json", auto_map, tokenizer_class="OwnTokenizer")
    encoder = FrozenEncoder(*PARTS, num_layers=1)
    message = r"(?s)could not load the tokenizer of '.*model'.*custom code"

    with pytest.raises(OSError, match=message):
        resolve_tokenizer(folder, "tokenizer")
    with pytest.raises(OSError, match=message):
        SoftBERTScoreLoss(encoder, tokenizer=folder)

    assert not marker.exists()


def test_no_name_reads_a_file_outside_the_packaged_tables(tmp_path):
    data = ROOT / "bertscore_tm" / "data" / "baselines"
    table = data / "en" / "roberta-large.csv"
    outside = tmp_path / "table"
    shutil.copy(table, f"{outside}.csv")
    away = os.path.relpath(outside, table.parent)

    for language, name in [("en", str(outside)), ("en", away), ("en/../en", table.stem)]:
        with pytest.raises(ValueError, match="no baseline for language"):
            catalog.baseline(language, name)


GUARDED = """
import importlib, json, socket, sys
attempts = []
def guard(event, args):
    asks = event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.connect", "socket.sendto")
    if (asks and not (event == "socket.connect" and args[0].family == socket.AF_UNIX)) or (
        event == "socket.__new__" and args[1] != socket.AF_UNIX
    ):
        attempts.append([event, repr(args)])
        raise RuntimeError("no network in this test")
sys.addaudithook(guard)

import torch
torch.set_num_threads(1)
for name in sys.argv[2:]:
    importlib.import_module(name)
from bertscore_tm import BERTScore, FrozenEncoder, catalog
from bertscore_tm.cli import main
from bertscore_tm.losses import SoftBERTScoreLoss

model = sys.argv[1]
metric = BERTScore(FrozenEncoder(model, num_layers=1))
metric.update(["a cat"], ["the cat"])
f1 = metric.compute()["f1"].item()
loss = SoftBERTScoreLoss(metric.encoder, model)
logits = torch.zeros(1, 4, 30522, requires_grad=True)
loss(logits, ["a cat"]).backward()
assert 0 < f1 < 1 and logits.grad.abs().sum() > 0
assert catalog.baseline("en", "roberta-large").shape == (25, 3)
settings = ["--model", model, "--num-layers", "1"]
for command in (
    ["score", "-c", "texts", "-r", "texts", "--output", "scores.json", *settings],
    ["show", "a cat", "the cat", "--output", "page.html", *settings],
    ["baseline", "texts", "--pairs", "4", "--output", "table.csv", *settings],
):
    assert main(command) == 0, command
offline = list(attempts)
try:
    FrozenEncoder("nobody/no-such-model", num_layers=1)
except Exception as error:
    print(json.dumps([offline, attempts, repr(error)]))
"""


@pytest.mark.distributed
def test_nothing_is_downloaded_or_written_without_request(minilm, tmp_path):
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    write_lines(work / "texts", TEXTS)
    names = {"PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV"}
    environment = {name: value for name, value in os.environ.items() if name in names}
    environment |= {"HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    # torchmetrics imports matplotlib, which would look for fonts anew.
    environment["MPLCONFIGDIR"] = matplotlib.get_cachedir()
    command = [sys.executable, "-c", GUARDED, minilm, *package_modules()]

    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    offline, attempts, error = json.loads(done.stdout.splitlines()[-1])
    assert offline == []
    # The guard sees those who do ask.
    assert attempts, error
    files = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {Path("work", name) for name in ("texts", "scores.json", "page.html", "table.csv")}
