"""The drop-in of bert-score gives the results of the installed package for the same calls."""

import inspect
import shutil
import warnings
from collections import defaultdict
from pathlib import Path

import bert_score as oracle
import pytest
import torch
from bert_score import utils
from bert_score.utils import get_idf_dict, get_tokenizer, lang2model, model2layers

from bertscore_tm import FrozenEncoder, catalog
from bertscore_tm.compat import bert_score as drop_in
from bertscore_tm.compat.bert_score import BERTScorer, plot_example, score
from bertscore_tm.scoring.warnings import warn_unused
from tests.support.markdown_blocks import ROOT
from tests.support.shell import run_here
from tests.support.texts import several_references

TOLERANCE = 1e-6
# One pair at a time, since the other package lets padding take part in the matching.
ONE = {"batch_size": 1, "nthreads": 0}
EXAMPLE = "a cat sat on the mat quietly", "the kitten was sitting on a rug"


def assert_equal(result, expected, tolerance=TOLERANCE):
    assert type(result) is type(expected) is tuple
    assert len(result) == len(expected) == 3
    for ours, theirs in zip(result, expected, strict=True):
        assert ours.shape == theirs.shape
        assert (ours.dtype, ours.device.type) == (torch.float32, "cpu")
        torch.testing.assert_close(ours, theirs.float(), atol=tolerance, rtol=0)


