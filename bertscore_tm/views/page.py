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
from bertscore_tm.utilities.score_names import SCORES
from bertscore_tm.utilities.untrusted_text import for_page
from bertscore_tm.utilities.version import __version__

__all__ = ["describe_sides", "render_page", "round_numbers", "write_alignment", "write_frame"]

_FOLDER = Path(__file__).parent


def render_page(template: Path, data: dict[str, Any]) -> str:
    """Fill a template that extends ``base.jinja``; its script and its style sheet, if it has one, are next to it.

    What the template shows is HTML; everything else is JSON, compressed and in base 64, which holds no markup.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader([template.parent, _FOLDER])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    document = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    script = _read_with_tokens(template, ".js")
    return environment.get_template(template.name).render(
        data=data,
        packed=b64encode(gzip.compress(document, mtime=0)).decode(),
        style=_read_with_tokens(template, ".css"),
        script=script,
        # The one script that the browser runs, whatever else a text might smuggle in.
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        date=date.today().isoformat(),
        version=__version__,
    )


def _read_with_tokens(template: Path, suffix: str) -> str:
    """Read what shows the tokens, and what only this template has."""
    paths = (_FOLDER / f"tokens{suffix}", template.with_suffix(suffix))
    return "\n".join(path.read_text(encoding="utf-8") for path in paths if path.exists())


def write_alignment(alignment: AlignmentData) -> str:
    """Return the page of an alignment: the scores, and both texts with each token shaded by its best similarity."""
    sides = describe_sides(alignment)
    candidate, reference = ("".join(side["tokens"]).lstrip(" ") for side in sides)
    data = {
        "settings": for_page(alignment.settings),
        "scores": [round(getattr(alignment, name), 4) for name in SCORES],
        "candidate": candidate,
        "reference": reference,
        "alignment": {"reference": 0, "sides": sides},
    }
    return render_page(_FOLDER / "pair.jinja", data)


def write_frame(page: str) -> str:
    """Return a page as an element of another, such as a notebook, that keeps its styles and scripts to itself."""
    return (
        '<iframe title="BERTScore" sandbox="allow-scripts" width="100%" height="640" '
        f'style="border: 0" srcdoc="{escape(page)}"></iframe>'
    )


def describe_sides(alignment: AlignmentData) -> list[dict[str, Any]]:
    """Return the tokens of the candidate and of the reference, and their numbers, for a page's script."""
    return [_describe_side(side, alignment.is_weighted) for side in (alignment.candidate, alignment.reference)]


def _describe_side(side: AlignedText, is_weighted: bool) -> dict[str, Any]:
    spaced = [token if joined else f" {token}" for joined, token in zip(side.joined, side.tokens, strict=True)]
    described = {
        "tokens": [for_page(token) for token in spaced],
        "best": round_numbers(side.best, 3),
        "matches": side.matches.tolist(),
        "shares": round_numbers(side.shares),
        "special": round_numbers(side.special_share),
    }
    return described | ({"weights": round_numbers(side.weights, 3)} if is_weighted else {})


def round_numbers(values: Any, digits: int = 4) -> Any:
    """Round a number, or a tensor or lists of them; ``None`` replaces NaN and infinity, which JSON does not have."""
    if isinstance(values, Tensor):
        values = values.tolist()
    if isinstance(values, list):
        return [round_numbers(value, digits) for value in values]
    return round(values, digits) if math.isfinite(values) else None
