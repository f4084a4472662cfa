"""Blank references next to others count nowhere, and the drop-ins count them as their peers do."""

import re

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder, PairScorer, bert_score, rank_candidates
from bertscore_tm.compat import bert_score as bert_score_drop_in
from bertscore_tm.compat import evaluate, torchmetrics
from bertscore_tm.functional import document_frequencies
from bertscore_tm.losses import BERTScoreReward, SoftBERTScoreLoss
from bertscore_tm.report import Report
from tests.support.models import tiny_model
from tests.support.oracle import oracle_scores, take_empty_texts
from tests.support.report_pages import read_data
from tests.support.shell import run_here, write_records
from tests.support.texts import real_pairs

NAMES = ("precision", "recall", "f1")
CANDIDATES, TEXTS = real_pairs(4)
# With a blank reference before, between and after others, and blank ones only.
LISTS = [["", TEXTS[0], TEXTS[1]], [TEXTS[1], " \n", TEXTS[2]], [TEXTS[2], ""], ["", " "]]
FILTERED = [[TEXTS[0], TEXTS[1]], [TEXTS[1], TEXTS[2]], [TEXTS[2]], [""]]
EMPTY = "the text or each of its references is empty"
ZERO = f"^1 candidate scored 0 because {EMPTY}"


@pytest.fixture(autouse=True)
def _peer_of_empty_texts(monkeypatch):
    take_empty_texts(monkeypatch)


def score_with_peer(references, minilm, idf):
    return dict(zip(NAMES, oracle_scores(minilm, CANDIDATES, references, 5, idf=idf), strict=True))


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
@pytest.mark.parametrize(
    "score",
    [lambda encoder, idf: bert_score(CANDIDATES, LISTS, encoder, idf=idf), score_with_metric, score_with_report],
    ids=["function", "metric", "report"],
)
def test_scores_are_those_of_the_other_references(encoder, minilm, score, idf):
    with pytest.warns(UserWarning, match=ZERO) as caught:
        scores = score(encoder, idf)
    assert len(caught) == 1
    expected = score_with_peer(FILTERED, minilm, idf)
    torch.testing.assert_close(scores, expected, atol=1e-6, rtol=0)


def best_of_function(references, encoder):
    return bert_score(CANDIDATES, references, encoder, return_best_reference=True)["best_reference"].tolist()


def best_of_report(references, encoder):
    return read_data(Report.from_texts(CANDIDATES, references, encoder).to_html())["chosen"][0]


@pytest.mark.filterwarnings("ignore:1 candidate scored 0")
@pytest.mark.parametrize("find_best", [best_of_function, best_of_report])
def test_the_best_reference_is_counted_among_all(encoder, find_best):
    best, filtered = find_best(LISTS, encoder), find_best(FILTERED, encoder)
    assert best != filtered
    for i in range(len(LISTS)):
        assert LISTS[i][best[i]] == FILTERED[i][filtered[i]]


@pytest.mark.filterwarnings("ignore:1 candidate scored 0")
def test_a_scorer_of_batches_returns_the_references_as_given(minilm):
    batch = {"candidate": CANDIDATES, "reference": LISTS}
    scored = PairScorer(minilm, num_layers=5)(batch)
    assert scored["reference"] == LISTS
    scores = {name: torch.from_numpy(scored[name]) for name in NAMES}
    torch.testing.assert_close(scores, score_with_peer(FILTERED, minilm, False), atol=1e-6, rtol=0)


WEIGHTS = [[5.0, 1.0, 3.0], [1.0, 5.0, 3.0], [2.0, 5.0], [1.0, 5.0]]


@pytest.mark.filterwarnings("ignore:4 candidates scored 0")
@pytest.mark.parametrize("options", [{"idf": True}, {"references_reduce": "max"}, {"weights": WEIGHTS}])
def test_a_ranking_leaves_them_out(encoder, options):
    ranked = rank_candidates([CANDIDATES] * 4, LISTS, encoder, **options)
    if "weights" in options:
        options = {"weights": [[1.0, 3.0], [1.0, 3.0], [2.0], [1.0]]}
    expected = rank_candidates([CANDIDATES] * 4, FILTERED, encoder, **options)
    assert ranked.signature == expected.signature
    assert all(map(torch.equal, ranked.scores, expected.scores))


