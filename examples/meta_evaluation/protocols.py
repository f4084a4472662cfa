"""Agreement of scores with human judgements, as measured by Zhang et al. (ICLR 2020), sections 4 to 6 and appendix.

Scores have shape (settings, rows): a setting is a layer with or without idf, a row is a candidate of the file. Each
protocol gives named figures, each a list with one value per setting.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bertscore_tm.statistics import correlation, darr_kendall, scipy_stats, williams_test

Scores = NDArray[np.float64]
Figures = dict[str, list[float | None]]

# Scores closer than this have the same rank. Candidates equal to their reference all have an F1 of 1 up to rounding in
# float32; without this, chance would order them, and rank correlations would differ in the third decimal.
TIE = 1e-6

# Equal means of ratings differ in their last bits, depending on the order in which they were added up.
_DECIMALS_OF_MEANS = 9


def with_ties(scores: Scores) -> Scores:
    """Replace scores by their order, in which those that differ by rounding alone are equal.

    Args:
        scores: shape (settings, rows).

    Returns:
        Same shape; whole numbers that are equal where sorted neighbours are closer than ``TIE``.
    """
    order = scores.argsort(axis=1)
    ascending = np.take_along_axis(scores, order, axis=1)
    steps = np.diff(ascending, axis=1, prepend=ascending[:, :1]) >= TIE
    ranks = np.empty_like(scores)
    np.put_along_axis(ranks, order, steps.cumsum(axis=1), axis=1)
    return ranks


def ranked_pairs(better: Scores, worse: Scores) -> Figures:
    """Segment-level Kendall's tau-like on daRR judgements (Ma et al., WMT 2019): ties count as discordant.

    Args:
        better: scores of the candidates that people preferred, shape (settings, judgements).
        worse: scores of the others, same shape.

    Returns:
        ``kendall``, between -1 and 1.
    """
    return {"kendall": [darr_kendall(high, low) for high, low in zip(better, worse, strict=True)]}


def segment_level(scores: Scores, human: Sequence[float]) -> Figures:
    """Correlation with the ratings of single candidates, all of the file together.

    Args:
        scores: shape (settings, rows).
        human: one rating per row.

    Returns:
        ``pearson``, ``spearman`` and ``kendall`` (tau-b).
    """
    ranks = with_ties(scores)
    return {
        "pearson": [correlation(row, human, "pearson").value for row in scores],
        "spearman": [correlation(row, human, "spearman").value for row in ranks],
        "kendall": [correlation(row, human, "kendall").value for row in ranks],
    }


def system_level(scores: Scores, human: Sequence[float], systems: Sequence[str]) -> Figures:
    """Pearson correlation of the systems' mean scores with their mean ratings, and Williams' test against the best.

    Args:
        scores: shape (settings, rows).
        human: one rating per row.
        systems: the system of each row.

    Returns:
        ``pearson``, and ``p``: how probable it is, were both equally good, that the setting with the highest
        correlation beats this one by so much; ``None`` for that setting itself and for one with the same ranking.
    """
    names, numbers = np.unique(systems, return_inverse=True)
    of_system = np.eye(len(names))[:, numbers]
    of_system /= of_system.sum(1, keepdims=True)
    means, ratings = scores @ of_system.T, of_system @ np.asarray(human)
    pearson = [correlation(row, ratings).value for row in means]
    best = int(np.argmax(pearson))
    p_values: list[float | None] = []
    for r, row in zip(pearson, means, strict=True):
        between = correlation(means[best], row).value
        one_metric = between > 1 - 1e-12
        p_values.append(None if one_metric else williams_test(pearson[best], r, between, len(names)).p_value)
    return {"pearson": list(pearson), "p": p_values}


def draw_hybrids(documents: Sequence[str], num_hybrids: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Make up systems by taking, for each document, the candidate of a system drawn at random (Graham & Liu 2016).

    Args:
        documents: the document of each row; rows of one document come from different systems.
        num_hybrids: number of systems to make up.
        random: where the draws come from.

    Returns:
        The row that each hybrid takes for each document, shape (num_hybrids, documents).
    """
    _, numbers = np.unique(documents, return_inverse=True)
    rows_of = [np.flatnonzero(numbers == document) for document in range(numbers.max() + 1)]
    return np.stack([random.choice(rows, num_hybrids) for rows in rows_of], axis=1)


def draw_pools(num_hybrids: int, size: int, repeats: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Draw subsets of the hybrids, each uniformly and without replacement (Floyd's algorithm, all subsets at once).

    Args:
        num_hybrids: number of hybrids to draw from.
        size: number of hybrids in a subset.
        repeats: number of subsets.
        random: where the draws come from.

    Returns:
        The hybrids of each subset, shape (size, repeats).
    """
    pools = np.empty((size, repeats), dtype=np.int64)
    for k in range(size):
        last = num_hybrids - size + k
        drawn = random.integers(last + 1, size=repeats)
        taken = (pools[:k] == drawn).any(0)
        pools[k] = np.where(taken, last, drawn)
    return pools


def model_selection(
    scores: Scores, human: Sequence[float], hybrids: NDArray[np.int64], pools: NDArray[np.int64]
) -> Figures:
    """Choose the best of a pool of hybrid systems by score, and see how good people find it.

    Args:
        scores: shape (settings, rows).
        human: one rating per row.
        hybrids: rows of each hybrid, shape (hybrids, documents).
        pools: hybrids of each pool, shape (size, pools).

    Returns:
        ``pearson`` of the hybrids' mean scores and mean ratings; ``hits@1``, how often the chosen hybrid is the one
        that people find best (or one of equally good ones); ``mrr``, mean reciprocal rank of the chosen hybrid among
        the pool in human order (1 + how many people find better); ``difference``, mean of the best hybrid's mean rating
        minus the chosen one's.
    """
    ratings = np.asarray(human)[hybrids].mean(1).round(_DECIMALS_OF_MEANS)
    in_pool = ratings[pools]
    best = in_pool.max(0)
    figures: Figures = {"pearson": [], "hits@1": [], "mrr": [], "difference": []}
    for row in scores:
        means = row[hybrids].mean(1)
        chosen = np.take_along_axis(in_pool, means[pools].argmax(0)[None], axis=0)
        ranks = 1 + (in_pool > chosen).sum(0)
        figures["pearson"].append(correlation(means, ratings).value)
        figures["hits@1"].append(float((ranks == 1).mean()))
        figures["mrr"].append(float((1 / ranks).mean()))
        figures["difference"].append(float((best - chosen).mean()))
    return figures


def paraphrase_auc(scores: Scores, labels: Sequence[int]) -> Figures:
    """Area under the ROC curve: how often a paraphrase scores higher than a pair that is none; ties count half.

    Args:
        scores: shape (settings, rows).
        labels: 1 for paraphrases, 0 for others.

    Returns:
        ``auc``, between 0 and 1.
    """
    are = np.asarray(labels) == 1
    wins = [scipy_stats().mannwhitneyu(row[are], row[~are]).statistic for row in with_ties(scores)]
    return {"auc": [float(count / (are.sum() * (~are).sum())) for count in wins]}
