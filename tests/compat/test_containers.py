"""Drop-ins read texts from the containers that the metric reads."""

import numpy as np
import pandas as pd
import pytest
from transformers import AutoTokenizer, BatchEncoding

from bertscore_tm.compat import bert_score, evaluate, torchmetrics

PREDS, TARGET = ["a cat sat", "it rains"], ["the cat sat", "rain falls"]


@pytest.fixture(
    params=["bert_score.score", "BERTScorer.score", "torchmetrics function", "torchmetrics class", "evaluate"]
)
def score(request, minilm):
    if request.param == "bert_score.score":
        return lambda preds, target: bert_score.score(preds, target, minilm, 3, idf=True)[2].tolist()
    if request.param == "BERTScorer.score":
        scorer = bert_score.BERTScorer(minilm, 3, idf=True, idf_sents=iter(TARGET))
        return lambda preds, target: scorer.score(preds, target)[2].tolist()
    if request.param == "torchmetrics function":
        return lambda preds, target: torchmetrics.bert_score(preds, target, minilm, 3, idf=True, return_hash=True)[
            "f1"
        ].tolist()

    if request.param == "evaluate":
        bertscore = evaluate.load("bertscore")
        options = {"model_type": minilm, "num_layers": 3, "idf": True}
        return lambda preds, target: bertscore.compute(predictions=preds, references=target, **options)["f1"]

    def compute(preds, target):
        metric = torchmetrics.BERTScore(minilm, 3, idf=True)
        metric.update(preds, target)
        return metric.compute()["f1"].tolist()

    return compute


@pytest.mark.parametrize("container", [tuple, iter, np.array, lambda texts: np.array(texts, dtype=object), pd.Series])
def test_any_container(score, container):
    assert score(container(PREDS), container(TARGET)) == score(PREDS, TARGET)


def test_lists_of_references_from_a_generator(score):
    lists = [["the cat sat", "a cat"], ["rain falls"]]
    assert score(PREDS, (tuple(texts) for texts in lists)) == score(PREDS, lists)


def test_ids_and_mappings_are_errors(score, minilm):
    encoded = AutoTokenizer.from_pretrained(minilm)(PREDS)
    assert isinstance(encoded, BatchEncoding)
    with pytest.raises(TypeError, match="decode token ids with their tokenizer first"):
        score(encoded, TARGET)
    with pytest.raises(TypeError, match="must be a string or a sequence of strings"):
        score(PREDS, {"a": "b"})


@pytest.mark.parametrize("texts", [("a cat", TARGET), (PREDS, "the cat")])
def test_a_string_is_not_a_list(minilm, texts):
    with pytest.raises(TypeError, match="is a single string but"):
        bert_score.score(*texts, minilm, 3)
