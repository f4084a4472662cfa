"""Fixtures of the vector cache's tests."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.models import counted_texts, save_tiny_model


@pytest.fixture
def encoded() -> Generator[Counter[tuple[int, ...]], None, None]:
    """Count how often the model gets each text, by its token ids."""
    with counted_texts() as counts:
        yield counts


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """A tiny model in a new folder."""
    return save_tiny_model("bert", tmp_path / "tiny")


@pytest.fixture
def only_new() -> None:
    """Let the garbage collector see only objects created from now on, which also makes it fast."""
    gc.collect()
    gc.freeze()
