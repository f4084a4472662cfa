"""``--strip-thoughts`` of the commands: the scores of the answers, and a signature that says so."""

import json

import pytest

from tests.support.shell import run_here, write_lines, write_records

ANSWERS = ["a cat sat on the mat", "it rains"]
THINKING = ["<think>Where? On the mat.</think> a cat sat on the mat", "<thinking></thinking>it rains"]
REFERENCES = ["the cat sat on a mat", "it is raining"]


@pytest.fixture
def printed(minilm, tmp_path, capsys):
    """Function that runs a command on both texts and returns its JSON documents, without thoughts and with them."""

    def run(name, kinds, *arguments):
        documents = []
        for texts, options in ((ANSWERS, []), (THINKING, ["--strip-thoughts"])):
            write_lines(tmp_path / "c.txt", texts)
            write_lines(tmp_path / "b.txt", REFERENCES[::-1])
            write_lines(tmp_path / "r.txt", REFERENCES)
            write_records(tmp_path / "s.jsonl", [{"candidates": texts}])
            files = [tmp_path / kind for kind in kinds]
            shown = run_here(capsys, name, *files, *arguments, *options, "-m", minilm, "-l", 5, "--json")
            assert "special tokens" not in shown.err
            documents.append(json.loads(shown.out))
        plain, stripped = documents
        assert stripped.pop("signature") == f"{plain.pop('signature')}|thoughts:stripped"
        assert stripped == plain

    return run


@pytest.mark.filterwarnings("error:.*special tokens")
def test_scores_are_those_of_the_answers(printed, tmp_path):
    printed("score", ["c.txt", "r.txt"], "--per-segment")
    names = ["--names", "a", "b"]
    printed("compare", ["c.txt", "b.txt"], "-r", tmp_path / "r.txt", *names)

    printed("rank", ["s.jsonl"], "-o", tmp_path / "best.jsonl")

    assert json.loads((tmp_path / "best.jsonl").read_text())["candidate"] in ANSWERS


def test_the_warning_names_the_option(minilm, tmp_path, capsys):
    options = ["--candidate-text", THINKING[0], "--reference-text", REFERENCES[0], "-m", minilm, "-l", 5]
    shown = run_here(capsys, "score", *options)

    assert "such as <think>, which are scored as text: decode" in shown.err
    assert "remove thoughts with bertscore_tm.strip_thoughts (--strip-thoughts)\n" in shown.err
    assert run_here(capsys, "score", *options, "--strip-thoughts").err == ""
