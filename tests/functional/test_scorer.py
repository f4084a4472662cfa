"""`score` and `BERTScorer` give the results of the package that they replace for the same calls."""

import inspect
import json
import pickle
import shutil
import warnings
from collections import defaultdict
from functools import partial

import bert_score as oracle
import pytest
import torch
from bert_score.utils import get_idf_dict, get_tokenizer
from transformers import AutoModel, AutoTokenizer

import bertscore_tm
from bertscore_tm import BERTScore, BERTScorer, FrozenEncoder, bert_score, score
from bertscore_tm.scoring.messages import warn_unused
from tests.support.texts import several_references

TOLERANCE = 1e-6
# One pair at a time, since the other package lets padding take part in the matching.
ONE = {"batch_size": 1, "nthreads": 0}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _every_warning_again():
    warn_unused.cache_clear()


def assert_equal(found, expected, tolerance=TOLERANCE):
    assert len(found) == len(expected) == 3
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert (ours.dtype, ours.device.type) == (torch.float32, "cpu")
        torch.testing.assert_close(ours, theirs.float(), atol=tolerance, rtol=0)


@pytest.fixture(scope="module")
def corpus(pairs):
    return pairs[0][:12], pairs[1][:12]


@pytest.mark.parametrize("name", ["score", "BERTScorer", "plot_example"])
def test_every_argument_of_the_other_package_is_accepted_in_its_place(name):
    def arguments(thing):
        return list(inspect.signature(thing).parameters)

    theirs = arguments(getattr(oracle, name))
    assert arguments(getattr(bertscore_tm, name))[: len(theirs)] == theirs
    if name == "BERTScorer":
        for method in ("score", "compute_idf", "plot_example"):
            theirs = arguments(getattr(oracle.BERTScorer, method))
            assert arguments(getattr(BERTScorer, method))[: len(theirs)] == theirs


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("idf", [False, True])
def test_score(minilm, corpus, idf, several):
    cands, refs = corpus[0], several_references(corpus[1]) if several else corpus[1]
    expected = oracle.score(cands, refs, model_type=minilm, num_layers=4, idf=idf, **ONE)
    assert_equal(score(cands, refs, model_type=minilm, num_layers=4, idf=idf), expected)


def test_score_of_all_layers_ignores_num_layers_as_the_other_package_does(minilm, corpus):
    arguments = {"model_type": minilm, "num_layers": 2, "all_layers": True}
    expected = oracle.score(*corpus, **arguments, **ONE)
    assert expected[0].shape == (7, 12)
    assert_equal(score(*corpus, **arguments), expected)


def test_all_layers_with_several_references_and_idf(minilm, corpus):
    cands, refs = corpus[0][:8], several_references(corpus[1][:8])
    found = torch.stack(score(cands, refs, minilm, all_layers=True, idf=True))
    assert found.shape == (3, 7, 8)
    metric = BERTScore(FrozenEncoder(minilm, num_layers=6, all_layers=True), idf=True, reduction="none")
    metric.update(cands[:3], refs[:3])
    metric.update(cands[3:], refs[3:])
    assert_equal(list(metric.compute().values()), list(found))
    # The other package returns a wrong shape for all layers, so single layers are compared.
    for layer in (0, 3, 6):
        expected = oracle.score(cands, refs, model_type=minilm, num_layers=layer, idf=True, **ONE)
        assert_equal(list(found[:, layer]), expected)


def test_score_with_a_mapping(minilm, corpus):
    weights = get_idf_dict(corpus[1], get_tokenizer(minilm), nthreads=0)
    expected = oracle.score(*corpus, model_type=minilm, num_layers=4, idf=dict(weights) | dict_of_all(weights), **ONE)
    size = len(weights)
    assert_equal(score(*corpus, model_type=minilm, num_layers=4, idf=weights), expected)
    # Reading the weights of unseen tokens must not fill the caller's dictionary.
    assert len(weights) == size
    assert_equal(score(*corpus, model_type=minilm, num_layers=4, idf=True), expected)


