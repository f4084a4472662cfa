"""Plot of the scores of a metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.plot import plot_single_or_multi_val

from bertscore_tm.metric.states import RESULT_NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_scores"]

# From this number of points on a line is drawn as small points.
_MANY_POINTS = 30


def plot_scores(metric: Metric, results: Any, single_label: str, ax: Axes | None = None) -> tuple[Figure, Axes]:
    """Plot one result, or several over the number of the call.

    Args:
        metric: the metric, for its name and bounds.
        results: result of ``compute`` or ``forward``, or a list of results.
        single_label: label of the horizontal axis for a single result.
        ax: matplotlib axes to draw on. Default: those of a new figure.

    Returns:
        Figure and axes.
    """
    single = isinstance(results, dict | Tensor)
    shown = [
        {name: one[name] for name in RESULT_NAMES if name in one} if isinstance(one, dict) else one
        for one in ([results] if single else results)
    ]
    drawn: Any = plot_single_or_multi_val(
        shown[0] if single else shown,
        ax=ax,
        higher_is_better=metric.higher_is_better,
        name=type(metric).__name__,
        lower_bound=metric.plot_lower_bound,
        upper_bound=metric.plot_upper_bound,
        legend_name=metric.plot_legend_name,
    )[1]
    from matplotlib.ticker import MaxNLocator

    # torchmetrics labels every point, and cuts off rescaled scores below 0.
    drawn.xaxis.set_major_locator(MaxNLocator(integer=True))
    lowest = min(float(min(line.get_ydata())) for line in drawn.lines)
    drawn.set_ylim(bottom=min(drawn.get_ylim()[0], lowest - 0.1))
    for line in drawn.lines:
        if len(line.get_xdata()) > _MANY_POINTS:
            line.set(linestyle="none", markersize=4)
    if single:
        drawn.set_xlabel(single_label)
    return drawn.figure, drawn
