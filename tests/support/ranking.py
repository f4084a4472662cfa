"""Scores of all pairs by the function."""

import warnings

from bertscore_tm import bert_score


def score_pairs(candidates, references, encoder, **options):
    """Scores of all pairs by the function, of shape (candidates, references) each."""
    preds = [candidate for candidate in candidates for _ in references]
    with warnings.catch_warnings(action="ignore"):
        scores = bert_score(preds, references * len(candidates), encoder, **options)
    return {name: score.view(len(candidates), len(references)).double() for name, score in scores.items()}
