"""The benchmark command: figures with their spread, and tables of what was asked for; never a time."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from examples.benchmarks import __main__ as command
from examples.benchmarks import scoring
from examples.benchmarks.options import Options
from examples.benchmarks.rounds import Figure, in_turn, ratios
from tests.support.texts import real_pairs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def options(minilm) -> Options:
    texts = [(candidate, [reference]) for candidate, reference in zip(*real_pairs(40), strict=True)]
    return Options(rounds=2, threads=1, pairs=8, model=str(minilm), num_layers=1, texts=texts)


def test_a_figure_meets_its_target_by_the_median():
    figure = Figure("speed", [1.0, 3.0, 2.0], "times", 2.0)
    assert figure.met is True
    assert replace(figure, target=2.1).met is False
    assert replace(figure, at_most=True).met is True
    assert replace(figure, target=None).met is None
    assert figure.record() == {
        "what": "speed",
        "median": 2.0,
        "minimum": 1.0,
        "maximum": 3.0,
        "unit": "times",
        "target": "at least 2",
        "met": True,
        "rounds": 3,
    }


def test_ways_take_turns():
    calls = []
    seconds = in_turn({name: lambda name=name: calls.append(name) for name in "abc"}, rounds=4)
    assert "".join(calls) == "abc" + "abc" + "bca" + "cab" + "abc"
    assert {name: len(values) for name, values in seconds.items()} == {"a": 4, "b": 4, "c": 4}
    assert ratios([2.0, 3.0], [1.0, 2.0]) == [2.0, 1.5]


def test_scoring(options, monkeypatch):
    monkeypatch.setattr(scoring, "has_native_bfloat16", lambda device: False)
    found = {figure.what: figure for figure in scoring.measure(options)}
    for texts in ("short texts", "mixed texts, several references"):
        assert len(found[f"{texts}: float32, faster than bert-score"].values) == 2
        [difference] = found[f"{texts}: float32, largest difference in F1"].values
        assert difference < 1e-6
    assert found["short texts: float32, faster than bert-score"].target == 1.7
    assert found["mixed texts, several references: float32, faster than bert-score"].target == 2.0
    share = found["float32, time that is not the encoder's"]
    assert all(0 < value < 1 for value in share.values)
    assert share.at_most
    assert "time that idf adds" in found
    assert found["second validation, faster than the first"].target == 1.8
    assert not any("bfloat16" in what for what in found)


def test_texts_of_mixed_length_have_several_references(options):
    mixed = scoring._mixed(options)
    assert all(len(references) == 11 for _, references in mixed)
    lengths = [len(reference.split()) for _, references in mixed for reference in references]
    assert max(lengths) > 3 * min(lengths)
    real = [("a", [f"b{i}" for i in range(11)]), ("c", ["d"])]
    assert scoring._mixed(replace(options, texts=real)) == real[:1]


def test_time_inside_the_encoder_is_counted_once_per_pass(encoder):
    with scoring.seconds_inside(encoder) as passes:
        encoder.encode(["a cat"])
        encoder.encode(["a dog sat", "it rains"])
    assert len(passes) == 2
    encoder.encode(["a cat"])
    assert len(passes) == 2


@pytest.fixture
def quick(docstring_pairs, monkeypatch):
    """Leave two parts of the command: one that takes no time, and the GPU's."""

    def measure(options):
        return [Figure("nothing", [0.1] * options.rounds, "s", 0.15, at_most=True)]

    parts = {"importing": ("importing the package", measure), "gpu": command.PARTS["gpu"]}
    monkeypatch.setattr(command, "PARTS", parts)
    monkeypatch.setattr(command, "collect_pairs", lambda packages, include_stdlib: docstring_pairs)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("quick")
def test_the_command_prints_and_writes(tmp_path, capsys):
    path = tmp_path / "figures.json"
    command.main(["importing", "--rounds", "1", "--threads", "1", "--json", str(path)])
    printed = capsys.readouterr().out
    assert "median" in printed
    assert "importing: importing the package" in printed
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["figures"].keys() == {"importing"}
    (record,) = content["figures"]["importing"]
    assert record["what"] == "nothing"
    assert record["median"] == 0.1
    assert record["met"] is True
    assert content["settings"]["rounds"] == "1"
    assert content["settings"]["encoder"].endswith("layer 5")


@pytest.mark.usefixtures("quick")
def test_every_figure_is_printed_as_soon_as_it_is_measured(capsys, monkeypatch):
    def measure(options):
        yield Figure("first", [2.0], "times")
        assert capsys.readouterr().err == "first: 2 times\n"
        yield Figure("second", [0.5], "")

    monkeypatch.setitem(command.PARTS, "importing", ("importing the package", measure))
    command.main(["importing", "--rounds", "1", "--threads", "1"])
    printed = capsys.readouterr()
    assert printed.err == "second: 0.5\n"
    assert printed.out.index("first") < printed.out.index("second")


@pytest.mark.usefixtures("quick")
def test_without_a_gpu_its_part_is_left_out(tmp_path, capsys):
    path = tmp_path / "figures.json"
    command.main(["--rounds", "1", "--threads", "1", "--json", str(path)])
    assert "gpu: skipped, no CUDA device" in capsys.readouterr().out.splitlines()
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["figures"].keys() == {"importing"}
    assert "accelerator" not in content["settings"]
    with pytest.raises(SystemExit):
        command.main(["importing", "gpu"])
    captured = capsys.readouterr()
    assert "the part gpu requires a CUDA device, but torch finds none" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["speed"], "unknown parts speed: choose from scoring"),
        (["--rounds", "0"], "--rounds must be at least 1, got 0"),
        (["--model", "roberta-large"], "--model requires --num-layers"),
    ],
    ids=["part", "rounds", "layer"],
)
def test_arguments_that_cannot_be(capsys, arguments, said):
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert said in capsys.readouterr().err
