"""Interrupted runs: a repeated command resumes, and never mixes two runs."""

import json
import math
import os
import signal
from contextlib import chdir, nullcontext

import pytest

from bertscore_tm.cli import main, resume
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.resume import PartialFile
from bertscore_tm.encoder import FrozenEncoder
from tests.support.long_runs import (
    CANDIDATES,
    COUNT,
    FILES,
    KILLED,
    LAYER,
    REFERENCES,
    SIZE,
    assert_same_but_last_digits,
)
from tests.support.ranks import end_ranks
from tests.support.shell import write_lines


def die_after(rank, folder, count, arguments):
    """Run the command, and end as by a power failure while it writes the last item of the step after so many."""
    resume.ITEMS_PER_STEP = SIZE
    write, written = PartialFile._write, []

    def write_and_die(self, lines):
        is_last = len(written) == count + 1  # The settings and so many steps are there.
        write(self, lines[:-20] if is_last else lines)
        written.append(lines)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)

    PartialFile._write = write_and_die
    with chdir(folder):
        main(arguments)


def watch(monkeypatch):
    """Return the steps that are written, and the texts that are encoded, from now on."""
    write, encode, steps, texts = PartialFile._write, FrozenEncoder.encode, [], []

    def write_and_note(self, lines):
        steps.append(lines)
        write(self, lines)

    def encode_and_note(self, batch, *arguments, **options):
        texts.extend(batch)
        return encode(self, batch, *arguments, **options)

    monkeypatch.setattr(PartialFile, "_write", write_and_note)
    monkeypatch.setattr(FrozenEncoder, "encode", encode_and_note)
    return steps, texts


@pytest.mark.distributed
@pytest.mark.parametrize("case", KILLED)
def test_a_killed_run_resumes(run_files, tmp_path, monkeypatch, case):
    arguments, output, name, count, num_written = KILLED[case]
    options = [*arguments, "-o", output]
    printed = run_files(*options)
    expected = (tmp_path / output).read_bytes()
    (tmp_path / output).unlink()
    unfinished = kill(tmp_path, options, num_written)
    assert not (tmp_path / output).exists()
    head, *lines, incomplete = unfinished.read_text().split("\n")
    assert list(json.loads(head)) == ["signature", "input"]
    # Items of the step that was cut off count, except the last one.
    num_finished = min(SIZE * (num_written + 1), count) - 1
    assert [json.loads(line)["item"] for line in lines] == list(range(num_finished))
    assert incomplete.startswith(f'{{"item": {num_finished}, ')
    other = ["--component", "recall"] if case == "rank" else ["--dtype", "float64"]
    refused = run_files(*options, *other, exit_code=2).err
    assert f"{output}.partial belongs to a run with other files or settings. Repeat that command, or " in refused

    computed, encoded = watch(monkeypatch)
    resumed = run_files(*options)
    assert f"resuming: {num_finished} of {count} {name}s are in {output}.partial\n" in resumed.err
    assert len(computed) == math.ceil((count - num_finished) / SIZE)
    if case == "score":
        assert not set(encoded) & {*CANDIDATES[:num_finished], *REFERENCES[:num_finished]}
    assert_same_but_last_digits((tmp_path / output).read_text(), expected.decode())
    assert resumed.out == printed.out
    lines = [line for line in resumed.err.splitlines() if "resuming" not in line]
    assert lines == printed.err.splitlines()
    assert not unfinished.exists()


def kill(folder, arguments, num_written):
    """End a command by a kill while it writes a step, and return its partial file."""
    words = [*arguments, "-m", "model", "--device", "cpu"]
    (ended,) = end_ranks(die_after, 1, str(folder), num_written, words)
    assert ended.exit_code == -signal.SIGKILL
    return folder / f"{arguments[-1]}.partial"


@pytest.mark.distributed
def test_lines_of_two_runs_are_refused(run_files, tmp_path):
    """On systems without locks two runs may write one file."""
    arguments = ["score", *FILES, *LAYER, "-s", "-o", "out.tsv"]
    unfinished = kill(tmp_path, arguments, 2)
    head, first, *others = unfinished.read_text().split("\n")
    unfinished.write_text("\n".join([head, first, first, *others]))

    printed = run_files(*arguments, exit_code=2).err

    assert "out.tsv.partial has lines of several runs. Start anew after rm " in printed


def test_a_second_run_is_refused_while_the_first_writes(run_files, tmp_path):
    arguments = ["score", *FILES, *LAYER, "-o", "out.txt"]
    other = PartialFile("out.txt")

    assert other.resume("the signature of another run", range(COUNT)) == []

    written = (tmp_path / "out.txt.partial").read_text()
    try:
        printed = run_files(*arguments, exit_code=2).err
    finally:
        other.close()

    assert "out.txt.partial is being written by another run. Wait for it, or stop it" in printed
    assert (tmp_path / "out.txt.partial").read_text() == written

    (tmp_path / "out.txt.partial").unlink()
    run_files(*arguments)

    assert not (tmp_path / "out.txt.partial").exists()


@pytest.mark.parametrize("error", [None, CommandError("a failure"), KeyboardInterrupt()])
def test_an_unfinished_output_is_deleted_after_success_only(tmp_path, error):
    partial = PartialFile(str(tmp_path / "out.txt"))
    expected = nullcontext() if error is None else pytest.raises(type(error))

    with expected as raised, partial:
        partial.resume("the signature of a run", range(2 * resume.ITEMS_PER_STEP))
        if error is not None:
            raise error

    assert (tmp_path / "out.txt.partial").exists() is (error is not None)
    if isinstance(error, KeyboardInterrupt):
        assert str(raised.value) == "The same command resumes"


def test_an_interrupted_run_with_other_texts_does_not_resume(run_files, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    arguments = ["score", *FILES, *LAYER, "-o", "out.txt"]
    with monkeypatch.context() as patched:
        patched.setattr(resume, "_compute_step", stop)
        assert run_files(*arguments, exit_code=130).err == "bertscore-tm: interrupted. The same command resumes\n"
    write_lines(tmp_path / "refs.txt", [*REFERENCES[:-1], "another text"])
    assert "belongs to a run with other files" in run_files(*arguments, exit_code=2).err
