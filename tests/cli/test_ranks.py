"""The command under torchrun: a rank that ends by a signal ends all with one line, and several hosts are refused."""

import pytest

from bertscore_tm.cli import main, resume
from tests.support.models import save_tiny_model
from tests.support.shell import write_lines
from tests.support.texts import real_pairs
from tests.support.torchrun import run_torchrun

pytestmark = [pytest.mark.slow, pytest.mark.distributed]

NUM_PAIRS = 1200
SCORE = [
    "score",
    "hyps.txt",
    "refs.txt",
    "-m",
    "model",
    "-l",
    "2",
    "--device",
    "cpu",
    "--idf",
    "-s",
    "-o",
    "scores.tsv",
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    save_tiny_model("bert", tmp_path / "model")
    candidates, references = real_pairs(240, words=8)
    write_lines(tmp_path / "hyps.txt", [f"{text} {i}" for i in range(5) for text in candidates])
    write_lines(tmp_path / "refs.txt", references * 5)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines_of(node):
    """Return the lines that the command printed on a node where it failed."""
    assert (node.exit_code, node.out) == (1, "")  # torchrun's
    return [line for line in node.err.splitlines() if line.startswith("bertscore-tm")]


@pytest.mark.parametrize("how", [[], ["stop"]], ids=["killed", "stopped"])
def test_a_rank_that_dies_ends_all_ranks_with_one_line(folder, capsys, monkeypatch, how):
    (node,) = run_torchrun(folder, "-m", "tests.support.killed_rank", *how, *SCORE, num_ranks=3)
    (line,) = lines_of(node)
    assert line.startswith("bertscore-tm: error: ")
    assert line.endswith(". Run the same command again, which resumes if its output has a .partial file")
    monkeypatch.setattr(resume, "ITEMS_PER_STEP", 200)
    capsys.readouterr()
    assert main(SCORE) == 0
    assert f"resuming: 600 of {NUM_PAIRS} pairs are in scores.tsv.partial" in capsys.readouterr().err
    resumed = (folder / "scores.tsv").read_bytes()
    assert main(SCORE) == 0
    assert (folder / "scores.tsv").read_bytes() == resumed


def test_each_of_several_hosts_prints_one_line(folder):
    for node in run_torchrun(folder, "-m", "bertscore_tm.cli", *SCORE, num_ranks=2, num_nodes=2):
        (line,) = lines_of(node)
        assert line.startswith(
            "bertscore-tm: error: the command runs on one host, but its processes run on several. See "
        )
    assert not list(folder.glob("scores*"))
