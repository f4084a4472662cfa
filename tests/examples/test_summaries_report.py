"""The report of the site."""

import re
from types import SimpleNamespace

import pytest

from examples.programs import docstrings, summaries_report
from tests.support.markdown_blocks import ROOT
from tests.support.report_pages import read_data

FOLDERS = [ROOT / name for name in ("bertscore_tm", "losses", "callbacks")]


def words_of(text):
    """Return the words of a text with one space between them, without what Sphinx marks."""
    return " ".join(re.findall(r"\w+", text))


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Data of a report of few pairs, made without the standard library, because reading it takes most of the time."""
    library = tmp_path / "library"
    library.mkdir()
    monkeypatch.setattr(docstrings, "sysconfig", SimpleNamespace(get_path=lambda name: library))
    monkeypatch.setattr(summaries_report, "NUM_PAIRS", 10)
    summaries_report.main(["--output", str(tmp_path / "report.html")])
    return read_data(tmp_path / "report.html")


def test_the_report_to_try_has_the_texts_of_the_package(data, bert_score_f1):
    files = [path for folder in FOLDERS for path in folder.rglob("*.py")]
    words = words_of(" ".join(path.read_text(encoding="utf-8") for path in files))
    summaries = [summary for (summary,) in data["references"]]

    assert data["names"] == ["first sentence", "last sentence", "first five words"]
    assert len(summaries) == len(data["sources"]) == 10
    for summary in summaries:
        assert " ".join(words_of(summary).split()[:3]) in words
    for source, first, last, beginning in zip(data["sources"], *data["candidates"], strict=True):
        assert first in source
        assert last in source
        assert source.startswith(beginning)
    for texts, means in zip(data["candidates"], data["summary"], strict=True):
        f1 = bert_score_f1(texts, summaries)
        assert abs(means["f1"]["mean"] - f1.mean().item()) < 1e-4


def test_the_site_has_the_page_that_the_readme_links_to():
    (address,) = set(re.findall(r"https://[^\s)]+/(\w+\.html)\b", (ROOT / "README.md").read_text(encoding="utf-8")))

    assert f'"{address}"' in (ROOT / "examples/docs/site/conf.py").read_text(encoding="utf-8")
