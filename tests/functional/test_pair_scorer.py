"""The picklable scorer of batches: kinds of batches, pickles, and processes; with engines in tests/examples."""

import copy
import gc
import pickle
import shutil
import weakref

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

LAYER = 5


@pytest.fixture(scope="module")
def rows():
    candidates, references = real_pairs(30, words=12)
    return {"id": [*range(30)], "candidate": candidates, "reference": references}


@pytest.fixture(scope="module")
def scorer(minilm):
    return PairScorer(minilm, num_layers=LAYER)


def assert_scored(batch, rows, encoder, **options):
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


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_batch_gets_three_columns(kind, rows, scorer, encoder):
    batch = KINDS[kind](rows)
    scored = scorer(batch)
    assert type(scored) is type(batch)
    assert_scored(scored, rows, encoder)
    for again in (scored, scorer(scored)):  # scored before, as by an earlier model
        names = again.schema.names if hasattr(again, "schema") else [*again]
        assert names == ["id", "candidate", "reference", *SCORE_NAMES]
        assert {np.asarray(again[name]).dtype for name in SCORE_NAMES} == {np.dtype("float32")}
        assert [*map(int, np.asarray(again["id"]))] == rows["id"]
    assert "f1" not in (batch.schema.names if hasattr(batch, "schema") else [*batch])
    if hasattr(batch, "index"):
        assert scored.index.equals(batch.index)


@pytest.mark.parametrize("kind", ["lists", "data frame", "table", "record batch"])
def test_columns_may_have_the_names_of_attributes(kind, rows, scorer, encoder):
    others = {name: [name] * len(rows["candidate"]) for name in ("schema", "assign", "append_column")}
    scored = scorer(KINDS[kind](rows | others))
    assert_scored(scored, rows, encoder)
    assert [*np.asarray(scored["schema"])] == others["schema"]


@pytest.mark.parametrize("kind", ["lists", "data frame", "table", "record batch"])
def test_references_may_be_lists_and_columns_have_any_name(kind, rows, minilm, encoder):
    rows = {"id": rows["id"], "output": rows["candidate"], "gold": several_references(rows["reference"])}
    scored = PairScorer(minilm, num_layers=LAYER, candidate="output", reference="gold")(KINDS[kind](rows))
    assert_scored(scored, {"candidate": rows["output"], "reference": rows["gold"]}, encoder)


@pytest.mark.parametrize("kind", ["lists", "data frame", "table", "record batch"])
def test_a_batch_without_rows_gets_empty_columns(kind, rows, minilm):
    empty = pd.DataFrame(rows).iloc[:0]
    batch = {name: [] for name in rows} if kind == "lists" else empty
    if kind in ("table", "record batch"):
        batch = KINDS[kind](pa.Table.from_pandas(empty, preserve_index=False).to_pydict())
    scored = PairScorer(minilm, num_layers=2)(batch)
    assert all(np.asarray(scored[name]).dtype == np.float32 and len(scored[name]) == 0 for name in SCORE_NAMES)


def test_weights_and_baseline_are_those_of_the_whole_corpus(rows, minilm, encoder, table):
    idf = rows["reference"]
    metric = BERTScore(encoder, idf=idf, rescale=table)
    expected = {"idf": idf, "rescale": table}
    parts = [document_frequencies(idf[i::3], encoder) for i in range(3)]
    for weights in (idf, metric, metric.token_weights(), sum(parts)):
        scorer = PairScorer(minilm, num_layers=LAYER, idf=weights, rescale=table)
        assert scorer.signature == metric.signature()
        batches = [{name: values[i : i + 7] for name, values in rows.items()} for i in range(0, 30, 7)]
        scored = [pickle.loads(pickle.dumps(scorer))(batch) for batch in batches]
        assert_scored(
            {name: np.concatenate([batch[name] for batch in scored]) for name in SCORE_NAMES}, rows, encoder, **expected
        )
    rescaled = PairScorer(minilm, num_layers=LAYER, rescale=Baseline.read(table))
    assert_scored(rescaled(rows), rows, encoder, rescale=table)


def test_frequencies_of_parts_add_up_to_those_of_all(encoder):
    references = [["a cat", "a dog"], ["rain", " "], [""], ["a cat"]]  # a blank one next to another does not count
    parts = sum(document_frequencies(part, encoder) for part in (references[:1], references[1:], []))
    flat = ["a cat", "a dog", "rain", "", "a cat"]
    whole = document_frequencies(flat, encoder)
    assert torch.equal(parts.counts, whole.counts)
    assert parts.num_documents == whole.num_documents == 5
    ids = [{*encoder.tokenizer.tokenizer(text)["input_ids"]} for text in flat]
    for token in set().union(*ids):
        assert whole.counts[token] == sum(token in document for document in ids)
    with pytest.raises(ValueError, match="idf is empty"):
        bert_score(["a"], ["b"], encoder, idf=document_frequencies([], encoder))
    other = FrozenEncoder(*tiny_model("bert"), num_layers=1)
    with pytest.raises(ValueError, match="idf has weights of"):
        bert_score(["a"], ["b"], other, idf=whole)


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


