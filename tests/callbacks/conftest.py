"""Fixtures of the callbacks' tests."""

from __future__ import annotations

import logging

import pytest

# Imports of seconds are inside functions, as in the conftest.py above.


@pytest.fixture(scope="module")
def few(pairs):
    """The examples of the runs."""
    from tests.support.callback_runs import COUNT

    return tuple(side[:COUNT] for side in pairs)


@pytest.fixture(scope="module")
def short_pairs(pairs):
    """Real pairs, cut short: alignments of long texts take long to draw."""
    return tuple([" ".join(text.split()[:8]) for text in side] for side in pairs)


@pytest.fixture(scope="module")
def shallow(minilm):
    """The real encoder, two layers of it."""
    from bertscore_tm import FrozenEncoder
    from tests.support.callback_runs import LAYER

    return FrozenEncoder(minilm, num_layers=LAYER)


@pytest.fixture
def said(caplog):
    """Function that returns the log messages of early stopping so far."""
    logger = logging.getLogger("lightning.pytorch")
    before, logger.propagate = logger.propagate, True
    name = "lightning.pytorch.callbacks.early_stopping"
    with caplog.at_level(logging.INFO, name):
        yield lambda: [record.getMessage() for record in caplog.records if record.name == name]
    logger.propagate = before
