"""Summarization corpus of manual pages, whose one-line description summarizes the rest.

The pages are read as roff sources, without rendering: the line of the NAME section is the summary; the name and the
first prose of the DESCRIPTION section are the document.
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DEFAULT_FOLDERS", "ManualPage", "collect_pages", "read_page"]

DEFAULT_FOLDERS: tuple[Path, ...] = (Path("/usr/share/man"), Path("/usr/local/share/man"))
"""Folders of manual pages."""

_MIN_SUMMARY_WORDS, _MAX_SUMMARY_WORDS = 3, 24
_MIN_DOCUMENT_WORDS, _MAX_DOCUMENT_WORDS = 12, 120
_MIN_LETTER_SHARE = 0.8
_RELEASE_TRACKS = frozenset({"alpha", "beta", "preview"})

_NAME_SECTION = re.compile(r'\.S[Hh]\s+"?NAME"?\s*', re.IGNORECASE)
_DESCRIPTION_SECTION = re.compile(r'\.S[Hh]\s+"?DESCRIPTION"?\s*', re.IGNORECASE)
_SECTION = re.compile(r"\.S[Hh]\b")
_SUBSECTION = re.compile(r"\.S[Ss]\b")
_COMMENT = re.compile(r"[.']\\\"|'\\\"|\.\s*$")
_PARAGRAPH = re.compile(r"\.(?:PP|P|LP|Pp|sp|IP|HP|RS|RE|br)\b")
_FONT_MACRO = re.compile(r"\.(?:B|I|R|SM|BR|RB|BI|IB|IR|RI|Nm|Xr|Ar|Fl|Pa|Em|Cm|Dv|Fa|Fn|Va|Li|Ql|Sy|Ev)\b\s*")
_JOINED = re.compile(r"\.(?:BR|RB|BI|IB|IR|RI)\b")
_VERBATIM = {".nf": ".fi", ".EX": ".EE", ".TS": ".TE", ".Bd": ".Ed", ".Vb": ".Ve", ".EQ": ".EN", ".ig": ".."}
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"|(\S+)')
_SEPARATOR = re.compile(r"\s(?:-{1,2}|\u2013|\u2014)\s")

_ESCAPES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\\f(?:\[[^]]*\]|\(..|.)|\\m\[[^]]*\]|\\s[-+]?\d"), ""),
    (re.compile(r"\\\((?:aq|cq|oq)|\\\[(?:aq|cq|oq)\]|\\\*\(Aq|\\['`]"), "'"),
    (re.compile(r"\\\((?:dq|lq|rq)|\\\[(?:dq|lq|rq)\]|\\\*\((?:lq|rq)|\\\*[LRQ]\"?"), '"'),
    (re.compile(r"\\\((?:em|en|hy|mi)|\\\[(?:em|en|hy|mi)\]|\\-"), "-"),
    (re.compile(r"\\\(bu|\\\[bu\]"), ""),
    (re.compile(r"\\(?:[ ~0]|\\h'[^']*')"), " "),
    (re.compile(r"\\[&,/:|^%c)]|\\[kvhwzo]'[^']*'|\\\*\(..|\\\*\[[^]]*\]|\\\*."), ""),
    (re.compile(r"\\\".*$"), ""),
    (re.compile(r"\\e|\\\(rs"), "/"),
)
_LEFTOVER = re.compile(r"[\\{}<>|$=`]|https?://")
_TRACK_MARK = re.compile(r"^\((?:ALPHA|BETA|PREVIEW)\)\s*")
_NOT_ALPHANUMERIC = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True)
class ManualPage:
    """A document with its summary.

    Attributes:
        document: name of the page and the first words of its description.
        summary: one-line description of the page.
        group: family of the page, such as ``git`` for ``git-log``; pages of a group are often similar.
    """

    document: str
    summary: str
    group: str


def collect_pages(
    folders: Sequence[Path] = DEFAULT_FOLDERS, *, sections: Sequence[int] = (1, 2, 3, 4, 5, 7, 8)
) -> list[ManualPage]:
    """Collect the English manual pages of this machine.

    Summaries and documents are distinct (compared without case and punctuation). Pages of alpha and beta tracks, which
    repeat those of the release, are read last.

    Args:
        folders: folders with subfolders ``man1`` to ``man8``.
        sections: numbers of the sections to read.

    Returns:
        The pairs, ordered by file name in each section, alpha and beta tracks last.
    """
    pages: list[ManualPage] = []
    seen: set[str] = set()
    for path in sorted(_page_files(folders, sections), key=_place):
        page = read_page(path)
        if page is None:
            continue
        keys = {_key(page.summary), _key(page.document.split(": ", 1)[-1])}
        if keys & seen or _key(page.summary) in _key(page.document):
            continue
        seen |= keys
        pages.append(page)
    return pages


def read_page(path: Path) -> ManualPage | None:
    """Read one page.

    Args:
        path: a roff source, plain or gzipped.

    Returns:
        The pair; ``None`` if the page refers to another, cannot be decoded, or has too little prose.
    """
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError):
            return None
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        return None
    described = _name_and_summary(_section(lines, _NAME_SECTION))
    if described is None:
        return None
    name, summary = described
    if not _MIN_SUMMARY_WORDS <= len(summary.split()) <= _MAX_SUMMARY_WORDS or _LEFTOVER.search(summary):
        return None
    prose = " ".join(text for text in _paragraphs(_section(lines, _DESCRIPTION_SECTION)) if not _LEFTOVER.search(text))
    prose = _TRACK_MARK.sub("", prose)
    words = prose.split()
    letters = sum(char.isalpha() or char.isspace() for char in prose)
    if len(words) < _MIN_DOCUMENT_WORDS or letters < _MIN_LETTER_SHARE * len(prose):
        return None
    return ManualPage(f"{name}: {' '.join(words[:_MAX_DOCUMENT_WORDS])}", summary, _group(name))


def _page_files(folders: Sequence[Path], sections: Sequence[int]) -> Iterator[Path]:
    """Yield the files of pages, without links."""
    for folder in folders:
        for section in sections:
            below = folder / f"man{section}"
            if below.is_dir():
                with os.scandir(below) as entries:
                    yield from (Path(entry) for entry in entries if entry.is_file(follow_symlinks=False))


def _place(path: Path) -> tuple[bool, str, str]:
    """Return the sort key of a page; alpha and beta tracks come last."""
    return bool(_RELEASE_TRACKS & set(path.name.split("_"))), path.parent.name, path.name


def _section(lines: Sequence[str], heading: re.Pattern[str]) -> list[str]:
    """Return the lines between a heading and the next one."""
    start = next((i + 1 for i, line in enumerate(lines) if heading.fullmatch(line.strip())), len(lines))
    end = next((i for i in range(start, len(lines)) if _SECTION.match(lines[i])), len(lines))
    return list(lines[start:end])


def _name_and_summary(lines: Sequence[str]) -> tuple[str, str] | None:
    r"""Read ``name \\- one-line description``, or BSD's ``.Nm name`` and ``.Nd description``."""
    described = next((line[4:] for line in lines if line.startswith(".Nd ")), None)
    if described is not None:
        name = next((line[4:].split(",")[0] for line in lines if line.startswith(".Nm ")), "")
        return (_plain(name).strip(" ,"), _plain(described)) if name else None
    # Pages that describe several commands have one on each line.
    parts = _SEPARATOR.split(next(_paragraphs(lines), ""), maxsplit=1)
    if len(parts) != 2 or not parts[0]:
        return None
    return parts[0].split(",")[0].strip(), parts[1].strip()


