"""The drop-in of torchmetrics takes its calls, and gives its results where they are right."""

import inspect
import pickle
import warnings
from functools import partial
from itertools import islice

import pytest
import torch
from torchmetrics import Metric, MetricCollection
from torchmetrics.functional.text.bert import bert_score as their_bert_score
from torchmetrics.text.bert import BERTScore as TheirBERTScore
from transformers import AutoConfig, AutoModel, AutoTokenizer

from bertscore_tm import FrozenEncoder, align
from bertscore_tm.compat import torchmetrics as drop_in
from bertscore_tm.compat.torchmetrics import BERTScore, bert_score
from tests.support.models import save_tiny_model
from tests.support.oracle import oracle_scores
from tests.support.texts import several_references

NAMES = ("precision", "recall", "f1")
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def right(pairs, small):
    """Two pairs that torchmetrics scores right: no token's best match is a special one, which it leaves out."""
    encoder = FrozenEncoder(small, num_layers=3)

    def is_right(pair):
        alignment = align(*pair, encoder)
        return all((side.matches >= 0).all() for side in (alignment.candidate, alignment.reference))

    return [list(texts) for texts in zip(*islice(filter(is_right, zip(*pairs, strict=True)), 2), strict=True)]


def assert_equal(result, expected, tolerance=TOLERANCE):
    assert list(result) == list(expected)
    for name in NAMES:
        assert (result[name].dtype, result[name].device.type) == (torch.float32, "cpu")
        torch.testing.assert_close(result[name], expected[name].float(), atol=tolerance, rtol=0)


def by_bert_score(preds, target, small, layer, **options):
    return dict(zip(NAMES, oracle_scores(small, preds, target, layer, **options), strict=True))


def computed(metric, preds, target, size=5):
    for start in range(0, len(preds), size):
        metric.update(preds[start : start + size], target[start : start + size])
    return metric.compute()


def parameters(function):
    return [(p.name, p.default, p.kind) for p in inspect.signature(function).parameters.values()]


def test_parameters_and_defaults_are_those_of_torchmetrics():
    assert parameters(bert_score) == parameters(their_bert_score)
    assert parameters(BERTScore) == parameters(TheirBERTScore)
    assert parameters(BERTScore.plot) == parameters(TheirBERTScore.plot)
    # Our callbacks also pass the number of each pair.
    assert parameters(BERTScore.update)[:3] == parameters(TheirBERTScore.update)
    assert [name for name, *_ in parameters(BERTScore.update)[3:]] == ["indices"]


@pytest.mark.parametrize(("num_layers", "layer"), [(None, 6), (0, 0), (-2, 5)])
def test_the_default_layer_is_the_last(small, corpus, num_layers, layer):
    expected = by_bert_score(*corpus, small, layer)

    assert_equal(bert_score(*corpus, small, num_layers), expected)

    metric = BERTScore(small, num_layers)
    assert metric.num_layers == num_layers
    assert_equal(computed(metric, *corpus), expected)


@pytest.mark.parametrize(("idf", "has_several"), [(False, True), (True, False)])
def test_every_pair_has_its_own_score(minilm, corpus, idf, has_several):
    """torchmetrics scores the pairs of three or more against each other's references."""
    preds, target = corpus
    if has_several:
        target = several_references(target)
    expected = by_bert_score(preds, target, minilm, 5, idf=idf)

    scores = bert_score(preds, target, minilm, 5, idf=idf)
    metric = BERTScore(minilm, 5, idf=idf)

    assert_equal(scores, expected)
    assert_equal(computed(metric, preds, target), expected)


def test_all_layers(small, corpus):
    expected = by_bert_score(*corpus, small, 6, all_layers=True)

    assert their_bert_score(corpus[0][:2], corpus[1][:2], small, all_layers=True)["f1"].shape == (7, 2)
    for result in (
        bert_score(*corpus, small, num_layers=2, all_layers=True),
        computed(BERTScore(small, num_layers=2, all_layers=True), *corpus),
    ):
        assert result["f1"].shape == (7, 12)
        assert_equal(result, expected)


def test_single_texts_and_mixed_references(small):
    has_several = "the cat", "a cat sat on it"
    whole = bert_score(["a cat sat"], [list(has_several)], small, 5)

    for preds, target in (("a cat sat", [has_several]), (["a cat sat"], (has_several,))):
        assert_equal(bert_score(preds, target, small, 5), whole)
        assert_equal(BERTScore(small, 5)(preds, target), whole)

    metric = BERTScore(small, 5)
    metric.update("a cat", ["the cat"])
    metric.update(["a cat", "a dog"], ["the cat", ["the dog", "dogs"]])

    # torchmetrics gives a single pair no dimension.
    assert their_bert_score("a cat", "the cat", small, 5)["f1"].shape == ()
    assert bert_score("a cat", "the cat", small, 5)["f1"].shape == (1,)
    assert metric.compute()["f1"].shape == (3,)
    assert metric("a cat", "the cat")["f1"].shape == (1,)


