"""Runs in parts: a killed one resumes without repeating what is finished, and ranks share them and end together."""

import math
import os
import pkgutil
import re
import shutil
import signal
import socket
from contextlib import chdir
from importlib.metadata import version
from operator import itemgetter

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertscore_tm.cli import main, shards
from bertscore_tm.cli.encoders import choose_device
from bertscore_tm.core.precision import fast_half_precision
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.scoring import corpus
from tests.support.models import save_tiny_model
from tests.support.ranks import end_ranks, run_ranks
from tests.support.shell import run_here, run_on_ranks, run_rank, write_lines, write_records
from tests.support.texts import real_pairs, several_references

COUNT = 23
CANDIDATES, REFERENCES = real_pairs(COUNT, words=8)
FILES = ["-c", "hyps.txt", "-r", "refs.txt"]
LAYER = ["-l", "2"]
NUMBER = r"\d\.\d{4,6}"
# Items of a part.
SIZE = 4
# Arguments of a command, its output, the name and the number of its items, and how many parts are written.
KILLED = {
    "score": (["score", *FILES, *LAYER, "--idf", "--max-length", "8", "-s"], "out.tsv", "pair", COUNT, 2),
    "rank": (["rank", "samples.jsonl", *LAYER], "out.jsonl", "line", 7, 1),
}


def die_after(rank, folder, count, arguments):
    """Run the command, and end as by a power failure while it appends the part after so many."""
    shards.SMALLEST = shards.LARGEST = SIZE
    append, written = shards._append, []

    def append_and_die(path, lines):
        is_last = len(written) == count + 1  # The settings and so many parts are there.
        append(path, lines[:20] if is_last else lines)
        written.append(lines)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)

    shards._append = append_and_die
    with chdir(folder):
        main(arguments)


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run a command in a folder with texts, in parts of four items; returns what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shards, "SMALLEST", SIZE)
    monkeypatch.setattr(shards, "LARGEST", SIZE)
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


def watch(monkeypatch):
    """Return the parts, and the texts, that are computed from now on."""
    append, encode, parts, texts = shards._append, FrozenEncoder.encode, [], []

    def append_and_note(path, lines):
        parts.append(lines)
        append(path, lines)

    def encode_and_note(self, batch, *arguments, **options):
        texts.extend(batch)
        return encode(self, batch, *arguments, **options)

    monkeypatch.setattr(shards, "_append", append_and_note)
    monkeypatch.setattr(FrozenEncoder, "encode", encode_and_note)
    return parts, texts


@pytest.mark.distributed
@pytest.mark.parametrize("case", KILLED)
def test_a_killed_run_resumes(command, tmp_path, monkeypatch, case):
    arguments, output, name, count, num_written = KILLED[case]
    options = [*arguments, "-o", output]
    printed = command(*options)
    expected = (tmp_path / output).read_bytes()
    (tmp_path / output).unlink()
    words = [*options, "-m", "model", "--device", "cpu"]
    (ended,) = end_ranks(die_after, 1, str(tmp_path), num_written, words)
    assert ended.exit_code == -signal.SIGKILL
    assert not (tmp_path / output).exists()
    unfinished = shards.partial_path(output)
    _, *lines = unfinished.read_text().split("\n")
    assert len(lines[:-1]) == num_written
    assert lines[-1].startswith('{"range": [')
    other = ["--component", "recall"] if case == "rank" else ["--dtype", "float64"]
    refused = command(*options, *other, exit_code=2).err
    assert f"{output}.partial belongs to a run with other files or settings: delete it to start anew" in refused

    computed, encoded = watch(monkeypatch)
    resumed = command(*options)
    assert f"resuming: {SIZE * num_written} of {count} {name}s are in {output}.partial\n" in resumed.err
    assert len(computed) == math.ceil(count / SIZE) - num_written
    if case == "score":
        assert not set(encoded) & {*CANDIDATES[: SIZE * num_written], *REFERENCES[: SIZE * num_written]}
    assert (tmp_path / output).read_bytes() == expected
    assert resumed.out == printed.out
    lines = [line for line in resumed.err.splitlines() if "resuming" not in line]
    assert lines == printed.err.splitlines()
    assert not unfinished.exists()


def kill(folder, arguments, num_written):
    """End a command by a kill while it writes a part, and return the file of its parts."""
    words = [*arguments, "-m", "model", "--device", "cpu"]
    (ended,) = end_ranks(die_after, 1, str(folder), num_written, words)
    assert ended.exit_code == -signal.SIGKILL
    return shards.partial_path(str(folder / arguments[-1]))


