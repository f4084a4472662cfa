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


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The names of the page, of whose blocks those for packages that are not installed are left out."""
    names = {"__name__": "page"}
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        for block in blocks(ROOT / "examples" / "reinforcement_learning.md"):
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


def test_the_reward_logs_what_trl_asks_for(page, bert_score_f1):
    metrics, columns = {}, {}
    arguments = {"prompts": ["Say."] * 4, "completion_ids": [[1]] * 4, "trainer_state": None}
    rewards = page["logged_reward"](
        completions=COMPLETIONS,
        references=REFERENCES,
        log_metric=metrics.__setitem__,
        log_extra=columns.__setitem__,
        **arguments,
    )
    f1 = f1_of_each(bert_score_f1, COMPLETIONS, REFERENCES)
    raw = [sum(scores) / len(scores) for scores in f1]
    assert rewards[0] == pytest.approx(raw[0], abs=2e-6)
    # The second has 8 tokens, at most 1.5 times 3 count, and 2 distinct ones of 5 4-grams.
    assert rewards[1] == pytest.approx(raw[1] * (1.5 * 3 / 8) * (2 / 5), abs=2e-6)
    assert metrics["bertscore/f1"] == pytest.approx(sum(raw) / 4, abs=2e-6)
    assert metrics["bertscore/lowered"] == 0.25
    assert columns == {
        "closest_reference": [texts[scores.index(max(scores))] for texts, scores in zip(REFERENCES, f1, strict=True)]
    }
    # With two special tokens each.
    assert metrics["bertscore/length_ratio"] == pytest.approx((8 + 10 + 3 + 7) / (8 + 4 + 3 + 7))


@pytest.mark.slow
def test_trl_logs_the_metrics_and_loads_the_reference_model(page):
    pytest.importorskip("trl")
    trainer = page["trainer"]
    assert trainer.ref_model is not None
    logged = [row for row in trainer.state.log_history if "reward" in row]
    assert len(logged) == 2
    for row in logged:
        assert {"kl", "bertscore/f1", "bertscore/lowered", "bertscore/length_ratio"} <= row.keys()
        assert row["reward"] <= row["bertscore/f1"] + 1e-6
    assert set(trainer._logs["extra"]["closest_reference"]) <= {"Rain.", "It will rain."}


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
