"""The demo reports the scores of what it wrote."""

import json

import pytest

from examples.programs import demo

pytestmark = [
    pytest.mark.usefixtures("corpus"),
    pytest.mark.filterwarnings("error::UserWarning", "ignore::FutureWarning", "ignore:.*many workers.*"),
]


def test_demo_reports_the_scores_of_what_it_wrote(bert_score_f1, tmp_path, capsys):
    result = demo.main(["--steps", "10", "--pairs", "6", "--output", str(tmp_path)])
    rows = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
    printed, means = capsys.readouterr().out, {}
    steps, losses, scores = zip(*result["curve"], strict=True)
    assert steps == tuple(range(1, 11))
    best = {"smallest val_loss": losses.index(min(losses)), "largest val_bertscore_f1": scores.index(max(scores))}
    for rule, place in best.items():
        texts, references = ([row[name] for row in rows] for name in (rule, "reference"))
        means[rule] = bert_score_f1(texts, references, num_layers=6).mean().item()
        assert result["steps"][rule] == steps[place]
        assert f"{rule:25} step {steps[place]:3}   F1 at layer 6: {means[rule]:.3f}" in printed
    f1s = bert_score_f1(list(demo.PAIRS), list(demo.PAIRS.values()))
    for (candidate, reference), f1 in zip(demo.PAIRS.items(), f1s, strict=True):
        assert f"F1 {f1:.3f}   {candidate}  |  {reference}" in printed
    expected = means["largest val_bertscore_f1"] - means["smallest val_loss"]
    assert result["difference"] == pytest.approx(expected, abs=1e-6)
    assert {path.name for path in tmp_path.iterdir()} == {"alignment.png", "texts.jsonl", "checkpoints"}
