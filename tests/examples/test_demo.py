"""The demo reports the scores of what it wrote."""

import json

import pytest

from examples.programs import demo

pytestmark = [
    pytest.mark.usefixtures("corpus"),
    pytest.mark.filterwarnings("error::UserWarning", "ignore::FutureWarning", "ignore:.*many workers.*"),
]


def read_records(path):
    """Return the objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_demo_reports_the_scores_of_what_it_wrote(bert_score_f1, tmp_path, capsys):
    result = demo.main(["--steps", "4", "--pairs", "6", "--output", str(tmp_path)])

    rows = read_records(tmp_path / "texts.jsonl")
    printed = capsys.readouterr().out
    steps, losses, scores = zip(*result["curve"], strict=True)
    references = [row["reference"] for row in rows]
    best = {"smallest val_loss": losses.index(min(losses)), "largest val_bertscore_f1": scores.index(max(scores))}
    means = {}

    for rule, place in best.items():
        texts = [row[rule] for row in rows]
        means[rule] = bert_score_f1(texts, references, num_layers=6).mean().item()
        assert result["steps"][rule] == steps[place]
        assert f"{rule:25} step {steps[place]:3}   F1 at layer 6: {means[rule]:.3f}" in printed
    expected = means["largest val_bertscore_f1"] - means["smallest val_loss"]

    assert len(rows) == 6
    assert steps == (1, 2, 3, 4)
    assert result["difference"] == pytest.approx(expected, abs=1e-6)
    assert {path.name for path in tmp_path.iterdir()} == {"alignment.png", "texts.jsonl", "checkpoints"}
    f1s = bert_score_f1(list(demo.PAIRS), list(demo.PAIRS.values()))
    for (candidate, reference), f1 in zip(demo.PAIRS.items(), f1s, strict=True):
        assert f"F1 {f1:.3f}   {candidate}  |  {reference}" in printed
