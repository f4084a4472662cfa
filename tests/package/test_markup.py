"""No text becomes markup in pages, pictures and logs."""

from __future__ import annotations

import io
from html.parser import HTMLParser
from typing import Any

import markdown
import matplotlib
import pytest

from bertscore_tm import align
from bertscore_tm.callbacks.samples.selection import Sample
from bertscore_tm.callbacks.samples.writers import SampleTable, _write_tensorboard
from tests.support.pictures import encoder_of_words

pytestmark = pytest.mark.usefixtures("one_thread")

EVIL = """<script>alert(1)</script> "onmouseover="alert(1) & <img/src=x> </mark> ]]> <!-- javascript:alert(1) |"""


class Elements(HTMLParser):
    """Which elements a page has, and which attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_texts_are_escaped_in_pages_and_pictures():
    encoder = encoder_of_words(EVIL)
    encoder.name = "<script>alert(1)</script>"
    page = Elements(align(EVIL, EVIL, encoder, idf=["a", EVIL]).to_html())
    assert not {"mark", "img"} & page.elements
    assert not [name for name in page.attributes if name.startswith("on") or name in ("src", "href")]
    # The signature; the texts are compressed data.
    assert page.text.count("<script>alert(1)</script>") == 1
    file = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        # Letters are outlines otherwise.
        patch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
        align(EVIL, EVIL, encoder).plot().savefig(file, format="svg")
    picture = Elements(file.getvalue())
    assert "svg" in picture.elements
    assert not {"script", "img", "mark"} & picture.elements
    assert not [name for name in picture.attributes if name.startswith("on")]
    assert "<script>alert(1)</script>" in picture.text


def test_samples_are_escaped_in_tensorboard():
    sample = Sample("worst", 3, 0.1, 0.2, 0.3, EVIL, f"{EVIL}\n# {EVIL}", [EVIL, EVIL], EVIL, EVIL, None)
    written: dict[str, str] = {}

    class Logger:
        experiment: Any = type("", (), {"add_text": lambda _, key, text, step: written.update({key: text})})()

    _write_tensorboard(Logger(), SampleTable("val_samples", 7, [sample], {}))  # type: ignore[arg-type]
    # TensorBoard's own conversion, without its sanitiser.
    page = Elements(markdown.markdown(written["val_samples"], extensions=["markdown.extensions.tables"]))
    assert page.elements <= {"table", "thead", "tbody", "tr", "th", "td", "br"}
    assert page.attributes == set()
    assert page.text.count(EVIL) == 7