def parameters(function):
    return [(p.name, p.default, p.kind) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize(
    "name",
    ["score", "plot_example", "BERTScorer", "BERTScorer.score", "BERTScorer.compute_idf", "BERTScorer.plot_example"],
)
def test_parameters_and_defaults_are_those_of_the_other_package(name):
    ours, theirs = drop_in, oracle
    for part in name.split("."):
        ours, theirs = getattr(ours, part), getattr(theirs, part)
    # The batch size of the scorer is the default here.
    expected = [
        (key, None if (name, key) == ("BERTScorer.score", "batch_size") else default, kind)
        for key, default, kind in parameters(theirs)
    ]

    assert parameters(ours) == expected


def test_the_page_names_a_replacement_of_every_helper():
    own = [value for value in vars(utils).values() if getattr(value, "__module__", None) == utils.__name__]
    tables = ["lang2model", "model2layers", "SCIBERT_URL_DICT"]

    helpers = {function.__name__ for function in own} | set(tables)

    assert {"get_hash", "get_idf_dict", "sent_encode", *tables} < helpers

    page = (ROOT / "examples/docs/migrating.md").read_text(encoding="utf-8")
    missing = [name for name in helpers if f"`{name}" not in page]

    assert missing == []


def test_the_catalog_has_the_models_and_layers_of_the_helpers():
    assert {language: catalog.default_model(language) for language in lang2model} == lang2model
    assert {model: catalog.tuned_layer(model) for model in catalog.models()} == model2layers


@pytest.mark.parametrize(("idf", "has_several"), [(False, True), (True, False)])
def test_score(minilm, corpus, idf, has_several):
    cands, refs = corpus[0], several_references(corpus[1]) if has_several else corpus[1]
    expected = oracle.score(cands, refs, model_type=minilm, num_layers=4, idf=idf, **ONE)

    assert_equal(score(cands, refs, minilm, 4, False, idf), expected)


def test_all_layers_ignore_num_layers(small, corpus):
    arguments = {"model_type": small, "num_layers": 2, "all_layers": True}
    expected = oracle.score(*corpus, **arguments, **ONE)

    assert expected[0].shape == (7, 12)
    assert_equal(score(*corpus, **arguments), expected)


def test_all_layers_with_several_references(small, corpus):
    cands, refs = corpus[0][:8], several_references(corpus[1][:8])
    result = torch.stack(score(cands, refs, small, all_layers=True, idf=True))

    assert result.shape == (3, 7, 8)

    # The other package returns a wrong shape for all layers, so single layers are compared.
    for layer in (0, 6):
        expected = oracle.score(cands, refs, model_type=small, num_layers=layer, idf=True, **ONE)
        assert_equal(tuple(result[:, layer]), expected)


def test_score_with_a_dictionary(small, corpus):
    weights = get_idf_dict(corpus[1], get_tokenizer(small), nthreads=0)
    whole = {i: weights.get(i, weights.default_factory()) for i in range(len(get_tokenizer(small)))}
    expected = oracle.score(*corpus, model_type=small, num_layers=4, idf=whole, **ONE)

    size = len(weights)

    assert_equal(score(*corpus, small, 4, idf=weights), expected)
    # Reading the weights of unseen tokens must not fill the caller's dictionary.
    assert len(weights) == size
    assert_equal(score(*corpus, small, 4, idf=True), expected)

    uniform = score(*corpus, small, 4)
    for nothing in (None, {}, defaultdict(float)):
        assert_equal(score(*corpus, small, 4, idf=nothing), uniform, 0)


def test_a_scorer_keeps_model_and_weights(small, corpus):
    sents = corpus[1][:9]
    theirs = oracle.BERTScorer(model_type=small, num_layers=4, idf=True, idf_sents=sents, **ONE)
    ours = BERTScorer(small, 4, idf=True, idf_sents=sents)

    for part in (slice(0, 5), slice(5, 12)):
        cands, refs = corpus[0][part], corpus[1][part]
        assert_equal(ours.score(cands, refs), theirs.score(cands, refs, batch_size=1))

    for scorer in (ours, theirs):
        with pytest.warns(UserWarning, match="Overwriting the previous importance weights"):
            scorer.compute_idf(corpus[1])
    assert_equal(ours.score(*corpus), theirs.score(*corpus, batch_size=1))
    assert f"|idf:{len(corpus[1])}#" in ours.hash


def test_weights_are_used_with_idf_alone(small, corpus):
    theirs = oracle.BERTScorer(model_type=small, num_layers=4, idf_sents=corpus[1], **ONE)
    ours = BERTScorer(small, 4, idf_sents=corpus[1])

    assert_equal(ours.score(*corpus), theirs.score(*corpus, batch_size=1))
    assert_equal(ours.score(*corpus), score(*corpus, small, 4), 0)
    assert ours.idf is theirs.idf is False
    assert "|idf:no|" in ours.hash
    for scorer in (BERTScorer(small, 4, idf=True), BERTScorer(small, 4, idf=True, idf_sents=[])):
        with pytest.raises(AssertionError, match="IDF weights are not computed"):
            scorer.score(*corpus)
        assert "|idf:texts|" in scorer.hash
    with pytest.raises(AssertionError, match="IDF weights are not computed"):
        oracle.BERTScorer(model_type=small, num_layers=4, idf=True).score(*corpus)


@pytest.mark.parametrize("all_layers", [False, True])
def test_rescaling_with_a_table(small, corpus, table, all_layers):
    arguments = {"model_type": small, "num_layers": 3, "lang": "en", "rescale_with_baseline": True}
    arguments |= {"all_layers": all_layers, "baseline_path": table}

    assert_equal(score(*corpus, **arguments), oracle.score(*corpus, **arguments, **ONE), 2e-6)

    theirs, ours = oracle.BERTScorer(**arguments, **ONE), BERTScorer(**arguments)
    assert_equal(ours.score(*corpus), theirs.score(*corpus, batch_size=1), 2e-6)
    torch.testing.assert_close(ours.baseline_vals, theirs.baseline_vals, atol=0, rtol=0)


def test_rescaling_with_a_published_table(listed_folder, corpus):
    published = Path(oracle.__file__).parent / "rescale_baseline/en/distilbert-base-uncased.tsv"
    arguments = {"lang": "en", "rescale_with_baseline": True}
    # The other package has neither layer nor table for a folder.
    its = {"model_type": listed_folder, "num_layers": 5, "baseline_path": str(published)}
    expected = oracle.BERTScorer(**its, **arguments, **ONE)

    result = BERTScorer(listed_folder, **arguments)

    assert_equal(result.score(*corpus), expected.score(*corpus, batch_size=1), 2e-6)
    torch.testing.assert_close(result.baseline_vals, expected.baseline_vals, atol=0, rtol=0)
    assert result.num_layers == 5


def test_attributes(small, table):
    arguments = {"model_type": small, "num_layers": 3, "batch_size": 7, "nthreads": 0, "device": "cpu", "lang": "EN"}
    for options in ({}, {"all_layers": True}, {"rescale_with_baseline": True, "baseline_path": table}):
        theirs = oracle.BERTScorer(**arguments | options)
        ours = BERTScorer(**arguments | options)
        public = {name for name in dir(theirs) if not name.startswith("_")} - {"baseline_path", "baseline_vals", "hash"}
        assert {"batch_size", "idf", "lang", "use_custom_baseline", "use_fast_tokenizer"} < public
        for name in public:
            its = getattr(theirs, name)
            assert callable(getattr(ours, name)) if callable(its) else getattr(ours, name) == its
        assert type(ours.hash) is str
        assert repr(ours) == f"BERTScorer(hash={ours.hash}, batch_size=7, nthreads=0)"
        if "baseline_path" in options:
            assert ours.baseline_path == theirs.baseline_path
        else:
            for scorer in (ours, theirs):
                with pytest.raises(ValueError, match=r"(?i)no baseline|baseline not found"):
                    _ = scorer.baseline_vals


def test_the_default_model_of_a_language(monkeypatch, small):
    asked = []

    def encoder(name, **options):
        asked.append(name)
        return FrozenEncoder(small, **options | {"num_layers": 2})

    monkeypatch.setattr(drop_in, "FrozenEncoder", encoder)
    languages = ["en", "EN", "zh", "tr", "en-sci", "de", "en-us", "zh_cn", "german"]
    for language in languages:
        assert BERTScorer(lang=language).model_type == asked[-1]
    assert asked == [lang2model[language.lower()] for language in languages]


def test_the_device_and_batch_size_of_the_forward_passes(small, monkeypatch):
    sizes = []
    encode = FrozenEncoder.encode

    def recorded(self, *arguments, **options):
        sizes.append(self.batch_size)
        return encode(self, *arguments, **options)

    monkeypatch.setattr(FrozenEncoder, "encode", recorded)
    scorer = BERTScorer(small, 2, batch_size=3)
    scorer.score(["a"], ["b"])
    scorer.score(["a"], ["b"], batch_size=5)
    score(["a"], ["b"], small, 2, batch_size=7)
    assert list(dict.fromkeys(sizes)) == [3, 5, 7]
    for available, device in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda result=available: result)
        assert BERTScorer(small, 2).device == device
        assert BERTScorer(small, 2).encoder.device.type == device


