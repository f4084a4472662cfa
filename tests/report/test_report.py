"""The report has the scores of the function and of the metric, and its page is harmless and small."""

import re
from itertools import combinations, product

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder, Report, align, bert_score
from bertscore_tm.alignment.page_data import describe_sides
from bertscore_tm.report import aligned_rows
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.statistics import compare_paired, holm, mean_interval
from bertscore_tm.utilities.checks import SCORE_NAMES
from tests.support.report_pages import EVIL, TEXTS, Page, read_data, scored_report


@pytest.fixture(scope="module")
def compared(pairs, encoder):
    """Three systems, their references, and the data of the page."""
    systems = {"base": pairs[0][:8], "next": [*pairs[1][:3], *pairs[0][3:7], pairs[1][20]], "same": pairs[1][:8]}
    references = [[reference, pairs[1][i + 8]] for i, reference in enumerate(pairs[1][:8])]
    report = Report.from_texts(systems, references, encoder, idf=True, num_alignments=5)
    return systems, references, read_data(report.to_html())


def test_scores_intervals_and_comparisons(compared, encoder):
    systems, references, data = compared
    scores = {name: bert_score(texts, references, encoder, idf=True) for name, texts in systems.items()}
    assert data["names"] == list(systems)
    for number, results in enumerate(scores.values()):
        stacked = torch.stack(list(results.values()))
        low, high = mean_interval(stacked, bounds=(-1, 1))
        assert list(data["scores"][number]) == list(SCORE_NAMES)
        assert torch.tensor(list(data["scores"][number].values())).allclose(stacked, atol=6e-5)
        for i, name in enumerate(SCORE_NAMES):
            expected = {"mean": stacked[i].double().mean().item(), "low": low[i].item(), "high": high[i].item()}
            assert data["summary"][number][name] == pytest.approx(expected, abs=6e-5)
    f1 = [results["f1"].double() for results in scores.values()]
    pairs = list(combinations(range(3), 2))
    p_values = holm([compare_paired(f1[a], f1[b], bounds=(-1, 1)).p_value for a, b in pairs])
    assert data["comparisons"] == 3
    for a, b in product(range(3), repeat=2):
        gain = f1[b] - f1[a]
        low, high = mean_interval(gain, bounds=(-2, 2))
        shown = data["differences"][a][b]
        estimate = [shown["mean"], shown["low"], shown["high"]]
        assert estimate == pytest.approx([gain.mean().item(), low.item(), high.item()], abs=6e-5)
        assert shown["wins"] == (gain > 1e-6).sum()
        assert shown["p"] == (None if a == b else f"{p_values[pairs.index((min(a, b), max(a, b)))]:.4f}")
    metric = BERTScore(encoder, idf=True)
    metric.update(systems["base"], references)
    metric.compute()
    assert data["signature"] == str(metric.signature())


def test_alignments_of_the_best_reference(compared, encoder):
    systems, references, data = compared
    f1 = [torch.tensor(scores["f1"]) for scores in data["scores"]]
    assert len(data["alignments"]) == 5
    # Both ends of the difference between the two best systems, and the worst of each system.
    a, b = sorted(sorted(range(3), key=lambda number: -f1[number].mean())[:2])
    assert [a, b] != [0, 2]
    assert data["pair"] == {"a": a, "b": b}
    ends = [(f1[b] - f1[a]).argmin(), (f1[b] - f1[a]).argmax(), *(scores.argmin() for scores in f1)]
    assert {end.item() for end in ends} <= {int(row) for row in data["alignments"]}
    idf = [text for texts in references for text in texts]
    for row, by_system in data["alignments"].items():
        for number, shown in by_system.items():
            candidate = list(systems.values())[int(number)][int(row)]
            aligned = [align(candidate, reference, encoder, idf=idf) for reference in references[int(row)]]
            best = max(range(2), key=lambda i: aligned[i].f1)
            scores = [{name: round(getattr(one, name), 4) for name in SCORE_NAMES} for one in aligned]
            assert shown == {"reference": best, "scores": scores, "sides": describe_sides(aligned[best])}
            assert data["chosen"][int(number)][int(row)] == best


