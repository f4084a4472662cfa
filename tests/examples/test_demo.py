"""The demo reports the scores of what it wrote."""

import json

import pytest

from examples import demo

pytestmark = [
    pytest.mark.usefixtures("one_thread", "corpus"),
    pytest.mark.filterwarnings("error::UserWarning", "ignore::FutureWarning", "ignore:.*many workers.*"),
]


def test_demo_reports_the_scores_of_what_it_wrote(bert_score_f1, tmp_path, capsys):
    result = demo.main(["--steps", "5", "--pairs", "6", "--output", str(tmp_path)])
    rows = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
    printed, means = capsys.readouterr().out, {}
    for name in ("start", "cross-entropy", "with the loss"):
        means[name] = bert_score_f1([row[name] for row in rows], [row["reference"] for row in rows]).mean().item()
        assert f"{name:14} F1 {means[name]:.4f}" in printed
    for (candidate, reference), f1 in zip(
        demo.PAIRS.items(), bert_score_f1(list(demo.PAIRS), list(demo.PAIRS.values())), strict=True
    ):
        assert f"F1 {f1:.3f}   {candidate}  |  {reference}" in printed
    assert len(result["curve"]) == 5
    assert "step 5: precision" in printed
    assert result["difference"] == pytest.approx(means["with the loss"] - means["cross-entropy"], abs=1e-6)
    assert result["low"] <= result["difference"] <= result["high"]
    assert {"alignment.png", "curve.png", "texts.jsonl"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("argument", ["--pairs=5", "--steps=4", "--loss=none"])
def test_demo_refuses_what_makes_no_sense(argument, capsys):
    with pytest.raises(SystemExit):
        demo.main([argument])
    assert argument.partition("=")[0] in capsys.readouterr().err
