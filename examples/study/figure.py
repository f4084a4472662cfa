"""Figure of the study: the gain of each arm over cross-entropy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from examples.study.results import Comparison

__all__ = ["draw"]


def draw(comparisons: Mapping[str, Mapping[str, Sequence[Comparison]]], path: Path) -> None:
    """Draw differences from cross-entropy with their intervals and the differences of single seeds.

    Args:
        comparisons: comparisons of the arms, by task and measure.
        path: file to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tasks = list(comparisons)
    measures = list(next(iter(comparisons.values())))
    arms = list(dict.fromkeys(one.arm for task in tasks for one in comparisons[task][measures[0]]))
    figure = Figure(figsize=(3.1 * len(measures) + 2.2, (0.42 * len(arms) + 1.1) * len(tasks)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(tasks), len(measures), squeeze=False, sharey=True, sharex="col")
    for task, row in zip(tasks, axes, strict=True):
        for measure, axis in zip(measures, row, strict=True):
            axis.axvline(0, color="0.6", linewidth=1)
            for one in comparisons[task][measure]:
                height = arms.index(one.arm)
                axis.plot([100 * value for value in one.by_seed], [height] * len(one.by_seed), ".", color="0.7")
                significant = one.p_value <= 0.05
                axis.plot([100 * one.low, 100 * one.high], [height, height], color="C0", linewidth=2)
                axis.plot(100 * one.difference, height, "o", color="C0", fillstyle="full" if significant else "none")
            axis.set_title(f"{task}\n{measure}", fontsize=9)
            axis.tick_params(labelsize=8)
        row[0].set_yticks(range(len(arms)), arms)
        row[0].set_ylim(len(arms) - 0.4, -0.6)
    for axis in axes[-1]:
        axis.set_xlabel("difference from cross-entropy in points", fontsize=8)
    figure.savefig(path, dpi=150)
