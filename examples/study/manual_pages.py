"""Texts of the study: manual pages of this machine, whose one-line description summarizes the rest.

The pages are read as roff sources, without rendering: the line of the NAME section is the summary; the name and the
first prose of the DESCRIPTION section are the document.
"""

from __future__ import annotations

import gzip
import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from examples.docstrings import Corpus, DocstringPair

__all__ = ["collect_pages", "read_page", "split_pages"]

FOLDERS = (Path("/usr/share/man"), Path("/usr/local/share/man"))

_MIN_SUMMARY_WORDS, _MAX_SUMMARY_WORDS = 3, 24
_MIN_DOCUMENT_WORDS, _MAX_DOCUMENT_WORDS = 12, 120
_RELEASE_TRACKS = frozenset({"alpha", "beta", "preview"})

_NAME_SECTION = re.compile(r'\.S[Hh]\s+"?NAME"?\s*', re.IGNORECASE)
_DESCRIPTION_SECTION = re.compile(r'\.S[Hh]\s+"?DESCRIPTION"?\s*', re.IGNORECASE)
_BREAK = re.compile(r"\s*$|\.(?:S[Ss]|PP|P|LP|Pp|sp|IP|HP|RS|RE|br)\b")
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


def split_pages(pages: Sequence[DocstringPair]) -> Corpus:
    """Split pages in random order; all pages of a command, library or family of commands are on one side."""
    corpus = Corpus([], [], [])
    for page in random.Random(0).sample(list(pages), len(pages)):
        place = int.from_bytes(hashlib.sha256(page.module.encode()).digest()[:6], "big") / 2**48
        side = corpus.test if place < 0.15 else corpus.validation if place < 0.2 else corpus.train
        side.append((len(side), page))
    return corpus


def collect_pages(folders: Sequence[Path] = FOLDERS) -> list[DocstringPair]:
    """Collect the English manual pages of this machine; their module is the family of the page, as git for git-log.

    Summaries and documents are distinct (compared without case and punctuation). Pages of alpha and beta tracks, which
    repeat those of the release, are read last.
    """
    files = [
        path for folder in folders for path in folder.glob("man[1234578]/*") if path.is_file() and not path.is_symlink()
    ]
    files.sort(key=lambda path: (bool(_RELEASE_TRACKS & set(path.name.split("_"))), path.parent.name, path.name))
    pages: list[DocstringPair] = []
    seen: set[str] = set()
    for page in filter(None, map(read_page, files)):
        summary, document = (re.sub(r"[^a-z0-9]+", "", text.lower()) for text in (page.summary, page.document))
        keys = {summary, re.sub(r"[^a-z0-9]+", "", page.document.split(": ", 1)[-1].lower())}
        if seen.isdisjoint(keys) and summary not in document:
            seen |= keys
            pages.append(page)
    return pages


def read_page(path: Path) -> DocstringPair | None:
    """Read a roff source; None if it refers to another page, cannot be decoded, or has too little prose."""
    try:
        content = path.read_bytes()
        lines = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8").splitlines()
    except (OSError, EOFError, UnicodeDecodeError):
        return None
    name, summary = _name_and_summary(_section(lines, _NAME_SECTION))
    prose = " ".join(text for text in _paragraphs(_section(lines, _DESCRIPTION_SECTION)) if not _LEFTOVER.search(text))
    prose = _TRACK_MARK.sub("", prose)
    words = prose.split()
    letters = sum(char.isalpha() or char.isspace() for char in prose)
    if (
        not name
        or not _MIN_SUMMARY_WORDS <= len(summary.split()) <= _MAX_SUMMARY_WORDS
        or _LEFTOVER.search(summary)
        or len(words) < _MIN_DOCUMENT_WORDS
        or letters < 0.8 * len(prose)
    ):
        return None
    parts = [word for word in re.split(r"[-_\s.:]+", name.lower()) if word and word not in _RELEASE_TRACKS]
    family = " ".join(parts[: 2 if len(parts) > 2 else 1])
    return DocstringPair(f"{name}: {' '.join(words[:_MAX_DOCUMENT_WORDS])}", summary, family)


def _section(lines: Sequence[str], heading: re.Pattern[str]) -> list[str]:
    """Return the lines between a heading and the next one."""
    start = next((i + 1 for i, line in enumerate(lines) if heading.fullmatch(line.strip())), len(lines))
    end = next((i for i in range(start, len(lines)) if re.match(r"\.S[Hh]\b", lines[i])), len(lines))
    return list(lines[start:end])


def _name_and_summary(lines: Sequence[str]) -> tuple[str, str]:
    r"""Read ``name \\- one-line description``, or BSD's ``.Nm name`` and ``.Nd description``; empty without a name."""
    described = next((line[4:] for line in lines if line.startswith(".Nd ")), None)
    if described is not None:
        name = next((line[4:].split(",")[0] for line in lines if line.startswith(".Nm ")), "")
        return _plain(name).strip(" ,"), _plain(described)
    # Pages that describe several commands have one on each line.
    name, *summary = _SEPARATOR.split(next(_paragraphs(lines), ""), maxsplit=1)
    return (name.split(",")[0].strip(), summary[0].strip()) if summary else ("", "")


def _paragraphs(lines: Sequence[str]) -> Iterator[str]:
    """Yield the paragraphs of prose, without tables, list tags and verbatim text."""
    words: list[str] = []
    closing: str | None = None
    tag_follows = False
    for line in lines:
        macro = line.split(maxsplit=1)[0] if line.strip() else ""
        if closing is not None:
            closing = None if line.startswith(closing) else closing
        elif macro in _VERBATIM:
            closing = _VERBATIM[macro]
        elif macro in (".TP", ".It", ".TQ"):
            tag_follows = macro != ".It"
        elif _BREAK.match(line):
            if words:
                yield " ".join(words)
                words = []
        elif re.match(r"[.']\\\"|\.\s*$", line):
            continue  # a comment
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
