"""The docstrings that programs read, collected once, and checks of what programs and pages do."""

import inspect
from functools import cache

import bert_score as oracle
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from examples.programs import docstrings
from tests.support.texts import stdlib_pairs


@pytest.fixture(scope="session")
def docstring_pairs():
    """Pairs of the standard library."""
    return stdlib_pairs()


@pytest.fixture(scope="session")
def few_docstring_pairs(docstring_pairs):
    """Pairs of the standard library from all of its folders."""
    return docstring_pairs[::10]


@pytest.fixture
def corpus(few_docstring_pairs, monkeypatch):
    """The corpus that ``load_corpus`` returns in this test: few pairs, so that programs take seconds."""
    monkeypatch.setattr(docstrings, "collect_pairs", lambda packages: list(few_docstring_pairs))
    return docstrings.load_corpus()


@pytest.fixture(scope="session")
def bert_score_f1(minilm):
    """F1 of candidates and references by bert-score, one number per candidate; 0 for empty ones, where it raises.

    Pair by pair, as it lets padding match tokens whose similarities are all negative.
    """
    make_scorer = cache(lambda num_layers: oracle.BERTScorer(model_type=minilm, num_layers=num_layers))

    def f1(candidates, references, num_layers=5):
        rows = [i for i, text in enumerate(candidates) if text.strip()]
        scores = torch.zeros(len(candidates))
        if rows:
            texts = ([side[i] for i in rows] for side in (candidates, references))
            scores[rows] = make_scorer(num_layers).score(*texts, batch_size=1)[2]
        return scores

    return f1


@pytest.fixture
def padding_is_masked(monkeypatch):
    """Fail if a model in training gets padding without a mask, or padding among its labels.

    The padding id is that of the tokenizer of the pages, 0. The frozen encoder and the parts of a model are left out.
    """
    running = []

    def checked(self, *args, **kwargs):
        inputs = inspect.signature(self.forward).bind(*args, **kwargs).arguments
        inputs |= inputs.pop("kwargs", {})
        ids, mask, labels = (inputs.get(name) for name in ("input_ids", "attention_mask", "labels"))
        if not running and any(parameter.requires_grad for parameter in self.parameters()):
            assert ids is None or mask is not None or not (ids == 0).any(), f"{type(self)} got no attention_mask"
            assert labels is None or not (labels == 0).any(), f"{type(self)} got labels that are padding"
        running.append(self)
        try:
            return nn.Module.__call__(self, *args, **kwargs)
        finally:
            running.pop()

    monkeypatch.setattr(PreTrainedModel, "__call__", checked)
