"""The picklable scorer of batches: kinds of batches, pickles, and processes; with engines in tests/examples."""

import copy
import gc
import pickle
import shutil
import weakref
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from datasets import Dataset, load_dataset

from bertscore_tm import Baseline, BERTScore, FrozenEncoder, PairScorer, bert_score
from bertscore_tm.functional import SCORE_NAMES, document_frequencies, pair_scorer
from bertscore_tm.scoring import settings
from tests.support.models import save_tiny_model, tiny_model
from tests.support.texts import real_pairs, several_references

LAYER = 2


@pytest.fixture(scope="module")
def rows():
    candidates, references = real_pairs(30, words=12)
    return {"id": [*range(30)], "candidate": candidates, "reference": references}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """Folder of a tiny model, because most tests load it."""
    return save_tiny_model("bert", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def encoder(model_folder):
    """The encoder of the scorers."""
    return FrozenEncoder(model_folder, num_layers=LAYER)


@pytest.fixture(scope="module")
def scorer(model_folder):
    return PairScorer(model_folder, num_layers=LAYER)


def assert_scored(batch, rows, encoder, **options):
    """Compare the scores of a batch with those of the function."""
    expected = bert_score(rows["candidate"], rows["reference"], encoder, **options)

    for name in SCORE_NAMES:
        np.testing.assert_allclose(np.asarray(batch[name]), expected[name].numpy(), atol=1e-6, rtol=0)


KINDS = {
    "lists": dict,
    "arrays": lambda rows: {name: np.array(values) for name, values in rows.items()},
    "data frame": lambda rows: pd.DataFrame(rows).set_index("id", drop=False),
    "data frame of Arrow": lambda rows: pd.DataFrame(rows).convert_dtypes(dtype_backend="pyarrow"),
    "table": pa.table,
    "table of two chunks": lambda rows: pa.concat_tables([pa.table(rows).slice(0, 7), pa.table(rows).slice(7)]),
    "record batch": pa.record_batch,
}


def column_names(batch):
    """Return the names of the columns of a batch of any kind."""
    if hasattr(batch, "schema"):
        return batch.schema.names
    return list(batch)


def assert_columns(scored, rows):
    """Check that a batch has its own columns and three of scores."""
    assert column_names(scored) == [*rows, *SCORE_NAMES]
    for name in SCORE_NAMES:
        assert np.asarray(scored[name]).dtype == np.float32
    ids = np.asarray(scored["id"]).tolist()
    assert ids == rows["id"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_batch_gets_three_columns(kind, rows, scorer, encoder):
    batch = KINDS[kind](rows)

    scored = scorer(batch)

    assert type(scored) is type(batch)
    assert_scored(scored, rows, encoder)
    assert_columns(scored, rows)
    # The batch itself is not changed.
    assert column_names(batch) == [*rows]
    if hasattr(batch, "index"):
        assert scored.index.equals(batch.index)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_an_earlier_model_are_replaced(kind, rows, scorer):
    scored = scorer(KINDS[kind](rows))

    again = scorer(scored)

    assert_columns(again, rows)


@pytest.mark.parametrize("kind", ["lists", "data frame", "table", "record batch"])
def test_columns_may_have_the_names_of_attributes(kind, rows, scorer, encoder):
    others = {}
    for name in ("schema", "assign", "append_column"):
        others[name] = [name] * len(rows["candidate"])

    scored = scorer(KINDS[kind](rows | others))

    assert_scored(scored, rows, encoder)
    assert np.asarray(scored["schema"]).tolist() == others["schema"]


@pytest.mark.parametrize("kind", ["lists", "data frame", "table", "record batch"])
def test_references_may_be_lists_and_columns_have_any_name(kind, rows, model_folder, encoder):
    references = several_references(rows["reference"])
    batch = KINDS[kind]({"id": rows["id"], "output": rows["candidate"], "gold": references})
    scorer = PairScorer(model_folder, num_layers=LAYER, candidate="output", reference="gold")

    scored = scorer(batch)

    assert_scored(scored, {"candidate": rows["candidate"], "reference": references}, encoder)


@pytest.mark.parametrize("kind", ["lists", "data frame", "table", "record batch"])
def test_a_batch_without_rows_gets_empty_columns(kind, scorer):
    batch = KINDS[kind]({"id": [], "candidate": [], "reference": []})

    scored = scorer(batch)

    for name in SCORE_NAMES:
        assert np.asarray(scored[name]).dtype == np.float32
        assert len(scored[name]) == 0


def idf_of(kind, references, encoder):
    """Return the document frequencies of references, in a kind that a scorer takes."""
    if kind == "texts":
        return references
    if kind == "metric":
        return BERTScore(encoder, idf=references)
    if kind == "weights":
        return BERTScore(encoder, idf=references).token_weights()
    # Counted in three parts, as on several machines.
    return sum(document_frequencies(references[start::3], encoder) for start in range(3))


@pytest.mark.parametrize("kind", ["texts", "metric", "weights", "frequencies"])
def test_weights_are_those_of_the_whole_corpus(rows, model_folder, encoder, table, kind):
    references = rows["reference"]
    options = {"idf": idf_of(kind, references, encoder), "rescale": table}
    scorer = PairScorer(model_folder, num_layers=LAYER, **options)
    pickled = pickle.dumps(scorer)

    parts = []
    for start in range(0, len(references), 7):
        batch = {name: values[start : start + 7] for name, values in rows.items()}
        parts.append(pickle.loads(pickled)(batch))

    scores = {name: np.concatenate([part[name] for part in parts]) for name in SCORE_NAMES}
    assert_scored(scores, rows, encoder, idf=references, rescale=table)
    assert scorer.signature == BERTScore(encoder, idf=references, rescale=table).signature()


def test_a_baseline_may_be_read_before(rows, model_folder, encoder, table):
    scorer = PairScorer(model_folder, num_layers=LAYER, rescale=Baseline.read(table))

    scored = scorer(rows)

    assert_scored(scored, rows, encoder, rescale=table)


def test_frequencies_of_parts_add_up_to_those_of_all(encoder):
    # A blank reference next to another does not count.
    references = [["a cat", "a dog"], ["rain", " "], [""], ["a cat"]]
    documents = ["a cat", "a dog", "rain", "", "a cat"]
    tokenize = encoder.tokenizer.tokenizer
    counts = Counter(token for text in documents for token in set(tokenize(text)["input_ids"]))

    parts = sum(document_frequencies(part, encoder) for part in (references[:1], references[1:], []))
    whole = document_frequencies(documents, encoder)

    assert torch.equal(parts.counts, whole.counts)
    assert parts.num_documents == whole.num_documents == len(documents)
    for token, count in counts.items():
        assert whole.counts[token] == count


def test_frequencies_of_nothing_or_of_another_model_are_refused(encoder, minilm):
    nothing = document_frequencies([], encoder)
    frequencies = document_frequencies(["a cat"], encoder)
    other = FrozenEncoder(minilm, num_layers=1)

    with pytest.raises(ValueError, match="idf is empty"):
        bert_score(["a"], ["b"], encoder, idf=nothing)
    with pytest.raises(ValueError, match="idf has weights of"):
        bert_score(["a"], ["b"], other, idf=frequencies)


BAD_ROWS = {
    "null": ({"candidate": ["a", None], "reference": ["b", "c"]}, ValueError, "'candidate' has None .* row 1 .* 'c'"),
    "nan": (
        pd.DataFrame({"candidate": ["a", "d"], "reference": ["b", None]}),
        ValueError,
        "'reference' has nan instead of a text in row 1 of a batch, next to 'd' .*. Drop such rows first",
    ),
    "Arrow": (pa.table({"candidate": [None], "reference": ["b"]}), ValueError, "'candidate' has None .* row 0 .* 'b'"),
    "in a list": ({"candidate": ["a"], "reference": [["b", None]]}, TypeError, r"reference\[0\]\[1\] must be a string"),
    "name": (pa.table({"text": ["a"]}), KeyError, "no column 'candidate' in text. Pass its name as candidate="),
    "bytes": ({"candidate": [b"a"], "reference": ["b"]}, TypeError, r"candidate\[0\] must be a string.*decode"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_rows_are_named(case, scorer):
    batch, error, message = BAD_ROWS[case]

    with pytest.raises(error, match=message):
        scorer(batch)


@pytest.mark.parametrize("reference", [["the cat sat"], [["the cat sat", "a cat"]]], ids=["text", "list"])
def test_a_map_without_batches_names_the_option(reference, scorer):
    data = Dataset.from_dict({"candidate": ["a cat sat"], "reference": reference})

    with pytest.raises(TypeError, match=r"'candidate' has a single text, .*map\(scorer, batched=True\)"):
        data.map(scorer)

    mapped = data.map(scorer, batched=True)
    assert set(SCORE_NAMES) < set(mapped.column_names)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"idf": True}, TypeError, "idf=True weights tokens by the references, which are not known here"),
        ({"num_layers": None, "all_layers": True}, ValueError, "one layer is compared here"),
        ({"layers": 3}, TypeError, "unexpected keyword argument 'layers'"),
    ],
)
def test_bad_settings_are_refused_where_the_scorer_is_made(model_folder, options, error, message):
    with pytest.raises(error, match=message):
        PairScorer(model_folder, **{"num_layers": LAYER} | options)


