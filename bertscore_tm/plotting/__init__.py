"""Draws an alignment as a heat map or a web page; computes none.

Nothing is shown and no display is needed: functions return a ``matplotlib.figure.Figure`` or HTML.
"""

from bertscore_tm.plotting.figures import require_matplotlib
from bertscore_tm.plotting.heatmap import draw_alignment
from bertscore_tm.plotting.html_page import write_fragment, write_page

__all__ = ["draw_alignment", "require_matplotlib", "write_fragment", "write_page"]
