"""Runs that are killed: the same command resumes, repeats no finished part and writes what an unbroken run writes."""

import signal
import subprocess
import sys

import pytest

from bertscore_tm.cli import scored_corpus, shards
from bertscore_tm.encoder import FrozenEncoder
from tests.support.models import save_tiny_model
from tests.support.shell import ROOT, run_here, write_lines, write_records
from tests.support.texts import real_pairs

pytestmark = pytest.mark.usefixtures("one_thread")

COUNT = 23
CANDIDATES, REFERENCES = ([" ".join(text.split()[:8]) for text in texts] for texts in real_pairs(COUNT))
FILES = ["-c", "hyps.txt", "-r", "refs.txt"]
LAYER = ["-l", "2"]
# Items of a part.
SIZE = 4
# Arguments of a command, its output, and of its parts the name, the number of items, and how many are kept.
KILLED = {
    "score while it counts": (["score", *FILES, *LAYER, "--idf", "-s"], "out.tsv", "reference", COUNT, 3),
    "score": (["score", *FILES, *LAYER, "--idf", "--max-length", "8", "-s"], "out.tsv", "pair", COUNT, 2),
    "rank": (["rank", "samples.jsonl", *LAYER], "out.jsonl", "line", 7, 1),
    "baseline": (["baseline", "-t", "refs.txt", "--pairs", "24"], "out.csv", "pair", 24, 4),
}
# The process ends as by a power failure after it has kept so many parts of a name.
PROGRAM = f"""
import os, signal, sys
from bertscore_tm.cli import main, scored_corpus, shards

name, count = sys.argv[1], int(sys.argv[2])
shards.SMALLEST = shards.LARGEST = scored_corpus.TEXTS_PER_BLOCK = {SIZE}
keep, kept = shards.Shards._keep, []

def keep_and_die(self, *part):
    keep(self, *part)
    kept.append(part[0])
    if kept.count(name) == count:
        os.kill(os.getpid(), signal.SIGKILL)

shards.Shards._keep = keep_and_die
main(sys.argv[3:])
"""


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run a command in a folder with texts, in parts of four items; returns what it printed."""
    monkeypatch.chdir(tmp_path)
    for module, name in ((shards, "SMALLEST"), (shards, "LARGEST"), (scored_corpus, "TEXTS_PER_BLOCK")):
        monkeypatch.setattr(module, name, SIZE)
    save_tiny_model("bert", tmp_path / "model")
    write_lines(tmp_path / "hyps.txt", CANDIDATES)
    write_lines(tmp_path / "refs.txt", REFERENCES)
    write_records(tmp_path / "samples.jsonl", [{"candidates": CANDIDATES[3 * i : 3 * i + 2 + i % 2]} for i in range(7)])
    return lambda *arguments, exit_code=0: run_here(
        capsys, *arguments, "-m", "model", "--device", "cpu", exit_code=exit_code
    )


def watch(monkeypatch):
    """Return the parts and the texts that are computed from now on."""
    keep, encode, parts, texts = shards.Shards._keep, FrozenEncoder.encode, [], []

    def keep_and_note(self, name, part, found):
        parts.append(f"{name}-{part.start}.safetensors")
        keep(self, name, part, found)

    def encode_and_note(self, given, *arguments, **options):
        texts.extend(given)
        return encode(self, given, *arguments, **options)

    monkeypatch.setattr(shards.Shards, "_keep", keep_and_note)
    monkeypatch.setattr(FrozenEncoder, "encode", encode_and_note)
    return parts, texts


@pytest.mark.distributed
@pytest.mark.parametrize("case", KILLED)
def test_a_killed_run_resumes(command, tmp_path, monkeypatch, case):
    arguments, output, name, count, num_kept = KILLED[case]
    options = [*arguments, "-o", output]
    printed = command(*options)
    expected = (tmp_path / output).read_bytes()
    (tmp_path / output).unlink()
    killing = [sys.executable, "-c", PROGRAM, name, str(num_kept), *options, "-m", "model", "--device", "cpu"]
    ended = subprocess.run(killing, env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not (tmp_path / output).exists()
    folder = shards.partial_path(output)
    assert folder.stat().st_mode & 0o777 == 0o700
    kept = {path.name for path in folder.glob("*.safetensors")}
    assert {f"{name}-{SIZE * i}.safetensors" for i in range(num_kept)} <= kept
    refused = command(*options, "--dtype", "float64", exit_code=2).err
    assert f"{output}.partial belongs to a run with other files or settings: delete it to start anew" in refused

    computed, encoded = watch(monkeypatch)
    resumed = command(*options)
    assert f"resuming: {SIZE * num_kept} of {count} {name}s are in {output}.partial\n" in resumed.err
    names = {"reference", "pair"} if "--idf" in arguments else {name}
    everything = {f"{one}-{start}.safetensors" for one in names for start in range(0, count, SIZE)}
    assert sorted(computed) == sorted(everything - kept)
    if case == "score":
        assert not set(encoded) & {*CANDIDATES[: SIZE * num_kept], *REFERENCES[: SIZE * num_kept]}
    assert (tmp_path / output).read_bytes() == expected
    assert resumed.out == printed.out
    lines = [line for line in resumed.err.splitlines() if "resuming" not in line]
    assert lines == printed.err.splitlines()
    assert not folder.exists()
