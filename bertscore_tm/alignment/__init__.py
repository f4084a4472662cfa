"""Alignments of two texts, and their heat map, page and text table.

Nothing is shown, and no display is needed: pictures are ``matplotlib.figure.Figure`` objects, pages are strings.
"""

from bertscore_tm.alignment.alignment import Alignment, align_references
from bertscore_tm.alignment.heatmap import draw_alignment, require_matplotlib

__all__ = ["Alignment", "align_references", "draw_alignment", "require_matplotlib"]
