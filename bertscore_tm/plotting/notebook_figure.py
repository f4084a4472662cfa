"""A figure that notebooks show; importing this module imports matplotlib."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure

__all__ = ["NotebookFigure"]


class NotebookFigure(Figure):
    """A figure that notebooks show, also where neither pyplot nor ``%matplotlib inline`` has registered figures."""

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()
