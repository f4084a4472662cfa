"""Figure of the study: the difference of each comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from examples.study.results import Comparison

__all__ = ["draw"]

_COLUMNS = 3
_TITLES = {"rougeL": "ROUGE-L", "repetition": "repeated words"}


def draw(compared: Sequence[Comparison], path: Path) -> None:
    """Draw the differences with their intervals, and the differences of single runs.

    Args:
        compared: the comparisons.
        path: file to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    measures = list(dict.fromkeys(one.measure for one in compared))
    pairs = list(dict.fromkeys((one.arm, one.minus) for one in compared))
    rows = math.ceil(len(measures) / _COLUMNS)
    size = (2.0 * _COLUMNS + 1.6, rows * (0.4 * len(pairs) + 0.8))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, _COLUMNS, squeeze=False, sharey=True)
    for axis in grid.flat[len(measures) :]:
        axis.remove()
    for measure, axis in zip(measures, grid.flat, strict=False):
        axis.axvline(0, color="0.6", linewidth=1)
        for one in (one for one in compared if one.measure == measure):
            height = pairs.index((one.arm, one.minus))
            for runs, marker in zip(one.by_seed, "ox^sDv", strict=False):
                axis.plot(
                    [100 * value for value in runs], [height + 0.25] * len(runs), marker, color="0.6", markersize=3
                )
            significant = one.p_adjusted is not None and one.p_adjusted <= 0.05
            axis.plot([100 * one.low, 100 * one.high], [height, height], color="C0", linewidth=2)
            axis.plot(100 * one.difference, height, "o", color="C0", fillstyle="full" if significant else "none")
        title = _TITLES.get(measure, f"F1, {measure.removesuffix('_f1').replace('layer', 'layer ')}")
        axis.set_title(title, fontsize=9)
        axis.tick_params(labelsize=8)
        axis.set_xlabel("points", fontsize=8)
    labels = [f"{arm}\nminus {minus}" for arm, minus in pairs]
    grid[0, 0].set_yticks(range(len(pairs)), labels, fontsize=8)
    grid[0, 0].set_ylim(len(pairs) - 0.5, -0.5)
    figure.savefig(path, dpi=150)
