"""The command on several processes: the output of one, each encoding its own share, and none waits in vain."""

import json
import os
import socket
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertscore_tm.cli import main
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.ranks import Team, choose_device, shares
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.scoring.corpus import plan_steps, score_corpus
from bertscore_tm.scoring.token_weights import token_weights
from bertscore_tm.texts import TextPairs
from tests.support.models import save_tiny_model
from tests.support.ranks import run_ranks
from tests.support.texts import real_pairs, several_references

ROOT = Path(__file__).resolve().parents[2]


@given(lengths=st.lists(st.integers(1, 50), max_size=30), size=st.integers(1, 5), width=st.integers(1, 4))
def test_steps_are_shared_out_evenly(lengths, size, width):
    texts = TextPairs(["c" * n for n in lengths], [["r" * n] for n in lengths])
    numbers = list(range(len(lengths)))
    steps = [numbers[start : start + width] for start in range(0, len(numbers), width)]
    given_out = shares(steps, texts, size)
    assert len(given_out) == size
    assert sorted(chain(*given_out)) == sorted(steps)
    loads = [sum(2 * lengths[i] for step in steps for i in step) for steps in given_out]
    largest = max((sum(2 * lengths[i] for i in step) for step in steps), default=0)
    assert max(loads) - min(loads) <= largest


def texts_of_test() -> TextPairs:
    preds, target = real_pairs(240)
    return TextPairs(preds, several_references(target))


def score_and_count(rank: int, model: str) -> tuple[list[int], object]:
    """Score as the command does; returns which texts were encoded here, beside the result."""
    encoder = FrozenEncoder(model, num_layers=2)
    encoded: list[str] = []
    encode = FrozenEncoder.encode

    def counted(self, texts, device):
        encoded.extend(texts)
        return encode(self, texts, device)

    FrozenEncoder.encode = counted
    texts = texts_of_test()
    references = list(chain.from_iterable(texts.references))
    weights = token_weights(encoder, True, references=references)
    scored = Team(rank, 2).score(texts, encoder, weights, torch.device("cpu"))
    numbers = {text: number for number, text in enumerate(texts.candidates)}
    return [numbers[text] for text in encoded if text in numbers], scored


@pytest.mark.slow
@pytest.mark.distributed
def test_each_process_encodes_its_own_share(tmp_path, one_thread):
    model = save_tiny_model("bert", tmp_path)
    (first, scored), (second, nothing) = run_ranks(score_and_count, 2, model, fresh=True)
    assert nothing is None
    assert min(len(first), len(second)) > 60
    assert len(first) + len(second) < 1.2 * len(set(first) | set(second))

    encoder, texts = FrozenEncoder(model, num_layers=2), texts_of_test()
    weights = token_weights(encoder, True, references=list(chain.from_iterable(texts.references)))
    alone = score_corpus(texts, encoder, weights, steps=plan_steps(texts, encoder))
    assert scored.rows == alone.rows == list(range(240))
    assert (scored.scores - alone.scores).abs().max() < 1e-6
    assert torch.equal(scored.best_reference, alone.best_reference)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small model, and files whose texts make two shares, one of them without text and one too long."""
    folder = tmp_path_factory.mktemp("ranks")
    save_tiny_model("bert", folder / "model")
    texts = texts_of_test()
    texts.candidates[3], texts.candidates[7] = "", " ".join(texts.candidates)
    with (folder / "pairs.jsonl").open("w", encoding="utf-8") as file:
        for candidate, references in zip(texts.candidates, texts.references, strict=True):
            file.write(json.dumps({"candidate": candidate, "references": references}) + "\n")
    return folder


def environment(**variables: str) -> dict[str, str]:
    # Of as many threads, sums are the same to the last bit.
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | variables


ARGUMENTS = ["score", "-c", "pairs.jsonl", "-m", "model", "-l", "2", "--device", "cpu", "--idf", "--per-segment"]


@pytest.mark.slow
@pytest.mark.distributed
def test_torchrun_prints_what_one_process_prints(folder):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    printed = []
    for start in ([], launcher):
        command = [sys.executable, *start, "-m", "bertscore_tm.cli", *ARGUMENTS]
        done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=True)
        printed.append((done.stdout, [line for line in done.stderr.splitlines() if "bertscore-tm" in line]))
    assert printed[0] == printed[1]
    assert len(printed[0][0].splitlines()) == 3 + 1 + 240
    zero, cut = printed[0][1]
    assert zero.startswith("bertscore-tm: warning: 1 candidate")
    assert cut.startswith("bertscore-tm: warning: ")


def together(folder: Path, programs: list[list[str]]) -> list[tuple[int, str, str]]:
    """Start one process for each rank; returns exit codes, standard outputs and standard errors."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    running = []
    for rank, program in enumerate(programs):
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(programs))}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        running.append(subprocess.Popen([sys.executable, *program], cwd=folder, env=environment(**variables), **pipes))
    printed = [process.communicate() for process in running]
    return [(process.returncode, *texts) for process, texts in zip(running, printed, strict=True)]


COMMAND = ["-m", "bertscore_tm.cli"]


@pytest.mark.slow
@pytest.mark.distributed
def test_bad_input_ends_all_processes_with_one_line(folder):
    (first, out, said), (second, *silent) = together(folder, [[*COMMAND, "score", "-c", "no.txt", "-r", "no.txt"]] * 2)
    assert (first, second) == (2, 2)
    assert (out, said) == ("", "bertscore-tm: error: no.txt: No such file or directory\n")
    assert silent == ["", ""]


@pytest.mark.slow
@pytest.mark.distributed
def test_what_one_machine_lacks_ends_all_processes_with_one_line(folder):
    elsewhere = ["no-model" if argument == "model" else argument for argument in ARGUMENTS]
    (first, out, said), (second, *silent) = together(folder, [[*COMMAND, *ARGUMENTS], [*COMMAND, *elsewhere]])
    assert (first, second) == (1, 1)
    assert out == ""
    (line,) = said.splitlines()
    assert line.startswith("bertscore-tm: error: could not load the configuration of 'no-model'")
    assert silent == ["", ""]


CRASH = """
import os, sys
from bertscore_tm.scoring import corpus
from bertscore_tm.cli import main

def crash(*args, **kwargs):
    {}

corpus.score_corpus = crash
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("crash", ["os._exit(9)", "raise RuntimeError('out of memory')"])
def test_a_process_that_dies_ends_the_others(folder, crash):
    crashing = ["-c", CRASH.format(crash), *ARGUMENTS]
    (first, out, said), (second, _, cause) = together(folder, [[*COMMAND, *ARGUMENTS], crashing])
    assert (first, second) == (1, 9 if "exit" in crash else 1)
    assert out == ""
    (line,) = (line for line in said.splitlines() if line.startswith("bertscore-tm"))
    assert line.startswith("bertscore-tm: error: the connection to another process broke: ")
    assert ("RuntimeError: out of memory" in cause) == ("exit" not in crash)


def test_each_process_of_a_machine_takes_its_own_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device(None) == torch.device("cuda:0")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device(None) == choose_device("cuda") == torch.device("cuda:1")
    assert choose_device("cuda:0") == torch.device("cuda:0")
    assert choose_device("cpu") == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(CommandError, match="cuda:2 is not there, this machine has 2 GPUs"):
        choose_device(None)


def test_processes_that_cannot_meet(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert main(["score", "--candidate-text", "a", "--reference-text", "b"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "environment variable RANK expected" in line
