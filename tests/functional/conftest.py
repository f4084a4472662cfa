"""An encoder of few layers, and recorded calls of encoders."""

import pytest

# Imports of seconds are inside functions, as in the conftest.py above.


@pytest.fixture(scope="package")
def encoder(minilm):
    """Two layers of the real encoder: the functions do not depend on their number."""
    from bertscore_tm import FrozenEncoder

    return FrozenEncoder(minilm, num_layers=2)


@pytest.fixture
def encoded(monkeypatch):
    """The texts of every call of an encoder."""
    from bertscore_tm import FrozenEncoder

    calls = []
    encode = FrozenEncoder.encode

    def record(self, texts, *args, **options):
        calls.append(list(texts))
        return encode(self, texts, *args, **options)

    monkeypatch.setattr(FrozenEncoder, "encode", record)
    return calls
