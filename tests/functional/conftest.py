"""Recorded calls of the encoder."""

import pytest

from bertscore_tm.encoder import FrozenEncoder


@pytest.fixture
def encoded(monkeypatch):
    """The texts of every call of the encoder."""
    calls, encode = [], FrozenEncoder.encode

    def record(self, texts, *args, **options):
        calls.append(list(texts))
        return encode(self, texts, *args, **options)

    monkeypatch.setattr(FrozenEncoder, "encode", record)
    return calls
