"""Every part of the benchmark runs on tiny sizes and measures what it says; how long anything takes is no test."""

import json
import math
from dataclasses import replace

import pytest
from torch.nn import functional as F  # noqa: N812
from transformers import AutoTokenizer, BartConfig, T5Config

from examples.research.benchmarks import __main__ as command
from examples.research.benchmarks import engines, gpu, loss, memory, scoring, validation
from examples.research.benchmarks.package import load_encoders
from examples.research.benchmarks.processes import run_fresh
from examples.research.benchmarks.random_models import BART_BASE, T5_SMALL, train_tokenizer
from examples.research.benchmarks.rounds import Figure, in_turn, ratios
from examples.research.benchmarks.texts import Options, cut_sentences, short_texts
from tests.support.texts import real_pairs

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.distributed]

WIDTH = 384
WORDS = ["a", "cat", "sat", "on", "the", "mat"]


# The vocabularies are whole: a tokenizer of fewer tokens follows the encoder's badly.
T5_SIZES = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2}
TINY_T5 = T5Config.from_dict(T5_SMALL.to_dict() | T5_SIZES)
BART_SIZES = {"d_model": 24, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
TINY_BART = BartConfig.from_dict(BART_BASE.to_dict() | BART_SIZES)


@pytest.fixture(scope="module")
def options() -> Options:
    return Options(rounds=2, threads=1, pairs=2, texts=list(zip(*real_pairs(120), strict=True)))


def by_name(figures) -> dict[str, Figure]:
    figures = list(figures)
    named = {figure.what: figure for figure in figures}
    assert len(named) == len(figures)
    assert all(math.isfinite(value) for figure in figures for value in figure.values)
    return named


def test_implementations_take_turns():
    calls = []
    functions = {name: lambda name=name: calls.append(name) for name in "abc"}
    seconds = in_turn(functions, rounds=4, preparations={"b": lambda: calls.append("!")})

    assert "".join(calls) == "abc" + "a!bc" + "!bca" + "ca!b" + "a!bc"
    assert {name: len(values) for name, values in seconds.items()} == {"a": 4, "b": 4, "c": 4}
    assert ratios([2.0, 3.0], [1.0, 2.0]) == [2.0, 1.5]


def test_texts_are_distinct_and_of_the_lengths_asked_for():
    short = short_texts(WORDS, 500, seed=0)

    assert len({*short}) == 500
    assert {len(text.split()) for text in short} == {3, 4, 5, 6}
    assert short == short_texts(WORDS, 500, seed=0) != short_texts(WORDS, 500, seed=1)
    pieces = cut_sentences(["a cat sat", "on the mat, it rains"], 12, (2, 9))
    assert len({*pieces}) == 12
    assert {len(text.split()) for text in pieces} <= {*range(2, 10)}


def test_scoring(options):
    figures = by_name(scoring.measure(replace(options, pairs=12)))

    for name in ("1 pairs", "4 pairs", "10 pairs", "12 pairs", "ranking of 2 x 16", "reward of 16 completions"):
        assert figures[f"{name}: float32, largest difference of a score"].values[0] < 1e-6
        assert min(figures[f"{name}: float32, faster than bert-score"].values) > 0

    assert {f"12 pairs: {dtype}, faster than bert-score" for dtype in load_encoders()} <= figures.keys()


def test_validation(options, monkeypatch):
    monkeypatch.setattr(validation, "T5_SMALL", TINY_T5)
    figures = by_name(validation.measure(replace(options, pairs=6)))
    what = "validation of 6 pairs: {}, faster than torchmetrics"
    names = [*load_encoders(), "float32, references cached"]
    kinds = [f"{way}, {name}" for name in names for way in ("callback", "metric")]
    cost = "T5-small: decoding and scoring 16 texts, by a training step with as many"

    assert [*figures] == [*(what.format(kind) for kind in kinds), cost]
    assert all(len(figure.values) == 2 and min(figure.values) > 0 for figure in figures.values())


def test_engines(options, monkeypatch):
    monkeypatch.setattr(engines, "ENGINES", ("datasets",))  # that needs no more than the other tests
    figures = by_name(engines.measure(replace(options, pairs=16)))
    speeds = [
        "one process",
        "the shell's command",
        *(f"{name}, faster than one process" for name in ("datasets", "torchrun")),
    ]
    memory = [f"datasets: driver's memory at {count} pairs" for count in (16, 160)]

    assert [*figures] == [*(f"16 pairs: {what}" for what in speeds), *memory]
    assert all(min(figure.values) > 0 for figure in figures.values())


def test_loss(options, monkeypatch):
    monkeypatch.setattr(loss, "SHAPES", {"BART-base": TINY_BART})
    figures = by_name(loss.measure(options))
    name = "BART-base, 2 targets"
    timed = [f"{name}: step with cross-entropy"]
    timed += [f"{name}: {variant}, time by cross-entropy's" for variant in (loss.CACHED, loss.NEW, loss.HIDDEN)]

    assert [len(figures[what].values) for what in timed] == [2, 2, 2, 2]
    assert figures[f"{name}: peak memory {loss.CACHED}, by cross-entropy's"].values[0] > 1
    assert figures[f"{name}: peak memory {loss.HIDDEN}, by cross-entropy's"].values[0] > 0


def test_a_step_adds_the_loss_to_cross_entropy(options):
    shape = TINY_T5
    tokenizer = train_tokenizer(shape, options.flat_texts())

    assert len(tokenizer) == shape.vocab_size
    step = loss.TrainingStep(shape, tokenizer, replace(options, pairs=4), loss.VARIANTS)
    assert {int(row.ne(-100).sum()) for row in step.labels} <= {*range(32, 65)}
    assert step.inputs.shape == step.labels.shape == (4, 64)
    model = step.model.eval()
    output = model(input_ids=step.inputs, attention_mask=step.mask, labels=step.labels)
    expected = F.cross_entropy(output.logits.flatten(0, 1), step.labels.flatten())
    assert step.run(loss.PLAIN) == pytest.approx(expected.item(), abs=1e-5)
    added = step.losses[loss.NEW](output.logits, step.labels)
    assert 0 < added.item() < 1
    for variant in (loss.CACHED, loss.NEW, loss.HIDDEN, loss.CACHED):
        assert step.run(variant) == pytest.approx(expected.item() + added.item(), abs=1e-5)
    assert model.get_input_embeddings().weight.grad.norm() > 0


def test_peaks_include_the_vectors_that_bert_score_keeps(minilm):
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    tokens = sum(len(row) for seed in (2, 3) for row in tokenizer(short_texts(WORDS, 600, seed))["input_ids"])
    size = tokens * WIDTH * 4

    # A part of the vectors may fit into memory that the warm-up has freed.
    assert run_fresh(memory.peak_of_scoring, "bert-score", 600, WORDS) > size / 2 > 5e6


@pytest.mark.parametrize("scorer", ["function", "metric"])
def test_peaks(scorer):
    assert run_fresh(memory.peak_of_scoring, scorer, 20, WORDS) > 0


def test_the_command_prints_the_parts_that_it_is_asked_for(docstring_pairs, monkeypatch, capsys):
    parts = {"loss": lambda options: [Figure("a step", [0.1, 0.3, 0.1][: options.rounds], "s")], "memory": None}
    monkeypatch.setattr(command, "PARTS", parts)
    monkeypatch.setattr(command, "collect_pairs", lambda packages: docstring_pairs)
    command.main(["loss", "--rounds", "3"])

    assert capsys.readouterr().out == "a step: 0.1 (0.1 to 0.3) s\n"


def test_the_checks_of_gpus_run_on_a_cpu(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)

    assert gpu.main(["--json", str(tmp_path / "gpu.json")]) == 0
    printed = capsys.readouterr().out.splitlines()
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert len(rows) == sum(line.startswith("     cpu: ") for line in printed) > 35
    assert not any(row["failed"] for row in rows)
    compared = [row for row in rows if row["limit"] is not None]
    assert len(compared) > 25
    # On one device, rounding is that of the encoder's precision alone.
    assert any(row["value"] > 0 for row in compared)


def test_a_failed_check_of_gpus_is_reported(monkeypatch, capsys):
    def fails(bench):
        yield "a difference", float("nan"), 1.0
        raise RuntimeError("no kernel image")

    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr(gpu, "CHECKS", (fails,))

    assert gpu.main([]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == "FAIL cpu: a difference: nan"
    assert second == "FAIL cpu: fails: RuntimeError: no kernel image"
