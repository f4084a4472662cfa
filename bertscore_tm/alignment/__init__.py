"""An alignment as a person sees it: picture, page, table. Computes none.

Nothing is shown and no display is needed: pictures are ``matplotlib.figure.Figure`` objects, pages are texts.
"""

from bertscore_tm.alignment.alignment import Alignment, align_references
from bertscore_tm.alignment.heatmap import draw_alignment, require_matplotlib

__all__ = ["Alignment", "align_references", "draw_alignment", "require_matplotlib"]
