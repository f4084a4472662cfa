"""Pages in one file: a template, styles, scripts and data; and the page of one alignment."""

import gzip
import json
import math
import unicodedata
from base64 import b64encode
from collections.abc import Mapping, Sequence
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
    data = _escape(data)
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


def _escape(value: Any) -> Any:
    """Return data with texts as a page shows them, and ``None`` for NaN and infinity, which JSON does not have."""
    if isinstance(value, str):
        return for_page(value)
    if isinstance(value, dict):
        return {key: _escape(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escape(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_alignment(alignment: AlignmentData) -> str:
    """Return the page of an alignment: the scores, and both texts with each token shaded by its best similarity."""
    described = describe_alignments({0: alignment}, 1)
    data = {
        "settings": alignment.settings,
        "scores": described["scores"][0],
        "candidate": alignment.candidate.text,
        "reference": alignment.reference.text,
        "alignment": described,
    }
    return render_page(_FOLDER / "pair.jinja", data, ["pair.js"])


def write_frame(page: str) -> str:
    """Return a page as an element of another, such as a notebook, that keeps its styles and scripts to itself."""
    return (
        '<iframe title="BERTScore" sandbox="allow-scripts" width="100%" height="640" '
        f'style="border: 0" srcdoc="{escape(page)}"></iframe>'
    )


def describe_alignments(alignments: Mapping[int, AlignmentData], num_references: int) -> dict[str, Any]:
    """Return a candidate's best alignment, by F1, and the scores of all by reference, for a page's script."""
    best = max(alignments, key=lambda number: alignments[number].f1)
    scores = [
        [round(getattr(alignments[number], name), 4) for name in SCORE_NAMES] if number in alignments else None
        for number in range(num_references)
    ]
    return {"reference": best, "scores": scores, "sides": describe_sides(alignments[best])}


def describe_sides(alignment: AlignmentData) -> list[dict[str, Any]]:
    """Return the tokens of the candidate and of the reference, and their numbers, for a page's script."""
    return [_describe_side(side, alignment.is_weighted) for side in (alignment.candidate, alignment.reference)]


def _describe_side(side: AlignedText, is_weighted: bool) -> dict[str, Any]:
    tokens, gaps = _cut_text(side)
    return {
        "tokens": tokens,
        "gaps": gaps,
        "best": round_numbers(side.best, 3),
        "matches": side.matches.tolist(),
        "shares": round_numbers(side.shares),
        "special": round(side.special_share, 4),
        "weights": round_numbers(side.weights, 3) if is_weighted else None,
    }


def _cut_text(side: AlignedText) -> tuple[list[str], list[str] | None]:
    """Return the tokens of a text, and what is before, between and after them; ``None`` without their places.

    A token that shares its characters with the one before has its number, a token of no character its symbol.
    """
    if side.spans is None:
        return [token if joined else f" {token}" for joined, token in zip(side.joined, side.tokens, strict=True)], None
    tokens, gaps, reached = [], [], 0
    limits = [*(start for start, _ in side.spans[1:]), len(side.text)]
    for token, (start, end), limit in zip(side.tokens, side.spans, limits, strict=True):
        gaps.append(side.text[reached:start])
        # Signs that a tokenizer drops, such as accents, belong to the letter before them.
        while start < end < limit and unicodedata.category(side.text[end])[0] == "M":
            end += 1
        tokens.append(side.text[max(start, reached) : end] or token[-1])
        reached = max(reached, end)
    return tokens, [*gaps, side.text[reached:]]


def round_numbers(values: Tensor, digits: int = 4) -> Any:
    """Return a tensor as lists of rounded numbers."""
    return values.double().round(decimals=digits).tolist()