def test_without_texts(small):
    for function in (their_bert_score, bert_score):
        with pytest.warns(UserWarning, match="Predictions and references are empty"):
            assert function([], [], small, 5) == {"precision": [0.0], "recall": [0.0], "f1": [0.0]}
    with pytest.warns(UserWarning, match="was called before the ``update`` method"):
        assert computed(BERTScore(small, 5), [], [])["f1"].shape == (0,)


def test_attributes(small, table):
    options = {"num_layers": 3, "idf": True, "device": "cpu", "max_length": 100, "batch_size": 7, "lang": "de"}
    options |= {"rescale_with_baseline": True, "baseline_path": table, "truncation": True}
    for arguments in ({}, options):
        theirs, ours = TheirBERTScore(small, **arguments), BERTScore(small, **arguments)
        assert isinstance(ours, Metric)
        names = {name for name in vars(theirs) if name in inspect.signature(TheirBERTScore).parameters}
        names |= {"embedding_device", "user_tokenizer", "higher_is_better", "is_differentiable", "full_state_update"}
        names |= {"plot_lower_bound", "plot_upper_bound", "model_name_or_path"}
        for name in names - {"model", "device"}:
            assert getattr(ours, name) == getattr(theirs, name), name
        assert type(ours.tokenizer) is type(theirs.tokenizer)


def test_copies_of_a_metric_have_its_scores(small, corpus):
    preds, target = corpus[0][:4], corpus[1][:4]
    expected = bert_score(preds, target, small, 5, idf=True, return_hash=True)
    metric = BERTScore(small, 5, return_hash=True, idf=True)
    metric.update(preds[:2], target[:2])
    metric.update(preds[2:], target[2:])

    for copy in (metric, metric.clone(), pickle.loads(pickle.dumps(metric))):
        result = copy.compute()

        assert result.pop("hash") == expected["hash"] == str(copy.signature())
        assert_equal(result, {name: expected[name] for name in NAMES})


def test_the_hash_says_how_many_texts_gave_the_weights(small, corpus):
    preds, target = corpus[0][:4], corpus[1][:4]

    weighted = bert_score(preds, target, small, 5, idf=True, return_hash=True)
    uniform = bert_score(preds, target, small, 5, return_hash=True)

    assert "|idf:4|" in weighted["hash"]
    assert "|idf:no|" in uniform["hash"]


def test_a_step_returns_the_scores_of_its_pairs(small, corpus):
    preds, target = corpus[0][:4], corpus[1][:4]
    metric = BERTScore(small, 5, idf=True)
    collection = MetricCollection({"bertscore": BERTScore(small, 5)})

    assert metric(preds[:2], target[:2])["f1"].shape == (2,)
    assert collection(preds, target)["f1"].shape == (4,)
    assert not list(metric.parameters())
    assert not metric.state_dict()


def test_plots_show_means(small, corpus):
    pytest.importorskip("matplotlib")
    metric = BERTScore(small, 5, return_hash=True)
    computed(metric, *corpus)
    _, ax = metric.plot()
    drawn = {line.get_label(): float(line.get_ydata()[0]) for line in ax.lines}

    means = {name: metric.compute()[name].mean().item() for name in NAMES}

    assert {label: value for label, value in drawn.items() if label in NAMES} == pytest.approx(means)


def test_long_texts(minilm):
    long = ["the committee met " * 200], ["the committee met"]

    for function in (bert_score, lambda *texts: computed(BERTScore(*texts[2:]), *texts[:2])):
        with pytest.raises(ValueError, match=r"602 tokens, the limit is 512\. .*truncation=True"):
            function(*long, minilm, 5)
    with pytest.raises(RuntimeError):
        their_bert_score(*long, minilm, 5)
    # One token per word, and two special ones.
    for limit, count in ((512, 170), (20, 6)):
        with pytest.warns(UserWarning, match=rf"1 text .* {limit} tokens .*encoder's long_text \(--long-text\)"):
            found = bert_score(*long, minilm, 5, truncation=True, max_length=limit)
        assert_equal(found, by_bert_score(["the committee met " * count], long[1], minilm, 5))


@pytest.mark.parametrize(("family", "is_limited"), [("bert", True), ("t5", False)])
def test_the_length_limit_is_that_of_the_model(tmp_path, family, is_limited):
    folder = save_tiny_model(family, tmp_path / family)
    positions = AutoConfig.from_pretrained(folder).to_dict().get("max_position_embeddings")

    assert (positions is not None and positions < 512) is is_limited
    assert BERTScore(folder).encoder.tokenizer.max_length == (positions if is_limited else 512)

    metric = BERTScore(folder, max_length=20, batch_size=9, device="meta")
    assert (metric.encoder.tokenizer.max_length, metric.encoder.batch_size) == (20, 9)
    assert metric.device == metric.encoder.device == torch.device("meta")


def test_rescaling(small, corpus, right, table):
    options = {"rescale_with_baseline": True, "baseline_path": table, "baseline_url": "https://unused.invalid"}

    assert_equal(bert_score(*right, small, 3, **options), their_bert_score(*right, small, 3, **options), 2e-6)

    expected = by_bert_score(*corpus, small, 6, table=table)
    # The last layer has the last row.
    assert_equal(computed(BERTScore(small, **options), *corpus), expected, 2e-6)


