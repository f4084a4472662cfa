"""Pages in one file: a template, styles, scripts and data; and the page of one alignment."""

from __future__ import annotations

import gzip
import json
import math
from base64 import b64encode
from datetime import date
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from torch import Tensor

from bertscore_tm.scoring.alignment import AlignedText, AlignmentData
from bertscore_tm.utilities.untrusted_text import for_page
from bertscore_tm.utilities.version import __version__

__all__ = ["describe_sides", "render_page", "round_numbers", "write_alignment", "write_frame"]

_FOLDER = Path(__file__).parent
_FRAME_HEIGHT = 640


def render_page(template: Path, data: dict[str, Any], style: str = "") -> str:
    """Fill a template with data.

    Args:
        template: the template, which extends ``base.jinja``; its script, with the suffix ``.js``, is next to it.
        data: what the page shows.
        style: style sheet that follows the tokens' one.

    Returns:
        The page. What the template shows is HTML; everything else is JSON, compressed and in base 64, which holds no
        markup.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    scripts = (_FOLDER / "tokens.js", template.with_suffix(".js"))
    script = "\n".join(path.read_text(encoding="utf-8") for path in scripts)
    style = (_FOLDER / "tokens.css").read_text(encoding="utf-8") + style
    environment = Environment(
        loader=FileSystemLoader([template.parent, _FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    document = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    return environment.get_template(template.name).render(
        data=data,
        packed=b64encode(gzip.compress(document, mtime=0)).decode(),
        style=style,
        script=script,
        # The one script that the browser runs, whatever else a text might smuggle in.
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        date=date.today().isoformat(),
        version=__version__,
    )


def write_alignment(alignment: AlignmentData) -> str:
    """Return the page of one alignment.

    Args:
        alignment: the alignment.

    Returns:
        The page: the scores, and both texts with each token shaded by its best similarity.
    """
    sides = (alignment.candidate, alignment.reference)
    candidate, reference = (for_page("".join(_space_tokens(side)).lstrip(" ")) for side in sides)
    data = {
        "settings": for_page(alignment.settings),
        "scores": [round(score, 4) for score in (alignment.precision, alignment.recall, alignment.f1)],
        "candidate": candidate,
        "reference": reference,
        "alignment": {"reference": 0, "sides": describe_sides(alignment)},
    }
    return render_page(_FOLDER / "pair.jinja", data)


def write_frame(page: str) -> str:
    """Return a page as a part of another, such as a notebook.

    Args:
        page: the page.

    Returns:
        An ``iframe`` element that keeps styles, and scripts without access to the notebook, to itself.
    """
    return (
        f'<iframe title="BERTScore" sandbox="allow-scripts" width="100%" height="{_FRAME_HEIGHT}" '
        f'style="border: 0" srcdoc="{escape(page)}"></iframe>'
    )


def describe_sides(alignment: AlignmentData) -> list[dict[str, Any]]:
    """Return the tokens of both texts and their numbers for a page's script.

    Args:
        alignment: the alignment.

    Returns:
        Of the candidate and the reference: tokens, best similarities, matches, shares, the special tokens' share, and
        the weights where they differ.
    """
    return [_describe_side(side, alignment.is_weighted) for side in (alignment.candidate, alignment.reference)]


def _describe_side(side: AlignedText, is_weighted: bool) -> dict[str, Any]:
    described = {
        "tokens": list(map(for_page, _space_tokens(side))),
        "best": round_numbers(side.best, 3),
        "matches": side.matches.tolist(),
        "shares": round_numbers(side.shares),
        "special": round_numbers(side.special_share),
    }
    if is_weighted:
        described["weights"] = round_numbers(side.weights, 3)
    return described


def _space_tokens(side: AlignedText) -> list[str]:
    """Return the tokens, with the spaces between them."""
    return [token if joined else f" {token}" for joined, token in zip(side.joined, side.tokens, strict=True)]


def round_numbers(values: Any, digits: int = 4) -> Any:
    """Round for a page, whose JSON has neither NaN nor infinity.

    Args:
        values: a number, or a tensor or nested lists of numbers.
        digits: number of decimals.

    Returns:
        Nested lists of rounded numbers, with ``None`` for those that are not finite.
    """
    if isinstance(values, Tensor):
        values = values.tolist()
    if isinstance(values, list):
        return [round_numbers(value, digits) for value in values]
    return round(values, digits) if math.isfinite(values) else None