def test_what_the_other_package_asserts(small):
    for package in (oracle, drop_in):
        with pytest.raises(AssertionError, match=r"lang or model_type|model_type nor lang"):
            package.score(["a"], ["b"])
        with pytest.raises(AssertionError, match=r"(?i)language"):
            package.score(["a"], ["b"], model_type=small, num_layers=2, rescale_with_baseline=True)
    for size in (0, -1):
        with pytest.raises(ValueError, match=f"batch_size must be at least 1, got {size}"):
            drop_in.BERTScorer(small, 2).score(["a"], ["b"], batch_size=size)
    with pytest.raises(ValueError, match="cands and refs must have equal lengths, got 2 and 1"):
        BERTScorer(small, 2).score(["a", "b"], ["b"])


def test_errors_advise_what_there_is(minilm, tmp_path, capsys):
    """The drop-ins have no argument listed_as, but the encoder and the shell do."""
    copy = shutil.copytree(minilm, tmp_path / "copy")

    with pytest.raises(ValueError, match=r"pass num_layers \(--num-layers\).*, its name as the encoder's listed_as"):
        BERTScorer(str(copy))
    with pytest.raises(ValueError, match=r"pass a table .*, its name as the encoder's listed_as"):
        BERTScorer(str(copy), 5, lang="en", rescale_with_baseline=True)

    texts = ["--candidate-text", "a", "--reference-text", "b", "-m", copy, "-l", 5, "--rescale"]
    assert "listed_as (--listed-as), or do not" in run_here(capsys, "score", *texts, exit_code=2).err


