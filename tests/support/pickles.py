"""Use of a pickled encoder and scorer in other processes, which import only what the pickle needs."""

import pickle
from typing import Any

TEXTS = ["a cat sat on the mat", "rain tomorrow"]


def use_pickle(data: bytes) -> tuple[Any, Any, Any]:
    """Return the vectors and the signature of an encoder, and the F1 of a scorer of batches."""
    encoder, scorer = pickle.loads(data)
    batch = scorer({"candidate": TEXTS, "reference": TEXTS[::-1]})
    return encoder.encode(TEXTS).vectors, encoder.signature(), batch["f1"]
