"""The soak test reports growing memory and wrong scores, and passes otherwise."""

from __future__ import annotations

import json

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder
from examples.benchmarks import soak

pytestmark = pytest.mark.usefixtures("one_thread")

PAIRS, STEPS, READINGS = 200, 3, 4
WORDS = "a cat sat on the mat and the train was late again so nobody read books in the rain"


@pytest.fixture(autouse=True)
def _few_readings(monkeypatch):
    """Take few readings, as each runs a garbage collection."""
    monkeypatch.setattr(soak, "NUM_READINGS", READINGS)


@pytest.fixture
def command(tmp_path) -> list[str]:
    """Return the smallest command; its limit exceeds the noise of resident memory."""
    (tmp_path / "words.txt").write_text(WORDS, encoding="utf-8")
    sizes = ["--pairs", str(PAIRS), "--steps", str(STEPS), "--num-layers", "1", "--limit-mb", "100"]
    return [*sizes, "--words", str(tmp_path / "words.txt"), "--json", str(tmp_path / "found.json")]


def test_constant_memory_and_correct_scores_pass(command, tmp_path, capsys):
    found = soak.main(command)
    assert "constant memory, correct scores" in capsys.readouterr().out
    content = json.loads((tmp_path / "found.json").read_text())
    assert content["readings"] == found
    assert content["wrong"] == []
    assert [record["done"] for record in found["metric"]] == [50, 100, 150, 200]
    assert [record["done"] for record in found["loss"]] == [*range(1, STEPS + 1)]
    for records in found.values():
        assert all(100 < record["resident_mb"] < 30_000 for record in records)
        late = [record for record in records if record["growth_mb"] is not None]
        assert late[0]["growth_mb"] == 0
        assert soak.growth_mb(records) == late[-1]["resident_mb"] - late[0]["resident_mb"]


def test_growing_memory_is_reported(command, tmp_path, monkeypatch, capsys):
    kept: list[bytes] = []
    make = soak.short_texts
    # Called twice in each of the three epochs after the first.
    monkeypatch.setattr(soak, "short_texts", lambda *args: kept.append(b"x" * 30_000_000) or make(*args))
    with pytest.raises(SystemExit) as ended:
        soak.main([*command, "--steps", "1"])
    assert ended.value.code == 1
    [said] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("metric:")]
    assert "memory grew by" in said
    assert said in json.loads((tmp_path / "found.json").read_text())["wrong"]


def test_wrong_scores_are_reported(minilm, monkeypatch):
    encoder, words = FrozenEncoder(minilm, num_layers=1), WORDS.split()
    compute = BERTScore.compute
    monkeypatch.setattr(
        BERTScore, "compute", lambda metric: {name: 1.001 * value for name, value in compute(metric).items()}
    )
    _, wrong = soak.soak_metric(encoder, words, 8)
    assert len(wrong) == 1
    assert "scores of the last 2 pairs differ from the function's by" in wrong[0]
    monkeypatch.setattr(BERTScore, "reset", lambda metric: None)
    monkeypatch.setattr(BERTScore, "compute", compute)
    _, wrong = soak.soak_metric(encoder, words, 8)
    assert len(wrong) == 1
    assert "the mean of the epochs differs from that of all pairs by" in wrong[0]
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: float("nan"))
    _, wrong = soak.soak_loss(encoder, words, 2)
    assert wrong == ["in training step 1 the loss was nan or a weight became NaN or infinite"]