@pytest.mark.distributed
def test_parts_that_two_runs_have_written_count_once(command, tmp_path):
    arguments = ["score", *FILES, *LAYER, "-s", "-o", "out.tsv"]
    command(*arguments)
    expected = (tmp_path / "out.tsv").read_text()
    unfinished = kill(tmp_path, arguments, 2)
    head, first, second, _ = unfinished.read_text().split("\n")
    unfinished.write_text("\n".join([head, first, first, second, second, ""]))
    assert f"resuming: {2 * SIZE} of {COUNT} pairs" in command(*arguments).err
    assert (tmp_path / "out.tsv").read_text() == expected
    # A part that is missing, and those after it, are computed.
    unfinished.write_text("\n".join([head, second, ""]))
    assert "resuming" not in command(*arguments).err
    assert (tmp_path / "out.tsv").read_text() == expected


def test_a_second_run_of_a_command_is_refused_while_the_first_writes(command, tmp_path):
    arguments = ["score", *FILES, *LAYER, "-o", "out.txt"]
    with shards._open_file(tmp_path / "out.txt.partial"):
        printed = command(*arguments, exit_code=2).err
    assert "out.txt.partial is being written by another run: wait for it, or stop it" in printed
    assert (tmp_path / "out.txt.partial").read_text() == ""
    command(*arguments)
    assert not (tmp_path / "out.txt.partial").exists()


def test_an_interrupted_run_with_other_texts_does_not_resume(command, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    arguments = ["score", *FILES, *LAYER, "-o", "out.txt"]
    with monkeypatch.context() as patched:
        patched.setattr(shards, "_compute_next", stop)
        assert command(*arguments, exit_code=130).err == "bertscore-tm: interrupted; the same command resumes\n"
    write_lines(tmp_path / "refs.txt", [*REFERENCES[:-1], "another text"])
    assert "belongs to a run with other files" in command(*arguments, exit_code=2).err


SHARED = {
    "score": ["score", "-c", "pairs.jsonl", *LAYER, "--idf", "--per-segment"],
    "rank": KILLED["rank"][0],
}


@pytest.mark.distributed
@pytest.mark.parametrize("case", SHARED)
def test_two_ranks_write_what_one_does(command, tmp_path, monkeypatch, case):
    """Started by torchrun in the test of the pages' commands."""
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    output = KILLED[case][1]
    alone = command(*SHARED[case], "-o", f"one-{output}")
    words = [*SHARED[case], "-o", f"two-{output}", "-m", "model", "--device", "cpu"]
    first, second = run_on_ranks(tmp_path, words, words)
    assert (first.exit_code, *second) == (0, 0, "", "")
    assert (first.out, first.err) == tuple(text.replace("one-", "two-") for text in alone)
    if case == "score":
        assert alone.err.count("bertscore-tm: warning: ") == 2
    single, shared = ((tmp_path / f"{number}-{output}").read_text() for number in ("one", "two"))
    assert re.sub(NUMBER, "", shared) == re.sub(NUMBER, "", single)
    # Texts that are encoded together may change the last of the six digits.
    numbers, expected = ([float(x) for x in re.findall(NUMBER, text)] for text in (shared, single))
    assert numbers == pytest.approx(expected, abs=2e-6)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["show", "a cat", "the cat", *LAYER, "-o", "pair.txt"], "P "),
        (["baseline", "refs.txt", "--pairs", "24", "-o", "table.csv"], "LAYER,P,R,"),
    ],
)
def test_some_commands_run_on_the_first_rank(command, tmp_path, words, start):
    alone = command(*words)
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
@pytest.mark.usefixtures("command")
def test_bad_input_of_all_ranks_or_of_one_ends_all_with_one_line(tmp_path, arguments, others, message):
    first, second = run_on_ranks(tmp_path, arguments, others)
    assert (first.exit_code, first.out) == (2, "")
    (line,) = first.err.splitlines(keepends=True)
    assert line.startswith(f"bertscore-tm: error: {message}")
    assert second == (2, "", "")


def run_in_own_folder(rank, folders, words):
    return run_rank(rank, str(folders[rank]), [words] * 2)


@pytest.mark.distributed
@pytest.mark.parametrize("case", SHARED)
@pytest.mark.usefixtures("command")
def test_the_folder_of_the_output_is_needed_on_the_first_host_only(tmp_path, case):
    folders = [tmp_path, tmp_path / "host"]
    shutil.copytree(tmp_path / "model", folders[1] / "model")
    words = [*SHARED[case], "-o", f"results/{KILLED[case][1]}", "-m", "model", "--device", "cpu"]
    first, second = run_ranks(run_in_own_folder, 2, folders, words)
    assert first == (2, "", f"bertscore-tm: error: argument --output: the folder {tmp_path}/results does not exist\n")
    assert second == (2, "", "")
    (tmp_path / "results").mkdir()
    first, second = run_ranks(run_in_own_folder, 2, folders, words)
    assert (first.exit_code, *second) == (0, 0, "", ""), first.err
    assert (tmp_path / words[words.index("-o") + 1]).stat().st_size
    assert [path.name for path in folders[1].iterdir()] == ["model"]


