"""Fixtures of the vector cache's tests."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import BertModel

from tests.support.models import save_tiny_model


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, ...]]:
    """Count how often the model gets each text, by its token ids."""
    counts: Counter[tuple[int, ...]] = Counter()
    forward = BertModel.forward

    def counted(model: BertModel, input_ids: Any = None, attention_mask: Any = None, **kwargs: Any) -> Any:
        for row, real in zip(input_ids, attention_mask, strict=True) if input_ids is not None else ():
            counts[tuple(row[real.bool()].tolist())] += 1
        return forward(model, input_ids=input_ids, attention_mask=attention_mask, **kwargs)

    monkeypatch.setattr(BertModel, "forward", counted)
    return counts


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """A tiny model in a new folder."""
    return save_tiny_model("bert", tmp_path / "tiny")


@pytest.fixture
def only_new() -> None:
    """Let the garbage collector see only objects created from now on, which also makes it fast."""
    gc.collect()
    gc.freeze()
