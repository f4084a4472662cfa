"""The report of the site."""

import re

from bertscore_tm import bert_score
from examples.programs import summaries_report
from tests.support.markdown_blocks import ROOT
from tests.support.report_pages import read_data


def test_the_report_to_try_has_the_texts_of_the_package(tmp_path, encoder):
    summaries_report.main(["--output", str(tmp_path / "report.html")])
    data = read_data(tmp_path / "report.html")
    assert data["names"] == ["first sentence", "last sentence", "first five words"]
    assert len(data["references"]) == len(data["sources"]) == 40
    folders = [ROOT / name for name in ("bertscore_tm", "losses", "callbacks")]
    lines = [path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py")]
    words = {" ".join(re.findall(r"\w+", text)) for text in lines}
    for (summary,), source, *texts in zip(data["references"], data["sources"], *data["candidates"], strict=True):
        # Without what Sphinx marks.
        assert any(" ".join(re.findall(r"\w+", summary)[:3]) in text for text in words)
        assert source.startswith(texts[2])
        assert texts[0] in source
        assert texts[1] in source
    for texts, means in zip(data["candidates"], data["summary"], strict=True):
        f1 = bert_score(texts, [summary for (summary,) in data["references"]], encoder)["f1"]
        assert abs(means["f1"]["mean"] - f1.mean().item()) < 1e-4


def test_the_site_has_the_page_that_the_readme_links_to():
    (address,) = set(re.findall(r"https://[^\s)]+/(\w+\.html)\b", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert f'"{address}"' in (ROOT / "examples/docs/site/conf.py").read_text(encoding="utf-8")
