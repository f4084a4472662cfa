"""The page of a report: a template, a style, a script, and data."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from datetime import date
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from bertscore_tm.utilities.version import __version__

__all__ = ["write_frame", "write_page"]

_FRAME_HEIGHT = 640


def write_page(data: dict[str, Any]) -> str:
    """Return the page.

    Args:
        data: what the page shows, see :class:`bertscore_tm.report.Report`.

    Returns:
        The page. The summary is HTML; everything else is JSON, compressed and in base 64, which holds no markup.
    """
    from jinja2 import Environment, StrictUndefined

    template, style, script = (
        Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.jinja", "page.css", "page.js")
    )
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    document = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    return environment.from_string(template).render(
        data=data,
        packed=b64encode(gzip.compress(document, mtime=0)).decode(),
        style=style,
        script=script,
        # The one script that the browser runs, whatever else a text might smuggle in.
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        date=date.today().isoformat(),
        version=__version__,
    )


def write_frame(page: str) -> str:
    """Return a page as a part of another, such as a notebook.

    Args:
        page: the page.

    Returns:
        An ``iframe`` element that keeps styles, and scripts without access to the notebook, to itself.
    """
    return (
        f'<iframe title="BERTScore report" sandbox="allow-scripts" width="100%" height="{_FRAME_HEIGHT}" '
        f'style="border: 0" srcdoc="{escape(page)}"></iframe>'
    )
