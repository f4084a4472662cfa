"""Rank the layers of a model by the agreement of their scores with human judgements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from bertscore_tm.statistics import TIE

Coefficient = Literal["pearson", "spearman", "kendall"]
Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value and its confidence interval, from ``low`` to ``high``."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LayerAgreement:
    """Agreement of one layer's scores with human judgements.

    Args:
        layer: number of the layer, 0 for the embedding output.
        agreement: correlation with each kind of judgement, and its interval.
    """

    layer: int
    agreement: dict[str, Estimate]

    @property
    def mean(self) -> float:
        """Mean agreement over the kinds of judgement."""
        return sum(estimate.value for estimate in self.agreement.values()) / len(self.agreement)


def rank_layers(
    scores: Scores,
    human: Mapping[str, Sequence[float]],
    how: Coefficient = "pearson",
    *,
    confidence: float = 0.95,
) -> list[LayerAgreement]:
    """Rank layers by the correlation of their scores with human judgements.

    Args:
        scores: precision, recall or F1 at all layers from 0, shape (layers, texts).
        human: judgements by their kind, such as fluency, each of shape (texts,). Larger is better.
        how: the coefficient: ``"pearson"``, ``"spearman"`` or ``"kendall"``.
        confidence: coverage of the intervals, between 0 and 1.

    Returns:
        The layers by falling mean correlation; layers with equal means by rising number. The last are layers whose
        scores are all equal, to 1e-6: their correlations are NaN.

    Raises:
        ValueError: the numbers of texts differ, there are fewer than five, judgements are constant, or so are the
            scores of all layers, or values are not finite.
    """
    if not human:
        raise ValueError("human is empty: pass at least one kind of judgement by name")
    is_constant = np.ptp(scores, axis=1) < TIE  # (layers,)
    if is_constant.all():
        raise ValueError("at every layer all scores are equal: no correlation is defined")
    ranked = []
    for layer, row in enumerate(scores):
        if is_constant[layer]:
            agreement = dict.fromkeys(human, Estimate(math.nan, math.nan, math.nan))
        else:
            agreement = {kind: correlation(row, judged, how, confidence=confidence) for kind, judged in human.items()}
        ranked.append(LayerAgreement(layer, agreement))
    return sorted(ranked, key=lambda layer: (math.isnan(layer.mean), -layer.mean))


def rank_layers_by_preference(better: Scores, worse: Scores, *, confidence: float = 0.95) -> list[LayerAgreement]:
    r"""Rank layers by how often their scores agree with human preferences between two texts.

    .. math:: \tau = \frac{\mathrm{concordant} - \mathrm{discordant}}{\mathrm{concordant} + \mathrm{discordant}}

    is the statistic of the WMT metrics tasks for relative ranks from direct assessments, daRR (Ma et al., WMT 2019),
    with the interval of Wilson (JASA 1927). A pair is concordant if the better text scores higher, else discordant.

    Args:
        better: scores of the preferred texts at all layers from 0, shape (layers, pairs).
        worse: scores of the other texts with the same references, shape (layers, pairs).
        confidence: coverage of the intervals, between 0 and 1.

    Returns:
        The layers by falling agreement ``"darr"``; layers with equal values by rising number.

    Raises:
        ValueError: the shapes differ or are not (layers, pairs), or there are fewer than two pairs.
    """
    if better.ndim != 2 or better.shape != worse.shape or better.shape[1] < 2:
        shapes = f"{better.shape} and {worse.shape}"
        raise ValueError(f"better and worse must both have shape (layers, pairs), with 2 pairs or more, got {shapes}")
    _require_confidence(confidence)
    ranked = []
    for layer, is_concordant in enumerate(better > worse):
        test = stats.binomtest(int(is_concordant.sum()), len(is_concordant))
        interval = test.proportion_ci(confidence, method="wilson")
        # A share s of concordant pairs is a tau of s - (1 - s).
        tau = Estimate(2 * test.statistic - 1, 2 * float(interval.low) - 1, 2 * float(interval.high) - 1)
        ranked.append(LayerAgreement(layer, {"darr": tau}))
    return sorted(ranked, key=lambda layer: -layer.mean)


def system_means(values: ArrayLike, systems: Sequence[str]) -> Scores:
    """Average over the texts of each system, to correlate systems instead of texts.

    Args:
        values: scores or judgements, shape (..., texts).
        systems: name of the system that wrote each text.

    Returns:
        One mean per system in order of first appearance, shape (..., systems).
    """
    rows = np.asarray(values, dtype=np.float64)
    if rows.shape[-1] != len(systems):
        raise ValueError(f"systems must have one name for each of {rows.shape[-1]} texts, got {len(systems)} names")
    names = np.asarray(systems)
    return np.stack([rows[..., names == name].mean(-1) for name in dict.fromkeys(systems)], axis=-1)


def correlation(x: ArrayLike, y: ArrayLike, how: Coefficient = "pearson", *, confidence: float = 0.95) -> Estimate:
    r"""Return the correlation of two lists of values with its confidence interval.

    The interval is normal after Fisher's transformation, :math:`\tanh(\mathrm{artanh}(r) \pm z\, \sigma)`, with
    :math:`\sigma^2 = 1/(n-3)` for Pearson's, :math:`(1+r^2/2)/(n-3)` for Spearman's and :math:`0.437/(n-4)` for
    Kendall's coefficient (Bonett & Wright, Psychometrika 2000). It assumes that the n texts are independent.

    Args:
        x: score of each text, shape (texts,).
        y: human judgement of each text, shape (texts,).
        how: the coefficient: ``"pearson"``, ``"spearman"`` or ``"kendall"`` (tau-b, which corrects for ties). The last
            two rank scores by :func:`rank_with_ties`; judgements are tied where they are equal.
        confidence: coverage of the interval, between 0 and 1.

    Raises:
        ValueError: the shapes differ, there are fewer than five texts, a value is not finite, all values of ``x`` or
            all of ``y`` are equal, or an argument is out of range.
    """
    if how not in get_args(Coefficient):
        raise ValueError(f"how={how!r} is not one of {', '.join(get_args(Coefficient))}")
    _require_confidence(confidence)
    scores, judged = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if scores.ndim != 1 or scores.shape != judged.shape:
        raise ValueError(f"x and y must both have shape (texts,), got shapes {scores.shape} and {judged.shape}")
    count = len(scores)
    if count < 5:  # Fisher's interval of Kendall's coefficient divides by n - 4
        raise ValueError(f"a correlation needs at least 5 texts, got {count}")
    for name, values in (("x", scores), ("y", judged)):
        if not np.isfinite(values).all():
            raise ValueError(f"{name} has values that are not finite")
    compared = scores
    if how != "pearson":
        compared = rank_with_ties(scores)
    for name, values in (("x", compared), ("y", judged)):
        if np.ptp(values) == 0:
            raise ValueError(f"all values of {name} are equal: the correlation is undefined")
    function = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}[how]
    value = float(function(compared, judged).statistic)
    variance = {
        "pearson": 1 / (count - 3),
        "spearman": (1 + value**2 / 2) / (count - 3),
        "kendall": 0.437 / (count - 4),
    }[how]
    margin = stats.norm.ppf((1 + confidence) / 2) * math.sqrt(variance)
    with np.errstate(divide="ignore"):  # the transformation of 1 is infinite
        centre = np.arctanh(np.clip(value, -1, 1))
    return Estimate(value, float(np.tanh(centre - margin)), float(np.tanh(centre + margin)))


def rank_with_ties(values: ArrayLike) -> Scores:
    """Rank values of shape (..., n) from 0; a rank holds values up to 1e-6, the rounding of scores, above its lowest.

    Example:
        >>> rank_with_ties([0.5, 1.0, 0.9999999, 0.7])
        array([0., 2., 2., 1.])
    """
    rows = np.asarray(values, dtype=np.float64)
    ranks = np.empty(rows.shape)
    for place in np.ndindex(rows.shape[:-1]):
        lowest, rank = -math.inf, -1
        for index in rows[place].argsort().tolist():
            if rows[place][index] - lowest >= TIE:
                lowest, rank = rows[place][index], rank + 1
            ranks[place][index] = rank
    return ranks


def _require_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
