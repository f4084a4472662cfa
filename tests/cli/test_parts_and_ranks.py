"""Long runs: a killed one resumes without repeating what is finished, and ranks divide the items and end together."""

import json
import math
import os
import pkgutil
import re
import signal
from contextlib import chdir, nullcontext
from importlib.metadata import version
from operator import itemgetter

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertscore_tm.cli import main, resume
from bertscore_tm.cli.encoder import choose_device
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.resume import PartialFile
from bertscore_tm.device.precision import fast_half_precision
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.scoring import corpus
from tests.support.markdown_blocks import ROOT
from tests.support.models import save_tiny_model
from tests.support.ranks import end_ranks, run_ranks
from tests.support.shell import run_here, run_on_ranks, run_rank, write_lines, write_records
from tests.support.texts import real_pairs, several_references

COUNT = 23
CANDIDATES, REFERENCES = real_pairs(COUNT, words=8)
FILES = ["-c", "hyps.txt", "-r", "refs.txt"]
LAYER = ["-l", "2"]
NUMBER = r"\d\.\d{4,6}"
# Items of a step.
SIZE = 4
# Arguments of a command, its output, the name and the number of its items, and how many steps are written.
KILLED = {
    "score": (["score", *FILES, *LAYER, "--idf", "--max-length", "8", "-s"], "out.tsv", "pair", COUNT, 2),
    "rank": (["rank", "samples.jsonl", *LAYER], "out.jsonl", "line", 7, 1),
}


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


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
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
def test_a_killed_run_resumes(command, tmp_path, monkeypatch, case):
    arguments, output, name, count, num_written = KILLED[case]
    options = [*arguments, "-o", output]
    printed = command(*options)
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
    refused = command(*options, *other, exit_code=2).err
    assert f"{output}.partial belongs to a run with other files or settings. Repeat that command, or " in refused

    computed, encoded = watch(monkeypatch)
    resumed = command(*options)
    assert f"resuming: {num_finished} of {count} {name}s are in {output}.partial\n" in resumed.err
    assert len(computed) == math.ceil((count - num_finished) / SIZE)
    if case == "score":
        assert not set(encoded) & {*CANDIDATES[:num_finished], *REFERENCES[:num_finished]}
    assert_same_but_last_digits((tmp_path / output).read_text(), expected.decode())
    assert resumed.out == printed.out
    lines = [line for line in resumed.err.splitlines() if "resuming" not in line]
    assert lines == printed.err.splitlines()
    assert not unfinished.exists()


def assert_same_but_last_digits(text, other):
    """Compare two outputs: texts that are encoded together may change the last of the six digits."""
    assert re.sub(NUMBER, "", text) == re.sub(NUMBER, "", other)
    numbers, expected = ([float(x) for x in re.findall(NUMBER, output)] for output in (text, other))
    assert numbers == pytest.approx(expected, abs=2e-6)


def kill(folder, arguments, num_written):
    """End a command by a kill while it writes a step, and return its partial file."""
    words = [*arguments, "-m", "model", "--device", "cpu"]
    (ended,) = end_ranks(die_after, 1, str(folder), num_written, words)
    assert ended.exit_code == -signal.SIGKILL
    return folder / f"{arguments[-1]}.partial"


@pytest.mark.distributed
def test_lines_of_two_runs_are_refused(command, tmp_path):
    """On systems without locks two runs may write one file."""
    arguments = ["score", *FILES, *LAYER, "-s", "-o", "out.tsv"]
    unfinished = kill(tmp_path, arguments, 2)
    head, first, *others = unfinished.read_text().split("\n")
    unfinished.write_text("\n".join([head, first, first, *others]))
    printed = command(*arguments, exit_code=2).err
    assert "out.tsv.partial has lines of several runs. Start anew after rm " in printed


def test_a_second_run_is_refused_while_the_first_writes(command, tmp_path):
    arguments = ["score", *FILES, *LAYER, "-o", "out.txt"]
    other = PartialFile("out.txt")
    assert other.resume("the signature of another run", range(COUNT)) == []
    written = (tmp_path / "out.txt.partial").read_text()
    try:
        printed = command(*arguments, exit_code=2).err
    finally:
        other.close()
    assert "out.txt.partial is being written by another run. Wait for it, or stop it" in printed
    assert (tmp_path / "out.txt.partial").read_text() == written
    (tmp_path / "out.txt.partial").unlink()
    command(*arguments)
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


def test_an_interrupted_run_with_other_texts_does_not_resume(command, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    arguments = ["score", *FILES, *LAYER, "-o", "out.txt"]
    with monkeypatch.context() as patched:
        patched.setattr(resume, "_compute_step", stop)
        assert command(*arguments, exit_code=130).err == "bertscore-tm: interrupted. The same command resumes\n"
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
    assert_same_but_last_digits(shared, single)


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
        assert line.startswith("bertscore-tm: error: rank 1 has ")
        assert line.endswith(". Give all ranks the same model, devices and versions")
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
        corpus.score_corpus = crash
    return run_rank(rank, folder, [SCORE] * 2)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.usefixtures("command")
def test_a_rank_that_crashes_ends_the_others(tmp_path):
    first, second = end_ranks(run_and_crash, 2, str(tmp_path))
    assert (first.result.exit_code, first.result.out) == (1, "")
    (line,) = (line for line in first.result.err.splitlines() if line.startswith("bertscore-tm"))
    assert line.startswith("bertscore-tm: error: lost the connection to another process. ")
    assert (second.exit_code, second.result) == (1, None)


def test_each_rank_uses_its_own_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    # As where the device exists.
    empty = torch.empty(0)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: empty)
    assert choose_device(None) == torch.device("cuda:0")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device(None) == choose_device("cuda") == torch.device("cuda:1")
    assert choose_device("cuda:0") == torch.device("cuda:0")
    assert choose_device("cpu") == torch.device("cpu")


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