def test_an_encoder_in_place_of_a_model_is_refused(encoder):
    with pytest.raises(TypeError, match=r"model must be the name or folder of a model, got a .*FrozenEncoder. Save"):
        PairScorer(encoder)


# Pickles.


def test_a_pickle_is_small_and_the_same_after_use(rows, scorer, model_folder):
    scorer(rows)

    data = pickle.dumps(scorer)

    assert len(data) < 2_000
    assert data == pickle.dumps(pickle.loads(data)) == pickle.dumps(PairScorer(model_folder, num_layers=LAYER))


def test_a_model_with_other_weights_is_an_error_that_names_both(tmp_path, rows):
    folder = tmp_path / "model"
    scorer = PairScorer(save_tiny_model("bert", folder), num_layers=LAYER)
    data = pickle.dumps(scorer)
    change_weights(folder)
    here = PairScorer(folder, num_layers=LAYER).signature["contents"]
    pair_scorer._share_encoder.cache_clear()  # as in another process
    differences = rf"contents \({here} instead of {scorer.signature['contents']}\)"

    with pytest.raises(ValueError, match=rf"the scorer in {differences} \(files: model\.safetensors\)\. Copy the"):
        pickle.loads(data)(rows)


def test_another_version_is_an_error_that_names_both(scorer, rows, monkeypatch):
    monkeypatch.setattr(settings, "__version__", "0.0.0")

    with pytest.raises(ValueError, match=r"the scorer in bertscore-tm \(0\.0\.0 instead of .*\)\. Copy the model's"):
        scorer(rows)


