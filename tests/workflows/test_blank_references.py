"""Blank references next to others count nowhere, and the drop-ins count them as their peers do."""

import re
import shutil

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder, PairScorer, bert_score, rank_candidates
from bertscore_tm.compat import bert_score as bert_score_drop_in
from bertscore_tm.compat import evaluate, torchmetrics
from bertscore_tm.functional import document_frequencies
from bertscore_tm.losses import BERTScoreReward, SoftBERTScoreLoss
from bertscore_tm.report import Report
from tests.support.entry_points import PAIRS
from tests.support.models import save_tiny_model, tiny_model
from tests.support.oracle import oracle_scores, take_empty_texts
from tests.support.report_pages import read_data
from tests.support.shell import run_here, write_records
from tests.support.texts import real_pairs

NAMES = ("precision", "recall", "f1")
LAYER = 2
CANDIDATES, TEXTS = real_pairs(4, words=8)
# With a blank reference before, between and after others, and blank ones only.
LISTS = [["", TEXTS[0], TEXTS[1]], [TEXTS[1], " \n", TEXTS[2]], [TEXTS[2], ""], ["", " "]]
FILTERED = [[TEXTS[0], TEXTS[1]], [TEXTS[1], TEXTS[2]], [TEXTS[2]], [""]]
EMPTY = "the text or each of its references is empty"
ZERO = f"^1 candidate scored 0 because {EMPTY}"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Folder of a tiny model."""
    return save_tiny_model("bert", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def encoder(tiny):
    return FrozenEncoder(tiny, num_layers=LAYER)


@pytest.fixture(autouse=True)
def _peer_of_empty_texts(monkeypatch):
    take_empty_texts(monkeypatch)


def score_with_peer(references, tiny, idf):
    """Scores of bert-score by name."""
    scores = oracle_scores(tiny, CANDIDATES, references, LAYER, idf=idf)
    return dict(zip(NAMES, scores, strict=True))


def score_with_function(encoder, idf):
    return bert_score(CANDIDATES, LISTS, encoder, idf=idf)


def score_with_metric(encoder, idf):
    metric = BERTScore(encoder, idf=idf, reduction="none")
    metric.update(CANDIDATES[:2], LISTS[:2])
    metric.update(CANDIDATES[2:], LISTS[2:])
    scores = metric.compute()
    if idf:
        assert metric.signature()["idf"] == "6"
    return scores


def score_with_report(encoder, idf):
    report = Report.from_texts(CANDIDATES, LISTS, encoder, idf=idf)
    assert report.references == LISTS
    return dict(zip(NAMES, report.scores["candidates"], strict=True))


@pytest.mark.parametrize("idf", [False, True])
@pytest.mark.parametrize("score", [score_with_function, score_with_metric, score_with_report])
def test_scores_are_those_of_the_other_references(encoder, tiny, score, idf):
    expected = score_with_peer(FILTERED, tiny, idf)

    with pytest.warns(UserWarning, match=ZERO) as caught:
        scores = score(encoder, idf)

    assert len(caught) == 1
    torch.testing.assert_close(scores, expected, atol=1e-6, rtol=0)


def best_of_function(references, encoder):
    return bert_score(CANDIDATES, references, encoder, return_best_reference=True)["best_reference"].tolist()


def best_of_report(references, encoder):
    return read_data(Report.from_texts(CANDIDATES, references, encoder).to_html())["chosen"][0]


@pytest.mark.filterwarnings("ignore:1 candidate scored 0")
@pytest.mark.parametrize("find_best", [best_of_function, best_of_report])
def test_the_best_reference_is_counted_among_all(encoder, find_best):
    best = find_best(LISTS, encoder)
    best_of_filtered = find_best(FILTERED, encoder)

    chosen = [references[i] for references, i in zip(LISTS, best, strict=True)]
    expected = [references[i] for references, i in zip(FILTERED, best_of_filtered, strict=True)]
    assert chosen == expected
    assert best != best_of_filtered


@pytest.mark.filterwarnings("ignore:1 candidate scored 0")
def test_a_scorer_of_batches_returns_the_references_as_given(tiny):
    batch = {"candidate": CANDIDATES, "reference": LISTS}
    expected = score_with_peer(FILTERED, tiny, False)

    scored = PairScorer(tiny, num_layers=LAYER)(batch)

    scores = {name: torch.from_numpy(scored[name]) for name in NAMES}
    torch.testing.assert_close(scores, expected, atol=1e-6, rtol=0)
    assert scored["reference"] == LISTS


WEIGHTS = [[5.0, 1.0, 3.0], [1.0, 5.0, 3.0], [2.0, 5.0], [1.0, 5.0]]


@pytest.mark.filterwarnings("ignore:4 candidates scored 0")
@pytest.mark.parametrize("options", [{"idf": True}, {"references_reduce": "max"}, {"weights": WEIGHTS}])
def test_a_ranking_leaves_them_out(encoder, options):
    filtered_options = options
    if "weights" in options:
        filtered_options = {"weights": [[1.0, 3.0], [1.0, 3.0], [2.0], [1.0]]}
    items = [CANDIDATES] * 4
    expected = rank_candidates(items, FILTERED, encoder, **filtered_options)

    ranked = rank_candidates(items, LISTS, encoder, **options)

    assert ranked.signature == expected.signature
    torch.testing.assert_close(ranked.scores, expected.scores, atol=0, rtol=0)


def score_with_drop_in(model, idf):
    scores = bert_score_drop_in.score(CANDIDATES, LISTS, model, LAYER, idf=idf)
    return dict(zip(NAMES, scores, strict=True))


def score_with_evaluate(model, idf):
    options = {"model_type": model, "num_layers": LAYER, "idf": idf}
    results = evaluate.load("bertscore").compute(predictions=CANDIDATES, references=LISTS, **options)
    return {name: torch.tensor(results[name]) for name in NAMES}


def score_with_torchmetrics(model, idf):
    return torchmetrics.bert_score(CANDIDATES, LISTS, model, LAYER, idf=idf)


def update_with_torchmetrics(model, idf):
    metric = torchmetrics.BERTScore(model, LAYER, idf=idf)
    metric.update(CANDIDATES, LISTS)
    return metric.compute()


@pytest.mark.parametrize("idf", [False, True])
@pytest.mark.parametrize(
    "score", [score_with_drop_in, score_with_evaluate, score_with_torchmetrics, update_with_torchmetrics]
)
@pytest.mark.filterwarnings("ignore:1 candidate scored 0")
def test_drop_ins_count_them_as_documents_as_bert_score_does(tiny, score, idf):
    expected = score_with_peer(LISTS, tiny, idf)

    scores = score(tiny, idf)

    torch.testing.assert_close(scores, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("preds", "target", "reason"),
    [
        (["", "a cat"], ["a dog", "a cat"], f"1 candidate scored 0 because {EMPTY}"),
        (["", "a cat", "a"], ["a", " ", "\n\t"], f"3 candidates scored 0 because {EMPTY}"),
        ([""], [["", " "]], f"1 candidate scored 0 because {EMPTY}"),
    ],
)
@pytest.mark.parametrize("family", ["bert", "t5", "gpt2"])
def test_one_warning_counts_blank_candidates_and_references(preds, target, reason, family):
    encoder = FrozenEncoder(*tiny_model(family), num_layers=2)
    metric = BERTScore(encoder)
    metric.update(preds, target)

    for call in (lambda: bert_score(preds, target, encoder), metric.compute):
        with pytest.warns(UserWarning, match=f"^{re.escape(reason)}$") as caught:
            call()
        assert len(caught) == 1


# The second candidate has no reference at all, and the third several.
NO_REFERENCE = [TEXTS[0], [], ["", TEXTS[2]], TEXTS[3]]
ONE_BLANK = [TEXTS[0], [""], ["", TEXTS[2]], TEXTS[3]]


def score_lists(name, references, encoder, idf):
    """Scores of an entry point, by name."""
    if name == "function":
        return bert_score(CANDIDATES, references, encoder, idf=idf)
    if name == "report":
        report = Report.from_texts(CANDIDATES, references, encoder, idf=idf)
        return dict(zip(NAMES, report.scores["candidates"], strict=True))
    metric = BERTScore(encoder, idf=idf, reduction="none")
    metric.update(CANDIDATES, references)
    return metric.compute()


@pytest.mark.parametrize("idf", [False, True])
@pytest.mark.parametrize("name", ["function", "metric", "report"])
def test_an_empty_list_counts_as_one_blank_reference(encoder, tiny, name, idf):
    # A blank reference next to others counts nowhere.
    expected = score_with_peer([TEXTS[0], "", TEXTS[2], TEXTS[3]], tiny, idf)

    with pytest.warns(UserWarning, match=ZERO) as caught:
        scores = score_lists(name, NO_REFERENCE, encoder, idf)

    assert len(caught) == 1
    torch.testing.assert_close(scores, expected, atol=1e-6, rtol=0)
    assert scores["f1"][1] == 0


@pytest.mark.filterwarnings("ignore:1 candidate scored 0")
def test_the_best_of_an_empty_list_is_the_first(encoder):
    scores = bert_score(CANDIDATES, NO_REFERENCE, encoder, return_best_reference=True)

    assert scores["best_reference"].tolist() == [0, 0, 1, 0]


@pytest.mark.filterwarnings("ignore:1 candidate scored 0")
def test_a_report_shows_a_blank_reference_for_an_empty_list(encoder):
    report = Report.from_texts(CANDIDATES, NO_REFERENCE, encoder)

    shown = read_data(report.to_html())["references"]

    assert shown == [[TEXTS[0]], [""], ["", TEXTS[2]], [TEXTS[3]]]


@pytest.mark.parametrize("options", [{}, {"idf": True}, {"references_reduce": "max"}, {"weights": [[2.0], []]}])
def test_a_ranking_scores_0_without_a_reference(encoder, options):
    candidates = [CANDIDATES[:2], CANDIDATES[2:]]
    blank_options = options
    if "weights" in options:
        blank_options = {"weights": [[2.0], [1.0]]}

    with pytest.warns(UserWarning, match=f"^2 candidates scored 0 because {EMPTY}"):
        ranked = rank_candidates(candidates, [[TEXTS[0]], []], encoder, **options)
    with pytest.warns(UserWarning, match=f"^2 candidates scored 0 because {EMPTY}"):
        expected = rank_candidates(candidates, [[TEXTS[0]], [""]], encoder, **blank_options)

    assert ranked.scores[1].tolist() == [0, 0]
    assert ranked.signature == expected.signature
    torch.testing.assert_close(ranked.scores, expected.scores, atol=0, rtol=0)


def test_document_frequencies_count_an_empty_list_as_one(encoder):
    given = document_frequencies(NO_REFERENCE, encoder)
    filled = document_frequencies(ONE_BLANK, encoder)

    assert given.num_documents == filled.num_documents == 4
    assert torch.equal(given.counts, filled.counts)


STRICT = ["PairScorer", *(name for name in PAIRS if name.startswith("compat."))]


@pytest.mark.parametrize("entry_point", STRICT)
def test_scorers_and_drop_ins_refuse_an_empty_list(encoder, entry_point):
    with pytest.raises(ValueError, match=r"\w+\[1\] is empty: every candidate needs at least one reference"):
        PAIRS[entry_point](encoder, CANDIDATES[:2], [["a"], []])


def test_a_loss_refuses_an_empty_list(encoder):
    loss = SoftBERTScoreLoss(encoder)

    with pytest.raises(ValueError, match=r"\w+\[1\] is empty: every candidate needs at least one reference"):
        loss.encode_references([["a"], []])


def test_a_reward_is_none_for_an_empty_list(encoder):
    rewards = BERTScoreReward(encoder)(CANDIDATES[:3], [TEXTS[0], [], [" ", ""]])

    assert rewards[0] > 0
    assert rewards[1:] == [None, 0]


BEFORE_RESCALING = f"1 candidate scored 0 before rescaling because {EMPTY}"


def rescaled_f1(name, encoder, table, texts):
    """F1 of an entry point, rescaled with a table."""
    if name == "function":
        return bert_score(*texts, encoder, rescale=table)["f1"]
    options = {"rescale_with_baseline": True, "baseline_path": table}
    if name == "bert_score":
        _, _, f1 = bert_score_drop_in.score(*texts, encoder.name, LAYER, lang="en", **options)
        return f1
    if name == "torchmetrics function":
        return torchmetrics.bert_score(*texts, encoder.name, LAYER, **options)["f1"]
    metric = BERTScore(encoder, rescale=table, reduction="none")
    if name == "torchmetrics class":
        metric = torchmetrics.BERTScore(encoder.name, LAYER, **options)
    metric.update(*texts)
    return metric.compute()["f1"]


@pytest.mark.parametrize("name", ["function", "metric", "bert_score", "torchmetrics function", "torchmetrics class"])
def test_the_warning_says_what_is_0_where_scores_are_rescaled(encoder, table, name):
    baseline = 0.15 + LAYER / 30  # in the table
    texts = ["", "a cat"], ["a dog", "a cat"]

    with pytest.warns(UserWarning, match=f"^{BEFORE_RESCALING}$"):
        f1 = rescaled_f1(name, encoder, table, texts)

    assert f1.tolist() == pytest.approx([-baseline / (1 - baseline), 1], abs=1e-6)


@pytest.mark.parametrize(
    ("words", "scores", "reason"),
    [
        ([], "P 0.0000  R 0.0000  F1 0.0000", f"1 candidate scored 0 because {EMPTY}"),
        (["--rescale-from", "table.csv"], "P -0.5385  R -0.6667  F1 -0.4634", BEFORE_RESCALING),
    ],
)
def test_the_shell_says_what_is_0(minilm, table, tmp_path, monkeypatch, capsys, words, scores, reason):
    monkeypatch.chdir(tmp_path)
    shutil.copy(table, "table.csv")
    write_records(tmp_path / "pairs.jsonl", [{"candidate": "", "reference": "a dog"}])

    printed = run_here(capsys, "score", "pairs.jsonl", "-m", minilm, "-l", 5, "--device", "cpu", *words)

    assert printed.out.startswith(f"{scores}\n")
    assert printed.err == f"bertscore-tm: warning: {reason}\n"
