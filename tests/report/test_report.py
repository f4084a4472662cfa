"""The report has the scores of the function and of the metric, and its page is harmless and small."""

import re
from itertools import product

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder, Report, align, bert_score
from bertscore_tm.alignment.page_data import describe_sides
from bertscore_tm.report import aligned_rows
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.statistics import compare_paired, holm, mean_interval
from bertscore_tm.utilities.checks import SCORE_NAMES
from tests.support.report_pages import EVIL, TEXTS, Page, read_data, scored_report

NAMES = ["base", "next", "same"]
PAIRS = [(0, 1), (0, 2), (1, 2)]


@pytest.fixture(scope="module")
def encoder(minilm):
    """The real encoder at layer 1, because a page encodes each of its pairs once more."""
    return FrozenEncoder(minilm, num_layers=1)


@pytest.fixture(scope="module")
def systems(pairs):
    """Texts of three systems, of which the last says the references."""
    candidates, references = pairs
    mixed = [*references[:3], *candidates[3:7], references[20]]
    return dict(zip(NAMES, (candidates[:8], mixed, references[:8]), strict=True))


@pytest.fixture(scope="module")
def references(pairs):
    """Two references of each text, of which the second is another one's."""
    return [[pairs[1][i], pairs[1][i + 8]] for i in range(8)]


@pytest.fixture(scope="module")
def data(systems, references, encoder):
    """The data of the page."""
    return read_data(Report.from_texts(systems, references, encoder, idf=True, num_alignments=5).to_html())


@pytest.fixture(scope="module")
def scores(systems, references, encoder):
    """Precision, recall and F1 of each system, shape (systems, 3, texts)."""
    by_system = []
    for texts in systems.values():
        results = bert_score(texts, references, encoder, idf=True)
        by_system.append(torch.stack([results[name] for name in SCORE_NAMES]).double())
    return torch.stack(by_system)


def test_the_page_has_the_scores_and_intervals_of_each_system(data, scores):
    assert data["names"] == NAMES
    for number, expected in enumerate(scores):
        shown = data["scores"][number]
        assert list(shown) == list(SCORE_NAMES)
        torch.testing.assert_close(torch.tensor(list(shown.values())).double(), expected, atol=6e-5, rtol=0)

        low, high = mean_interval(expected, bounds=(-1, 1))
        for i, name in enumerate(SCORE_NAMES):
            means = data["summary"][number][name]
            ends = [expected[i].mean().item(), low[i].item(), high[i].item()]
            assert [means["mean"], means["low"], means["high"]] == pytest.approx(ends, abs=6e-5)


def test_the_page_has_the_differences_of_all_pairs_of_systems(data, scores):
    f1 = scores[:, 2]
    for a, b in product(range(3), repeat=2):
        gain = f1[b] - f1[a]
        low, high = mean_interval(gain, bounds=(-2, 2))

        shown = data["differences"][a][b]

        ends = [gain.mean().item(), low.item(), high.item()]
        assert [shown["mean"], shown["low"], shown["high"]] == pytest.approx(ends, abs=6e-5)
        assert shown["wins"] == (gain > 1e-6).sum()


def test_p_values_are_adjusted_for_all_pairs_of_systems(data, scores):
    f1 = scores[:, 2]
    adjusted = holm([compare_paired(f1[a], f1[b], bounds=(-1, 1)).p_value for a, b in PAIRS])

    assert data["comparisons"] == 3
    for (a, b), p_value in zip(PAIRS, adjusted, strict=True):
        assert data["differences"][a][b]["p"] == data["differences"][b][a]["p"] == f"{p_value:.4f}"
    assert [data["differences"][a][a]["p"] for a in range(3)] == [None] * 3


def test_the_signature_is_that_of_the_metric(data, systems, references, encoder):
    metric = BERTScore(encoder, idf=True)
    metric.update(systems["base"], references)
    metric.compute()

    assert data["signature"] == str(metric.signature())


