"""``bertscore-tm baseline``: the table of the library."""

import json
from operator import attrgetter

import pytest
import torch

from bertscore_tm import FrozenEncoder
from bertscore_tm.scoring.baselines import make_baseline
from tests.support.models import save_tiny_model
from tests.support.shell import add_defaults, numbers_in, run_here, write_lines
from tests.support.shell_cases import ShellCase, check_case
from tests.support.texts import real_pairs

TEXTS = real_pairs(30)[0]
PAIRS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small model, and files of texts."""
    folder = tmp_path_factory.mktemp("baseline")
    save_tiny_model("bert", folder / "model")
    write_lines(folder / "texts.txt", [*TEXTS, "", TEXTS[3], "  "])
    write_lines(folder / "texts.tsv", ["number\ttext", *(f"{i}\t{text}" for i, text in enumerate(TEXTS))])
    return folder


@pytest.fixture
def command(folder, monkeypatch, capsys):
    """Run the command in the folder of the texts; returns what it printed."""
    monkeypatch.chdir(folder)

    def run(*arguments, texts="texts.txt", model="model", output="table.csv", exit_code=0):
        words = add_defaults(arguments, model=model, device="cpu", pairs=PAIRS, output=output)
        return run_here(capsys, "baseline", texts, *words, exit_code=exit_code)

    return run


@pytest.fixture(scope="module")
def expected(folder):
    return make_baseline(FrozenEncoder(folder / "model", all_layers=True), TEXTS, PAIRS)


def test_table_and_screen(command, folder, expected):
    printed = command()

    assert (folder / "table.csv").read_text() == expected.to_csv()

    lines = printed.out.splitlines()
    assert lines[0].split() == ["layer", "P", "R", "F1"]

    for layer in range(4):
        numbers = torch.stack([expected.mean[layer], expected.standard_error[layer]], dim=1).flatten().tolist()
        assert numbers_in(lines[1 + layer]) == pytest.approx(numbers, abs=6e-5)
        assert lines[1 + layer].split()[0] == str(layer)
        assert lines[1 + layer].count(" ± ") == 3
    assert lines[5] == f"mean ± standard error of {PAIRS} random pairs of 30 distinct texts, seed 0"
    assert lines[6].startswith("signature: ")
    assert printed.err == "bertscore-tm: wrote table.csv\n"


def test_document(command, folder):
    other = make_baseline(FrozenEncoder(folder / "model", num_layers=2, all_layers=True), TEXTS, 30, 5)
    write_lines(folder / "long.txt", [*TEXTS, " ".join(TEXTS)])
    warning = "bertscore-tm: warning: 1 text is longer than 64 tokens and was truncated (of 31 texts). "
    warning += "To read whole texts, pass --long-text window\n"

    assert warning in command(texts="long.txt").err

    options = ["--pairs", "30", "--seed", "5", "--num-layers", "2", "--json"]
    document = json.loads(command(*options, output="other.csv").out)

    # Means are rounded to six decimals, errors to six significant digits.
    for key, rounding in (("mean", {"abs": 6e-7, "rel": 0}), ("standard_error", {"abs": 0, "rel": 5e-6})):
        for name, expected in zip(("precision", "recall", "f1"), getattr(other, key).T.tolist(), strict=True):
            assert document[key][name] == pytest.approx(expected, **rounding)
    assert document["signature"] == str(other.signature)
    assert (document["num_pairs"], document["num_texts"], document["num_truncated"], document["seed"]) == (30, 30, 0, 5)
    assert (folder / document["output"]).read_text() == other.to_csv()


BAD_COMMANDS = [
    ShellCase(
        "baseline same.txt -m model -o table.csv",
        {"same.txt": "a cat\na cat \n"},
        error="texts must have at least 2 distinct texts ... got 1...",
    ),
    ShellCase(
        "baseline two.txt -m model -o table.csv --pairs 1",
        {"two.txt": "a cat\na dog\n"},
        error="num_pairs must be at least 2, got 1...",
    ),
]


@pytest.mark.parametrize("case", BAD_COMMANDS, ids=attrgetter("arguments"))
def test_a_bad_baseline_ends_in_one_line(tmp_path, capsys, folder, case):
    check_case(case, tmp_path, capsys, folder / "model")
