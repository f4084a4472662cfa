"""The command on several ranks: the output of one process, evenly split work, and no deadlocks."""

import json

import pytest
import torch

from bertscore_tm.cli import main
from bertscore_tm.cli.distributed import choose_device
from bertscore_tm.scoring import corpus
from bertscore_tm.scoring.texts import TextPairs
from tests.support.models import save_tiny_model
from tests.support.ranks import end_ranks
from tests.support.shell import numbers_in, run_here, run_on_ranks, run_rank
from tests.support.texts import real_pairs, several_references

pytestmark = pytest.mark.usefixtures("one_thread")


def texts_of_test() -> TextPairs:
    preds, target = real_pairs(240)
    return TextPairs(preds, several_references(target))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small model, and a file with enough texts for two ranks, one of them empty and one too long."""
    folder = tmp_path_factory.mktemp("ranks")
    save_tiny_model("bert", folder / "model")
    texts = texts_of_test()
    texts.candidates[3], texts.candidates[7] = "", " ".join(texts.candidates)
    with (folder / "pairs.jsonl").open("w", encoding="utf-8") as file:
        for candidate, references in zip(texts.candidates, texts.references, strict=True):
            file.write(json.dumps({"candidate": candidate, "references": references}) + "\n")
    return folder


ARGUMENTS = ["score", "-c", "pairs.jsonl", "-m", "model", "-l", "2", "--device", "cpu", "--idf", "--per-segment"]


@pytest.mark.distributed
def test_two_ranks_print_what_one_process_prints(folder, monkeypatch, capsys):
    """Started by torchrun in the test of the pages' commands."""
    first, second = run_on_ranks(folder, ARGUMENTS, ARGUMENTS)
    monkeypatch.chdir(folder)
    alone = run_here(capsys, *ARGUMENTS)
    assert (first.exit_code, first.err) == (0, alone.err)
    lines, others = first.out.splitlines(), alone.out.splitlines()
    assert lines[:4] == others[:4]
    for line, other in zip(lines[4:], others[4:], strict=True):
        # Texts that are encoded together may change the last of the six digits.
        assert numbers_in(line) == pytest.approx(numbers_in(other), abs=1.1e-6)
        assert (line.split()[:2], line.split()[-1]) == (other.split()[:2], other.split()[-1])
    assert second == (0, "", "")
    assert len(alone.out.splitlines()) == 3 + 1 + 240
    zero, truncated = alone.err.splitlines()
    assert zero.startswith("bertscore-tm: warning: 1 candidate")
    assert truncated.startswith("bertscore-tm: warning: ")


NO_FILES = ["score", "-c", "no.txt", "-r", "no.txt"]
NO_MODEL = ["no-model" if argument == "model" else argument for argument in ARGUMENTS]


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("arguments", "others", "message"),
    [
        (NO_FILES, NO_FILES, "no.txt: No such file or directory\n"),
        (ARGUMENTS, NO_MODEL, "could not load the configuration of 'no-model'"),
    ],
)
def test_bad_input_of_all_ranks_or_of_one_ends_all_with_one_line(folder, arguments, others, message):
    first, second = run_on_ranks(folder, arguments, others)
    assert (first.exit_code, first.out) == (2, "")
    (line,) = first.err.splitlines(keepends=True)
    assert line.startswith(f"bertscore-tm: error: {message}")
    assert second == (2, "", "")


def run_and_crash(rank, folder):
    def crash(*args, **kwargs):
        raise RuntimeError("a bug")

    if rank == 1:
        corpus.score_corpus = crash
    return run_rank(rank, folder, [ARGUMENTS] * 2)


@pytest.mark.slow
@pytest.mark.distributed
def test_a_rank_that_crashes_ends_the_others(folder):
    first, second = end_ranks(run_and_crash, 2, str(folder))
    assert (first.result.exit_code, first.result.out) == (1, "")
    (line,) = (line for line in first.result.err.splitlines() if line.startswith("bertscore-tm"))
    assert line.startswith("bertscore-tm: error: lost the connection to another process: ")
    assert (second.exit_code, second.result) == (1, None)


def test_each_rank_of_a_machine_uses_its_own_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device(None) == torch.device("cuda:0")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device(None) == choose_device("cuda") == torch.device("cuda:1")
    assert choose_device("cuda:0") == torch.device("cuda:0")
    assert choose_device("cpu") == torch.device("cpu")


def test_an_incomplete_environment_of_torchrun(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert main(["score", "--candidate-text", "a", "--reference-text", "b"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "environment variable RANK expected" in line
