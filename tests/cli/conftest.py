"""Folders of texts, and commands that are run in them."""

import shutil

import pytest

from bertscore_tm.cli import resume
from tests.support.long_runs import (
    CANDIDATES,
    REFERENCES,
    SIZE,
)
from tests.support.models import save_tiny_model
from tests.support.scored_files import few_pairs
from tests.support.shell import add_defaults, run_here, write_lines, write_records
from tests.support.texts import real_pairs, several_references


@pytest.fixture(scope="module")
def folder(tmp_path_factory, table):
    """Files of the same texts: lines, further references, and JSON with one to three references each."""
    folder = tmp_path_factory.mktemp("texts")
    candidates, references = few_pairs()
    second = references[1:] + references[:1]
    for name, lines in (("hyps", candidates), ("refs", references), ("more", second)):
        write_lines(folder / f"{name}.txt", lines)
    rows = zip(candidates, several_references(references), strict=True)
    write_records(folder / "pairs.jsonl", [{"candidate": text, "references": texts} for text, texts in rows])
    shutil.copy(table, folder / "baseline.csv")
    return folder


@pytest.fixture
def command(folder, minilm, monkeypatch, capsys):
    """Run the command in the folder of the texts; returns what it printed."""
    monkeypatch.chdir(folder)

    def run(*arguments, exit_code=0):
        words = add_defaults(arguments, model=minilm, device="cpu")
        return run_here(capsys, "score", *words, exit_code=exit_code)

    return run


@pytest.fixture
def run_files(tmp_path, monkeypatch, capsys):
    """Run a command in a folder with texts, in steps of four items; returns what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(resume, "ITEMS_PER_STEP", SIZE)
    save_tiny_model("bert", tmp_path / "model")
    write_lines(tmp_path / "hyps.txt", CANDIDATES)
    write_lines(tmp_path / "refs.txt", REFERENCES)
    write_records(tmp_path / "samples.jsonl", [{"candidates": CANDIDATES[3 * i : 3 * i + 2 + i % 2]} for i in range(7)])
    # Enough pairs for two ranks; one text is empty, and one is too long.
    preds, target = real_pairs(240)
    preds[3], preds[7] = "", " ".join(preds)
    rows = zip(preds, several_references(target), strict=True)
    write_records(tmp_path / "pairs.jsonl", [{"candidate": c, "references": r} for c, r in rows])
    return lambda *words, **settings: run_here(capsys, *words, "-m", "model", "--device", "cpu", **settings)