def test_the_best_and_worst_pairs_have_alignments(data, scores):
    """Both ends of the difference between the two best systems, and the worst of each system."""
    f1 = scores[:, 2]
    a, b = sorted(f1.mean(dim=1).argsort(descending=True)[:2].tolist())
    assert [a, b] != [0, 2]
    gain = f1[b] - f1[a]
    expected = {gain.argmin().item(), gain.argmax().item(), *f1.argmin(dim=1).tolist()}

    assert data["pair"] == {"a": a, "b": b}
    assert len(data["alignments"]) == 5
    assert expected <= {int(row) for row in data["alignments"]}


def test_alignments_are_those_of_the_best_reference(data, systems, references, encoder):
    idf = [text for texts in references for text in texts]
    for row, by_system in data["alignments"].items():
        for number, shown in by_system.items():
            candidate = systems[NAMES[int(number)]][int(row)]
            aligned = [align(candidate, reference, encoder, idf=idf) for reference in references[int(row)]]
            best = max(range(2), key=lambda i: aligned[i].f1)

            assert shown["reference"] == data["chosen"][int(number)][int(row)] == best
            assert shown["sides"] == describe_sides(aligned[best])
            for alignment, values in zip(aligned, shown["scores"], strict=True):
                assert values == {name: round(getattr(alignment, name), 4) for name in SCORE_NAMES}


@pytest.mark.parametrize("idf", [False, True])
def test_blank_references_keep_their_places(encoder, idf):
    candidates = ["a cat sat", "it rains", "dogs"]
    references = [["", "dogs bark", "the cat sat"], [" ", "it is raining", ""], ["the sun", "cats and dogs", ""]]
    scores = bert_score(candidates, references, encoder, idf=idf, return_best_reference=True)
    metric = BERTScore(encoder, idf=idf)
    metric.update(candidates, references)
    metric.compute()

    given = read_data(Report(candidates, references, scores).to_html())
    made = read_data(Report.from_texts(candidates, references, encoder, idf=idf).to_html())

    # "the cat sat", "it is raining", "cats and dogs"
    assert given["chosen"] == made["chosen"] == [[2, 1, 1]]
    assert given["references"] == made["references"] == references
    assert made["signature"] == str(metric.signature())
    for row, alignments in made["alignments"].items():
        shown = alignments["0"]
        number = made["chosen"][0][int(row)]
        assert shown["reference"] == number
        assert shown["scores"][number]["f1"] == pytest.approx(scores["f1"][int(row)].item(), abs=6e-5)


@pytest.mark.parametrize("rescaled", [False, True])
def test_the_settings_of_a_metric_give_the_page_of_the_texts(pairs, encoder, table, rescaled):
    candidates, references = (side[:4] for side in pairs)
    options = {"idf": True, "rescale": table if rescaled else False}
    metric = BERTScore(encoder, reduction="none", **options)
    metric.update(candidates, references)
    results = metric.compute()

    made = Report(candidates, references, results, settings=metric.score_settings())

    data = read_data(made.to_html())
    expected = read_data(Report.from_texts(candidates, references, encoder, **options).to_html())
    assert data["alignments"]
    for name in ("alignments", "signature", "bounds", "truncated", "unknown"):
        assert data[name] == expected[name]
    assert data["signature"] == str(metric.signature())
    least, largest = metric.bounds
    assert data["bounds"] == {"low": least[2].item(), "high": largest[2].item()}


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


@pytest.fixture
def evil():
    """A report whose texts and names are scripts, marks of direction and other things that are not only letters."""
    texts = list(TEXTS.values())
    scores = {name: torch.linspace(0, 1, len(texts)) for name in SCORE_NAMES}
    return Report({EVIL: texts, "\u202eb": texts}, texts, {EVIL: scores, "\u202eb": scores}, signature=EVIL)