def test_bad_settings_are_refused_where_the_scorer_is_made(minilm):
    with pytest.raises(TypeError, match=r"model must be the name or folder of a model, got a .*FrozenEncoder. Save"):
        PairScorer(FrozenEncoder(minilm, num_layers=2))
    with pytest.raises(TypeError, match="idf=True weights tokens by the references, which are not known here"):
        PairScorer(minilm, idf=True, num_layers=2)
    with pytest.raises(ValueError, match="one layer is compared here"):
        PairScorer(minilm, all_layers=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'layers'"):
        PairScorer(minilm, layers=3)


# Pickles.


def test_a_pickle_is_small_and_the_same_after_use(rows, scorer, minilm):
    scorer(rows)
    data = pickle.dumps(scorer)
    assert len(data) < 2_000
    assert data == pickle.dumps(pickle.loads(data)) == pickle.dumps(PairScorer(minilm, num_layers=LAYER))


def test_a_model_with_other_weights_is_an_error_that_names_both(tmp_path, rows, monkeypatch):
    folder = tmp_path / "model"
    scorer = PairScorer(save_tiny_model("bert", folder), num_layers=2)
    data = pickle.dumps(scorer)
    # The folder may be at a place of another name, as where an engine unpacks it.
    moved = copy.copy(pickle.loads(data))
    moved._model = str(shutil.copytree(folder, tmp_path / "unpacked" / "here")), *moved._model[1:]
    np.testing.assert_array_equal(moved(rows)["f1"], scorer(rows)["f1"])
    change_weights(folder)
    other = PairScorer(folder, num_layers=2)
    made, here = (each.signature["contents"] for each in (scorer, other))
    pair_scorer._share_encoder.cache_clear()  # as in another process
    listed = r"\(files: model\.safetensors\)\. Copy the model's"
    with pytest.raises(ValueError, match=rf"the scorer in contents \({here} instead of {made}\) {listed}"):
        pickle.loads(data)(rows)
    monkeypatch.setattr(settings, "__version__", "0.0.0")
    with pytest.raises(ValueError, match=r"the scorer in bertscore-tm \(0\.0\.0 instead of .*\)\. Copy the model's"):
        other(rows)
    monkeypatch.undo()
    # A new scorer of the same path has the new weights, in a process with the old encoder too.
    encoder = FrozenEncoder(folder, num_layers=2)
    assert_scored(pickle.loads(pickle.dumps(other))(rows), rows, encoder)
    assert np.abs(other(rows)["f1"] - moved(rows)["f1"]).max() > 1e-3


def change_weights(folder):
    model, tokenizer = copy.deepcopy(tiny_model("bert"))
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=0.7)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def test_datasets_cache_scores_by_the_contents_of_the_model(tmp_path, rows):
    """Rows of a file are cached by the mapped function's pickle; with a path alone, with the scores of old weights."""
    Dataset.from_dict(rows).to_json(tmp_path / "rows.jsonl")
    data = load_dataset(
        "json", data_files=str(tmp_path / "rows.jsonl"), split="train", cache_dir=str(tmp_path / "cache")
    )
    folder, scored = tmp_path / "model", []
    save_tiny_model("bert", folder)
    for _ in range(2):
        scorer = PairScorer(folder, num_layers=2)
        mapped = data.map(scorer, batched=True, batch_size=8)
        assert_scored(mapped, rows, FrozenEncoder(folder, num_layers=2))
        assert mapped.cache_files == data.map(PairScorer(folder, num_layers=2), batched=True, batch_size=8).cache_files
        scored.append(mapped)
        change_weights(folder)
    assert np.abs(np.subtract(scored[0]["f1"], scored[1]["f1"])).max() > 1e-3


# Processes.


def test_tasks_of_one_process_load_the_model_once(rows, minilm):
    data = pickle.dumps(PairScorer(minilm, num_layers=3))

    def task():
        scorer = pickle.loads(data)
        scorer(rows)
        return weakref.ref(scorer._encoder.backbone("cpu"))

    model = task()
    gc.collect()
    assert task() is model
    assert model() is not None
    # Pickles that take turns are scored without loading a model again.
    others = [pickle.dumps(PairScorer(minilm, num_layers=layer)) for layer in (2, 4)]
    backbones = [[pickle.loads(other)._encoder.backbone("cpu") for other in others] for _ in range(2)]
    assert backbones[0][0] is backbones[1][0]
    assert backbones[0][1] is backbones[1][1]
    # Two scorers that take turns hold a model each.
    scorers = [pickle.loads(data), PairScorer(minilm, num_layers=4)]
    models = [[scorer(rows) and scorer._encoder.backbone("cpu") for scorer in scorers] for _ in range(2)]
    assert models[0][0] is models[1][0] is not models[0][1] is models[1][1]