def test_a_copy_of_the_folder_at_another_place_is_the_same_model(tmp_path, rows):
    folder = tmp_path / "model"
    scorer = PairScorer(save_tiny_model("bert", folder), num_layers=LAYER)
    unpacked = shutil.copytree(folder, tmp_path / "unpacked" / "here")
    moved = pickle.loads(pickle.dumps(scorer))
    moved._model = str(unpacked), *moved._model[1:]

    np.testing.assert_array_equal(moved(rows)["f1"], scorer(rows)["f1"])


def test_a_new_scorer_of_a_path_has_the_new_weights(tmp_path, rows):
    folder = tmp_path / "model"
    old = PairScorer(save_tiny_model("bert", folder), num_layers=LAYER)
    old_scores = old(rows)["f1"]
    change_weights(folder)
    new = PairScorer(folder, num_layers=LAYER)

    scored = pickle.loads(pickle.dumps(new))(rows)

    assert_scored(scored, rows, FrozenEncoder(folder, num_layers=LAYER))
    assert np.abs(scored["f1"] - old_scores).max() > 1e-3


def change_weights(folder):
    model, tokenizer = copy.deepcopy(tiny_model("bert"))
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=0.7)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def test_datasets_cache_scores_by_the_contents_of_the_model(tmp_path, rows):
    """Rows of a file are cached by the mapped function's pickle; with a path alone, with the scores of old weights."""
    path = str(tmp_path / "rows.jsonl")
    Dataset.from_dict(rows).to_json(path)
    data = load_dataset("json", data_files=path, split="train", cache_dir=str(tmp_path / "cache"))
    folder = save_tiny_model("bert", tmp_path / "model")

    before = data.map(PairScorer(folder, num_layers=LAYER), batched=True, batch_size=8)
    again = data.map(PairScorer(folder, num_layers=LAYER), batched=True, batch_size=8)
    change_weights(folder)
    after = data.map(PairScorer(folder, num_layers=LAYER), batched=True, batch_size=8)

    assert again.cache_files == before.cache_files
    assert_scored(after, rows, FrozenEncoder(folder, num_layers=LAYER))
    assert np.abs(np.subtract(before["f1"], after["f1"])).max() > 1e-3


# Processes; more of them are in tests/workflows/test_other_processes.py.


def test_tasks_of_one_process_load_the_model_once(rows, model_folder):
    data = pickle.dumps(PairScorer(model_folder, num_layers=3))

    def run_task():
        """Score with a new scorer, and return its model."""
        scorer = pickle.loads(data)
        scorer(rows)
        return weakref.ref(scorer._encoder.backbone("cpu"))

    model = run_task()
    gc.collect()
    assert run_task() is model
    assert model() is not None


def load_models(scorers):
    """Return the models of scorers, which are loaded one after the other."""
    return [scorer._encoder.backbone("cpu") for scorer in scorers]


def test_pickles_that_take_turns_share_their_models(model_folder):
    pickles = [pickle.dumps(PairScorer(model_folder, num_layers=layer)) for layer in (1, 3)]

    first = load_models(map(pickle.loads, pickles))
    second = load_models(map(pickle.loads, pickles))

    assert first[0] is second[0] is not first[1]
    assert first[1] is second[1]


def test_scorers_that_take_turns_hold_a_model_each(model_folder):
    scorers = [PairScorer(model_folder, num_layers=layer) for layer in (1, 3)]

    first = load_models(scorers)
    second = load_models(scorers)

    assert first[0] is second[0] is not first[1]
    assert first[1] is second[1]