def test_without_a_table_rescaling_takes_the_published_one(listed_folder, minilm, corpus):
    result = BERTScore(listed_folder, 5, rescale_with_baseline=True)

    assert result.signature()["rescale"] == "en"
    for folder, language in ((minilm, "en"), (listed_folder, "zh")):
        with pytest.raises(ValueError, match=f"no baseline for language '{language}' and model"):
            bert_score(*corpus, folder, 5, lang=language, rescale_with_baseline=True)


def test_the_default_model(monkeypatch, minilm):
    monkeypatch.setattr(drop_in, "_DEFAULT_MODEL", minilm)

    for make in (BERTScore, lambda **options: bert_score(["a"], ["b"], **options)):
        with pytest.warns(UserWarning, match="model_name_or_path is not given: using"):
            make(lang="zh")

    monkeypatch.undo()
    assert drop_in._DEFAULT_MODEL == TheirBERTScore.__init__.__globals__["_DEFAULT_MODEL"] == "roberta-large"


class Wrapped(torch.nn.Module):
    def __init__(self, folder):
        super().__init__()
        self.inner = AutoModel.from_pretrained(folder)


def vectors_of_layer_3(model, batch):
    output = model.inner(batch["input_ids"], attention_mask=batch["attention_mask"], output_hidden_states=True)
    return output.hidden_states[3]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Folder of a model of three layers, because these tests create many encoders."""
    return save_tiny_model("bert", tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def wrapped(tiny):
    """A model that only its function can run."""
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    return {"model": Wrapped(tiny), "user_tokenizer": tokenizer, "user_forward_fn": vectors_of_layer_3}


@pytest.fixture
def loaded(tiny):
    """A model of transformers."""
    return {"model": AutoModel.from_pretrained(tiny), "num_layers": 3}


@pytest.mark.parametrize("kind", ["wrapped", "with its tokenizer", "with its name"])
def test_a_model_of_ones_own_is_used(tiny, corpus, wrapped, loaded, kind):
    kinds = {
        "wrapped": wrapped,
        "with its tokenizer": loaded | {"user_tokenizer": wrapped["user_tokenizer"]},
        "with its name": loaded | {"model_name_or_path": tiny},
    }
    options = kinds[kind] | {"idf": True}
    expected = by_bert_score(*corpus, tiny, 3, idf=True)

    scores = bert_score(*corpus, **options)
    metric = BERTScore(**options)

    assert_equal(scores, expected)
    assert_equal(computed(metric, *corpus), expected)
    assert not list(metric.parameters())


# As in torchmetrics, without num_layers the last row.
@pytest.mark.parametrize(("layer", "row"), [(None, 6), (2, 2)])
def test_a_model_of_ones_own_is_rescaled_by_a_row(corpus, table, wrapped, layer, row):
    plain = bert_score(*corpus, **wrapped)["f1"]

    rescaled = bert_score(*corpus, **wrapped, num_layers=layer, rescale_with_baseline=True, baseline_path=table)["f1"]

    baseline = 0.15 + row / 30
    torch.testing.assert_close(rescaled, (plain - baseline) / (1 - baseline), atol=1e-5, rtol=0)


def test_a_model_of_ones_own_needs_its_tokenizer(wrapped, loaded):
    with pytest.raises(ValueError, match=r"model= needs its tokenizer. Pass user_tokenizer="):
        BERTScore(**loaded)

    wrong = wrapped | {"user_tokenizer": vectors_of_layer_3}
    with pytest.raises(TypeError, match="user_tokenizer must be a tokenizer of transformers, got a function"):
        bert_score(["a"], ["b"], **wrong)


def test_arguments_without_effect_are_warned_about_once(small, capsys):
    with pytest.warns(UserWarning, match="num_threads=3 has no effect"):
        bert_score(["a"], ["b"], small, 2, num_threads=3)
    with pytest.warns(UserWarning, match="verbose=True has no effect"):
        BERTScore(small, 2, verbose=True)

    with warnings.catch_warnings(action="error"):
        BERTScore(small, 2, num_threads=3, verbose=True)
    bert_score(["a", "b"], ["b", "c"], small, 2, verbose=True)

    assert "2/2" in capsys.readouterr().err
    with pytest.raises(ValueError, match="Expected argument `idf` to be a boolean"):
        bert_score(["a"], ["b"], small, 2, idf=[])


@pytest.mark.parametrize("call", [BERTScore, partial(bert_score, ["a"], ["b"])])
def test_a_table_is_not_downloaded(call, small, table):
    options = {"model_name_or_path": small, "num_layers": 3, "rescale_with_baseline": True}
    address = "https://unused.invalid/table.tsv"

    with pytest.raises(ValueError, match=r"baseline_url='https://unused.*. Download the file, and pass it as"):
        call(**options, baseline_url=address)

    call(**options, baseline_url=address, baseline_path=table)