def test_the_errors_of_the_other_package_are_corrected(minilm):
    """One assertion for each difference that the page on migrating lists."""
    pair = ["the bank raised interest rates"], ["a bowl of soup"]
    longer = "this sentence has a good many more words than the others and so it fills the batch with padding"

    alone = score(*pair, minilm, 6)[2][0]

    assert alone < 0
    assert_equal((alone,) * 3, (score(*([*texts, longer] for texts in pair), minilm, 6)[2][0],) * 3)
    with pytest.warns(UserWarning, match="scored 0"):
        assert_equal(score([""], ["a cat"], minilm, 5), (torch.zeros(1),) * 3, 0)
    with pytest.warns(UserWarning, match="weight 0"):
        assert_equal(score(["a cat"], ["a cat"], minilm, 5, idf=True), (torch.zeros(1),) * 3, 0)
    with pytest.raises(ValueError, match="no baseline for language 'en' and model"):
        score(["a cat"], ["a cat"], minilm, 5, lang="en", rescale_with_baseline=True)
    with pytest.warns(UserWarning, match="1 text is longer than 512 tokens"):
        score(["a cat " * 400], ["a cat"], minilm, 5)


def test_the_hash_is_the_signature_of_the_core(small, corpus, table):
    references = several_references(corpus[1])
    signatures = []

    for idf in (False, True, defaultdict(lambda: 1.0, {5: 2.0})):
        scores, signature = score(corpus[0], references, small, 2, idf=idf, return_hash=True)
        assert_equal(scores, score(corpus[0], references, small, 2, idf=idf), 0)
        signatures.append(signature)

    assert f"|idf:{sum(map(len, references))}|" in signatures[1]

    scorer = BERTScorer(small, 2, lang="en", rescale_with_baseline=True, baseline_path=table)
    signatures += [scorer.score(*corpus, return_hash=True)[1], score(*corpus, small, 3, return_hash=True)[1]]

    assert signatures[3] == scorer.hash
    assert "|rescale:table.csv#" in scorer.hash
    assert len(set(signatures)) == 5
    assert signatures[0].startswith(str(FrozenEncoder(small, num_layers=2).signature()))


def test_arguments_without_effect_are_warned_about_once(small):
    with pytest.warns(UserWarning, match=r"nthreads=2 has no effect|use_fast_tokenizer=True has no") as caught:
        BERTScorer(small, 2, nthreads=2, use_fast_tokenizer=True)
    assert len(caught) == 2

    with warnings.catch_warnings(action="error"):
        BERTScorer(small, 2, nthreads=2, use_fast_tokenizer=True)
        warn_unused.cache_clear()
        BERTScorer(small, 2, nthreads=0)


def test_the_picture_of_an_example(small, table, tmp_path, monkeypatch, capsys):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    shown = []
    monkeypatch.setattr(pyplot, "show", lambda: shown.append(pyplot.gcf()))
    arguments = {"num_layers": 3, "lang": "en", "rescale_with_baseline": True, "baseline_path": table}
    for package, name in ((oracle, "theirs"), (drop_in, "ours")):
        path = str(tmp_path / f"{name}.png")
        assert package.plot_example(*EXAMPLE, small, **arguments, fname=path) is None
        assert Path(path).read_bytes().startswith(b"\x89PNG")
        assert f"Saved figure to file:  {path}" in capsys.readouterr().out
        # Of all layers the last.
        scorer = package.BERTScorer(model_type=small, num_layers=2, all_layers=True, idf=True, idf_sents=["a cat"])
        scorer.plot_example(*EXAMPLE)

    matrices = [torch.tensor(figure.axes[0].images[0].get_array()) for figure in shown]

    for theirs, ours in zip(matrices[:2], matrices[2:], strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=0)
    assert shown[2].get_suptitle() == shown[0].axes[0].get_title()
    assert shown[2].get_suptitle().endswith("(after Rescaling)")
    assert not shown[3].get_suptitle().endswith("(after Rescaling)")

    # No axes collapse where the texts are short.
    plot_example("a cat", "cats", small, 2)
    with warnings.catch_warnings(action="error"):
        shown[-1].draw_without_rendering()
    pyplot.close("all")