def dict_of_all(weights):
    """The reference package reads plain dictionaries too, but fails at a token that they lack."""
    return {i: weights.get(i, weights.default_factory()) for i in range(30522)}


def test_a_mapping_that_lacks_a_token(minilm):
    with pytest.raises(ValueError, match=r"no weight for token id 4937 \('cat'\).*defaultdict.*idf_sents="):
        score(["a cat"], ["a dog"], minilm, 2, idf={101: 0.0, 102: 0.0, 1037: 1.0, 3899: 1.0})


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({-1: 1.0}, "has the key -1"),
        ({30522: 1.0}, "has the key 30522, but keys must be token ids from 0 to 30521"),
        ({"cat": 1.0}, "has the key 'cat'"),
        ({5: -1.0}, r"idf\[5\]=-1.0 is invalid"),
        ({5: float("nan")}, r"idf\[5\]=nan is invalid"),
    ],
)
def test_a_malformed_mapping(minilm, mapping, message):
    with pytest.raises(ValueError, match=message):
        score(["a"], ["b"], minilm, 2, idf=defaultdict(lambda: 1.0, mapping))


def test_other_malformed_idf(minilm):
    with pytest.raises(TypeError, match="idf must be True, False or a mapping"):
        score(["a"], ["b"], minilm, 2, idf="yes")
    with pytest.raises(ValueError, match="idf= is already a mapping of weights: remove idf_sents="):
        score(["a"], ["b"], minilm, 2, idf={1: 1.0}, idf_sents=["a"])
    with pytest.raises(TypeError, match="idf must be True, False or a mapping"):
        BERTScore(minilm, 2, idf="yes")
    with pytest.raises(ValueError, match="idf_sents is empty"):
        score(["a"], ["b"], minilm, 2, idf_sents=[])


def test_a_scorer_keeps_encoder_and_corpus(minilm, corpus):
    sents = corpus[1][:9]
    theirs = oracle.BERTScorer(model_type=minilm, num_layers=4, idf=True, idf_sents=sents, **ONE)
    ours = BERTScorer(model_type=minilm, num_layers=4, idf=True, idf_sents=sents)
    for part in (slice(0, 5), slice(5, 12)):
        cands, refs = corpus[0][part], corpus[1][part]
        assert_equal(ours.score(cands, refs), theirs.score(cands, refs, batch_size=1))
    theirs.compute_idf(corpus[1])
    ours.compute_idf(corpus[1])
    assert_equal(ours.score(*corpus), theirs.score(*corpus, batch_size=1))
    assert (ours.num_layers, ours.model_type, ours.idf, ours.lang) == (4, minilm, True, None)
    assert ours.all_layers is theirs.all_layers is False


@pytest.mark.parametrize("idf", [True, False])
def test_idf_weights_are_used_with_idf_only(minilm, corpus, idf):
    theirs = oracle.BERTScorer(model_type=minilm, num_layers=4, idf=idf, idf_sents=corpus[1], **ONE)
    ours = BERTScorer(model_type=minilm, num_layers=4, idf=idf, idf_sents=corpus[1])
    assert_equal(ours.score(*corpus), theirs.score(*corpus, batch_size=1))
    theirs = oracle.BERTScorer(model_type=minilm, num_layers=4, idf=idf, **ONE)
    ours = BERTScorer(model_type=minilm, num_layers=4, idf=idf)
    for scorer in (theirs, ours):
        scorer.compute_idf(corpus[1])
    assert_equal(ours.score(*corpus), theirs.score(*corpus, batch_size=1))
    assert ours.idf is theirs.idf is idf
    assert ("|idf:no|" in ours.hash) is not idf


def test_unused_idf_weights_are_checked_and_named(minilm):
    warn_unused.cache_clear()
    with pytest.warns(UserWarning, match=r"idf_sents or compute_idf of BERTScorer has no effect.*idf=True only"):
        BERTScorer(minilm, 2, idf_sents=["a"])
    with pytest.raises(TypeError, match=r"idf_sents\[0\] must be a string"):
        BERTScorer(minilm, 2, idf_sents=[1])
    with pytest.raises(ValueError, match="idf= is already a mapping of weights"):
        BERTScorer(minilm, 2, idf=defaultdict(float)).compute_idf(["a"])


