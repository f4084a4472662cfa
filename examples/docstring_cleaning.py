"""Conversion of docstrings to prose, without markup, code and lists."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["document_and_summary"]

_MIN_SUMMARY_WORDS, _MAX_SUMMARY_WORDS = 4, 24
_MIN_DOCUMENT_WORDS, _MAX_DOCUMENT_WORDS = 12, 120
_MIN_LETTER_SHARE = 0.85

# Sections whose bodies are code, links or names rather than prose.
_DROPPED_SECTIONS = frozenset(
    {
        "code example",
        "code examples",
        "doctest",
        "example",
        "example usage",
        "examples",
        "reference",
        "references",
        "see also",
        "usage",
        "usage example",
        "usage examples",
    }
)
_KEPT_SECTIONS = frozenset(
    {
        "args",
        "arguments",
        "attributes",
        "keyword args",
        "keyword arguments",
        "note",
        "notes",
        "other parameters",
        "parameters",
        "params",
        "raises",
        "return",
        "returns",
        "shape",
        "warning",
        "warnings",
        "warns",
        "yields",
    }
)
# Directives whose bodies are prose; all other directives are removed with their bodies.
_PROSE_DIRECTIVES = frozenset({"attention", "caution", "hint", "important", "note", "rubric", "tip", "warning"})

_DIRECTIVE = re.compile(r"\.\.\s+(?P<name>[\w:-]+)::\s*(?P<text>.*)|\.\.(\s.*)?")
_UNDERLINE = re.compile(r"([-=~^\"*#+_`'])\1{2,}")
_TABLE_LINE = re.compile(r"[|+].*[|+]|[-=~]{2,}(\s+[-=~]{2,})+")
_FENCE = re.compile(r"```|~~~")
_TAG_LINE = re.compile(r"\[\[.*\]\].*|</?[A-Za-z]\w*( [^>]*)?>|>?\s*\[![A-Z]+\]|(#|//)\s.*")
_GOOGLE_ITEM = re.compile(r"(?:[-*]\s+)?(?P<name>[`*\w.]+(?:,\s*[`*\w.]+)*)\s*\(.*?\)\s*(?::|--)(?=\s|$)")
_UNTYPED_ITEM = re.compile(r"[`'\"*\w]+\s?:(?=\s|$)")
_NUMPY_ITEM = re.compile(r"(?P<name>[`*\w]+(?:\s*,\s*[`*\w]+)*)\s+: .*")
_SPHINX_FIELD = re.compile(r":(?P<kind>\w+)(?:\s+(?P<name>[^:`]+))?:(?=\s|$)")
_BULLET = re.compile(r"([-*+]|\(?[0-9a-z#][.)])\s+(?=\S)")

_URL_MARK = "\x00"  # marks a removed address until its sentence is removed
_IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_MARKDOWN_LINK = re.compile(r"\[([^\[\]]+)\]\([^()\s]*\)")
_CODE = re.compile(r"\[?(?P<role>:[\w:+-]+:)?(?P<ticks>`{1,2})(?P<text>[^`]+)(?P=ticks)_{0,2}(?P<close>\])?")
_TITLED_TARGET = re.compile(r"(?P<title>[^<]*\S)\s*<[^>]+>")
_DOTTED_NAME = re.compile(r"[~!](?:\w+\.)*(?P<last>\w+(?:\(\))?)")
_ROLE_NAME = re.compile(r"(?:\w+\.)+(?P<last>\w+(?:\(\))?)")
_URL = re.compile(r"<?\b(?:https?|ftp)://[^\s>]*[^\s>.,;:)]>?|\bwww\.[^\s>]*[^\s>.,;:)]")
_FOOTNOTE = re.compile(r"\s*\[(?:\d+|#\w*|[A-Z]\w*\d{2,4}\w?)\]_")
_TAG = re.compile(r"</?(?:a|b|br|code|div|em|i|img|li|p|pre|span|strong|sub|sup|tip|ul)\b[^>]*>", re.IGNORECASE)
_STRONG = re.compile(r"\*\*([^*\s](?:[^*]*[^*\s])?)\*\*")
_EMPHASIS = re.compile(r"(?<![\w*\\])\*([^*\s](?:[^*]*[^*\s])?)\*(?![\w*])")
_ESCAPE = re.compile(r"\\(?=[*_`|\\ ])")
# Blocks that are not prose: code, formulas, remarks to developers, the rest of a sentence after a formula.
_UNFIT_BLOCK = re.compile(r"[\\{}`$]|>>>|::|\b(?:TODO|FIXME|XXX)\b|^where\b|^[^A-Za-z]*$")
_RULE = re.compile(r"(?<!\S)[-=~*#_]{3,}(?!\S)")
_BRACKETED_URL = re.compile(rf"\s*\([\s,;:{_URL_MARK}]*{_URL_MARK}[\s,;]*\)")
_SPACE_BEFORE_STOP = re.compile(r"\s+([,.;:])(?=\s|$)")

_SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\betc)(?<!\bcf)(?<!\bal)[.!?](?=\s+[A-Z]|\s*$)")
_SENTENCE_GAP = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_LEFTOVER_MARKUP = re.compile(r"[\\`{}|<>=$@\x00]|::")
_UNWANTED_SUMMARY = re.compile(
    r"(?:deprecated|todo|fixme|see |please |docstring|helper (?:function|class|method)\.|internal |note:|warning:"
    r"|this (?:function|method|class|module) is (?:deprecated|experimental)|copyright|base class for)",
    re.IGNORECASE,
)


def document_and_summary(docstring: str) -> tuple[str, str] | None:
    """Clean a docstring and split it into document and summary.

    Args:
        docstring: a docstring, unchanged from the source.

    Returns:
        The text after the summary, truncated to its first words, and the summary; None if they are unsuitable.
    """
    printable = "".join(char for char in docstring if char.isprintable() or char in "\n\t")
    blocks = _blocks(inspect.cleandoc(printable).splitlines())
    opening = next(blocks, "")
    end = _SENTENCE_END.search(opening)
    if end is None:
        return None
    summary = opening[: end.end()]
    if not _is_good_summary(summary):
        return None
    document = _join([_without_addresses(block) for block in (opening[end.end() :].strip(), *blocks)])
    words = document.split()
    if len(words) < _MIN_DOCUMENT_WORDS or _letter_share(document) < _MIN_LETTER_SHARE:
        return None
    return " ".join(words[:_MAX_DOCUMENT_WORDS]), summary


def _blocks(lines: Sequence[str]) -> Iterator[str]:
    """Yield the cleaned paragraphs, items and headings of a docstring; an empty text for one with markup only."""
    block: list[str] = []
    for line in _prose_lines(lines):
        text, starts_block = _item_text(line)
        if (starts_block or not text) and block:
            yield _clean_block(block)
            block = []
        if text:
            block.append(text)
            if _heading(text) is not None:
                yield _clean_block(block)
                block = []
    if block:
        yield _clean_block(block)


def _prose_lines(lines: Sequence[str]) -> Iterator[str]:
    """Yield the stripped prose lines, without code, tables, underlines and directives with their bodies."""
    dropped_indent: int | None = None  # more deeply indented lines are the body of a dropped element
    in_doctest = in_fence = in_dropped_section = False
    for number, line in enumerate(lines):
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if _FENCE.match(text):
            in_fence = not in_fence and not _FENCE.search(text, 3)
            continue
        if in_fence:
            continue
        if not text:
            in_doctest = False
            yield ""
            continue
        if dropped_indent is not None:
            if indent > dropped_indent:
                continue
            dropped_indent = None
        in_doctest = in_doctest or text.startswith(">>>")
        following = lines[number + 1].strip() if number + 1 < len(lines) else ""
        underlined = _UNDERLINE.fullmatch(following) is not None
        heading = _heading(text, underlined=underlined)
        if underlined:
            in_dropped_section = heading in _DROPPED_SECTIONS
        if in_doctest or in_dropped_section:
            continue
        if heading in _DROPPED_SECTIONS:
            dropped_indent = indent
            continue
        if heading is not None:
            yield ""
            yield text.strip("*#: ") + ":"
            continue
        if _UNDERLINE.fullmatch(text) or _TABLE_LINE.fullmatch(text) or _TAG_LINE.fullmatch(text):
            continue
        directive = _DIRECTIVE.fullmatch(text)
        if directive is not None:
            if directive["name"] not in _PROSE_DIRECTIVES:
                dropped_indent = indent
            else:
                yield ""
                yield directive["text"]
            continue
        if text.endswith("::"):
            dropped_indent = indent
            text = text[:-2].rstrip() + "."
            if text == ".":
                continue
        yield text


def _heading(text: str, *, underlined: bool = False) -> str | None:
    """Return the lower-case name of a section heading; None for other lines."""
    name = text.strip("*# ").rstrip(":").rstrip("*").lower()
    if underlined or (name in _DROPPED_SECTIONS | _KEPT_SECTIONS and text.endswith((":", ":**"))):
        return name
    return None


def _item_text(line: str) -> tuple[str, bool]:
    """Return a list item or a described argument as plain text, and whether the line starts a block."""
    match = _GOOGLE_ITEM.match(line)
    if match is not None:
        return f"{match['name']}:{line[match.end() :]}", True
    match = _NUMPY_ITEM.fullmatch(line)
    if match is not None:
        return f"{match['name']}:", True
    match = _SPHINX_FIELD.match(line)
    if match is not None:
        if match["kind"] in ("rtype", "type"):
            return "", True
        label = (match["name"] or match["kind"].capitalize()).split()[-1]
        return f"{label}:{line[match.end() :]}", True
    match = _BULLET.match(line)
    if match is not None:
        return line[match.end() :], True
    return line, _UNTYPED_ITEM.match(line) is not None or _heading(line) is not None


def _clean_block(lines: Iterable[str]) -> str:
    """Join the lines of a block without inline markup; return an empty text if the block is not prose."""
    text = _RULE.sub("", _IMAGE.sub("", " ".join(lines)))
    text = _MARKDOWN_LINK.sub(r"\1", text)
    text = _CODE.sub(_code_text, text)
    text = _URL.sub(_URL_MARK, text)
    text = _FOOTNOTE.sub("", text)
    text = _TAG.sub("", text)
    text = _EMPHASIS.sub(r"\1", _STRONG.sub(r"\1", text))
    text = _ESCAPE.sub("", text)
    text = _BRACKETED_URL.sub("", text)
    text = _SPACE_BEFORE_STOP.sub(r"\1", " ".join(text.split()))
    return "" if _UNFIT_BLOCK.search(text) else text


def _code_text(match: re.Match[str]) -> str:
    """Return the plain text of code in backticks, of a role or of a titled link."""
    text = " ".join(match["text"].split())
    titled = _TITLED_TARGET.fullmatch(text)
    if titled is not None:
        text = titled["title"]
    dotted = (_ROLE_NAME if match["role"] else _DOTTED_NAME).fullmatch(text)
    if dotted is None and match["role"]:
        dotted = _DOTTED_NAME.fullmatch(text)
    if dotted is not None:
        text = dotted["last"]
    opened, closed = match[0].startswith("["), match["close"] is not None
    return ("[" if opened and not closed else "") + text + ("]" if closed and not opened else "")


def _without_addresses(block: str) -> str:
    """Remove sentences with an address, which are incomplete without it."""
    return " ".join(sentence for sentence in _SENTENCE_GAP.split(block) if _URL_MARK not in sentence)


def _join(blocks: Sequence[str]) -> str:
    """Join blocks to one text of sentences, without empty sections' headings."""
    kept: list[str] = []
    for block in reversed([block for block in blocks if block]):
        below_is_heading = not kept or _heading(kept[-1]) is not None
        if below_is_heading and (_heading(block) is not None or (not kept and block.endswith(":"))):
            continue
        kept.append(block if block.endswith((".", ":", "!", "?", ",", ";")) else block + ".")
    return " ".join(reversed(kept))


def _is_good_summary(summary: str) -> bool:
    """Return whether a sentence has the length and form of a summary."""
    return (
        _MIN_SUMMARY_WORDS <= len(summary.split()) <= _MAX_SUMMARY_WORDS
        and summary.isascii()
        and summary[0].isupper()
        and _letter_share(summary) >= _MIN_LETTER_SHARE
        and not _LEFTOVER_MARKUP.search(summary)
        and not _UNWANTED_SUMMARY.match(summary)
    )


def _letter_share(text: str) -> float:
    """Return the share of ASCII letters and spaces in a text, which must not be empty."""
    return sum(char == " " or (char.isascii() and char.isalpha()) for char in text) / len(text)