def _paragraphs(lines: Sequence[str]) -> Iterator[str]:
    """Yield the paragraphs of prose, without tables, list tags and verbatim text."""
    words: list[str] = []
    closing: str | None = None
    tag_follows = False
    for line in lines:
        if closing is not None:
            closing = None if line.startswith(closing) else closing
            continue
        macro = line.split(maxsplit=1)[0] if line.strip() else ""
        if macro in _VERBATIM:
            closing = _VERBATIM[macro]
        elif macro in (".TP", ".It", ".TQ"):
            tag_follows = macro != ".It"
        elif not line.strip() or _PARAGRAPH.match(line) or _SUBSECTION.match(line):
            if words:
                yield " ".join(words)
                words = []
        elif _COMMENT.match(line):
            continue
        elif tag_follows:
            tag_follows = False
        elif _FONT_MACRO.match(line):
            arguments = [a or b for a, b in _ARGUMENT.findall(_FONT_MACRO.sub("", line, count=1))]
            words.append(_plain(("" if _JOINED.match(line) else " ").join(arguments)))
        elif not line.startswith((".", "'")):
            words.append(_plain(line))
    if words:
        yield " ".join(words)


def _plain(text: str) -> str:
    """Remove roff escapes from a line."""
    for pattern, replacement in _ESCAPES:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())


def _group(name: str) -> str:
    """Return the family of a page: the first word of its name, or two words if it has more than two."""
    words = [word for word in re.split(r"[-_\s.:]+", name.lower()) if word and word not in _RELEASE_TRACKS]
    return " ".join(words[: 2 if len(words) > 2 else 1])


def _key(text: str) -> str:
    """Return a text without case, punctuation and spaces, for comparison."""
    return _NOT_ALPHANUMERIC.sub("", text.lower())