def test_idf_without_a_corpus_takes_the_references_of_each_call(minilm, corpus):
    expected = score(*corpus, minilm, 4, idf=True)
    assert_equal(BERTScorer(minilm, 4, idf=True).score(*corpus), expected, 0)


def test_rescaling_with_a_table(minilm, corpus, tmp_path, monkeypatch):
    table = tmp_path / "table.tsv"
    table.write_text(
        "LAYER,P,R,F\n" + "".join(f"{i},{0.1 + i / 20},{0.2 + i / 25},{0.15 + i / 30}\n" for i in range(7))
    )
    arguments = {"model_type": minilm, "num_layers": 3, "lang": "en", "rescale_with_baseline": True}
    for all_layers in (False, True):
        expected = oracle.score(*corpus, **arguments, all_layers=all_layers, baseline_path=str(table), **ONE)
        assert_equal(score(*corpus, **arguments, all_layers=all_layers, baseline_path=table), expected, 2e-6)
        options = arguments | {"all_layers": all_layers, "batch_size": 3}
        theirs = oracle.BERTScorer(**options, baseline_path=str(table), nthreads=0)
        ours = BERTScorer(**options, baseline_path=str(table))
        torch.testing.assert_close(ours.baseline_vals, theirs.baseline_vals.float(), atol=0, rtol=0)
        for name in ("batch_size", "baseline_path"):
            assert getattr(ours, name) == getattr(theirs, name)
    monkeypatch.setattr("bertscore_tm.scoring.rescaling.download", lambda url: table.read_bytes())
    by_url = bert_score(*corpus, minilm, 3, rescale_with_baseline=True, baseline_url="https://a.b/table.tsv")
    torch.testing.assert_close(by_url["f1"], score(*corpus, **arguments, baseline_path=table)[2], atol=0, rtol=0)
    with pytest.warns(UserWarning, match="not rescaled by the given baseline: pass rescale_with_baseline=True"):
        raw = score(*corpus, minilm, 3, baseline_path=table)
    assert_equal(raw, score(*corpus, minilm, 3), 0)
    with pytest.raises(ValueError, match="got both baseline_path= and baseline_url="):
        bert_score(*corpus, minilm, 3, rescale_with_baseline=True, baseline_path=table, baseline_url="x")


def test_plot_example_is_that_of_a_scorer(minilm, tmp_path):
    pair = "a cat sat on the mat", "the cat sat"
    figure = bertscore_tm.plot_example(*pair, minilm, 3, fname=str(tmp_path / "example.png"))
    assert (tmp_path / "example.png").read_bytes().startswith(b"\x89PNG")
    expected = bertscore_tm.plot_alignment(*pair, minilm, 3)
    assert figure.axes[0].get_title(loc="left") == expected.axes[0].get_title(loc="left")
    with pytest.raises(ValueError, match="neither model_type nor lang is given"):
        bertscore_tm.plot_example(*pair)


def test_what_the_other_package_asserts_is_an_error_with_a_remedy(minilm):
    with pytest.raises(ValueError, match="neither model_type nor lang is given: pass lang='en'"):
        score(["a"], ["b"])
    with pytest.raises(ValueError, match="pass lang= or baseline_path="):
        score(["a"], ["b"], minilm, 2, rescale_with_baseline=True)
    with pytest.raises(ValueError, match="equal lengths, got 2 and 1"):
        BERTScorer(minilm, 2).score(["a", "b"], ["b"])