OTHER = "other/model"
COMPARE = ["compare", "hyps.txt", "refs.txt", "-r", "refs.txt", *LAYER]


@pytest.fixture
def refused(command, tmp_path):
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
        assert line.startswith(f"bertscore-tm: error: {socket.gethostname()} has ")
        return line

    return run


def run_changed_rank(rank, folder, arguments, changes):
    """Run the command on a rank, of which the second one has other values of modules."""
    for name, value in changes.items() if rank == 1 else ():
        pkgutil.resolve_name(name.rpartition(".")[0]).__dict__[name.rpartition(".")[2]] = value
    return run_rank(rank, folder, arguments)


@pytest.mark.distributed
@pytest.mark.parametrize("words", [*SHARED.values(), COMPARE], ids=itemgetter(0))
def test_ranks_with_other_weights_end_before_they_score(refused, words):
    words = [*words, "--device", "cpu", "-o", "out.jsonl" if words[0] == "rank" else "out.json"]
    said = refused([*words, "-m", "model"], [*words, "-m", OTHER])
    assert re.search(r"has model \w{8}; the other ranks have model \w{8}: give all hosts the same model", said)


@pytest.mark.distributed
def test_ranks_with_other_options_end_before_they_score(refused):
    words = [*SCORE[:-2], "-o", "out.tsv"]
    said = refused([*words, "--max-length", "9"], [*words, "--max-length", "8"])
    assert "has limit 8; the other ranks have limit 9: " in said
    assert "has output None; the other ranks have output out.tsv: " in refused(words, words[:-2])
    words = [*SHARED["rank"], "-o", "out.jsonl", "-m", "model"]
    said = refused(words, [*words, "--component", "recall", "--references-reduce", "max"])
    assert (
        "has component recall, references_reduce max; the other ranks have component f1, references_reduce mean" in said
    )


def version_of_another_host(package):
    return "4.0" if package == "transformers" else version(package)


def precision_of_another_host(device):
    return torch.float16


@pytest.mark.distributed
def test_ranks_with_other_versions_or_precision_end_before_they_score(refused):
    said = refused(SCORE, SCORE, **{"importlib.metadata.version": version_of_another_host})
    assert f"has transformers 4.0; the other ranks have transformers {version('transformers')}: " in said
    words = [*SCORE, "--dtype", "auto"]
    said = refused(words, words, **{"bertscore_tm.cli.encoders.fast_half_precision": precision_of_another_host})
    assert (
        f"has precision torch.float16; the other ranks have precision {fast_half_precision(torch.device('cpu'))}: "
        in said
    )


@pytest.mark.distributed
def test_the_same_model_may_be_in_another_folder(command, tmp_path):
    (tmp_path / "copies").mkdir()
    copied = shutil.copytree(tmp_path / "model", tmp_path / "copies" / "encoder")
    first, second = run_on_ranks(tmp_path, SCORE, [str(copied) if word == "model" else word for word in SCORE])
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert first.out == run_on_ranks(tmp_path, SCORE, SCORE)[0].out


def run_and_crash(rank, folder):
    def crash(*args, **kwargs):
        raise RuntimeError("a bug")

    if rank == 1:
        corpus.score_corpus = crash
    return run_rank(rank, folder, [SCORE] * 2)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.usefixtures("command")
def test_a_rank_that_crashes_ends_the_others(tmp_path):
    first, second = end_ranks(run_and_crash, 2, str(tmp_path))
    assert (first.result.exit_code, first.result.out) == (1, "")
    (line,) = (line for line in first.result.err.splitlines() if line.startswith("bertscore-tm"))
    assert line.startswith("bertscore-tm: error: lost the connection to another process: ")
    assert (second.exit_code, second.result) == (1, None)


def test_each_rank_of_a_machine_uses_its_own_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    # As where the device exists.
    empty = torch.empty(0)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: empty)
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


def test_a_rank_without_a_number_of_ranks_is_the_only_one(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert main(["score", "no.txt", "no.txt"]) == 2
    assert capsys.readouterr().err == "bertscore-tm: error: no.txt: No such file or directory\n"
