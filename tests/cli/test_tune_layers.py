"""``bertscore-tm tune-layers``: the ranking of the library, from judgements in files of several kinds."""

import json
from functools import partial

import numpy as np
import pytest
import torch

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.layer_tuning import rank_layers, rank_layers_by_preference, system_means
from tests.support.models import save_tiny_model
from tests.support.shell import check_error, numbers_in, run_here, write_lines, write_records
from tests.support.texts import real_pairs

COUNT = 24
SCORES = ("precision", "recall", "f1")
CANDIDATES, REFERENCES = real_pairs(COUNT, words=9)
SEVERAL = [[reference, REFERENCES[i - 1]] for i, reference in enumerate(REFERENCES)]
RATINGS = np.random.default_rng(0).integers(1, 6, (2, COUNT)).tolist()
HUMAN = {"adequacy": RATINGS[0], "fluency": RATINGS[1]}
SYSTEMS = [f"system {i % 6}" for i in range(COUNT)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small model, and the same judgements in files of several kinds."""
    folder = tmp_path_factory.mktemp("judged")
    save_tiny_model("bert", folder / "model")
    columns = zip(CANDIDATES, SEVERAL, *RATINGS, SYSTEMS, strict=True)
    rows = [dict(zip(("candidate", "references", *HUMAN, "system"), row, strict=True)) for row in columns]
    write_records(folder / "judged.jsonl", rows)
    header = "\t".join(("system", "candidate", "first", "second", *HUMAN))
    cells = [(row["system"], row["candidate"], *row["references"], *(str(row[kind]) for kind in HUMAN)) for row in rows]
    write_lines(folder / "judged.tsv", [header, *map("\t".join, cells)])
    write_lines(folder / "hyps.txt", CANDIDATES)
    for i in range(2):
        write_lines(folder / f"refs{i}.txt", [references[i] for references in SEVERAL])
    pairs = zip(REFERENCES, CANDIDATES, CANDIDATES[1:] + CANDIDATES[:1], strict=True)
    write_records(folder / "darr.jsonl", [{"reference": r, "better": b, "worse": w} for r, b, w in pairs])
    return folder


@pytest.fixture
def command(folder, monkeypatch, capsys):
    """Run the command in the folder of the judgements; returns what it printed."""
    monkeypatch.chdir(folder)
    return partial(run_here, capsys, "tune-layers", "-m", "model", "--device", "cpu")


@pytest.fixture(scope="module")
def model(folder):
    return FrozenEncoder(folder / "model", all_layers=True)


def check_document(document, ranked):
    """Check a JSON document against the library's rankings by precision, recall and F1."""
    assert list(document["rankings"]) == list(SCORES)
    for score, layers in zip(SCORES, ranked, strict=True):
        assert [layer["layer"] for layer in document["rankings"][score]] == [layer.layer for layer in layers]
        for printed, layer in zip(document["rankings"][score], layers, strict=True):
            assert printed["mean"] == pytest.approx(layer.mean, abs=2e-6)
            assert list(printed["agreement"]) == list(layer.agreement)
            for name, estimate in layer.agreement.items():
                assert printed["agreement"][name] == pytest.approx(vars(estimate), abs=2e-6)


KINDS = ["--human-column", "adequacy", "--human-column", "fluency"]


@pytest.mark.parametrize(("how", "idf"), [("pearson", False), ("spearman", True), ("kendall", False)])
def test_document_is_the_librarys_ranking(command, model, how, idf):
    options = ["--coefficient", how, "--confidence", "0.8", "--json", *(["--idf"] if idf else [])]
    document = json.loads(command("-c", "judged.jsonl", *KINDS, *options).out)
    scores = bert_score(CANDIDATES, SEVERAL, model, idf=idf)
    check_document(document, [rank_layers(scores[name], HUMAN, how, confidence=0.8) for name in SCORES])
    assert (document["coefficient"], document["confidence"], document["num_judged"]) == (how, 0.8, COUNT)
    assert document["num_systems"] is None
    assert f"|idf:{2 * COUNT if idf else 'no'}|" in document["signature"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["-c", "judged.tsv", "--reference-column", "first", "--reference-column", "second", *KINDS],
        ["-c", "judged.jsonl", "-r", "refs0.txt", "refs1.txt", *KINDS],
    ],
)
def test_other_files(command, arguments):
    expected = json.loads(command("-c", "judged.jsonl", *KINDS, "--json").out)
    expected["row"]["data"] = arguments[1]
    assert json.loads(command(*arguments, "--json").out) == expected


def test_systems(command, model):
    document = json.loads(command("-c", "judged.jsonl", *KINDS, "--system-column", "system", "--json").out)
    scores = bert_score(CANDIDATES, SEVERAL, model)
    human = {name: system_means(torch.tensor(values), SYSTEMS) for name, values in HUMAN.items()}
    check_document(document, [rank_layers(system_means(scores[name], SYSTEMS), human) for name in SCORES])
    assert (document["num_judged"], document["num_systems"]) == (COUNT, 6)


