"""Both texts with each token shaded by its share of the score, as HTML."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from bertscore_tm.plotting.figures import format_scores
from bertscore_tm.plotting.shading import NEGATIVE, POSITIVE, STRONGEST, ShadedText, shade_texts
from bertscore_tm.scoring.alignment import SPECIAL, Alignment

__all__ = ["write_fragment", "write_page"]

# A page has the background of the browser's light or dark mode, also in a frame of the other one.
_PAGE_STYLE = ":root { color-scheme: light dark; background: Canvas; color: CanvasText; }"
# Within a page, text and background colours are inherited, so that a notebook's theme decides.
_STYLE = """
.bertscore { padding: 1em; max-width: 60em; font: 16px/2 system-ui, sans-serif; }
.bertscore p { margin: 0 0 1em; overflow-wrap: anywhere; }
.bertscore h1, .bertscore h2 { font-size: 1em; line-height: 1.5; margin: 0; }
.bertscore h2 { font-weight: normal; display: flex; flex-wrap: wrap; gap: .4em; align-items: center; }
.bertscore small { opacity: .75; }
.bertscore mark { --rgb: POSITIVE; color: inherit; padding: .15em .2em; border-radius: .2em;
  background: rgba(var(--rgb), calc(var(--share) * STRONGEST)); box-shadow: inset 0 0 0 1px rgba(128, 128, 128, .4);
  -webkit-print-color-adjust: exact; print-color-adjust: exact; }
.bertscore mark.negative { --rgb: NEGATIVE; }
.bertscore .scale { width: 6em; height: .8em; box-shadow: inset 0 0 0 1px rgba(128, 128, 128, .4);
  -webkit-print-color-adjust: exact; print-color-adjust: exact; }
"""


def write_page(alignment: Alignment) -> str:
    """Return a web page with both texts, shaded.

    Args:
        alignment: the alignment.

    Returns:
        A page that needs no other file; texts and names are escaped.
    """
    head = (
        '<meta charset="utf-8"><title>BERTScore</title><meta name="viewport" content="width=device-width">'
        f'<meta name="color-scheme" content="light dark"><style>{_PAGE_STYLE}{_style()}</style>'
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{_texts_html(alignment)}</body></html>\n'


def write_fragment(alignment: Alignment) -> str:
    """Return both texts, shaded, as a part of a web page, such as a notebook.

    Args:
        alignment: the alignment.

    Returns:
        A ``style`` and a ``div`` element; texts and names are escaped.
    """
    return f"<style>{_style()}</style>\n{_texts_html(alignment)}"


def _style() -> str:
    style = _STYLE.replace("POSITIVE", _rgb(POSITIVE)).replace("NEGATIVE", _rgb(NEGATIVE))
    return style.replace("STRONGEST", str(STRONGEST))


def _texts_html(alignment: Alignment) -> str:
    sides = shade_texts(alignment)
    parts = [
        '<div class="bertscore">',
        f"<h1>{escape(format_scores(alignment))}</h1><small>{escape(alignment.settings)}</small>",
    ]
    for side, other in zip(sides, reversed(sides), strict=True):
        parts.append(_scale_html(side))
        parts.append(f'<p dir="auto" lang="">{"".join(_tokens_html(side, other, alignment.is_weighted))}</p>')
    return "\n".join([*parts, "</div>"])


def _scale_html(side: ShadedText) -> str:
    full = side.full_share
    below = abs(side.lowest_shade)
    zero = below / (1 + below) * 100
    gradient = (
        f"linear-gradient(to right, rgba({_rgb(NEGATIVE)}, {below * STRONGEST:.3f}), transparent {zero:.1f}%, "
        f"rgba({_rgb(POSITIVE)}, {STRONGEST}))"
    )
    return (
        f"<h2><b>{escape(side.heading)}</b> <small>share of {side.score}: {side.lowest_shade * full:.2g}</small>"
        f'<span class="scale" style="background: {gradient}"></span><small>{full:.2g}</small></h2>'
    )


def _tokens_html(side: ShadedText, other: ShadedText, is_weighted: bool) -> Iterator[str]:
    text = side.text
    for number, (token, shade) in enumerate(zip(text.tokens, side.shades, strict=True)):
        match = int(text.matches[number])
        partner = "a special token" if match == SPECIAL else f"“{other.text.tokens[match]}”"
        about = f"adds {text.shares[number]:.4f} to {side.score}; similarity {text.best[number]:.3f} with {partner}"
        if is_weighted:
            about += f"; weight {text.weights[number]:.3g}"
        space = "" if number == 0 or text.joined[number] else " "
        negative = ' class="negative"' if shade < 0 else ""
        yield f'{space}<mark{negative} style="--share: {abs(shade):.3f}" title="{escape(about)}">{escape(token)}</mark>'


def _rgb(colour: tuple[int, int, int]) -> str:
    return ", ".join(map(str, colour))
