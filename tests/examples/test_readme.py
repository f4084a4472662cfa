"""The README says first why, and what it says of other packages holds; `test_pages` runs its blocks of Python."""

import json
import re
import sys
import warnings

import bert_score as oracle
import pytest
import torch
import transformers
from torchmetrics.functional.text import bert_score as torchmetrics_score

from bertscore_tm import FrozenEncoder, bert_score
from tests.support.markdown_blocks import ROOT, blocks, same_output
from tests.support.models import EVERY_FAMILY, save_tiny_model
from tests.support.processes import run_process

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = blocks(ROOT / "README.md")


def test_why_comes_before_how():
    """What it is, why to change and the first commands are on the first screen, then a block with its output."""
    assert [block.language for block in BLOCKS[:5]] == ["console", "console", "python", "text", "python"]
    assert [line for line in BLOCKS[0].content.splitlines() if line.startswith("make ")] == ["make demo", "make test"]
    assert "constraints.txt torch" in BLOCKS[1].content.splitlines()[0]
    assert BLOCKS[0].line < 20
    assert README.index("## What differs") < README.index("**Metric**")
    assert 4 <= len(re.findall(r"^- \*\*", README.partition("## What differs")[0], re.MULTILINE)) <= 5

    (drop_in,) = re.findall(r"`(from bertscore_tm.compat[^`]+)`", README)
    exec(drop_in, {})


def test_the_number_of_families_is_that_of_the_tested_ones():
    (number,) = re.findall(r"\[(\d+)\s+model\s+families\]", README)
    assert int(number) == len(EVERY_FAMILY)


def test_links_are_whole_as_a_package_index_has_no_files():
    targets = dict(re.findall(r"^\[([^]]+)\]: (\S+)$", README, re.MULTILINE))

    assert len(targets) > 20
    assert not [target for target in targets.values() if not target.startswith("https://")]
    assert not [link for link in re.findall(r"\]\(([^)\s]+)\)", README) if not link.startswith("#")]
    # The raw page can be read, because links are collected at its end.
    assert targets.keys() == {*re.findall(r"\]\[([\w-]+)\]", README)}


@pytest.mark.slow
def test_the_shell_prints_what_the_page_shows(tmp_path):
    (shell,) = (block for block in BLOCKS if "printf" in block.content)
    # The command and the interpreter are those of this environment.
    commands = shell.content.replace("bertscore-tm ", f"{sys.executable} -m bertscore_tm.cli ")
    commands = commands.replace("python3 -c", f"{sys.executable} -c")
    printed = run_process("sh", "-ec", commands, folder=tmp_path, PYTHONPATH=str(ROOT))

    assert printed.stderr == ""
    shown, output = (re.sub(r"\|transformers:.*", "", text) for text in (shell.output, printed.stdout))
    assert same_output(shown, output)


def test_the_four_pairs_have_the_scores_of_the_page():
    page = (ROOT / "examples" / "docs" / "migrating.md").read_text(encoding="utf-8")
    (row,) = (line for line in README.splitlines() if line.startswith("| F1 of the four pairs"))

    for cell, name in zip(row.split("|")[2:5], ("bert_score, one by one", "torchmetrics", "drop-in"), strict=True):
        scores = " ".join(re.findall(r"\d\.\d{3}", cell))
        assert f"\n{name} {scores}\n" in page


def test_special_tokens_and_long_texts_in_other_packages(minilm, encoder):
    pair = ["a cat sat"], ["the cat sat down"]
    excluded = bert_score(*pair, FrozenEncoder(minilm, num_layers=5, exclude_special_tokens=True))["f1"].item()

    assert torchmetrics_score(*pair, minilm, num_layers=5)["f1"].item() == pytest.approx(excluded, abs=1e-6)
    assert excluded != pytest.approx(bert_score(*pair, encoder)["f1"].item(), abs=1e-3)
    with warnings.catch_warnings(action="error"):
        whole, cut = (oracle.score(["word " * n], ["a cat"], model_type=minilm, num_layers=5)[2] for n in (600, 510))
    assert torch.equal(whole, cut)


@pytest.mark.skipif(transformers.__version__ < "5", reason="transformers 4 gives texts the space")
def test_empty_texts_and_spaces_in_other_packages(minilm, tmp_path):
    assert torchmetrics_score(["", "a"], ["a cat", "a"], minilm, num_layers=5)["precision"][0].isnan()

    folder = save_tiny_model("roberta", tmp_path / "model")
    settings = tmp_path / "model/tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"tokenizer_class": "RobertaTokenizer"}))
    pair = ["cats sat on mats"], ["a cat sat on mats"]
    theirs = oracle.score(*pair, model_type=str(folder), num_layers=2)[2].item()
    encoders = (FrozenEncoder(folder, num_layers=2, prefix_space=space) for space in (None, False))
    spaced, plain = (bert_score(*pair, encoder)["f1"].item() for encoder in encoders)

    assert theirs == pytest.approx(plain, abs=1e-6) != pytest.approx(spaced, abs=1e-3)
