"""Protocols of agreement with human judgements of Zhang et al. (ICLR 2020), sections 4 to 6 and appendix.

Scores have shape (settings, rows): a setting is a layer with or without idf, a row is a candidate of the file. Each
protocol returns named figures, each a list with one value per setting.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bertscore_tm.statistics import Coefficient, correlation, darr_kendall, rank_with_ties, scipy_stats, williams_test

Scores = NDArray[np.float64]
Figures = dict[str, list[float | None]]

# Equal means of ratings differ in the last bits, depending on the order of summation.
_DECIMALS_OF_MEANS = 9


def ranked_pairs(better: Scores, worse: Scores) -> Figures:
    """Return segment-level Kendall's tau-like of daRR judgements (Ma et al., WMT 2019); ties count as discordant.

    Args:
        better: scores of the preferred candidates, shape (settings, judgements).
        worse: scores of the other candidates, same shape.

    Returns:
        ``kendall``, between -1 and 1.
    """
    return {"kendall": [darr_kendall(high, low) for high, low in zip(better, worse, strict=True)]}


def segment_level(scores: Scores, human: Sequence[float]) -> Figures:
    """Return the correlation with the ratings over all candidates of the file.

    Args:
        scores: shape (settings, rows).
        human: one rating per row.

    Returns:
        ``pearson``, ``spearman`` and ``kendall`` (tau-b).
    """
    coefficients: tuple[Coefficient, ...] = ("pearson", "spearman", "kendall")
    return {how: [correlation(row, human, how).value for row in scores] for how in coefficients}


def system_level(scores: Scores, human: Sequence[float], systems: Sequence[str]) -> Figures:
    """Return Pearson's r of the systems' mean scores with their mean ratings, and Williams' test against the best.

    Args:
        scores: shape (settings, rows).
        human: one rating per row.
        systems: the system of each row.

    Returns:
        ``pearson``, and ``p``: one-sided p-value of Williams' test of the setting with the highest correlation against
        this one; ``None`` for that setting and for settings perfectly correlated with it.
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
    """Draw hybrid systems: for each document, the candidate of a random system (Graham & Liu, 2016).

    Args:
        documents: the document of each row; rows of one document come from different systems.
        num_hybrids: number of hybrid systems.
        random: random generator of the draws.

    Returns:
        The row of each hybrid for each document, shape (num_hybrids, documents).
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
        random: random generator of the draws.

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
    """Choose the best hybrid system of each pool by score, and compare it with the ratings.

    Args:
        scores: shape (settings, rows).
        human: one rating per row.
        hybrids: rows of each hybrid, shape (hybrids, documents).
        pools: hybrids of each pool, shape (size, pools).

    Returns:
        ``pearson`` of the hybrids' mean scores and mean ratings; ``hits@1``, share of pools in which no hybrid has a
        higher rating than the chosen one; ``mrr``, mean reciprocal rank of the chosen hybrid by rating (1 + number of
        hybrids with a higher rating); ``difference``, mean of the best hybrid's mean rating minus the chosen one's.
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


def average(draws: Sequence[Figures]) -> tuple[Figures, Figures]:
    """Return the mean of each figure over several draws of hybrids, and its standard deviation.

    Args:
        draws: the figures of each draw, at least two.

    Returns:
        Means and standard deviations, by the figures' names.
    """
    values = {name: np.asarray([draw[name] for draw in draws], dtype=np.float64) for name in draws[0]}
    means: Figures = {name: list(of_draws.mean(0).tolist()) for name, of_draws in values.items()}
    return means, {name: list(of_draws.std(0, ddof=1).tolist()) for name, of_draws in values.items()}


def paraphrase_auc(scores: Scores, labels: Sequence[int]) -> Figures:
    """Return the area under the ROC curve: how often a paraphrase scores higher than another pair; ties count half.

    Args:
        scores: shape (settings, rows).
        labels: 1 for paraphrases, 0 for others.

    Returns:
        ``auc``, between 0 and 1.
    """
    positive = np.asarray(labels) == 1
    wins = [scipy_stats().mannwhitneyu(row[positive], row[~positive]).statistic for row in rank_with_ties(scores)]
    return {"auc": [float(count / (positive.sum() * (~positive).sum())) for count in wins]}
