"""The demo reports the scores of what it wrote, and its long form is the comparison of losses."""

import json

import bert_score as oracle
import pytest

from examples import demo, summarize_docstrings
from examples.appointments import make_appointments

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("error::UserWarning")]


def test_demo_reports_the_scores_of_what_it_wrote(minilm, tmp_path, capsys):
    arguments = ["--epochs", "1", "--train", "48", "--held-out", "6", "--candidates", "2"]
    result = demo.main([*arguments, "--output", str(tmp_path)])
    rows = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
    scorer = oracle.BERTScorer(model_type=minilm, num_layers=5)
    printed = capsys.readouterr().out
    means = {}
    for name in ("epoch 1", "more cross-entropy", "best candidates"):
        scored = [row for row in rows if row[name]]
        f1 = scorer.score([row[name] for row in scored], [row["target"] for row in scored])[2].sum().item()
        means[name] = f1 / len(rows)
        assert f"{name:20} F1 {means[name]:.4f}" in printed
    assert result["epochs"] == [pytest.approx(means["epoch 1"], abs=1e-6)]
    assert result["difference"] == pytest.approx(means["best candidates"] - means["more cross-entropy"], abs=1e-6)
    assert {"alignment.png", "curve.png", "candidates.jsonl"} <= {path.name for path in tmp_path.iterdir()}


def test_the_targets_are_among_the_references():
    appointments = make_appointments()
    assert len({one.source for one in appointments}) == len(appointments) == 2688
    assert all(one.target in one.references and len(set(one.references)) == 6 for one in appointments)


def test_the_long_form_compares_losses(monkeypatch):
    monkeypatch.setattr(summarize_docstrings, "main", lambda arguments: {"arguments": arguments})
    assert demo.main(["--long", "--loss", "none"]) == {"arguments": ["--loss", "none"]}


@pytest.mark.parametrize("argument", ["--held-out=5", "--loss=none"])
def test_demo_refuses_what_makes_no_sense(argument, capsys):
    with pytest.raises(SystemExit):
        demo.main([argument])
    assert argument.partition("=")[0] in capsys.readouterr().err
