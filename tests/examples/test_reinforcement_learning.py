"""The page's rewards, called as TRL 1.16, verl 0.9 and verifiers 0.4 call them."""

import asyncio
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from tests.support.markdown_blocks import ROOT, blocks

COMPLETIONS = ["a cat sat on the mat", "it rains it rains it rains it rains", "snow", "he works at the bank"]
REFERENCES = [
    ["the cat sat on a mat", "a dog ran"],
    ["it snows", "it rains"],
    ["snow"],
    ["he works at a bank", "hello"],
]

LOGGED = "bertscore_f1_layer5"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The names of the page, of whose blocks those for packages that are not installed are left out."""
    names = {"__name__": "page"}
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        for block in blocks(ROOT / "examples" / "docs" / "reinforcement_learning.md"):
            packages = [
                name for name in ("trl", "verifiers") if f" {name}" in block.content and "import" in block.content
            ]
            if block.language == "python" and all(map(find_spec, packages)):
                block.run(names)
    return names


def f1_of_each(bert_score_f1, completions, references):
    """F1 of each completion against each of its references."""
    return [
        bert_score_f1([text] * len(texts), texts).tolist() for text, texts in zip(completions, references, strict=True)
    ]


@pytest.mark.slow
def test_trl_logs_the_metrics_and_loads_the_reference_model(page):
    pytest.importorskip("trl")
    trainer = page["trainer"]

    assert trainer.ref_model is not None
    logged = [row for row in trainer.state.log_history if "reward" in row]
    assert len(logged) == 2
    for row in logged:
        assert {"kl", f"{LOGGED}/raw", f"{LOGGED}/lowered", f"{LOGGED}/length_ratio"} <= row.keys()
        assert row["reward"] <= row[f"{LOGGED}/raw"] + 1e-6
    assert set(trainer._logs["extra"][f"{LOGGED}/closest_reference"]) <= {"Rain.", "It will rain."}


def test_verl_gets_the_reward_of_each_answer(page, bert_score_f1):
    expected = f1_of_each(bert_score_f1, COMPLETIONS, REFERENCES)
    for text, references, f1 in zip(COMPLETIONS, REFERENCES, expected, strict=True):
        score = page["compute_score"](
            data_source="news", solution_str=text, ground_truth=references, extra_info={"index": 0}
        )
        assert score == pytest.approx(sum(f1) / len(f1), abs=2e-6)


def test_verifiers_gets_the_reward_of_the_last_reply(page, bert_score_f1):
    pytest.importorskip("verifiers.v1")
    import verifiers.v1 as vf

    task = page["Summarise"](page["SummaryData"](prompt="Summarise.", answer=REFERENCES[0][0]), vf.TaskConfig())
    score = asyncio.run(task.bertscore(SimpleNamespace(last_reply=COMPLETIONS[0])))

    assert score == pytest.approx(bert_score_f1(COMPLETIONS[:1], REFERENCES[0][:1]).item(), abs=2e-6)
