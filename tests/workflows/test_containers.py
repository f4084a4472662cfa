"""Every entry point reads texts in any container, and names what is no text and where it is."""

import re

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from transformers import AutoTokenizer

from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from tests.support.entry_points import CORPORA, ENTRY_POINTS, PREDS, TARGET, run_score
from tests.support.models import save_tiny_model
from tests.support.oracle import oracle_scores
from tests.support.shell import check_error, run_here, write_lines, write_records

LAYER = 2
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Folder of a tiny model: others read texts in the same way, but their large tokenizers are slow to load."""
    return save_tiny_model("bert", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def encoder(tiny):
    return FrozenEncoder(tiny, num_layers=LAYER)


CONTAINERS = {
    "tuple": tuple,
    "iterator": iter,
    "array": np.array,
    "series": lambda texts: pd.Series(texts, index=[7, 5, 3]),
    "series of strings": lambda texts: pd.Series(texts, dtype="string"),
    "pyarrow array": pa.array,
    "pyarrow chunks": lambda texts: pa.chunked_array([texts[:1], texts[1:]]),
    "polars series": pl.Series,
}


@pytest.fixture(scope="module")
def expected(tiny):
    """Scores of bert-score for the lists of texts, by entry point."""
    pairs = oracle_scores(tiny, PREDS, TARGET, LAYER)[2]
    weighted = oracle_scores(tiny, PREDS, TARGET, LAYER, idf=TARGET)[2]
    candidates = np.repeat(PREDS, len(TARGET)).tolist()
    all_pairs = oracle_scores(tiny, candidates, TARGET * len(PREDS), LAYER)[2]
    scores = dict.fromkeys(ENTRY_POINTS, pairs.tolist())
    scores |= dict.fromkeys(CORPORA, weighted.tolist())
    scores["item of rank_candidates"] = all_pairs.view(len(PREDS), len(TARGET)).mean(1).tolist()
    return scores


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_scores_of_lists_are_those_of_bert_score(encoder, expected, entry_point):
    scores = ENTRY_POINTS[entry_point](encoder, PREDS, TARGET)

    assert scores == pytest.approx(expected[entry_point], abs=TOLERANCE)


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
@pytest.mark.parametrize("container", CONTAINERS)
def test_any_container_has_the_scores_of_lists(encoder, expected, entry_point, container):
    make = CONTAINERS[container]

    scores = ENTRY_POINTS[entry_point](encoder, make(PREDS), make(TARGET))

    assert scores == pytest.approx(expected[entry_point], abs=TOLERANCE)


REFERENCES = [["the cat", "cats"], ["a dog", "dogs"], ["sun", "rains"]]
ROWS = {
    "array": np.array(REFERENCES),
    "pyarrow array": pa.array(REFERENCES),
    "pyarrow rows": [pa.array(row) for row in REFERENCES],
    "data frame": pd.DataFrame(REFERENCES, columns=["first", "second"]),
    "array of a data frame": pd.DataFrame(REFERENCES).to_numpy(),
    "tuples": [tuple(row) for row in REFERENCES],
    "iterators": map(iter, REFERENCES),
}


@pytest.mark.parametrize("container", ROWS)
def test_rows_of_references_have_the_scores_of_lists(encoder, tiny, container):
    expected = oracle_scores(tiny, PREDS, REFERENCES, LAYER)[2]

    scores = bert_score(PREDS, ROWS[container], encoder)["f1"]

    torch.testing.assert_close(scores, expected, atol=TOLERANCE, rtol=0)


MISSING = [None, float("nan"), np.float32("nan"), pd.NA, pd.NaT]
# Place and remedy. A batch names its column.
SAID = r"\[2\](\[0\])? must be .*, a missing value: drop or fill it, as with dropna\(\)"
SAID_OF_BATCHES = "has .* instead of a text in row 2 of a batch, .* Drop such rows first"


@pytest.mark.parametrize("missing", MISSING, ids=repr)
@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_a_missing_value_names_its_place_and_a_remedy(encoder, entry_point, missing):
    message = SAID_OF_BATCHES if entry_point == "PairScorer" else SAID
    preds = [*PREDS[:2], missing]
    target = [*TARGET[:2], missing]
    score = ENTRY_POINTS[entry_point]

    # The reward of a text whose reference is missing is None.
    if entry_point != "BERTScoreReward":
        with pytest.raises((TypeError, ValueError), match=message):
            score(encoder, PREDS, target)
    if entry_point not in CORPORA:
        with pytest.raises((TypeError, ValueError), match=message):
            score(encoder, preds, TARGET)


@pytest.mark.parametrize("missing", MISSING, ids=repr)
@pytest.mark.parametrize("entry_point", ["bert_score", "BERTScoreReward", "PairScorer", "Report"])
def test_a_missing_reference_of_several_names_its_place(encoder, entry_point, missing):
    target = [["b"], ["b", missing], ["b"]]

    with pytest.raises(TypeError, match=r"\[1\]\[1\] must be .*, a missing value: drop or fill it"):
        ENTRY_POINTS[entry_point](encoder, PREDS, target)


@pytest.fixture(scope="module")
def ids(tiny):
    """Token ids of ``PREDS``, by kind."""
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    encoding = tokenizer(PREDS, padding=True)
    rows = encoding["input_ids"]
    return {"tensor": torch.tensor(rows), "array": np.array(rows), "lists": rows, "encoding": encoding}


@pytest.mark.parametrize("kind", ["tensor", "array", "lists", "encoding"])
@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_token_ids_are_an_error_with_the_remedy(encoder, ids, entry_point, kind):
    score = ENTRY_POINTS[entry_point]
    # A mapping given as idf has weights by token id.
    message = "decode token ids with their tokenizer first|has the key 'input_ids', but keys must be token ids"

    with pytest.raises((TypeError, ValueError), match=message):
        score(encoder, PREDS, ids[kind])
    # A list of candidates is made of each item there.
    if entry_point not in {*CORPORA, "rank_candidates"}:
        with pytest.raises(TypeError, match=message):
            score(encoder, ids[kind], TARGET)


@pytest.mark.parametrize(
    ("preds", "target", "error", "message"),
    [
        (None, ["a"], TypeError, "preds must be a string or a sequence of strings, got None (NoneType)"),
        (b"a", ["a"], TypeError, "a sequence of strings, got b'a' (bytes): decode bytes to a string first"),
        (["a"], [bytearray(b"a")], TypeError, "got bytearray(b'a') (bytearray): decode bytes to a string first"),
        ([[101, 7]], ["a"], TypeError, "preds[0] must be a string, got [101, 7] (list): decode token ids"),
        (["a"], [[101, 7]], TypeError, "target[0][0] must be a string, got 101 (int): decode token ids"),
        (np.array("a"), ["a"], TypeError, "preds must have one text per row, got ndarray of shape ()"),
        (pa.array(["a", None]), ["a", "b"], TypeError, "preds[1] must be a string, got None (NoneType)"),
        (pa.table({"x": ["a"]}), ["a"], TypeError, "preds must be a string or a sequence of strings, got pyarrow"),
        (["a"], [["a", float("nan")]], TypeError, "target[0][1] must be a string, got nan (float)"),
        (pd.Series(["a", pd.NA], dtype="string"), ["a", "b"], TypeError, "preds[1] must be a string, got"),
        (pd.DataFrame({"x": ["a"]}), ["a"], TypeError, "preds must have one text per row, got ndarray of shape (1, 1)"),
        (["a", "b"], torch.ones(2, 5).long(), TypeError, "target must be texts, got a tensor of shape (2, 5)"),
        (np.ones((2, 5), int), ["a", "b"], TypeError, "preds must be texts, got ndarray of shape (2, 5): decode token"),
        ([torch.tensor([7])], ["a"], TypeError, "preds[0] must be a string, got tensor([7]) (Tensor): decode"),
        (["x" * 10, [1] * 500], ["a", "b"], TypeError, "... (list)"),
        ({"input_ids": [[1]]}, ["a"], TypeError, "got {'input_ids': [[1]]} (dict): decode token ids"),
        (["a"], [None], TypeError, "target[0] must be a string or a sequence of strings, got None (NoneType)"),
        (["a"], [[None]], TypeError, "target[0][0] must be a string, got None (NoneType)"),
        ([0.5], ["a"], TypeError, "preds[0] must be a string, got 0.5 (float)"),
        (["a", "b"], ["a"], ValueError, "equal lengths, got 2 and 1"),
        ("a", ["a"], TypeError, "preds is a single string: pass a list of texts"),
    ],
)
def test_what_is_no_text_is_an_error_that_loses_nothing(encoder, preds, target, error, message):
    metric = BERTScore(encoder)
    metric.update(["a cat"], ["the cat"])
    before = metric.compute()

    for call in (lambda *texts: bert_score(*texts, encoder), metric.update):
        with pytest.raises(error, match=re.escape(message)) as caught:
            call(preds, target)
        assert len(str(caught.value)) < 300

    assert metric.compute() == before


def test_numbers_are_no_missing_values(encoder):
    with pytest.raises(TypeError, match=r"preds\[0\] must be a string, got 0\.5 \(float\)$"):
        bert_score([0.5], ["a"], encoder)


# The containers of the shell are formats of files.


def write_columns(path, preds, target):
    """Write a file with a column of candidates and one of references."""
    frame = pd.DataFrame({"candidate": preds, "reference": target})
    if path.suffix == ".parquet":
        pa.parquet.write_table(pa.Table.from_pandas(frame), path)
    elif path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".tsv":
        frame.to_csv(path, index=False, sep="\t")
    elif path.suffix == ".json":
        frame.to_json(path, orient="records")
    else:
        write_records(path, frame.to_dict("records"))


COLUMNS = ["csv", "tsv", "jsonl", "json", "parquet"]


@pytest.mark.parametrize("suffix", COLUMNS)
def test_a_file_of_pairs_has_the_scores_of_lists(encoder, expected, tmp_path, suffix):
    path = tmp_path / f"pairs.{suffix}"
    write_columns(path, PREDS, TARGET)

    scores = run_score(encoder, path)

    # The file has six decimals.
    assert scores == pytest.approx(expected["bert_score"], abs=TOLERANCE + 5e-7)


def test_two_files_of_lines_have_the_scores_of_lists(encoder, expected, tmp_path):
    files = tmp_path / "candidates.txt", tmp_path / "references.txt"
    for path, texts in zip(files, (PREDS, TARGET), strict=True):
        write_lines(path, texts)

    scores = run_score(encoder, *files)

    assert scores == pytest.approx(expected["bert_score"], abs=TOLERANCE + 5e-7)


@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet"])
def test_a_missing_candidate_names_its_place_in_the_file(tiny, tmp_path, capsys, suffix):
    path = tmp_path / f"pairs.{suffix}"
    write_columns(path, [*PREDS[:2], None], TARGET)

    printed = run_here(capsys, "score", path, "-m", tiny, "-l", LAYER, exit_code=2)

    place = "pairs.jsonl:3" if suffix == "jsonl" else f"pairs.{suffix}: row 3"
    message = r"'candidate' must be a text or an array of texts, got (None|nan)\. Correct this row$"
    check_error(printed, f"{place}: {message}")


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_an_empty_cell_is_a_blank_candidate(tiny, tmp_path, capsys, suffix):
    path = tmp_path / f"pairs.{suffix}"
    write_columns(path, [*PREDS[:2], None], TARGET)

    printed = run_here(capsys, "score", path, "-m", tiny, "-l", LAYER, "--device", "cpu")

    assert "3 candidates, 3 references" in printed.out
    assert printed.err.startswith("bertscore-tm: warning: 1 candidate scored 0 because the text")
