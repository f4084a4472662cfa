"""``bertscore-tm score`` keeps the scores of parts of a long input, and resumes after an interruption."""

import json
from itertools import chain

import pytest
import torch

from bertscore_tm.cli import scored_corpus, shards
from bertscore_tm.cli.shards import Shards
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
    monkeypatch.setattr(shards, "SMALLEST", 4)
    monkeypatch.setattr(shards, "LARGEST", 4)
    monkeypatch.setattr(scored_corpus, "TEXTS_PER_BLOCK", 4)
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
        whole.setattr(shards, "LARGEST", 1000)
        expected = json.loads(command(*files, *options, "--json", "--per-segment").out)
    assert numbers(found) == pytest.approx(numbers(expected), abs=1.1e-6)
    for key in ("signature", "num_candidates", "num_references"):
        assert found[key] == expected[key]


def test_a_file_that_changed_does_not_resume(command, monkeypatch, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shards.Shards, "_keep", stop)
        printed = command(*TEXT_FILES, "-o", "scores.txt", exit_code=130)
    assert printed.err == "bertscore-tm: interrupted; the same command resumes\n"
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
    write_lines(tmp_path / name, lines)
    assert command(*TEXT_FILES, exit_code=2).err == f"bertscore-tm: error: {message}\n"
    write_lines(tmp_path / "pairs.jsonl", ['{"candidate": "a", "reference": "b"}'] * 17 + ["{"])
    assert "pairs.jsonl:18: not valid JSON" in command("-c", "pairs.jsonl", exit_code=2).err


def test_a_folder_of_other_files_is_left_alone(command, tmp_path):
    (tmp_path / "scores.txt.partial").mkdir()
    (tmp_path / "scores.txt.partial" / "mine").write_text("")
    assert "belongs to a run with other files" in command(*TEXT_FILES, "-o", "scores.txt", exit_code=2).err
    assert [path.name for path in (tmp_path / "scores.txt.partial").iterdir()] == ["mine"]


@pytest.mark.distributed
def test_ranks_write_what_one_process_writes(command, tmp_path):
    arguments = ["score", *TEXT_FILES, "-m", "model", "-l", "2", "--device", "cpu", "--idf", "--json", "--per-segment"]
    first, second = run_on_ranks(tmp_path, [*arguments, "-o", "ranks.json"], [*arguments, "-o", "ranks.json"])
    assert first == second == (0, "", "")
    found = json.loads((tmp_path / "ranks.json").read_text())
    expected = json.loads(command(*TEXT_FILES, "--idf", "--json", "--per-segment").out)
    assert numbers(found) == pytest.approx(numbers(expected), abs=1.1e-6)


class OneRank:
    """The ranks of a run in one process."""

    rank, size = 0, 1

    def run_on_first(self, work):
        return work()

    run_on_all = run_on_first


def test_the_first_part_is_short(tmp_path):
    computed = []

    def work(part, progress):
        computed.append(part)
        return {"numbers": torch.arange(part.start, part.stop)}

    found = Shards(OneRank(), tmp_path).compute("pair", 25_000, work)
    assert computed[:3] == [range(100), range(100, 1000), range(1000, 2000)]
    assert torch.cat([part["numbers"] for part in found]).tolist() == list(range(25_000))