def test_texts_and_names_are_no_markup(evil):
    tags = Page(evil.to_html()).tags

    names = [tag for tag, _ in tags]
    assert names.count("script") == 2
    assert "img" not in names
    links = []
    for _, attributes in tags:
        assert not [name for name in attributes if name.startswith("on") or name == "src"]
        links += [value for name, value in attributes.items() if name == "href"]
    assert links == ["#pairs"]


def test_the_page_has_no_address_and_no_marks_of_direction(evil):
    page = evil.to_html()

    assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b]", page)
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "https://" not in page
    texts = list(TEXTS.values())
    shown = [EVIL, r"user \u202egnp.exe\u2066 \u001b[2J end", *texts[2:4], r"half \ud83d of one", texts[5]]
    assert read_data(page)["candidates"][0] == shown


def test_a_notebook_shows_the_page_in_a_sandbox(evil):
    frame = Page(evil._repr_html_())

    (tag, attributes) = frame.tags[0]
    assert len(frame.tags) == 1
    assert tag == "iframe"
    assert attributes["sandbox"] == "allow-scripts"
    assert Page(attributes["srcdoc"]).tags == Page(evil.to_html()).tags


def test_a_large_report_is_small(pairs, encoder, monkeypatch):
    fixed = align(pairs[0][0], pairs[1][0], encoder)
    monkeypatch.setattr(aligned_rows, "compute_alignment", lambda *texts, settings: fixed)

    # The first two pairs are one document, because drawn permutations of 2,000 pairs take longer than the t test.
    report = scored_report(2_000, 25, settings=ScoreSettings.create(encoder), groups=[0, *range(1_999)])
    page = report.to_html()

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


def equal(*values):
    """Return results of which precision, recall and F1 have the same values."""
    return {name: list(values) for name in SCORE_NAMES}


def test_a_missing_score_is_null(recwarn):
    texts = ["x", "y"]
    scores = equal(float("nan"), 0.5)

    data = read_data(Report({"a": texts, "b": texts}, texts, {"a": scores, "b": scores}).to_html())

    assert data["scores"][0]["f1"] == [None, 0.5]
    assert data["comparisons"] == 0
    assert not recwarn.list


def test_a_single_pair_has_no_interval(recwarn):
    data = read_data(Report(["x"], ["y"], equal(0.5)).to_html())

    (means,) = data["summary"]
    assert means == {name: {"mean": 0.5, "low": None, "high": None} for name in SCORE_NAMES}
    assert not recwarn.list


@pytest.mark.parametrize(("texts", "scores"), [([], equal()), (["x"], equal(0.5))], ids=["no pairs", "one pair"])
def test_systems_with_few_pairs_are_not_compared(texts, scores):
    data = read_data(Report({"a": texts, "b": texts}, texts, {"a": scores, "b": scores}).to_html())

    assert data["references"] == [[text] for text in texts]
    assert data["comparisons"] == 0


# Arguments besides one candidate and its reference, and the error.
WRONG = [
    ({"num_alignments": -1}, ValueError, r"num_alignments must be at least 0, got -1"),
    ({"results": equal(0.1, 0.2)}, ValueError, "one score per pair"),
    ({"candidates": ["x", "z"]}, ValueError, "must have equal lengths"),
    ({"sources": ["a", "b"]}, ValueError, "sources and references must have equal lengths, got 2 and 1"),
    ({"sources": [None]}, TypeError, r"sources\[0\] must be a string, got None"),
    ({"labels": ["a", "b"]}, ValueError, "labels and references must have equal lengths, got 2 and 1"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), WRONG)
def test_a_wrong_argument_is_an_error(wrong, error, message):
    arguments = {"candidates": ["x"], "references": ["y"], "results": equal(0.1)} | wrong

    with pytest.raises(error, match=message):
        Report(arguments.pop("candidates"), arguments.pop("references"), arguments.pop("results"), **arguments)