@pytest.mark.parametrize("idf", [False, True])
def test_blank_references_keep_their_places(encoder, idf):
    candidates = ["a cat sat", "it rains", "dogs"]
    references = [["", "dogs bark", "the cat sat"], [" ", "it is raining", ""], ["the sun", "cats and dogs", ""]]
    scores = bert_score(candidates, references, encoder, idf=idf, return_best_reference=True)
    given = read_data(Report(candidates, references, scores).to_html())
    made = read_data(Report.from_texts(candidates, references, encoder, idf=idf).to_html())
    for data in (given, made):
        chosen = [texts[number] for texts, number in zip(data["references"], data["chosen"][0], strict=True)]
        assert chosen == ["the cat sat", "it is raining", "cats and dogs"]
    metric = BERTScore(encoder, idf=idf)
    metric.update(candidates, references)
    metric.compute()
    assert made["signature"] == str(metric.signature())
    for row, alignments in made["alignments"].items():
        assert alignments["0"]["reference"] == made["chosen"][0][int(row)]
        best = alignments["0"]["scores"][alignments["0"]["reference"]]
        assert best["f1"] == pytest.approx(scores["f1"][int(row)].item(), abs=6e-5)


@pytest.mark.parametrize("rescaled", [False, True])
def test_the_settings_of_a_metric_give_the_page_of_the_texts(pairs, encoder, table, rescaled):
    candidates, references = (side[:4] for side in pairs)
    options = {"idf": True, "rescale": table if rescaled else False}
    metric = BERTScore(encoder, reduction="none", **options)
    metric.update(candidates, references)
    results, settings = metric.compute(), metric.score_settings()
    made = read_data(Report(candidates, references, results, settings=settings).to_html())
    expected = read_data(Report.from_texts(candidates, references, encoder, **options).to_html())
    assert made["alignments"]
    for name in ("alignments", "signature", "bounds", "truncated", "unknown"):
        assert made[name] == expected[name]
    assert made["signature"] == str(metric.signature())
    least, largest = metric.bounds
    assert made["bounds"] == {"low": least[2].item(), "high": largest[2].item()}


def test_an_error_of_an_alignment_is_raised(encoder):
    """Pairs without tokens have none; any other error is no reason to leave one out."""
    scores = {key: [0.5, 0.0] for key in SCORE_NAMES}
    report = Report(["a cat", "\u200b"], ["a dog", "a cat"], scores, settings=ScoreSettings.create(encoder))
    assert "1" not in read_data(report.to_html())["alignments"]
    report.settings = ScoreSettings.create(encoder, idf={0: 1.0})
    with pytest.raises(ValueError, match="idf has no weight for token id"):
        report.to_html()


def test_truncated_and_empty_texts_are_listed(minilm):
    encoder = FrozenEncoder(minilm, num_layers=1, max_length=6)
    candidates = ["a cat", "", "a b c d e f g h", "x", "y"]
    with pytest.warns(UserWarning, match="2 candidates scored 0|were truncated|was truncated"):
        report = Report.from_texts(candidates, ["a cat", "b", "c", ["d e f g h i j", ""], ["", " "]], encoder)
    data = read_data(report.to_html())
    assert data["empty"] == [[1, 4]]
    assert data["truncated"] == [{"2": "candidate cut after 4 of 8 tokens", "3": "reference 1 cut after 4 of 7 tokens"}]
    assert sorted(data["alignments"]["3"]) == ["0"]
    assert "1" not in data["alignments"]


