"""Scores of all pairs by the function."""

import warnings

from bertscore_tm import bert_score


def score_pairs(candidates, references, encoder, **options):
    """Return scores of all pairs by name, of shape (candidates, references) each."""
    preds = [candidate for candidate in candidates for _ in references]
    target = list(references) * len(candidates)
    shape = len(candidates), len(references)

    with warnings.catch_warnings(action="ignore"):
        scores = bert_score(preds, target, encoder, **options)

    return {name: score.view(shape).double() for name, score in scores.items()}
