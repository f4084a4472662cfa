"""The corpus of the docstring demo, collected once."""

import pytest

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