@pytest.mark.parametrize("idf", [False, True])
@pytest.mark.parametrize("name", ["bert_score", "evaluate", "torchmetrics function", "torchmetrics class"])
@pytest.mark.filterwarnings("ignore:1 candidate scored 0")
def test_drop_ins_count_them_as_documents_as_bert_score_does(minilm, name, idf):
    options = {"model_type": minilm, "num_layers": 5, "idf": idf}
    if name == "bert_score":
        scores = dict(zip(NAMES, bert_score_drop_in.score(CANDIDATES, LISTS, **options), strict=True))
    elif name == "evaluate":
        results = evaluate.load("bertscore").compute(predictions=CANDIDATES, references=LISTS, **options)
        scores = {score: torch.tensor(results[score]) for score in NAMES}
    elif name == "torchmetrics function":
        scores = torchmetrics.bert_score(CANDIDATES, LISTS, minilm, 5, idf=idf)
    else:
        metric = torchmetrics.BERTScore(minilm, 5, idf=idf)
        metric.update(CANDIDATES, LISTS)
        scores = metric.compute()
    expected = score_with_peer(LISTS, minilm, idf)
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
        with pytest.warns(UserWarning, match=f"^{re.escape(reason)}$"):
            call()


# The second candidate has no reference at all, and the third several.
NO_REFERENCE = [TEXTS[0], [], ["", TEXTS[2]], TEXTS[3]]
ONE_BLANK = [TEXTS[0], [""], ["", TEXTS[2]], TEXTS[3]]


def as_list(references):
    return [references] if isinstance(references, str) else references


@pytest.mark.parametrize("idf", [False, True])
@pytest.mark.parametrize("name", ["function", "metric", "report"])
def test_an_empty_list_counts_as_one_blank_reference(encoder, name, idf):
    def score(references):
        if name == "function":
            return bert_score(CANDIDATES, references, encoder, idf=idf, return_best_reference=True)
        if name == "report":
            report = Report.from_texts(CANDIDATES, references, encoder, idf=idf)
            assert read_data(report.to_html())["references"] == [*map(as_list, ONE_BLANK)]
            return dict(zip(NAMES, report.scores["candidates"], strict=True))
        metric = BERTScore(encoder, idf=idf, reduction="none")
        metric.update(CANDIDATES, references)
        return metric.compute()

    with pytest.warns(UserWarning, match=ZERO) as caught:
        scores = score(NO_REFERENCE)
    assert len(caught) == 1
    with pytest.warns(UserWarning, match=ZERO):
        expected = score(ONE_BLANK)
    torch.testing.assert_close(scores, expected, atol=0, rtol=0)
    if name == "function":
        assert scores["f1"][1] == 0
        assert scores["best_reference"].tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("options", [{}, {"idf": True}, {"references_reduce": "max"}, {"weights": [[2.0], []]}])
def test_a_ranking_scores_0_without_a_reference(encoder, options):
    candidates, references = [CANDIDATES[:2], CANDIDATES[2:]], [[TEXTS[0]], []]
    with pytest.warns(UserWarning, match=f"^2 candidates scored 0 because {EMPTY}"):
        ranked = rank_candidates(candidates, references, encoder, **options)
    assert ranked.scores[1].tolist() == [0, 0]
    if "weights" in options:
        options = {"weights": [[2.0], [1.0]]}
    with pytest.warns(UserWarning, match=f"^2 candidates scored 0 because {EMPTY}"):
        expected = rank_candidates(candidates, [[TEXTS[0]], [""]], encoder, **options)
    assert ranked.signature == expected.signature
    assert all(map(torch.equal, ranked.scores, expected.scores))


