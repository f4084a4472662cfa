"""The command on two hosts under torchrun: as in one process, or one line on each host that says what to do."""

import pytest
from safetensors.torch import load_file, save_file

from bertscore_tm.cli import main
from tests.support.hosts import HERE, LINK, run_on_hosts, two_hosts
from tests.support.models import save_tiny_model
from tests.support.shell import write_lines
from tests.support.texts import real_pairs

pytestmark = [pytest.mark.slow, pytest.mark.distributed]

COMMAND = ["-m", "bertscore_tm.cli"]
FAULTY = ["-m", "tests.support.faulty_command"]
NUM_PAIRS = 1200  # so many that finished parts are kept
ENCODER = ["-m", "model", "-l", "2", "--device", "cpu"]
SCORE = ["score", "hyps.txt", "refs.txt", *ENCODER, "--idf", "-s", "-o", "scores.tsv"]


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """The folders of two hosts: the first one has the files, and both have the model."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        save_tiny_model("bert", folder / "model")
    candidates, references = real_pairs(240, words=8)
    write_lines(first / "hyps.txt", [f"{text} {i}" for i in range(5) for text in candidates])
    write_lines(first / "refs.txt", references * 5)
    monkeypatch.chdir(first)
    return first, second


def said(host):
    """Return the only line that the command printed on a host where it failed."""
    assert (host.exit_code, host.out) == (1, "")  # torchrun's
    (line,) = (line for line in host.err.splitlines() if line.startswith("bertscore-tm"))
    return line


def check_resumes(folders, capsys, num_finished):
    """Check that one process finishes what is there, with the scores of an uninterrupted run."""
    capsys.readouterr()
    assert main(SCORE) == 0
    assert f"resuming: {num_finished} of {NUM_PAIRS} pairs" in capsys.readouterr().err
    resumed = (folders[0] / "scores.tsv").read_bytes()
    assert main(SCORE) == 0
    assert (folders[0] / "scores.tsv").read_bytes() == resumed


def test_hosts_with_other_weights_end_before_they_score(tmp_path, folders):
    weights = folders[1] / "model" / "model.safetensors"
    save_file({name: value * 1.01 for name, value in load_file(weights).items()}, weights, metadata={"format": "pt"})
    with two_hosts(tmp_path) as hosts:
        printed = run_on_hosts(hosts, folders, COMMAND, *SCORE, num_ranks=2)
    assert said(printed[0]) == said(printed[1])
    assert said(printed[0]).startswith("bertscore-tm: error: host1 has model ")
    assert not list(folders[0].glob("scores*"))


def test_hosts_whose_names_lead_to_themselves_name_the_remedy(tmp_path, folders, monkeypatch):
    with two_hosts(tmp_path, "127.0.1.1", "127.0.1.1") as hosts:
        printed = run_on_hosts(hosts, folders, FAULTY, "join", *SCORE)
        for number, host in enumerate(printed):
            assert said(host).startswith(f"bertscore-tm: error: host{number} could not join the other hosts: ")
            assert "set GLOO_SOCKET_IFNAME" in said(host)
        # The remedy helps, and two hosts write what one process writes.
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", LINK)
        printed = run_on_hosts(hosts, folders, COMMAND, *SCORE)
    assert [host.exit_code for host in printed] == [0, 0], printed
    shared = (folders[0] / "scores.tsv").read_bytes()
    assert [path.name for path in folders[1].iterdir()] == ["model"]
    assert main(SCORE) == 0
    assert (folders[0] / "scores.tsv").read_bytes() == shared


def test_a_lost_network_ends_both_hosts_and_the_command_resumes(tmp_path, folders, capsys):
    with two_hosts(tmp_path) as hosts:
        printed = run_on_hosts(hosts, folders, FAULTY, "cut", *SCORE)
    for host in printed:
        assert said(host).startswith("bertscore-tm: error: lost the connection to another process: Timed out")
        assert "start the command on all hosts again" in said(host)
    check_resumes(folders, capsys, 200)


def test_a_rank_that_is_killed_ends_both_hosts_and_the_command_resumes(folders, capsys):
    printed = run_on_hosts(HERE, folders, FAULTY, "die", *SCORE, num_ranks=2)
    for host in printed:
        assert "start the command on all hosts again" in said(host)
    check_resumes(folders, capsys, 400)


def test_the_second_host_needs_no_folder_of_the_output(folders):
    (folders[0] / "results").mkdir()
    printed = run_on_hosts(HERE, folders, COMMAND, *SCORE[:-1], "results/scores.tsv")
    assert [host.exit_code for host in printed] == [0, 0], printed
    assert (folders[0] / "results" / "scores.tsv").read_text().count("\n") > NUM_PAIRS
    assert [path.name for path in folders[1].iterdir()] == ["model"]
