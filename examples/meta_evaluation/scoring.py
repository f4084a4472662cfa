"""Scoring of a file's pairs by layer and weighting, with this package and with the reference package."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bertscore_tm import FrozenEncoder, bert_score
from examples.meta_evaluation.readers import Judged

# Maps candidates, references and the texts of the idf weights (None: without idf) to F1, shape (layers, candidates).
Score = Callable[[list[str], list[list[str]], list[str] | None], NDArray[np.float64]]

_PAIRS_PER_CALL = 500  # the reference package keeps the vectors of all texts of a call


def idf_corpus(judged: Judged) -> list[str]:
    """Return the texts of the idf weights: the references of every row of the file, including duplicates.

    Both packages with ``idf=True`` and the reference package's WMT18 script use these texts: a reference counts once
    for each of its judgements.

    Args:
        judged: the judgements of the file.

    Returns:
        The references, in the file's order.
    """
    return list(chain.from_iterable(judged.references))


def score_file(judged: Judged, score: Score, with_idf: bool) -> NDArray[np.float64]:
    """Score the distinct pairs of a file.

    Args:
        judged: the judgements of the file.
        score: function that returns the F1 of candidates.
        with_idf: also score with idf weights.

    Returns:
        F1 of ``judged.pairs()``, shape (settings, pairs): first all layers without idf, then all layers with idf.
    """
    candidates, references = judged.pairs()
    pairs = [(candidate, tuple(several)) for candidate, several in zip(candidates, references, strict=True)]
    # Sorted by references, since both packages encode a repeated text of a call once.
    distinct = sorted(set(pairs), key=lambda pair: (pair[1], pair[0]))
    number = {pair: i for i, pair in enumerate(distinct)}
    texts = [candidate for candidate, _ in distinct], [list(several) for _, several in distinct]
    corpora = [None, idf_corpus(judged)] if with_idf else [None]
    return np.concatenate([score(*texts, corpus) for corpus in corpora])[:, [number[pair] for pair in pairs]]


def our_score(encoder: FrozenEncoder, layers: Sequence[int]) -> Score:
    """Return a function that scores with this package.

    Args:
        encoder: an encoder with all layers.
        layers: the layers to keep.

    Returns:
        The function.
    """

    def score(candidates: list[str], references: list[list[str]], corpus: list[str] | None) -> NDArray[np.float64]:
        f1: Tensor = bert_score(candidates, references, encoder, idf_sents=corpus)["f1"]
        return np.asarray(f1[list(layers)], dtype=np.float64)

    return score


def reference_package() -> Any:
    """Return the module ``bert_score``.

    Returns:
        The module.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import bert_score as package
    except ImportError as error:
        raise ImportError("--compare-with-reference requires pip install bert-score==0.3.13") from error
    return package


def reference_score(model: str | os.PathLike[str], layers: Sequence[int]) -> Score:
    """Return a function that scores with the reference package.

    It scores one pair at a time, since padding changes its scores, with one reference per candidate, since several
    references fail with all layers; the function takes the maximum over references.

    Args:
        model: name or folder of the model.
        layers: the layers to keep.

    Returns:
        The function.

    Raises:
        ImportError: the package is not installed.
    """
    scorer_class = reference_package().BERTScorer

    def score(candidates: list[str], references: list[list[str]], corpus: list[str] | None) -> NDArray[np.float64]:
        scorer = scorer_class(
            os.fspath(model),
            num_layers=max(layers),
            all_layers=True,
            idf=corpus is not None,
            idf_sents=corpus,
            nthreads=0,
        )
        repeated = [text for text, several in zip(candidates, references, strict=True) for _ in several]
        flat = list(chain.from_iterable(references))
        starts = range(0, len(flat), _PAIRS_PER_CALL)
        ends = [start + _PAIRS_PER_CALL for start in starts]
        parts = [
            scorer.score(repeated[start:end], flat[start:end], batch_size=1)[2]
            for start, end in zip(starts, ends, strict=True)
        ]
        f1 = np.concatenate([part.double().numpy() for part in parts], axis=1)[list(layers)]
        first_of_each = np.cumsum([0, *(len(several) for several in references[:-1])])
        return np.maximum.reduceat(f1, first_of_each, axis=1)

    return score
