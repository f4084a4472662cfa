"""Untrusted input stays data: no code of models or pickles runs, no name leaves a folder."""

import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
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
