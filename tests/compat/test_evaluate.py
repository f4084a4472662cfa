"""The drop-in of Hugging Face's evaluate takes the arguments of its card, and returns what its code computes."""

import inspect
import warnings
from functools import partial

import bert_score as oracle
import pytest
from transformers import AutoTokenizer

from bertscore_tm.compat import evaluate
from bertscore_tm.compat.bert_score import BERTScorer
from bertscore_tm.compat.evaluate import load

# The arguments of metrics/bertscore in the repository huggingface/evaluate.
CARD = (
    "(*, predictions=None, references=None, lang=None, model_type=None, num_layers=None, verbose=False, idf=False, "
    "device=None, batch_size=64, nthreads=4, all_layers=False, rescale_with_baseline=False, baseline_path=None, "
    "use_fast_tokenizer=False)"
)
NAMES = ("precision", "recall", "f1")


def expected_scores(predictions, references, idf=False, **options):
    """Return what the metric's code does: a scorer of bert-score, with references in lists, one pair at a time."""
    lists = [[entry] if isinstance(entry, str) else entry for entry in references]
    sents = [entry for group in lists for entry in group] if idf else None
    scorer = oracle.BERTScorer(**options, idf=idf, idf_sents=sents, nthreads=0)
    scores = scorer.score(predictions, lists, batch_size=1)
    return {name: values.tolist() for name, values in zip(NAMES, scores, strict=True)}


def assert_equal(result, expected):
    assert list(result) == [*NAMES, "hashcode"]
    assert type(result["hashcode"]) is str
    for name in NAMES:
        assert type(result[name]) is list
        assert result[name] == pytest.approx(expected[name], abs=2e-6)


def test_the_arguments_are_those_of_the_card():
    parameters = inspect.signature(load("bertscore").compute).parameters.values()
    plain = [entry.replace(annotation=inspect.Parameter.empty) for entry in parameters]

    assert str(inspect.Signature(plain)) == CARD


def test_rescaling(minilm, corpus, table):
    options = {"model_type": minilm, "num_layers": 4, "lang": "en"}
    options |= {"rescale_with_baseline": True, "baseline_path": table}

    texts = dict(zip(("predictions", "references"), corpus, strict=True))

    assert_equal(load("bertscore").compute(**texts, **options), expected_scores(*corpus, **options))
    with pytest.raises(AssertionError, match="language"):
        load("bertscore").compute(**texts, **options | {"lang": None})
    # The argument is named baseline_path, not rescale.
    with pytest.raises(ValueError, match="pass a table") as error:
        load("bertscore").compute(**texts, **options | {"baseline_path": None})
    assert "rescale=" not in str(error.value)


def test_the_weights_are_those_of_each_call(small, corpus):
    """evaluate keeps the weights of the first call."""
    metric, options = load("bertscore"), {"model_type": small, "num_layers": 4, "idf": True}
    for part in (slice(0, 6), slice(6, 12)):
        texts = {"predictions": corpus[0][part], "references": corpus[1][part]}
        with warnings.catch_warnings(action="error"):
            result = metric.compute(**texts, **options)
        assert_equal(result, expected_scores(*texts.values(), **options))
        assert "|idf:6|" in result["hashcode"]


def test_a_dictionary_of_weights_is_used(small, corpus):
    """As the card documents it; evaluate's code computes weights from the references instead."""
    texts = {"predictions": corpus[0], "references": corpus[1]}
    uniform = load("bertscore").compute(**texts, model_type=small, num_layers=4)
    tokenizer = AutoTokenizer.from_pretrained(small)
    # Special tokens have no weight in this package.
    special = {tokenizer.cls_token_id: 0.0, tokenizer.sep_token_id: 0.0}
    ones = dict.fromkeys(range(len(tokenizer)), 1.0) | special

    assert_equal(load("bertscore").compute(**texts, model_type=small, num_layers=4, idf=ones), uniform)


def test_pairs_that_were_added_before(small):
    metric, options = load("bertscore"), {"model_type": small, "num_layers": 4}
    metric.add(prediction="a cat", reference=["the cat", "cats"])
    metric.add_batch(predictions=["rain", "a dog"], references=["it rains", "the dog"])
    metric.add_batch(predictions="sun", references="it is sunny")
    result = metric.compute(predictions=["hello"], references=["good morning"], **options)
    references = [["the cat", "cats"], "it rains", "the dog", "it is sunny", "good morning"]

    assert_equal(result, expected_scores(["a cat", "rain", "a dog", "sun", "hello"], references, **options))
    assert metric.compute(**options)["f1"] == []


@pytest.mark.parametrize(
    ("predictions", "references", "error", "message"),
    [
        (["a", "b"], ["c"], ValueError, "equal lengths, got 2 and 1"),
        (["a", "b"], ["c", None], TypeError, r"references\[1\]"),
        (["a"], None, TypeError, "references must be a string or a sequence of strings, got None"),
    ],
)
def test_a_failed_call_leaves_no_texts(small, predictions, references, error, message):
    metric, options = load("bertscore"), {"model_type": small, "num_layers": 2}
    pair = {"predictions": ["a cat"], "references": ["the cat"]}
    expected = metric.compute(**pair, **options)

    for failing in (metric.add_batch, partial(metric.compute, **options)):
        with pytest.raises(error, match=message):
            failing(predictions=predictions, references=references)
        assert metric.compute(**pair, **options) == expected

    # A cell of a notebook that is run again.
    for wrong in ({}, options | {"num_layers": 99}):
        metric.add_batch(**pair)
        with pytest.raises(ValueError, match=r"neither model_type nor lang|num_layers .* 99"):
            metric.compute(**wrong)
    metric.add_batch(**pair)

    assert metric.compute(**options) == expected


def test_the_model_is_kept_between_calls(small, monkeypatch):
    made = []

    def recorded(**arguments):
        made.append(arguments)
        return BERTScorer(**arguments)

    monkeypatch.setattr(evaluate, "BERTScorer", recorded)
    metric = load("bertscore")
    texts = {"predictions": ["a cat"], "references": ["the cat"], "model_type": small}
    for layer, all_layers in ((2, False), (2, False), (2, True), (3, False)):
        result = metric.compute(**texts, num_layers=layer, all_layers=all_layers)
    assert len(made) == 3
    assert_equal(result, expected_scores(["a cat"], ["the cat"], model_type=small, num_layers=3))


def test_another_metric_is_an_error():
    with pytest.raises(FileNotFoundError, match="only 'bertscore' can be loaded here, got 'rouge'"):
        load("rouge")
