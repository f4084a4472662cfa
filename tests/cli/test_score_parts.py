"""``bertscore-tm score`` reads, scores and keeps files part by part, and resumes."""

import json
from contextlib import contextmanager
from itertools import chain

import pytest

from bertscore_tm.cli import scored_corpus
from bertscore_tm.cli.report import partial_path
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.scoring import messages, token_weights
from tests.support.models import save_tiny_model
from tests.support.shell import run_here, run_on_ranks, write_lines, write_records
from tests.support.texts import real_pairs

pytestmark = pytest.mark.usefixtures("one_thread")

COUNT = 23
CANDIDATES, REFERENCES = ([" ".join(text.split()[:8]) for text in texts] for texts in real_pairs(COUNT))


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run the command in a folder with the texts, in parts of four pairs; returns what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scored_corpus, "PAIRS_PER_PART", 4)
    save_tiny_model("bert", tmp_path / "model")
    write_lines(tmp_path / "hyps.txt", CANDIDATES)
    write_lines(tmp_path / "refs.txt", REFERENCES)
    rows = zip(CANDIDATES, REFERENCES, strict=True)
    write_lines(tmp_path / "pairs.tsv", ["candidate\treference", *map("\t".join, rows)])
    several = [[r, REFERENCES[i - 1]] for i, r in enumerate(REFERENCES)]
    write_records(
        tmp_path / "pairs.jsonl", [{"candidate": c, "references": r} for c, r in zip(CANDIDATES, several, strict=True)]
    )

    def run(*arguments, exit_code=0):
        options = ("-m", "model", "-l", "2", "--device", "cpu")
        return run_here(capsys, "score", *options, *arguments, exit_code=exit_code)

    return run


def numbers(document):
    return [*(document[name] for name in ("precision", "recall", "f1")), *chain(*document["segments"].values())]


TEXT_FILES = ["-c", "hyps.txt", "-r", "refs.txt"]


@pytest.mark.parametrize(
    ("files", "options"), [(TEXT_FILES, ["--idf"]), (["-c", "pairs.tsv"], []), (["-c", "pairs.jsonl"], ["--idf"])]
)
def test_parts_give_the_scores_of_the_whole(command, monkeypatch, files, options):
    found = json.loads(command(*files, *options, "--json", "--per-segment").out)
    with monkeypatch.context() as whole:
        whole.setattr(scored_corpus, "PAIRS_PER_PART", 1000)
        expected = json.loads(command(*files, *options, "--json", "--per-segment").out)
    assert numbers(found) == pytest.approx(numbers(expected), abs=1.1e-6)
    for key in ("signature", "num_candidates", "num_references"):
        assert found[key] == expected[key]


@pytest.mark.parametrize("options", [["--idf", "--max-length", "8"], ["--all-layers"]])
def test_an_interrupted_run_resumes(command, monkeypatch, tmp_path, options):
    arguments = [*TEXT_FILES, "--per-segment", *options]
    expected = command(*arguments)
    encode, encoded = FrozenEncoder.encode, []

    def interrupted(self, texts, device="cpu"):
        encoded.append(len(texts))
        if len(encoded) == 4:
            raise KeyboardInterrupt
        return encode(self, texts, device)

    with monkeypatch.context() as patched:
        patched.setattr(FrozenEncoder, "encode", interrupted)
        printed = command(*arguments, "-o", "scores.tsv", exit_code=130)
    assert printed.err.endswith("bertscore-tm: interrupted; the same command resumes\n")
    assert not (tmp_path / "scores.tsv").exists()
    unfinished = partial_path(str(tmp_path / "scores.tsv"))
    scored = [line for line in unfinished.read_text().splitlines() if "scores" in json.loads(line)]
    assert len(scored) == 3
    # As a power failure may leave it.
    with unfinished.open("a") as file:
        file.write('{"scores": [[[0.1')
    other = command(*arguments, "-o", "scores.tsv", "--dtype", "float64", exit_code=2)
    assert "scores.tsv.partial belongs to a run with other files or settings" in other.err
    resumed = command(*arguments, "-o", "scores.tsv")
    assert resumed.err.startswith("bertscore-tm: resuming after pair 12 from scores.tsv.partial\n")
    assert resumed.err.partition("\n")[2] == expected.err
    assert (tmp_path / "scores.tsv").read_text() == expected.out
    assert not unfinished.exists()


def test_the_first_parts_are_short(command, monkeypatch, tmp_path):
    monkeypatch.setattr(scored_corpus, "PAIRS_PER_PART", 8)
    monkeypatch.setattr(scored_corpus, "_PAIRS_OF_FIRST_PART", 2)
    append, kept = scored_corpus.append_lines, []

    def stop_after(path, lines):
        append(path, lines)
        kept.append([json.loads(line) for line in path.read_text().splitlines()[1:]])
        if len(kept) in (3, 5):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(scored_corpus, "append_lines", stop_after)
        command(*TEXT_FILES, "-o", "scores.txt", exit_code=130)
        assert "resuming after pair 8 from" in command(*TEXT_FILES, "-o", "scores.txt", exit_code=130).err
    assert [len(part["best_reference"][0]) for part in kept[-1]] == [2, 2, 4, 8, 7]
    assert command(*TEXT_FILES, "-o", "scores.txt").err.startswith("bertscore-tm: resuming after pair 23 from")
    assert (tmp_path / "scores.txt").read_text() == command(*TEXT_FILES).out


