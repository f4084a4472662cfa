"""The functions for lm-eval and lighteval score a corpus as the package does."""

from types import SimpleNamespace

import pytest

from bertscore_tm import bert_score
from examples.programs import harnesses

CANDIDATES = ["a cat sat on the mat", "it rains"]
REFERENCES = [["the cat sat on a mat", "a cat was on the mat"], ["it is raining"]]


def test_means_equal_those_of_the_function(encoder, monkeypatch):
    monkeypatch.setattr(harnesses, "load_encoder", lambda: encoder)
    expected = bert_score(CANDIDATES, REFERENCES, encoder)["f1"].mean().item()
    pairs = list(zip(CANDIDATES, REFERENCES, strict=True))
    results = [harnesses.process_results({"references": references}, [text]) for text, references in pairs]

    assert harnesses.mean_f1([result["bertscore_f1"] for result in results]) == pytest.approx(expected, abs=1e-6)
    inputs = [SimpleNamespace(preds=[text, "another sample"], golds=references) for text, references in pairs]
    assert harnesses.mean_f1_of_inputs(inputs) == pytest.approx(expected, abs=1e-6)


def test_the_metric_of_lighteval():
    pytest.importorskip("lighteval")
    metric = harnesses.lighteval_metric()

    assert metric.get_corpus_aggregations() == {"bertscore_f1": harnesses.mean_f1_of_inputs}
