"""Reports to look at, the data of a page, and what a browser makes of it."""

import gzip
import json
import re
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch

from bertscore_tm.report import Report

EVIL = """</script><script>document.title = "hacked"</script><img src=x onerror="document.title='hacked'"> ' " & <!--"""
TEXTS = {
    "markup": EVIL,
    "direction": "user \u202egnp.exe\u2066 \x1b[2J end",
    "right to left": "السلام عليكم ورحمة الله",
    "emoji": "a 👩‍👩‍👧 family 😀",
    "surrogate": "half \ud83d of one",
    "long": "word " * 20_000,
}


def read_data(page: str | Path) -> dict[str, Any]:
    """Return the data of a page, or of its file."""
    page = page.read_text(encoding="utf-8") if isinstance(page, Path) else page
    packed = re.search(r'<script type="text/plain" id="data">([A-Za-z0-9+/=]*)</script>', page)
    assert packed is not None
    data: dict[str, Any] = json.loads(gzip.decompress(b64decode(packed[1])))
    return data


def scored_report(count: int, words: int, num_systems: int = 2, **options: Any) -> Report:
    """Return a report of random words with random scores."""
    generator = torch.Generator().manual_seed(1)
    vocabulary = [f"{'bcdfgklmnprstvz'[i % 15]}{'aeiou'[i % 5]}{i:x}" for i in range(5_000)]

    def texts() -> list[str]:
        drawn = torch.randint(len(vocabulary), (count, words), generator=generator).tolist()
        return [" ".join(vocabulary[i] for i in row) for row in drawn]

    def scores() -> dict[str, torch.Tensor]:
        return {name: torch.rand(count, generator=generator) for name in ("precision", "recall", "f1")}

    names = [f"system {number}" for number in range(num_systems)]
    return Report({name: texts() for name in names}, texts(), {name: scores() for name in names}, **options)


class Page(HTMLParser):
    """What a browser makes of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_decl(self, decl):
        assert decl == "doctype html"

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
