"""Draws an alignment as a heat map; computes none.

Nothing is shown and no display is needed: functions return a ``matplotlib.figure.Figure``.
"""

from bertscore_tm.plotting.figures import require_matplotlib
from bertscore_tm.plotting.heatmap import draw_alignment

__all__ = ["draw_alignment", "require_matplotlib"]