def test_texts_and_names_are_no_markup(encoder):
    texts = list(TEXTS.values())
    scores = {name: torch.linspace(0, 1, len(texts)) for name in SCORE_NAMES}
    report = Report({EVIL: texts, "\u202eb": texts}, texts, {EVIL: scores, "\u202eb": scores}, signature=EVIL)
    page = report.to_html()
    tags = Page(page).tags
    assert [tag for tag, _ in tags].count("script") == 2
    assert "img" not in dict(tags)
    pairs = [pair for _, attributes in tags for pair in attributes.items()]
    assert [pair for pair in pairs if pair[0].startswith("on") or pair[0] in ("src", "href")] == [("href", "#pairs")]
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b]", page)
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "https://" not in page
    data = read_data(page)
    shown = [EVIL, r"user \u202egnp.exe\u2066 \u001b[2J end", *texts[2:4], r"half \ud83d of one", texts[5]]
    assert data["candidates"][0] == shown
    frame = Page(report._repr_html_())
    assert [tag for tag, _ in frame.tags] == ["iframe"]
    assert frame.tags[0][1]["sandbox"] == "allow-scripts"
    assert Page(frame.tags[0][1]["srcdoc"]).tags == tags


def test_a_large_report_is_small(pairs, encoder, monkeypatch):
    fixed = align(pairs[0][0], pairs[1][0], encoder)
    monkeypatch.setattr(aligned_rows, "compute_alignment", lambda *texts, settings: fixed)

    page = scored_report(2_000, 25, settings=ScoreSettings.create(encoder)).to_html()

    assert len(read_data(page)["alignments"]) == 200
    assert len(page.encode()) < 800_000


def test_a_report_is_saved(tmp_path):
    report = scored_report(3, 2)
    report.save(tmp_path / "page.html")
    assert read_data((tmp_path / "page.html").read_text(encoding="utf-8"))["references"] == report.references


def test_files_of_other_names_are_an_error(tmp_path):
    path = tmp_path / "scores.jsonl"
    path.write_text('{"candidate": "a", "references": ["b"], "precision": 1, "recall": 1, "f1": 1}')
    with pytest.raises(ValueError, match=r"scores\.jsonl must be named like val_step_499\.jsonl"):
        Report.from_files([path])


def test_unusual_scores(recwarn):
    nan = {name: torch.tensor([float("nan"), 0.5]) for name in SCORE_NAMES}
    data = read_data(Report({"a": ["x", "y"], "b": ["x", "y"]}, ["x", "y"], {"a": nan, "b": nan}).to_html())
    assert data["scores"][0]["f1"] == [None, 0.5]
    assert data["comparisons"] == 0
    single = {name: torch.tensor([0.5]) for name in SCORE_NAMES}
    (means,) = read_data(Report(["x"], ["y"], single).to_html())["summary"]
    assert means == {name: {"mean": 0.5, "low": None, "high": None} for name in SCORE_NAMES}
    assert not recwarn.list


@pytest.mark.parametrize("count", [0, 1])
def test_systems_with_few_pairs_are_not_compared(count):
    texts = ["x", "y"][:count]
    scores = {name: torch.tensor([0.5, 0.6][:count]) for name in SCORE_NAMES}
    better = {name: torch.tensor([0.6, 0.8][:count]) for name in SCORE_NAMES}
    data = read_data(Report({"a": texts, "b": texts}, texts, {"a": scores, "b": better}).to_html())
    assert (len(data["references"]), data["comparisons"]) == (count, 0)


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"num_alignments must be at least 0, got -1"):
        Report(["x"], ["y"], {key: [0.1] for key in SCORE_NAMES}, num_alignments=-1)
    with pytest.raises(ValueError, match="one score per pair"):
        Report(["x"], ["y"], {key: [0.1, 0.2] for key in SCORE_NAMES})
    with pytest.raises(ValueError, match="must have equal lengths"):
        Report(["x", "z"], ["y"], {key: [0.1] for key in SCORE_NAMES})
    with pytest.raises(ValueError, match="sources and references must have equal lengths, got 2 and 1"):
        Report(["x"], ["y"], {key: [0.1] for key in SCORE_NAMES}, sources=["a", "b"])
    with pytest.raises(TypeError, match=r"sources\[0\] must be a string, got None"):
        Report(["x"], ["y"], {key: [0.1] for key in SCORE_NAMES}, sources=[None])
    with pytest.raises(ValueError, match="labels and references must have equal lengths, got 2 and 1"):
        Report(["x"], ["y"], {key: [0.1] for key in SCORE_NAMES}, labels=["a", "b"])
