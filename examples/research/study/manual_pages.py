"""Texts of the study: manual pages of this machine, whose one-line description summarizes the rest.

The pages are read as roff sources, without rendering: the line of the NAME section is the summary; the name and the
first prose of the DESCRIPTION section are the document.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Sequence
from itertools import dropwhile, islice, takewhile
from pathlib import Path

from examples.programs.docstrings import DocstringPair, distinct_key

FOLDERS = (Path("/usr/share/man"), Path("/usr/local/share/man"))

_TRACKS = frozenset({"alpha", "beta", "preview"})
_BREAK = re.compile(r"\s*$|\.(?:S[Ss]|PP|P|LP|Pp|sp|IP|HP|RS|RE|br)\b")
_FONT_MACRO = re.compile(r"\.(?:B|I|R|SM|BR|RB|BI|IB|IR|RI|Nm|Xr|Ar|Fl|Pa|Em|Cm|Dv|Fa|Fn|Va|Li|Ql|Sy|Ev)\b\s*")
_VERBATIM = {".nf": ".fi", ".EX": ".EE", ".TS": ".TE", ".Bd": ".Ed", ".Vb": ".Ve"}
_ESCAPES = (
    (r"\\f(?:\[[^]]*\]|\(..|.)|\\m\[[^]]*\]|\\s[-+]?\d|\\\(bu|\\\[bu\]", ""),
    (r"\\\((?:aq|cq|oq)|\\\[(?:aq|cq|oq)\]|\\\*\(Aq|\\['`]", "'"),
    (r"\\\((?:dq|lq|rq)|\\\[(?:dq|lq|rq)\]|\\\*\((?:lq|rq)|\\\*[LRQ]\"?", '"'),
    (r"\\\((?:em|en|hy|mi)|\\\[(?:em|en|hy|mi)\]|\\-", "-"),
    (r"\\(?:[ ~0]|\\h'[^']*')", " "),
    (r"\\[&,/:|^%c)]|\\[kvhwzo]'[^']*'|\\\*\(..|\\\*\[[^]]*\]|\\\*.", ""),
    (r"\\e|\\\(rs", "/"),
)
_MARKUP = re.compile(r"[\\{}<>|$=`]|https?://")


def collect_pages(folders: Sequence[Path] = FOLDERS) -> list[DocstringPair]:
    """Collect the English manual pages of this machine; their module is the family, as git for git-log.

    Summaries and documents are distinct. Pages of alpha and beta tracks, which repeat those of the release, are read
    last.
    """
    files = [path for folder in folders for path in folder.glob("man[1234578]/*") if not path.is_symlink()]
    files.sort(key=lambda path: (bool(_TRACKS & set(path.name.split("_"))), path.parent.name, path.name))
    pages: list[DocstringPair] = []
    seen: set[str] = set()
    for page in filter(None, map(read_page, files)):
        summary, document = distinct_key(page.summary), distinct_key(page.document)
        keys = {summary, distinct_key(page.document.split(": ", 1)[-1])}
        if seen.isdisjoint(keys) and summary not in document:
            seen |= keys
            pages.append(page)
    return pages


def read_page(path: Path) -> DocstringPair | None:
    """Read a roff source; None if it refers to another page, cannot be decoded, or has too little prose."""
    try:
        content = path.read_bytes()
        lines = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8").splitlines()
    except (EOFError, UnicodeDecodeError):
        return None
    name, summary = _name_and_summary(_section(lines, "NAME"))
    prose = " ".join(x for x in _paragraphs(_section(lines, "DESCRIPTION")) if x and not _MARKUP.search(x))
    prose = re.sub(r"^\((?:ALPHA|BETA|PREVIEW)\)\s*", "", prose)
    letters = sum(char.isalpha() or char.isspace() for char in prose)
    words = prose.split()
    if not 3 <= len(summary.split()) <= 24 or len(words) < 12 or _MARKUP.search(summary) or letters < 0.8 * len(prose):
        return None
    parts = [word for word in re.split(r"[-_\s.:]+", name.lower()) if word and word not in _TRACKS]
    return DocstringPair(f"{name}: {' '.join(words[:120])}", summary, " ".join(parts[: 2 if len(parts) > 2 else 1]))


def _section(lines: Sequence[str], name: str) -> list[str]:
    """Return the lines between a heading and the next one."""
    heading = re.compile(rf'\.SH\s+"?{name}"?\s*', re.IGNORECASE)
    following = islice(dropwhile(lambda line: not heading.fullmatch(line), lines), 1, None)
    return list(takewhile(lambda line: not re.match(r"\.S[Hh]\b", line), following))


def _name_and_summary(lines: Sequence[str]) -> tuple[str, str]:
    r"""Read ``name \\- one-line description``, or BSD's ``.Nm name`` and ``.Nd description``."""
    described = next((_plain(line[4:]) for line in lines if line.startswith(".Nd ")), "")
    name = next((_plain(line[4:]) for line in lines if line.startswith(".Nm ")), "")
    if not described:
        # Pages that describe several commands have one on each line.
        first = next(filter(None, _paragraphs(lines)), "")
        name, described = [*re.split(r"\s(?:-{1,2}|\u2013|\u2014)\s", first, maxsplit=1), ""][:2]
    return name.split(",")[0].strip(), described.strip()


def _paragraphs(lines: Sequence[str]) -> Iterator[str]:
    """Yield the paragraphs of prose, some empty, without tables, list tags and verbatim text."""
    words: list[str] = []
    closing, tag_follows = "", False
    for line in lines:
        macro = next(iter(line.split(maxsplit=1)), "")
        if closing:
            closing = "" if line.startswith(closing) else closing
        elif macro in _VERBATIM:
            closing = _VERBATIM[macro]
        elif macro in (".TP", ".It", ".TQ"):
            tag_follows = macro != ".It"
        elif _BREAK.match(line):
            yield " ".join(words)
            words = []
        elif tag_follows:
            tag_follows = False
        elif _FONT_MACRO.match(line):
            # A macro of two fonts, as .BR, joins its arguments.
            arguments = [a or b for a, b in re.findall(r'"((?:[^"]|"")*)"|(\S+)', _FONT_MACRO.sub("", line))]
            words.append(_plain(("" if re.match(r"\.[BIR]{2}\b", line) else " ").join(arguments)))
        elif not line.startswith((".", "'")):
            words.append(_plain(line))
    yield " ".join(words)


def _plain(text: str) -> str:
    """Remove roff escapes from a line."""
    for pattern, replacement in _ESCAPES:
        text = re.sub(pattern, replacement, text)
    return " ".join(text.split())
