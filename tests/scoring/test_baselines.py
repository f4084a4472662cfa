"""Baselines: the mean over random pairs as the reference package scores them, its error, and the table's model."""

import itertools
from collections import Counter

import bert_score as oracle_package
import pytest
import torch
from scipy import stats
from torchmetrics.functional.text.bert import _load_baseline

from bertscore_tm import Baseline, FrozenEncoder, Signature, bert_score
from bertscore_tm.compat import torchmetrics
from bertscore_tm.scoring.baselines import MeasuredBaseline, _draw_pairs, make_baseline
from tests.support.models import tiny_model
from tests.support.oracle import oracle_scores
from tests.support.texts import real_pairs

TEXTS = real_pairs(40)[0]


@pytest.fixture(scope="module")
def tiny() -> FrozenEncoder:
    return FrozenEncoder(*tiny_model("bert"), all_layers=True)


def test_mean_and_error_are_those_of_the_reference_package(all_layers, minilm):
    texts = [" ".join(text.split()[:8]) for text in TEXTS]
    distinct = list(dict.fromkeys(texts))
    pairs = _draw_pairs(distinct, 10, seed=0)
    references = [reference for (reference,) in pairs.references]
    scores = oracle_scores(minilm, pairs.candidates, references, 6, all_layers=True).double()  # (3, layers, pairs)
    errors = torch.from_numpy(stats.sem(scores.numpy(), axis=-1))

    made = make_baseline(all_layers, texts, 10)

    torch.testing.assert_close(made.mean, scores.mean(-1).T, atol=1e-6, rtol=0)
    torch.testing.assert_close(made.standard_error, errors.T, atol=1e-6, rtol=0)


def test_pairs_are_different_texts_and_all_equally_likely():
    possible = list(itertools.permutations(TEXTS[:5], 2))

    pairs = _draw_pairs(TEXTS[:5], 2000, seed=0)

    references = [reference for (reference,) in pairs.references]
    counts = Counter(zip(pairs.candidates, references, strict=True))
    assert set(counts) == set(possible)
    test = stats.chisquare([counts[pair] for pair in possible])
    assert test.pvalue > 0.001


def test_repeated_and_blank_texts_are_left_out(tiny):
    texts = [*TEXTS[:3], " ".join(TEXTS), "half \ud800 a pair"]
    odd = ["", "  ", "\u200b", *texts, texts[0] + " ", f"\t{texts[2]}"]
    expected = make_baseline(tiny, texts, 30)

    made = make_baseline(tiny, odd, 30)

    assert made.num_texts == 5
    assert made.num_truncated == 1
    assert torch.equal(made.mean, expected.mean)


def test_other_seeds_draw_other_pairs(tiny):
    first = make_baseline(tiny, TEXTS, 30)
    second = make_baseline(tiny, TEXTS, 30, seed=4)

    assert (first.mean != second.mean).all()


@pytest.mark.parametrize("model", ["a,b", 'a"b', "with space # sign"])
def test_names_that_csv_quotes_are_read_back(model, tmp_path):
    rows = torch.tensor([[0.25, 0.5, 0.375]], dtype=torch.float64)
    measured = Signature({"model": model, "contents": "0123abcd", "limit": 512, "dtype": "float32"})
    written = MeasuredBaseline(rows, rows, 2, 2, 0, 43, measured).to_csv()
    (tmp_path / "table.csv").write_text(written)

    baseline = Baseline.read(tmp_path / "table.csv")

    assert baseline.settings == measured.select("model", "contents", "limit") | {"longest": 43}
    assert baseline.to_csv() == written


def test_a_table_is_read_back_with_its_settings(all_layers, table):
    measured = all_layers.signature().select("model", "contents", "space", "limit", "long")
    longest = all_layers.tokenizer(TEXTS).lengths.max()
    made = make_baseline(all_layers, TEXTS, 30)

    baseline = Baseline.read(table)

    # The file has six decimals.
    torch.testing.assert_close(baseline.table, made.mean, atol=5e-7, rtol=0)
    assert baseline.settings == measured | {"longest": longest}


def test_a_table_moves_unrelated_texts_to_zero(minilm, table):
    pairs = _draw_pairs(TEXTS, 30, seed=0)
    encoder = FrozenEncoder(minilm, num_layers=5)

    scores = bert_score(pairs.candidates, pairs.references, encoder, rescale=table)

    for name in ("precision", "recall", "f1"):
        assert scores[name].mean().item() == pytest.approx(0, abs=1e-5)


def test_bert_score_and_torchmetrics_read_the_table(minilm, table):
    options = {"num_layers": 5, "rescale_with_baseline": True, "baseline_path": str(table), "lang": "en"}
    pair = [TEXTS[0]], [TEXTS[1]]
    _, _, expected = oracle_package.score(*pair, model_type=minilm, device="cpu", **options)

    scores = bert_score(*pair, FrozenEncoder(minilm, num_layers=5), rescale=table)
    rows = _load_baseline(baseline_path=str(table))

    assert scores["f1"].item() == pytest.approx(expected.item(), abs=1e-5)
    assert torch.equal(rows, Baseline.read(table).table.float())


def test_the_drop_in_of_torchmetrics_takes_the_table_by_default(minilm, table):
    expected = bert_score(TEXTS[:1], TEXTS[1:2], FrozenEncoder(minilm, num_layers=5), rescale=table)
    options = {"rescale_with_baseline": True, "baseline_path": str(table)}
    metric = torchmetrics.BERTScore(minilm, 5, **options)

    scores = torchmetrics.bert_score(TEXTS[:1], TEXTS[1:2], minilm, 5, **options)
    metric.update(TEXTS[:1], TEXTS[1:2])

    # The last digits differ, because the drop-in encodes the references apart.
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(metric.compute(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("long_text", ["truncate", "window"])
def test_a_table_of_cut_texts_records_no_longest_one(minilm, long_text):
    num_truncated = {"truncate": 2, "window": 0}[long_text]
    encoder = FrozenEncoder(minilm, all_layers=True, max_length=8, long_text=long_text)

    made = make_baseline(encoder, ["a cat", "a dog", TEXTS[0], TEXTS[1]], 4)
    uncut = make_baseline(encoder, ["a cat", "a dog", "a small dog"], 4)

    assert made.longest is None
    assert made.num_truncated == num_truncated
    assert "longest" not in made.to_csv()
    assert uncut.longest == 5


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"encoder": "one layer"}, r"Pass FrozenEncoder\(model, all_layers=True\)"),
        ({"texts": ["a cat", "", " a cat "]}, "at least 2 distinct texts that are not blank, got 1"),
        ({"texts": []}, "got 0"),
        ({"num_pairs": 1}, "num_pairs must be at least 2, got 1"),
    ],
)
def test_impossible_arguments_are_refused(tiny, changed, message):
    usual = {"encoder": tiny, "texts": TEXTS}

    with pytest.raises(ValueError, match=message):
        make_baseline(**usual | changed)


@pytest.mark.parametrize("texts", ["wiki.txt", ["a cat", None]])
def test_the_name_of_a_file_is_no_list_of_texts(tiny, texts):
    with pytest.raises(TypeError, match=r"texts is a single string: pass a list of texts|texts\[1\] must be a string"):
        make_baseline(tiny, texts)
