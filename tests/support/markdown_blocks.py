"""Code blocks, headings and links of the Markdown files."""

import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_REPOSITORY = re.compile(r"https://(?:github|raw\.githubusercontent)\.com/bertscore-tm/bertscore-tm/(?:blob/)?main/")
_FLOAT = re.compile(r"-?\d+\.(\d+)")


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: str
    language: str
    content: str
    line: int
    output: str | None
    """Content of the ``text`` block directly after the block: the expected output."""

    def compiled(self) -> Any:
        # With the lines above, so that errors point into the page.
        return compile("\n" * self.line + self.content, self.page, "exec")

    def run(self, names: dict[str, Any]) -> str:
        """Execute a python block and return what it printed."""
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(self.compiled(), names)
        return printed.getvalue()


def blocks(path: Path) -> list[Block]:
    """Return all blocks of a page, in order."""
    text = path.read_text(encoding="utf-8")
    fences = list(_FENCE.finditer(text))
    rows = []
    for fence, after in zip_longest(fences, fences[1:]):
        follows = after is not None and after[1] == "text" and not text[fence.end() : after.start()].strip()
        line = text.count("\n", 0, fence.start()) + 1
        page = str(path.relative_to(ROOT))
        rows.append(Block(page, fence[1], fence[2], line, after[2] if after is not None and follows else None))
    return rows


def same_output(expected: str, printed: str) -> bool:
    """Check whether two outputs are equal up to one unit in the last digit of decimal numbers."""
    if _FLOAT.sub("#", expected).split() != _FLOAT.sub("#", printed).split():
        return False
    pairs = zip(_FLOAT.finditer(expected), _FLOAT.finditer(printed), strict=True)
    return all(len(a[1]) == len(b[1]) and abs(float(a[0]) - float(b[0])) <= 1.01 * 10 ** -len(a[1]) for a, b in pairs)


def markdown_files() -> list[Path]:
    """Return the project's Markdown files."""
    folders = (".github", "bertscore_tm", "callbacks", "examples", "losses", "tests")
    return sorted([*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*.md"))])


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page: its headings, as GitHub writes them."""
    slugs: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", _without_blocks(path), re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        number = 0
        while (name := f"{slug}-{number}" if number else slug) in slugs:
            number += 1
        slugs.add(name)
    return slugs


def links(path: Path) -> Iterator[str]:
    """Yield the targets of a page's links and pictures, from its folder, except those on other sites."""
    to_root = "../" * (len(path.relative_to(ROOT).parts) - 1)
    page = _without_blocks(path)
    inline = re.findall(r"\]\(([^)\s]+)\)", page)
    collected = re.findall(r"^\[[^]]+\]: (\S+)$", page, re.MULTILINE)
    for link in [*inline, *collected]:
        target = _REPOSITORY.sub(to_root, link)
        if not re.match(r"[a-z]+:", target):
            yield target


def _without_blocks(path: Path) -> str:
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace("](", "] ("), _FENCE.sub("", path.read_text("utf-8")))
