"""Commands on several ranks: they divide the items, end together, and refuse several hosts."""

import pkgutil
import re
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertscore_tm.cli import main, resume, scoring
from bertscore_tm.device.precision import fast_half_precision
from tests.support import killed_rank
from tests.support.long_runs import KILLED, LAYER, assert_same_but_last_digits
from tests.support.markdown_blocks import ROOT
from tests.support.models import save_tiny_model
from tests.support.ranks import end_ranks, run_ranks
from tests.support.shell import run_here, run_on_ranks, run_rank, write_lines
from tests.support.texts import real_pairs
from tests.support.torchrun import run_agent, run_torchrun

NUM_PAIRS = 240
SCORE_FILES = [
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


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Folder of a tiny model."""
    return Path(save_tiny_model("bert", tmp_path_factory.mktemp("model") / "model"))


@pytest.fixture
def folder(model, tmp_path, monkeypatch):
    (tmp_path / "model").symlink_to(model)
    candidates, references = real_pairs(NUM_PAIRS, words=8)
    write_lines(tmp_path / "hyps.txt", candidates)
    write_lines(tmp_path / "refs.txt", references)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines_of(node):
    """Return the lines that the command printed on a node where it failed."""
    assert (node.exit_code, node.out) == (1, "")  # torchrun's
    return [line for line in node.err.splitlines() if line.startswith("bertscore-tm")]


def check_ended(node):
    """Check that the command printed one line, which says how to resume."""
    (line,) = lines_of(node)
    assert line.startswith("bertscore-tm: error: ")
    assert line.endswith(". Run the same command again, which resumes if its output has a .partial file")


@pytest.mark.distributed
def test_ranks_that_torchrun_stops_end_with_one_line(folder):
    (node,) = run_torchrun(folder, "-m", "tests.support.killed_rank", "stopped-early", *SCORE_FILES)

    check_ended(node)


@pytest.mark.distributed
def test_ranks_that_are_stopped_in_a_step_end_with_one_line(folder):
    (node,) = run_agent(folder, killed_rank.run, "stopped", SCORE_FILES, num_ranks=3)

    check_ended(node)


@pytest.mark.distributed
def test_after_a_rank_has_died_all_end_and_the_command_resumes(folder, capsys, monkeypatch):
    """Two of three ranks see that the last one is gone."""
    (node,) = run_agent(folder, killed_rank.run, "killed", SCORE_FILES, num_ranks=3)
    monkeypatch.setattr(resume, "ITEMS_PER_STEP", killed_rank.ITEMS_PER_STEP)

    resumed = run_here(capsys, *SCORE_FILES)

    check_ended(node)
    num_finished = 3 * killed_rank.ITEMS_PER_STEP
    assert f"resuming: {num_finished} of {NUM_PAIRS} pairs are in scores.tsv.partial" in resumed.err
    scores = (folder / "scores.tsv").read_bytes()
    run_here(capsys, *SCORE_FILES)
    assert (folder / "scores.tsv").read_bytes() == scores


@pytest.mark.distributed
def test_each_of_several_hosts_prints_one_line(folder):
    for node in run_torchrun(folder, "-m", "bertscore_tm.cli", *SCORE_FILES, num_nodes=2):
        (line,) = lines_of(node)
        assert line.startswith(
            "bertscore-tm: error: the command runs on one host, but its processes run on several. See "
        )
    assert not list(folder.glob("scores*"))


SHARED = {
    "score": ["score", "-c", "pairs.jsonl", *LAYER, "--idf", "--per-segment"],
    "rank": KILLED["rank"][0],
}


@pytest.mark.distributed
@pytest.mark.parametrize("case", SHARED)
def test_two_ranks_write_what_one_does(run_files, tmp_path, monkeypatch, case):
    """Started by torchrun in the test of the pages' commands."""
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    output = KILLED[case][1]
    alone = run_files(*SHARED[case], "-o", f"one-{output}")
    words = [*SHARED[case], "-o", f"two-{output}", "-m", "model", "--device", "cpu"]

    first, second = run_on_ranks(tmp_path, words, words)

    assert (first.exit_code, *second) == (0, 0, "", "")
    assert (first.out, first.err) == tuple(text.replace("one-", "two-") for text in alone)
    if case == "score":
        assert alone.err.count("bertscore-tm: warning: ") == 2

    single, shared = ((tmp_path / f"{number}-{output}").read_text() for number in ("one", "two"))
    assert_same_but_last_digits(shared, single)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["show", "a cat", "the cat", *LAYER, "-o", "pair.txt"], "P "),
        (["baseline", "refs.txt", "--pairs", "24", "-o", "table.csv"], "LAYER,P,R,"),
    ],
)
def test_some_commands_run_on_the_first_rank(run_files, tmp_path, words, start):
    alone = run_files(*words)
    expected = (tmp_path / words[-1]).read_text()

    assert expected.startswith(start)

    (tmp_path / words[-1]).unlink()
    words = [*words, "-m", "model", "--device", "cpu"]
    first, second = run_on_ranks(tmp_path, words, words)

    assert (*first, *second) == (0, *alone, 0, "", "")
    assert (tmp_path / words[words.index("-o") + 1]).read_text() == expected


