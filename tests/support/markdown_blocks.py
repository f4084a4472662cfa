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
        """Return the code of a python block."""
        # Empty lines above the code let errors point into the page.
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
        output = None
        if after is not None and after[1] == "text" and not text[fence.end() : after.start()].strip():
            output = after[2]
        line = text.count("\n", 0, fence.start()) + 1
        page = str(path.relative_to(ROOT))
        rows.append(Block(page, fence[1], fence[2], line, output))
    return rows


def same_output(expected: str, printed: str) -> bool:
    """Check whether two outputs are equal up to one unit in the last digit of decimal numbers."""
    if _FLOAT.sub("#", expected).split() != _FLOAT.sub("#", printed).split():
        return False
    for a, b in zip(_FLOAT.finditer(expected), _FLOAT.finditer(printed), strict=True):
        decimals = len(a[1])
        difference = abs(float(a[0]) - float(b[0]))
        if len(b[1]) != decimals or difference > 1.01 * 10**-decimals:
            return False
    return True


def markdown_files() -> list[Path]:
    """Return the project's Markdown files."""
    paths = list(ROOT.glob("*.md"))
    for folder in (".github", "bertscore_tm", "callbacks", "examples", "losses", "tests"):
        paths += (ROOT / folder).rglob("*.md")
    return sorted(paths)


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page: its headings, as GitHub writes them."""
    slugs: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", _without_blocks(path), re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        name = slug
        number = 0
        while name in slugs:
            number += 1
            name = f"{slug}-{number}"
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
    """Return the text of a page without its code blocks, and without links in inline code."""
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace("](", "] ("), _FENCE.sub("", path.read_text("utf-8")))