def test_arguments_without_effect_are_warned_about_once(minilm):
    with pytest.warns(UserWarning, match="nthreads=2 has no effect") as caught:
        scorer = BERTScorer(minilm, 2, nthreads=2, use_fast_tokenizer=True)
    assert len(caught) == 2
    with pytest.warns(UserWarning, match="batch_size=7 in BERTScorer.score has no effect"):
        scorer.score(["a"], ["b"], batch_size=7)
    with pytest.warns(UserWarning, match="num_threads=3 has no effect"):
        bert_score(["a"], ["b"], minilm, 2, num_threads=3)
    with pytest.warns(UserWarning, match="verbose=True has no effect"):
        BERTScore(minilm, 2, verbose=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BERTScorer(minilm, 2, nthreads=2, use_fast_tokenizer=True).score(["a"], ["b"], batch_size=7)
        bert_score(["a"], ["b"], minilm, 2, num_threads=3)
        BERTScore(minilm, 2, verbose=True)


def test_the_signature_changes_with_everything_that_changes_a_number(minilm, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("LAYER,P,R,F\n" + "".join(f"{i},.1,.1,.1\n" for i in range(7)))
    other = tmp_path / "other" / "table.csv"
    other.parent.mkdir()
    other.write_text("LAYER,P,R,F\n" + "".join(f"{i},.1,.1,.2\n" for i in range(7)))
    rescaled = {"rescale_with_baseline": True, "lang": "en"}
    variants = [
        {},
        {"num_layers": 3},
        {"all_layers": True},
        {"idf": True},
        {"idf_sents": ["a", "b"]},
        {"idf_sents": ["a", "c"]},
        {"idf": defaultdict(lambda: 1.0)},
        {"idf": defaultdict(lambda: 1.0, {5: 2.0})},
        {**rescaled, "baseline_path": table},
        {**rescaled, "baseline_path": other},
        {"dtype": "bfloat16"},
        {"long_text": "window"},
        {"long_text": "window", "stride": 9},
        {"long_text": "error"},
    ]

    def signature(**settings):
        return score(["x", "b"], ["a y", "b c"], minilm, **({"num_layers": 2} | settings), return_hash=True)[1]

    signatures = [signature(**variant) for variant in variants]
    assert len(set(signatures)) == len(variants)
    assert [signature(**variant) for variant in variants[::4]] == signatures[::4]
    for part in ("layer:2", "dtype:float32", "idf:no", "rescale:no", "space:no", "limit:512", "long:truncate"):
        assert part in signatures[0]
    assert f"bertscore-tm:{bertscore_tm.__version__}" in signatures[0]
    assert "idf:2|" in signatures[3]
    assert minilm not in signatures[0]


def test_function_scorer_and_metric_give_one_signature(encoder):
    cands, refs = ["a cat", "a dog"], [["the cat", "a cat sat"], ["dogs"]]
    by_function = bert_score(cands, refs, encoder, idf=True, return_hash=True)["hash"]
    scorer = BERTScorer(encoder, idf=True)
    assert scorer.score(cands, refs, return_hash=True)[1] == scorer.hash == by_function
    metric = BERTScore(encoder, idf=True, return_hash=True)
    metric.update(cands, refs)
    assert metric.compute()["hash"] == metric.signature() == by_function
    assert "|idf:3|" in by_function
    metric.reset()
    assert "|idf:references|" in metric.signature()


def test_the_signature_of_a_folder_tells_its_contents_not_its_place(tmp_path, minilm):
    here, there = tmp_path / "a" / "model", tmp_path / "b" / "model"
    for folder in (here, there):
        shutil.copytree(minilm, folder)
    signatures = [FrozenEncoder(folder, num_layers=2).signature() for folder in (minilm, here, there)]
    assert len(set(signatures)) == 1
    (there / "README.md").write_text("other words")
    assert FrozenEncoder(there, num_layers=2).signature() == signatures[0]
    weights = bytearray((there / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (there / "model.safetensors").write_bytes(bytes(weights))
    assert FrozenEncoder(there, num_layers=2).signature() != signatures[0]


def test_the_best_reference(encoder, corpus):
    cands, refs = corpus[0], several_references(corpus[1])
    for layers in (encoder, FrozenEncoder(encoder.name, num_layers=6, all_layers=True)):
        result = bert_score(cands, refs, layers, return_best_reference=True)
        best = result["best_reference"].reshape(-1, len(cands))
        f1 = result["f1"].reshape(-1, len(cands))
        assert best.dtype == torch.long
        for i, several in enumerate(refs):
            each = bert_score([cands[i]] * len(several), several, layers)["f1"].reshape(-1, len(several))
            torch.testing.assert_close(each.max(1).values, f1[:, i], atol=TOLERANCE, rtol=0)
            torch.testing.assert_close(each.gather(1, best[:, i, None])[:, 0], f1[:, i], atol=TOLERANCE, rtol=0)


class Wrapped(torch.nn.Module):
    def __init__(self, folder):
        super().__init__()
        self.inner = AutoModel.from_pretrained(folder)


def test_a_model_of_ones_own(minilm, corpus):
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    arguments = {"model": Wrapped(minilm), "user_tokenizer": tokenizer, "user_forward_fn": vectors_of_layer_4}
    expected = bert_score(*corpus, minilm, 4, idf=True)
    found = bert_score(*corpus, **arguments, idf=True)
    for name in ("precision", "recall", "f1"):
        torch.testing.assert_close(found[name], expected[name], atol=TOLERANCE, rtol=0)
    metric = BERTScore(**arguments)
    assert not list(metric.parameters())
    assert "forward:vectors_of_layer_4" in metric.signature()
    for copy in (metric, pickle.loads(pickle.dumps(metric)), metric.clone()):
        copy.update(*corpus)
        mean = bert_score(*corpus, minilm, 4)["f1"].mean()
        torch.testing.assert_close(copy.compute()["f1"], mean, atol=TOLERANCE, rtol=0)
    with pytest.raises(TypeError, match="must be a tokenizer of transformers, got a function"):
        bert_score(["a"], ["b"], **arguments | {"user_tokenizer": pooled})
    with pytest.raises(ValueError, match="Wrapped is not a model of transformers: pass user_forward_fn="):
        bert_score(["a"], ["b"], model=Wrapped(minilm), user_tokenizer=tokenizer)
    with pytest.raises(ValueError, match="user_forward_fn returns one layer"):
        bert_score(["a"], ["b"], **arguments, all_layers=True)
    with pytest.raises(ValueError, match=r"one vector per token.*returned shape \(1, 384\)"):
        bert_score(["a"], ["b"], **arguments | {"user_forward_fn": pooled})
    with pytest.raises(ValueError, match="pass model= and user_tokenizer= too"):
        bert_score(["a"], ["b"], minilm, user_forward_fn=pooled)


def test_a_function_of_ones_own_gets_the_whole_model_also_beside_encoders_that_cut_it(minilm):
    model, tokenizer = AutoModel.from_pretrained(minilm), AutoTokenizer.from_pretrained(minilm)
    expected = {layer: FrozenEncoder(minilm, num_layers=layer).encode(["a cat"]).vectors for layer in (1, 6)}
    encoders = {1: FrozenEncoder(model, tokenizer, num_layers=1)}
    encoders[6] = FrozenEncoder(model, tokenizer, forward_fn=partial(last_vectors))
    assert encoders[6].signature().endswith("|forward:partial")
    for layer, encoder in encoders.items():
        torch.testing.assert_close(encoder.encode(["a cat"]).vectors, expected[layer], atol=TOLERANCE, rtol=0)


def last_vectors(model, batch):
    return model(**batch).last_hidden_state


def vectors_of_layer_4(model, batch):
    output = model.inner(batch["input_ids"], attention_mask=batch["attention_mask"], output_hidden_states=True)
    return output.hidden_states[4]


def pooled(model, batch):
    return vectors_of_layer_4(model, batch)[:1, 0]


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
    assert FrozenEncoder(minilm, num_layers=-1).num_layers == 6
    assert FrozenEncoder(minilm, num_layers=-7).num_layers == 0


def test_a_progress_bar_only_when_asked_for(encoder, capsys):
    bert_score(["a b", "c d"], ["a", "c"], encoder)
    assert capsys.readouterr() == ("", "")
    bert_score(["a b", "c d"], ["a", "c"], encoder, verbose=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "2/2" in shown.err