def test_counted_references_are_kept(command, monkeypatch, tmp_path):
    monkeypatch.setattr(scored_corpus, "_PAIRS_PER_COUNT", 5)
    expected = command("-c", "pairs.jsonl", "--idf", "-s").out
    append, tokenized = scored_corpus.append_lines, []
    count = token_weights.reference_frequencies

    def counted(texts, *arguments):
        tokenized.append(len(texts.ids))
        return count(texts, *arguments)

    def stop_after(path, lines):
        append(path, lines)
        if len(tokenized) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(token_weights, "reference_frequencies", counted)
    with monkeypatch.context() as patched:
        patched.setattr(scored_corpus, "append_lines", stop_after)
        command("-c", "pairs.jsonl", "--idf", "-s", "-o", "scores.tsv", exit_code=130)
    assert tokenized == [10, 10, 10]
    command("-c", "pairs.jsonl", "--idf", "-s", "-o", "scores.tsv")
    assert tokenized == [10, 10, 10, 10, 6]
    assert (tmp_path / "scores.tsv").read_text() == expected


def test_the_progress_moves_with_every_batch(command, monkeypatch):
    monkeypatch.setattr(scored_corpus, "PAIRS_PER_PART", 1000)
    monkeypatch.setattr("bertscore_tm.cli.distributed._CHARACTERS_PER_STEP", 400)
    moved, bar = [], messages.progress_bar

    @contextmanager
    def recorded(total, *arguments, **options):
        with bar(total, False):
            yield moved.append

    monkeypatch.setattr(messages, "progress_bar", recorded)
    command(*TEXT_FILES)
    moves = [count for count in moved if count]
    assert len(moves) > 3
    assert sum(moves) == COUNT


def test_a_file_that_changed_does_not_resume(command, monkeypatch, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(scored_corpus, "append_lines", stop)
        command(*TEXT_FILES, "-o", "scores.txt", exit_code=130)
    write_lines(tmp_path / "refs.txt", [*REFERENCES[:-1], "another text"])
    assert "belongs to a run with other files" in command(*TEXT_FILES, "-o", "scores.txt", exit_code=2).err


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("refs.txt", REFERENCES[:-1], "refs.txt:22: the file ends here, but hyps.txt has 23 texts"),
        ("refs.txt", [*REFERENCES, "more"], "hyps.txt:23: the file ends here, but refs.txt has 24 texts"),
        ("refs.txt", [], "refs.txt:0: the file ends here, but hyps.txt has 23 texts"),
    ],
)
def test_errors_name_the_line_before_the_first_score(command, tmp_path, monkeypatch, name, lines, message):
    monkeypatch.setattr("bertscore_tm.cli.pair_files._LINES_PER_CHECK", 5)
    write_lines(tmp_path / name, lines)
    assert command(*TEXT_FILES, exit_code=2).err == f"bertscore-tm: error: {message}\n"
    write_lines(tmp_path / "pairs.jsonl", ['{"candidate": "a", "reference": "b"}'] * 17 + ["{"])
    assert "pairs.jsonl:18: not valid JSON" in command("-c", "pairs.jsonl", exit_code=2).err


@pytest.mark.parametrize("names", [["refs.txt"], ["refs.txt", "hyps.txt"]])
def test_files_that_change_during_the_run_are_an_error(command, monkeypatch, tmp_path, names):
    build_encoder = scored_corpus.options.build_encoder

    def change(*arguments, **settings):
        for name in names:
            write_lines(tmp_path / name, REFERENCES[:5])
        return build_encoder(*arguments, **settings)

    monkeypatch.setattr(scored_corpus.options, "build_encoder", change)
    printed = command(*TEXT_FILES, exit_code=2)
    assert printed.err == "bertscore-tm: error: the files changed while they were read: give the command again\n"


@pytest.mark.distributed
def test_ranks_write_what_one_process_writes(command, tmp_path):
    arguments = ["score", *TEXT_FILES, "-m", "model", "-l", "2", "--device", "cpu", "--idf", "--json", "--per-segment"]
    first, second = run_on_ranks(tmp_path, [*arguments, "-o", "ranks.json"], [*arguments, "-o", "ranks.json"])
    assert first == second == (0, "", "")
    found = json.loads((tmp_path / "ranks.json").read_text())
    expected = json.loads(command(*TEXT_FILES, "--idf", "--json", "--per-segment").out)
    assert numbers(found) == pytest.approx(numbers(expected), abs=1.1e-6)