SCORE = [*SHARED["score"], "-m", "model", "--device", "cpu"]
NO_MODEL = ["no-model" if argument == "model" else argument for argument in SCORE]
NO_FILES = ["score", "-c", "no.txt", "-r", "no.txt"]


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("arguments", "others", "message"),
    [
        (NO_FILES, NO_FILES, "no.txt: No such file or directory\n"),
        (SCORE, NO_MODEL, "could not load the configuration of 'no-model'"),
    ],
)
@pytest.mark.usefixtures("run_files")
def test_bad_input_of_all_ranks_or_of_one_ends_all_with_one_line(tmp_path, arguments, others, message):
    first, second = run_on_ranks(tmp_path, arguments, others)

    assert (first.exit_code, first.out) == (2, "")

    (line,) = first.err.splitlines(keepends=True)
    assert line.startswith(f"bertscore-tm: error: {message}")
    assert second == (2, "", "")


COMPARE = ["compare", "hyps.txt", "refs.txt", "-r", "refs.txt", *LAYER]


OTHER = "other/model"


def run_changed_rank(rank, folder, arguments, changes):
    """Run the command on a rank, of which the second one has other values of modules."""
    for name, value in changes.items() if rank == 1 else ():
        pkgutil.resolve_name(name.rpartition(".")[0]).__dict__[name.rpartition(".")[2]] = value
    return run_rank(rank, folder, arguments)


@pytest.fixture
def refused(run_files, tmp_path):
    """Run the command on two ranks, which must end before they score, and return what the first one says."""
    save_tiny_model("bert", tmp_path / OTHER)
    weights = tmp_path / OTHER / "model.safetensors"
    save_file({name: value * 1.01 for name, value in load_file(weights).items()}, weights, metadata={"format": "pt"})
    files = sorted(tmp_path.iterdir())

    def run(first, second, **changes):
        printed = run_ranks(run_changed_rank, 2, str(tmp_path), [first, second], changes)
        assert [rank[:2] for rank in printed] == [(2, "")] * 2
        assert (printed[1].err, sorted(tmp_path.iterdir())) == ("", files)
        (line,) = printed[0].err.splitlines()
        assert line.startswith("bertscore-tm: error: rank 1 has ")
        assert line.endswith(". Give all ranks the same model, devices and versions")
        return line

    return run


@pytest.mark.distributed
@pytest.mark.parametrize("words", [*SHARED.values(), COMPARE], ids=itemgetter(0))
def test_ranks_with_other_weights_end_before_they_score(refused, words):
    words = [*words, "--device", "cpu", "-o", "out.jsonl" if words[0] == "rank" else "out.json"]
    said = refused([*words, "-m", "model"], [*words, "-m", OTHER])

    assert re.search(r"rank 1 has model \w{8}, but rank 0 has model \w{8}\. ", said)


def other_version(package):
    return "4.0" if package == "transformers" else version(package)


def other_precision(device):
    return torch.float16


@pytest.mark.distributed
def test_ranks_of_other_versions_end_before_they_score(refused):
    said = refused(SCORE, SCORE, **{"importlib.metadata.version": other_version})

    assert f"has transformers 4.0, but rank 0 has transformers {version('transformers')}. " in said

    words = [*SCORE, "--dtype", "auto"]
    said = refused(words, words, **{"bertscore_tm.cli.encoder.fast_half_precision": other_precision})
    precision = fast_half_precision(torch.device("cpu"))

    assert f"has precision torch.float16, but rank 0 has precision {precision}. " in said


def run_and_crash(rank, folder):
    def crash(*args, **kwargs):
        raise RuntimeError("a bug")

    if rank == 1:
        scoring.score_corpus = crash
    return run_rank(rank, folder, [SCORE] * 2)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.usefixtures("run_files")
def test_a_rank_that_crashes_ends_the_others(tmp_path):
    first, second = end_ranks(run_and_crash, 2, str(tmp_path))

    assert (first.result.exit_code, first.result.out) == (1, "")

    (line,) = (line for line in first.result.err.splitlines() if line.startswith("bertscore-tm"))
    assert line.startswith("bertscore-tm: error: lost the connection to another process. ")
    assert (second.exit_code, second.result) == (1, None)


@pytest.mark.parametrize("hosts", [{"GROUP_WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "4"}, {"LOCAL_WORLD_SIZE": "2"}])
def test_several_hosts_are_refused(monkeypatch, capsys, hosts):
    for name, value in ({"WORLD_SIZE": "4", "RANK": "0", "LOCAL_RANK": "0"} | hosts).items():
        monkeypatch.setenv(name, value)

    assert main(["score", "--candidate-text", "a", "--reference-text", "b"]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bertscore-tm: error: the command runs on one host, but its processes run on several. See ")
    assert (ROOT / line.rpartition("/main/")[2]).is_file()


def test_an_incomplete_environment_of_torchrun(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)

    assert main(["score", "--candidate-text", "a", "--reference-text", "b"]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert "environment variable RANK expected" in line


def test_a_rank_without_a_number_of_ranks_is_the_only_one(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    assert main(["score", "no.txt", "no.txt"]) == 2
    assert capsys.readouterr().err == "bertscore-tm: error: no.txt: No such file or directory\n"
