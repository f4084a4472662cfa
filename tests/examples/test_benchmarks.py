"""Every part of the benchmark runs on tiny sizes and measures what it says; how long anything takes is no test."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from examples.benchmarks import __main__ as command
from examples.benchmarks import loss, memory, ranking, scoring, validation
from examples.benchmarks.package import load_encoder, load_encoders
from examples.benchmarks.processes import run_fresh
from examples.benchmarks.random_models import BART_BASE, ROBERTA_LARGE, T5_SMALL, train_tokenizer
from examples.benchmarks.rounds import Figure, in_turn, ratios
from examples.benchmarks.texts import Options, cut_sentences, distinct_pairs, flat_texts, short_texts
from tests.support.texts import real_pairs

pytestmark = [pytest.mark.slow, pytest.mark.distributed, pytest.mark.usefixtures("one_thread")]

WIDTH = 384
WORDS = ["a", "cat", "sat", "on", "the", "mat"]
# With their vocabularies, since a tokenizer of fewer tokens follows the encoder's too badly.
TINY = {"layers": 1, "width": 16, "heads": 2, "inner": 32}


@pytest.fixture(scope="module")
def options(minilm) -> Options:
    texts = [(candidate, [reference]) for candidate, reference in zip(*real_pairs(120), strict=True)]
    return Options(rounds=2, threads=1, pairs=2, model=str(minilm), num_layers=1, texts=texts)


def by_name(figures) -> dict[str, Figure]:
    figures = list(figures)
    found = {figure.what: figure for figure in figures}
    assert len(found) == len(figures)
    assert all(math.isfinite(value) for figure in figures for value in figure.values)
    return found


def test_a_figure_meets_its_target_by_the_median():
    figure = Figure("speed", [1.0, 3.0, 2.0], "times", 2.0)
    assert figure.met is True
    assert replace(figure, target=2.1).met is False
    assert replace(figure, at_most=True).met is True
    assert replace(figure, target=None).met is None
    shown = {"what": "speed", "median": 2.0, "minimum": 1.0, "maximum": 3.0, "unit": "times", "target": "at least 2"}
    assert figure.record() == shown | {"met": True, "rounds": 3}


def test_implementations_take_turns():
    calls = []
    seconds = in_turn({name: lambda name=name: calls.append(name) for name in "abc"}, rounds=4)
    assert "".join(calls) == "abc" + "abc" + "bca" + "cab" + "abc"
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
    with pytest.raises(ValueError, match="1 words are too few for 9 distinct texts"):
        cut_sentences(["a"], 9, (1, 3))
    texts = [("a", ["b", "c"]), ("b", ["d"]), ("e", ["e"]), ("f", ["a"]), ("g", ["h"])]
    assert distinct_pairs(texts, 2) == [("a", "b"), ("g", "h")]
    with pytest.raises(ValueError, match=r"the texts give 2 pairs of distinct texts, not 3: ask for fewer"):
        distinct_pairs(texts, 3)


@pytest.fixture(scope="module")
def scored(options) -> dict[str, Figure]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "ROBERTA_LARGE", replace(ROBERTA_LARGE, **TINY))
        return by_name(scoring.measure(replace(options, pairs=3)))


def test_scoring(scored, minilm):
    targets = {"short texts": 3.0, "texts of mixed length": 3.0, "720 pairs of 37 texts": 2.0}
    for name, target in targets.items():
        faster = scored[f"{name}: float32, faster than bert-score"]
        assert (len(faster.values), faster.target, faster.at_most) == (2, target, False)
        [difference] = scored[f"{name}: float32, largest difference in F1"].values
        assert difference < 1e-6
    dtypes = [*load_encoders(minilm, 1)]
    assert sum(", faster than" in name for name in scored) == 3 * len(dtypes)
    [encodings] = scored["720 pairs of 37 texts: encodings of each text"].values
    assert encodings >= 1
    assert "short texts: time that idf adds" in scored
    for name in (*dtypes, f"random roberta-large, {dtypes[-1]}"):
        assert min(scored[f"3 pairs like the paper's: {name}"].values) > 0


def test_validation(options, monkeypatch):
    monkeypatch.setattr(validation, "GENERATOR", replace(T5_SMALL, **TINY))
    found = by_name(validation.measure(replace(options, pairs=6)))
    what = "validation of 6 pairs: {}, faster than torchmetrics"
    dtypes = [*load_encoders(options.model, 1)]
    kinds = [f"{way}, {name}" for name in (*dtypes, "float32, references cached") for way in ("callback", "metric")]
    cost = "T5-small: decoding and scoring 16 texts, by a training step with as many"
    assert [*found] == [*(what.format(kind) for kind in kinds), cost]
    has_avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    assert found[what.format("callback, float32")].target == (2.2 if has_avx512 else 1.5)
    assert found[what.format("metric, float32")].target == (2.2 if has_avx512 else 1.3)
    assert all(len(figure.values) == 2 and min(figure.values) > 0 for figure in found.values())


def test_loss(options, monkeypatch):
    assert dict(loss.SHAPES) == {T5_SMALL: 1.08, BART_BASE: 1.05}
    shape, target = BART_BASE, 1.05
    monkeypatch.setattr(loss, "SHAPES", [(replace(shape, **TINY), target)])
    found = by_name(loss.measure(options))
    name = f"{shape.name}, 2 targets"
    assert len(found[f"{name}: step with cross-entropy"].values) == 2
    for variant in (loss.CACHED, loss.NEW):
        ratio = found[f"{name}: {variant}, time by cross-entropy's"]
        assert (len(ratio.values), ratio.target, ratio.at_most) == (2, target, True)
    peak = found[f"{name}: peak memory with the loss, by cross-entropy's"]
    assert (peak.values[0] > 1, peak.target, peak.at_most) == (True, 1.1, True)


def test_a_step_adds_the_loss_to_cross_entropy(options):
    tiny = replace(T5_SMALL, **TINY)
    tokenizer = train_tokenizer(tiny, flat_texts(options.texts), options.model)
    assert len(tokenizer) == tiny.vocabulary
    step = loss.TrainingStep(tiny, tokenizer, replace(options, pairs=4), *loss.VARIANTS)
    assert {int(row.ne(-100).sum()) for row in step.labels} <= {*range(32, 65)}
    assert step.inputs.shape == step.labels.shape == (4, 64)
    model = step.model.eval()
    output = model(input_ids=step.inputs, attention_mask=step.mask, labels=step.labels)
    expected = F.cross_entropy(output.logits.flatten(0, 1), step.labels.flatten())
    assert step.run(loss.PLAIN) == pytest.approx(expected.item(), abs=1e-5)
    added = step.losses[loss.NEW](output.logits, step.labels)
    assert 0 < added.item() < 1
    for variant in (loss.CACHED, loss.NEW, loss.CACHED):
        assert step.run(variant) == pytest.approx(expected.item() + added.item(), abs=1e-5)
    assert model.get_input_embeddings().weight.grad.norm() > 0


def test_ranking(options):
    found = by_name(ranking.measure(replace(options, pairs=3)))
    name = "4 items of 3 samples: float32"
    assert found[f"{name}, faster than bert-score"].target == 2.0
    assert found[f"{name}, largest difference of a score"].values[0] < 1e-6


def test_peaks_include_the_vectors_that_bert_score_keeps(minilm):
    tokenizer = load_encoder(minilm, 1).tokenizer
    tokens = sum(len(row) for seed in (2, 3) for row in tokenizer(short_texts(WORDS, 600, seed)).ids)
    kept = tokens * WIDTH * 4
    # A part of the vectors may fit into memory that the warm-up has freed.
    assert run_fresh(memory.peak_of_scoring, "bert-score", 600, minilm, 1, WORDS) > kept / 2 > 5e6
    with pytest.raises(ValueError, match="scorer='both' is not one of 'function', 'metric', 'bert-score'"):
        memory.peak_of_scoring("both", 10, minilm, 1, WORDS)


def test_memory(options):
    for scorer in ("function", "metric"):
        assert run_fresh(memory.peak_of_scoring, scorer, 20, options.model, 1, WORDS) > 0
    with pytest.raises(ValueError, match="pairs must be at least 2, to compare fewer with more, got 1"):
        memory.measure(replace(options, pairs=1))


@pytest.fixture
def quick(docstring_pairs, monkeypatch):
    """Leave one part of the command, which takes no time."""

    def measure(options):
        return [Figure("nothing", [0.1] * options.rounds, "s", 0.15, at_most=True)]

    monkeypatch.setattr(command, "PARTS", {"loss": ("a step", measure)})
    monkeypatch.setattr(command, "collect_pairs", lambda packages, include_stdlib: docstring_pairs)


@pytest.mark.usefixtures("quick")
def test_the_command_prints_and_writes(tmp_path, capsys):
    path = tmp_path / "figures.json"
    command.main(["--rounds", "1", "--threads", "1", "--json", str(path)])
    printed = capsys.readouterr()
    assert printed.err == "nothing: 0.1 s\n"
    lines = printed.out.splitlines()
    assert re.sub(" +", " ", lines[lines.index("loss: a step") + 2]).strip() == "nothing 0.1 0.1 0.1 s at most 0.15 yes"
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["figures"].keys() == {"loss"}
    assert content["settings"]["rounds"] == "1"
    assert content["settings"]["encoder"].endswith("layer 5")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speed"], "unknown parts speed: choose from loss"),
        (["--rounds", "0"], "--rounds must be at least 1, got 0"),
        (["--model", "some/model"], "--model requires --num-layers"),
    ],
)
def test_the_command_refuses(arguments, message, capsys):
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert message in capsys.readouterr().err
