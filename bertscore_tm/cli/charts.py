"""Pictures of estimates with their intervals, one row each."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli import report
from bertscore_tm.cli.errors import CommandError

if TYPE_CHECKING:
    from bertscore_tm.statistics import Estimate

__all__ = ["PICTURE_SUFFIXES", "add_plot_argument", "check_plot_path", "draw_intervals"]

PICTURE_SUFFIXES = (".png", ".pdf", ".svg")
_DOTS_PER_INCH = 200
# Inches.
_WIDTH, _ROW, _FRAME = 6.0, 0.28, 0.9


def add_plot_argument(group: argparse._ArgumentGroup, content: str) -> None:
    """Declare the argument for a picture.

    Args:
        group: the group of arguments.
        content: what the picture shows.
    """
    group.add_argument("--plot", metavar="FILE", help=f"also draw {content} to this file (.png, .pdf, .svg)")


def check_plot_path(path: str | None) -> None:
    """Check, before the scores are computed, that a picture can be drawn and written.

    Args:
        path: the file, or ``None`` for no picture.

    Raises:
        CommandError: the suffix is not that of a picture, or the file cannot be written.
        ImportError: matplotlib is not installed.
    """
    if path is None:
        return
    if Path(path).suffix.lower() not in PICTURE_SUFFIXES:
        raise CommandError(f"argument --plot: {path} must end with {', '.join(PICTURE_SUFFIXES)}")
    report.check_output_path(path)

    from bertscore_tm.plotting.figures import require_matplotlib

    require_matplotlib("--plot")


def draw_intervals(path: str, label: str, panels: Sequence[tuple[str, Sequence[tuple[str, Estimate]]]]) -> None:
    """Draw estimates as points with their intervals, and write the picture.

    Args:
        path: the file.
        label: what the intervals are, such as their coverage.
        panels: the title of each panel and its rows: name and estimate.
    """
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    from bertscore_tm.plotting.fonts import find_fonts

    fonts = find_fonts(text for title, rows in panels for text in (title, *(name for name, _ in rows)))
    style: dict[str, Any] = {"fontfamily": fonts.families, "parse_math": False}
    heights = [_ROW * len(rows) + _FRAME for _, rows in panels]
    figure = Figure(figsize=(_WIDTH, sum(heights)), layout="constrained")
    axes = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for ax, (title, rows) in zip(axes, panels, strict=True):
        values = [estimate.value for _, estimate in rows]
        below = [max(estimate.value - estimate.low, 0.0) for _, estimate in rows]
        above = [max(estimate.high - estimate.value, 0.0) for _, estimate in rows]
        colour = rcParams["text.color"]
        ax.errorbar(values, range(len(rows)), xerr=[below, above], fmt="o", color=colour, capsize=3)
        ax.set_yticks(range(len(rows)), [fonts.replace_missing(name) for name, _ in rows], **style)
        ax.set_title(fonts.replace_missing(title), loc="left", fontsize="medium", **style)
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.grid(axis="x", alpha=0.3)
        if min(value - low for value, low in zip(values, below, strict=True)) < 0:
            ax.axvline(0, color="gray", linewidth=0.8)
    figure.supxlabel(label, fontsize="small")
    file = BytesIO()
    figure.savefig(file, format=Path(path).suffix.lower().removeprefix("."), dpi=_DOTS_PER_INCH)
    report.write_output(file.getvalue(), path)
