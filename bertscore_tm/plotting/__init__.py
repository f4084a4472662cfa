"""Aligns two texts token by token, and draws the alignment as a heatmap, shaded texts or a web page.

Nothing is shown and no display is needed: functions return a ``matplotlib.figure.Figure`` or HTML.
"""

from bertscore_tm.plotting.alignment import Alignment
from bertscore_tm.plotting.figures import require_matplotlib
from bertscore_tm.plotting.functional import align, contributions_html, plot_alignment, plot_contributions

__all__ = ["Alignment", "align", "contributions_html", "plot_alignment", "plot_contributions", "require_matplotlib"]