def test_document_frequencies_count_an_empty_list_as_one(encoder):
    given, filled = (document_frequencies(references, encoder) for references in (NO_REFERENCE, ONE_BLANK))
    assert given.num_documents == filled.num_documents == 4
    assert torch.equal(given.counts, filled.counts)


STRICT = {
    "loss": lambda encoder, *texts: SoftBERTScoreLoss(encoder).encode_references(texts[1]),
    "scorer": lambda encoder, *texts: PairScorer(encoder.name, num_layers=5)(
        dict(zip(("candidate", "reference"), texts, strict=True))
    ),
    "bert_score": lambda encoder, *texts: bert_score_drop_in.score(*texts, encoder.name, 5),
    "BERTScorer": lambda encoder, *texts: bert_score_drop_in.BERTScorer(encoder.name, 5).score(*texts),
    "evaluate": lambda encoder, *texts: evaluate.load("bertscore").add_batch(predictions=texts[0], references=texts[1]),
    "torchmetrics function": lambda encoder, *texts: torchmetrics.bert_score(*texts, encoder.name, 5),
    "torchmetrics class": lambda encoder, *texts: torchmetrics.BERTScore(encoder.name, 5).update(*texts),
}


@pytest.mark.parametrize("name", STRICT)
def test_losses_scorers_and_drop_ins_refuse_an_empty_list(encoder, name):
    with pytest.raises(ValueError, match=r"\w+\[1\] is empty: every candidate needs at least one reference"):
        STRICT[name](encoder, CANDIDATES[:2], [["a"], []])


def test_a_reward_is_none_for_an_empty_list(encoder):
    rewards = BERTScoreReward(encoder)(CANDIDATES[:3], [TEXTS[0], [], [" ", ""]])
    assert rewards[0] > 0
    assert rewards[1:] == [None, 0]


BEFORE_RESCALING = f"1 candidate scored 0 before rescaling because {EMPTY}"


def rescaled_f1(name, texts, encoder, table):
    if name == "function":
        return bert_score(*texts, encoder, rescale=table)["f1"]
    options = {"rescale_with_baseline": True, "baseline_path": table}
    if name == "bert_score":
        return bert_score_drop_in.score(*texts, encoder.name, 5, lang="en", **options)[2]
    if name == "torchmetrics function":
        return torchmetrics.bert_score(*texts, encoder.name, 5, **options)["f1"]
    metric = BERTScore(encoder, rescale=table, reduction="none")
    if name == "torchmetrics class":
        metric = torchmetrics.BERTScore(encoder.name, 5, **options)
    metric.update(*texts)
    return metric.compute()["f1"]


@pytest.mark.parametrize("name", ["function", "metric", "bert_score", "torchmetrics function", "torchmetrics class"])
def test_the_warning_says_what_is_0_where_scores_are_rescaled(encoder, table, name):
    with pytest.warns(UserWarning, match=f"^{BEFORE_RESCALING}$"):
        f1 = rescaled_f1(name, (["", "a cat"], ["a dog", "a cat"]), encoder, table)
    b = 0.15 + 5 / 30  # in the table
    assert f1.tolist() == pytest.approx([-b / (1 - b), 1], abs=1e-6)


@pytest.mark.parametrize(
    ("rescaled", "scores"), [(False, "P 0.0000  R 0.0000  F1 0.0000"), (True, "P -0.5385  R -0.6667  F1 -0.4634")]
)
def test_the_shell_says_what_is_0(minilm, table, tmp_path, capsys, rescaled, scores):
    write_records(tmp_path / "pairs.jsonl", [{"candidate": "", "reference": "a dog"}])
    options = ["-m", minilm, "-l", 5, "--device", "cpu", *(["--rescale-from", table] if rescaled else [])]
    printed = run_here(capsys, "score", tmp_path / "pairs.jsonl", *options)
    assert printed.out.startswith(f"{scores}\n")
    reason = BEFORE_RESCALING if rescaled else BEFORE_RESCALING.replace(" before rescaling", "")
    assert printed.err == f"bertscore-tm: warning: {reason}\n"
