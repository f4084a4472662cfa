"""The command on several ranks: the output of one process, evenly split work, and no deadlocks."""

import json
from itertools import chain
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertscore_tm.cli import main
from bertscore_tm.cli.distributed import RankGroup, choose_device, split_steps
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.scoring import corpus
from bertscore_tm.scoring.corpus import plan_steps, score_corpus
from bertscore_tm.scoring.texts import TextPairs
from bertscore_tm.scoring.token_weights import token_weights
from tests.support.models import save_tiny_model
from tests.support.ranks import run_ranks
from tests.support.separate_ranks import run_separate_ranks
from tests.support.shell import numbers_in, run_here, run_on_ranks, run_rank
from tests.support.texts import real_pairs, several_references

pytestmark = pytest.mark.usefixtures("one_thread")


@settings(max_examples=40)
@given(lengths=st.lists(st.integers(1, 50), max_size=30), size=st.integers(1, 5), width=st.integers(1, 4))
def test_steps_are_split_evenly(lengths, size, width):
    texts = TextPairs(["c" * n for n in lengths], [["r" * n] for n in lengths])
    numbers = list(range(len(lengths)))
    steps = [numbers[start : start + width] for start in range(0, len(numbers), width)]
    split = split_steps(steps, texts, size)
    assert len(split) == size
    assert sorted(chain(*split)) == sorted(steps)
    loads = [sum(2 * lengths[i] for step in steps for i in step) for steps in split]
    largest = max((sum(2 * lengths[i] for i in step) for step in steps), default=0)
    assert max(loads) - min(loads) <= largest


def texts_of_test() -> TextPairs:
    preds, target = real_pairs(240)
    return TextPairs(preds, several_references(target))


def score_and_count(rank: int, model: str) -> tuple[list[int], object]:
    """Score as the command does, and return the candidates that this rank encoded with its result."""
    encoder = FrozenEncoder(model, num_layers=2)
    encoded: list[str] = []
    encode = FrozenEncoder.encode

    def counted(self, texts, device):
        encoded.extend(texts)
        return encode(self, texts, device)

    texts = texts_of_test()
    references = list(chain.from_iterable(texts.references))
    weights = token_weights(encoder, True, references=references)
    with patch.object(FrozenEncoder, "encode", counted):
        scored = RankGroup(rank, 2).score(texts, encoder, weights, torch.device("cpu"))
    numbers = {text: number for number, text in enumerate(texts.candidates)}
    return [numbers[text] for text in encoded if text in numbers], scored


@pytest.mark.slow
@pytest.mark.distributed
def test_each_rank_encodes_its_own_candidates(tmp_path):
    model = save_tiny_model("bert", tmp_path)
    (first, scored), (second, nothing) = run_ranks(score_and_count, 2, model)
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


@pytest.mark.distributed
def test_bad_input_ends_all_ranks_with_one_line(folder):
    first, second = run_on_ranks(folder, *[["score", "-c", "no.txt", "-r", "no.txt"]] * 2)
    assert first == (2, "", "bertscore-tm: error: no.txt: No such file or directory\n")
    assert second == (2, "", "")


@pytest.mark.distributed
def test_a_model_that_one_rank_lacks_ends_all_ranks_with_one_line(folder):
    lacking = ["no-model" if argument == "model" else argument for argument in ARGUMENTS]
    first, second = run_on_ranks(folder, ARGUMENTS, lacking)
    assert (first.exit_code, first.out) == (1, "")
    (line,) = first.err.splitlines()
    assert line.startswith("bertscore-tm: error: could not load the configuration of 'no-model'")
    assert second == (1, "", "")


def run_and_crash(rank, report, folder):
    def crash(*args, **kwargs):
        raise RuntimeError("a bug")

    if rank == 1:
        corpus.score_corpus = crash
    report["printed"] = run_rank(rank, folder, [ARGUMENTS] * 2)


@pytest.mark.slow
@pytest.mark.distributed
def test_a_rank_that_crashes_ends_the_others(folder):
    first, second = run_separate_ranks(run_and_crash, 2, str(folder))
    assert (first.report["printed"].exit_code, first.report["printed"].out) == (1, "")
    (line,) = (line for line in first.report["printed"].err.splitlines() if line.startswith("bertscore-tm"))
    assert line.startswith("bertscore-tm: error: lost the connection to another process: ")
    assert (second.exit_code, second.report) == (1, {})


def test_each_rank_of_a_machine_uses_its_own_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device(None) == torch.device("cuda:0")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device(None) == choose_device("cuda") == torch.device("cuda:1")
    assert choose_device("cuda:0") == torch.device("cuda:0")
    assert choose_device("cpu") == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(CommandError, match="cuda:2 does not exist: this machine has 2 GPUs"):
        choose_device(None)


def test_an_incomplete_environment_of_torchrun(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert main(["score", "--candidate-text", "a", "--reference-text", "b"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "environment variable RANK expected" in line
