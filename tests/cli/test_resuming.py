"""Runs in parts: a killed one resumes without repeating what is finished, and ranks share them."""

import math
import os
import re
import signal
from contextlib import chdir

import pytest

from bertscore_tm.cli import main, shards
from bertscore_tm.encoder import FrozenEncoder
from tests.support.models import save_tiny_model
from tests.support.ranks import end_ranks
from tests.support.shell import run_here, run_on_ranks, write_lines, write_records
from tests.support.texts import real_pairs

pytestmark = pytest.mark.usefixtures("one_thread")

COUNT = 23
CANDIDATES, REFERENCES = ([" ".join(text.split()[:8]) for text in texts] for texts in real_pairs(COUNT))
FILES = ["-c", "hyps.txt", "-r", "refs.txt"]
LAYER = ["-l", "2"]
NUMBER = r"\d\.\d{4,6}"
# Items of a part.
SIZE = 4
# Arguments of a command, its output, the name and the number of its items, and how many parts are written.
KILLED = {
    "score": (["score", *FILES, *LAYER, "--idf", "--max-length", "8", "-s"], "out.tsv", "pair", COUNT, 2),
    "rank": (["rank", "samples.jsonl", *LAYER], "out.jsonl", "line", 7, 1),
    "baseline": (["baseline", "refs.txt", "--pairs", "24"], "out.csv", "pair", 24, 4),
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
    assert lines[-1].startswith('{"scores": ')
    other = {"rank": ["--component", "recall"], "baseline": ["--seed", "1"]}.get(case, ["--dtype", "float64"])
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


def test_an_interrupted_run_with_other_texts_does_not_resume(command, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    arguments = ["score", *FILES, *LAYER, "-o", "out.txt"]
    with monkeypatch.context() as patched:
        patched.setattr(shards, "_compute_next", stop)
        assert command(*arguments, exit_code=130).err == "bertscore-tm: interrupted; the same command resumes\n"
    write_lines(tmp_path / "refs.txt", [*REFERENCES[:-1], "another text"])
    assert "belongs to a run with other files" in command(*arguments, exit_code=2).err


@pytest.mark.distributed
@pytest.mark.parametrize("case", ["rank", "baseline"])
def test_two_ranks_write_what_one_does(command, tmp_path, monkeypatch, case):
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    arguments, output, *_ = KILLED[case]
    if case == "baseline":
        arguments = [*arguments, "--pairs", "240"]
    alone = command(*arguments, "-o", f"one-{output}").out
    words = [*arguments, "-o", f"two-{output}", "-m", "model", "--device", "cpu"]
    first, second = run_on_ranks(tmp_path, words, words)
    assert (first.exit_code, *second) == (0, 0, "", "")
    assert first.out == alone.replace("one-", "two-")
    single, shared = ((tmp_path / f"{number}-{output}").read_text() for number in ("one", "two"))
    assert re.sub(NUMBER, "", shared) == re.sub(NUMBER, "", single)
    # Texts that are encoded together may change the last of the six digits.
    numbers, expected = ([float(x) for x in re.findall(NUMBER, text)] for text in (shared, single))
    assert numbers == pytest.approx(expected, abs=2e-6)
