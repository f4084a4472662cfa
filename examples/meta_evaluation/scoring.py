"""Scoring of a file's pairs by layer and weighting, with this package and with the reference package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

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
    pairs = [(candidate, tuple(references)) for candidate, references in texts]
    # Sorted by references, since both packages encode a repeated text of a call once.
    distinct = sorted(set(pairs), key=lambda pair: (pair[1], pair[0]))
    number = {pair: i for i, pair in enumerate(distinct)}
    candidates, references = [candidate for candidate, _ in distinct], [list(texts) for _, texts in distinct]
    corpora = [None, judged.idf_texts] if with_idf else [None]
    scores = np.concatenate([score(candidates, references, corpus) for corpus in corpora])
    return scores[:, [number[pair] for pair in pairs]]


def our_score(encoder: FrozenEncoder, layers: Sequence[int], parts: Sequence[str] = ("f1",)) -> Score:
    """Return a function that scores with some layers of an encoder of all layers: first all layers' first part."""

    def score(candidates: list[str], references: list[list[str]], corpus: list[str] | None) -> NDArray[np.float64]:
        scores = bert_score(candidates, references, encoder, idf=False if corpus is None else corpus)
        return np.concatenate([np.asarray(scores[part][list(layers)], dtype=np.float64) for part in parts])

    return score


def reference_score(model: str, layers: Sequence[int]) -> Score:
    """Return a function that scores with the reference package.

    It scores one pair at a time, since padding changes its scores, with one reference per candidate, since several
    references fail with all layers; the function takes the maximum over references.
    """
    from bert_score import BERTScorer

    def score(candidates: list[str], references: list[list[str]], corpus: list[str] | None) -> NDArray[np.float64]:
        weights = {"idf": corpus is not None, "idf_sents": corpus}
        scorer = BERTScorer(model, num_layers=max(layers), all_layers=True, nthreads=0, **weights)
        repeated = [text for text, texts in zip(candidates, references, strict=True) for _ in texts]
        flat = list(chain.from_iterable(references))
        parts = []
        for start in range(0, len(flat), _PAIRS_PER_CALL):
            part = slice(start, start + _PAIRS_PER_CALL)
            parts.append(scorer.score(repeated[part], flat[part], batch_size=1)[2].double().numpy())
        f1 = np.concatenate(parts, axis=1)[list(layers)]
        first_of_each = np.cumsum([0, *(len(texts) for texts in references[:-1])])
        return np.maximum.reduceat(f1, first_of_each, axis=1)

    return score
