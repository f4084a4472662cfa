"""The corpus of the docstring demo, collected once, and a check of what snippets pass to a generator."""

import inspect

import pytest
from torch import nn
from transformers import PreTrainedModel

from examples import docstrings
from tests.support.texts import stdlib_pairs


@pytest.fixture(scope="session")
def docstring_pairs():
    """Pairs of the standard library."""
    return stdlib_pairs()


@pytest.fixture
def corpus_cache(docstring_pairs, tmp_path, monkeypatch):
    """Make ``load_corpus`` read the standard library's pairs from a cache, in this process and those it starts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with monkeypatch.context() as patch:
        patch.setattr(docstrings, "collect_pairs", lambda packages, verbose: docstring_pairs)
        for packages in (docstrings.DEFAULT_PACKAGES, docstrings.FEWER_PACKAGES):
            docstrings.load_corpus(packages=packages)


@pytest.fixture
def padding_is_masked(monkeypatch):
    """Fail if a model in training gets padding without a mask, or padding among its labels.

    The padding id is that of the tokenizer of the pages, 0. The frozen encoder and the parts of a model are left out.
    """
    running = []

    def checked(self, *args, **kwargs):
        given = inspect.signature(self.forward).bind(*args, **kwargs).arguments
        given |= given.pop("kwargs", {})
        ids, mask, labels = (given.get(name) for name in ("input_ids", "attention_mask", "labels"))
        if not running and any(parameter.requires_grad for parameter in self.parameters()):
            assert ids is None or mask is not None or not (ids == 0).any(), (
                f"{type(self).__name__} got no attention_mask"
            )
            assert labels is None or not (labels == 0).any(), f"{type(self).__name__} got labels that are padding"
        running.append(self)
        try:
            return nn.Module.__call__(self, *args, **kwargs)
        finally:
            running.pop()

    monkeypatch.setattr(PreTrainedModel, "__call__", checked)
