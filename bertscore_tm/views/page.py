"""Pages in one file: a template, styles, scripts and data; and the page of one alignment."""

import gzip
import json
import math
import unicodedata
from base64 import b64encode
from collections.abc import Sequence
from datetime import date
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from torch import Tensor

from bertscore_tm.scoring.alignment import AlignedText, AlignmentData
from bertscore_tm.utilities.score_names import SCORE_NAMES
from bertscore_tm.utilities.untrusted_text import for_page
from bertscore_tm.utilities.version import __version__

_FOLDER = Path(__file__).parent


def render_page(template: Path, data: dict[str, Any], scripts: Sequence[str]) -> str:
    """Fill a template that extends ``base.jinja``; its style sheet, if it has one, and its scripts are next to it.

    What the template shows is HTML; everything else is JSON, compressed and in base 64, which holds no markup.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader([template.parent, _FOLDER])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    document = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    parts = [(template.parent / name).read_text(encoding="utf-8") for name in scripts]
    shared = (_FOLDER / "tokens.js").read_text(encoding="utf-8")
    script = "\n".join([shared, "(async () => {", *parts, "})();"])
    styles = (_FOLDER / "tokens.css", template.with_suffix(".css"))
    return environment.get_template(template.name).render(
        data=data,
        packed=b64encode(gzip.compress(document, mtime=0)).decode(),
        style="\n".join(path.read_text(encoding="utf-8") for path in styles if path.exists()),
        script=script,
        # The one script that the browser runs, whatever else a text might smuggle in.
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        date=date.today().isoformat(),
        version=__version__,
    )


def write_alignment(alignment: AlignmentData) -> str:
    """Return the page of an alignment: the scores, and both texts with each token shaded by its best similarity."""
    scores = [round(getattr(alignment, name), 4) for name in SCORE_NAMES]
    data = {
        "settings": for_page(alignment.settings),
        "scores": scores,
        "candidate": for_page(alignment.candidate.text),
        "reference": for_page(alignment.reference.text),
        "alignment": {"reference": 0, "scores": [scores], "sides": describe_sides(alignment)},
    }
    return render_page(_FOLDER / "pair.jinja", data, ["pair.js"])


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
    tokens, gaps = _cut_text(side)
    described = {
        "tokens": tokens,
        "gaps": gaps,
        "best": round_numbers(side.best, 3),
        "matches": side.matches.tolist(),
        "shares": round_numbers(side.shares),
        "special": round_numbers(side.special_share),
    }
    return described | ({"weights": round_numbers(side.weights, 3)} if is_weighted else {})


def _cut_text(side: AlignedText) -> tuple[list[str], list[str] | None]:
    """Return the tokens of a text, and what is before, between and after them; ``None`` without their places.

    A token that shares its characters with the one before has its number, a token of no character its symbol.
    """
    if side.spans is None:
        spaced = [token if joined else f" {token}" for joined, token in zip(side.joined, side.tokens, strict=True)]
        return [for_page(token) for token in spaced], None
    tokens, gaps, reached = [], [], 0
    limits = [*(start for start, _ in side.spans[1:]), len(side.text)]
    for token, (start, end), limit in zip(side.tokens, side.spans, limits, strict=True):
        gaps.append(for_page(side.text[reached:start]))
        # Signs that a tokenizer drops, such as accents, belong to the letter before them.
        while start < end < limit and unicodedata.category(side.text[end])[0] == "M":
            end += 1
        tokens.append(for_page(side.text[max(start, reached) : end] or token[-1]))
        reached = max(reached, end)
    return tokens, [*gaps, for_page(side.text[reached:])]


def round_numbers(values: Any, digits: int = 4) -> Any:
    """Round a number, or a tensor or lists of them; ``None`` replaces NaN and infinity, which JSON does not have."""
    if isinstance(values, Tensor):
        values = values.tolist()
    if isinstance(values, list):
        return [round_numbers(value, digits) for value in values]
    return round(values, digits) if math.isfinite(values) else None
