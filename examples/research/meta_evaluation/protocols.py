"""Protocols of agreement with human judgements of Zhang et al. (ICLR 2020), sections 4 to 6.

Scores have shape (settings, rows): a setting is a layer with or without idf, a row is a candidate of the file. Each
protocol returns named figures, each a list with one value per setting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from examples.research.tune_layers.layers import Scores, rank_with_ties

Figures = dict[str, list[float | None]]


def ranked_pairs(better: Scores, worse: Scores) -> Figures:
    """Return segment-level Kendall's tau-like of daRR judgements (Ma et al., WMT 2019); ties count as discordant."""
    return {"kendall": [2 * float(share) - 1 for share in (better > worse).mean(1)]}


def segment_level(scores: Scores, human: Sequence[float]) -> Figures:
    """Return Pearson's correlation with the ratings over all candidates."""
    return {"pearson": [_pearson(row, human) for row in scores]}


def system_level(scores: Scores, human: Sequence[float], systems: Sequence[str]) -> Figures:
    """Return Pearson's r of the systems' mean scores with their mean ratings, and Williams' test against the best.

    ``p`` is the one-sided p-value of Williams' test of the setting with the highest correlation against this one;
    ``None`` for that setting and for settings perfectly correlated with it.
    """
    names, numbers = np.unique(systems, return_inverse=True)
    of_system = np.eye(len(names))[:, numbers]
    of_system /= of_system.sum(1, keepdims=True)
    means, ratings = scores @ of_system.T, of_system @ np.asarray(human)
    pearson = [_pearson(row, ratings) for row in means]
    best = int(np.argmax(pearson))
    p_values: list[float | None] = []
    for r, row in zip(pearson, means, strict=True):
        between = _pearson(means[best], row)
        one_metric = between > 1 - 1e-12
        p_values.append(None if one_metric else williams_test(pearson[best], r, between, len(names)))
    return {"pearson": list(pearson), "p": p_values}


def williams_test(r12: float, r13: float, r23: float, n: int) -> float:
    r"""Return the one-sided p-value that a metric correlates better with human scores than another on the same texts.

    .. math::
        t = \frac{(r_{12} - r_{13}) \sqrt{(n-1)(1+r_{23})}}
            {\sqrt{2K \frac{n-1}{n-3} + \frac{(r_{12}+r_{13})^2}{4} (1-r_{23})^3}}, \quad
        K = 1 - r_{12}^2 - r_{13}^2 - r_{23}^2 + 2 r_{12} r_{13} r_{23}

    follows Student's t with n - 3 degrees of freedom if both correlations are equal (Williams 1959; Graham & Baldwin,
    EMNLP 2014). Of n texts, r12 and r13 are Pearson's correlations of the human scores with the metric that is assumed
    to be better and with the other, r23 < 1 is that of the two metrics.
    """
    determinant = max(0.0, 1 - r12**2 - r13**2 - r23**2 + 2 * r12 * r13 * r23)
    spread = 2 * determinant * (n - 1) / (n - 3) + (r12 + r13) ** 2 / 4 * (1 - r23) ** 3
    return float(stats.t.sf((r12 - r13) * math.sqrt((n - 1) * (1 + r23) / spread), n - 3))


def area_under_curve(scores: Scores, labels: Sequence[float]) -> Scores:
    """Return the area under the ROC curve and the ends of its 95% interval, shape (3, settings); ties count half.

    The interval is of samples of the pairs with label 1 and of those with label 0, with replacement.
    """
    ranks, random = rank_with_ties(scores), np.random.default_rng(0)
    groups = [np.flatnonzero(np.asarray(labels) == label) for label in (1, 0)]
    samples = [groups, *([random.choice(group, len(group)) for group in groups] for _ in range(1000))]
    wins = [stats.mannwhitneyu(ranks[:, ones], ranks[:, zeros], axis=1).statistic for ones, zeros in samples]
    areas = np.stack(wins) / (len(groups[0]) * len(groups[1]))
    return np.stack([areas[0], *np.quantile(areas[1:], (0.025, 0.975), axis=0)])


def _pearson(x: NDArray[np.float64], y: Sequence[float] | NDArray[np.float64]) -> float:
    return float(stats.pearsonr(x, y).statistic)