@pytest.mark.parametrize(
    ("judged", "coefficient"),
    [(["-c", "judged.jsonl", *KINDS, "--coefficient", "spearman"], "spearman"), (["--darr", "darr.jsonl"], "darr")],
)
def test_an_encoder_and_other_commands_use_the_row_of_the_best_layer(command, folder, capsys, judged, coefficient):
    command(*judged, "--component", "recall", "-o", "row.json")
    document = json.loads((folder / "row.json").read_text())
    best = document["rankings"]["recall"][0]
    row = {"model": "model", "num_layers": best["layer"], "component": "recall", coefficient: best["mean"]}
    assert document["row"] == row | {"data": judged[1]}
    # Another layer than that of the file, to see that it is read.
    for layer in (best["layer"], (best["layer"] + 1) % 4):
        document["row"]["num_layers"] = layer
        (folder / "row.json").write_text(json.dumps(document))
        encoder = FrozenEncoder(folder / "model", listed_as=folder / "row.json")
        assert (encoder.num_layers, encoder.listed_name) == (layer, "model")
        assert f"|layer:{layer}|" in encoder.signature()
        texts = ["--candidate-text", "a cat", "--reference-text", "the cat", "--device", "cpu", "--json"]
        shown = run_here(capsys, "score", "-m", "model", "--listed-as", "row.json", *texts)
        assert f"|layer:{layer}|" in json.loads(shown.out)["signature"]
    document["row"]["num_layers"] = 4
    (folder / "row.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match="num_layers=4 is not one of the layers 0 to 3"):
        FrozenEncoder(folder / "model", listed_as=folder / "row.json")


def test_preferences(command, model):
    few = json.loads(command("--darr", "darr.jsonl", "--json", "-l", "1").out)
    assert sorted(layer["layer"] for layer in few["rankings"]["f1"]) == [0, 1]
    document = json.loads(command("--darr", "darr.jsonl", "--json", "--idf").out)
    # Each preference's reference counts once.
    better = bert_score(CANDIDATES, REFERENCES, model, idf=REFERENCES)
    worse = bert_score(CANDIDATES[1:] + CANDIDATES[:1], REFERENCES, model, idf=REFERENCES)
    check_document(document, [rank_layers_by_preference(better[name], worse[name]) for name in SCORES])
    assert (document["coefficient"], document["num_judged"]) == ("darr", COUNT)


def test_table(command, folder):
    ranking = json.loads(command("-c", "judged.jsonl", *KINDS, "--json").out)["rankings"]["recall"]
    command("-c", "judged.jsonl", *KINDS, "--component", "recall", "-o", "table.txt")
    lines = (folder / "table.txt").read_text().splitlines()
    assert lines[0].split() == ["layer", "mean", "adequacy", "fluency"]
    for line, layer in zip(lines[1:5], ranking, strict=True):
        cells = [value for estimate in layer["agreement"].values() for value in estimate.values()]
        assert line.split()[0] == str(layer["layer"])
        assert numbers_in(line) == pytest.approx([layer["mean"], *cells], abs=6e-5)
    assert lines[5] == f"R and {COUNT} texts: Pearson, 95% intervals"
    assert lines[6].startswith("signature: ")
    systems = command("-c", "judged.jsonl", "--human-column", "fluency", "--system-column", "system").out.splitlines()
    assert systems[5] == f"F1 and {COUNT} texts of 6 systems: Pearson, 95% intervals"
    preferences = command("--darr", "darr.jsonl").out.splitlines()
    assert preferences[0].split() == ["layer", "mean", "darr"]
    assert preferences[5].startswith(f"F1 and {COUNT} preferences: share of concordant minus share of discordant")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a FILE of judged texts"),
        (["-c", "judged.jsonl", "--darr", "darr.jsonl"], "give a FILE of judged texts"),
        (["-c", "broken.jsonl"], r"broken\.jsonl:3: 'human' must be a finite number, got None"),
        (["-c", "infinite.jsonl"], r"infinite\.jsonl:1: 'human' must be a finite number, got nan"),
        (["--darr", "hyps.txt"], "--darr needs a file with columns"),
        (["-c", "constant.jsonl"], r"constant\.jsonl: 'human' is 3\.0 for every text: judgements must differ"),
        (["-c", "few.jsonl"], r"few\.jsonl: a correlation needs at least 5 texts, got 4"),
        (
            ["-c", "fine.jsonl", "--system-column", "system"],
            r"fine\.jsonl: a correlation needs at least 5 systems, got 2",
        ),
        (["--darr", "one.jsonl"], r"one\.jsonl: a ranking needs at least 2 preferences, got 1"),
    ],
)
def test_bad_input(command, folder, monkeypatch, arguments, message):
    # Found before a text is encoded.
    monkeypatch.setattr(FrozenEncoder, "encode", None)
    texts = {"broken": [1, "2.5", None, 4, 5], "infinite": [float("nan")] * 5}
    texts |= {"constant": [3] * 5, "few": [1, 2, 3, 4], "fine": [1, 2, 3, 4, 5]}
    for name, values in texts.items():
        rows = [{"candidate": "a", "reference": "b", "human": v, "system": f"{i % 2}"} for i, v in enumerate(values)]
        write_records(folder / f"{name}.jsonl", rows)
    write_records(folder / "one.jsonl", [{"reference": "a", "better": "b", "worse": "c"}])
    check_error(command(*arguments, exit_code=2), message)


def test_layers_without_any_coefficient(command, folder):
    rows = [{"candidate": "a cat", "reference": "the cat", "human": i} for i in range(5)]
    write_records(folder / "equal.jsonl", rows)
    check_error(command("equal.jsonl", exit_code=2), "at every layer all scores are equal: no correlation is defined")
