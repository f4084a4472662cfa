"""The parts of the benchmark measure what they say; how long anything takes is no test."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from bertscore_tm import FrozenEncoder
from examples.benchmarks import importing, loss_step, peak_memory, ranking, validation
from examples.benchmarks.loss_step import Steps
from examples.benchmarks.options import Options
from examples.benchmarks.peak_memory import peak_of_scoring, short_texts
from examples.benchmarks.processes import run_fresh
from examples.benchmarks.validation import Validation, distinct_pairs, make_metric, texts_per_rank
from tests.support.texts import real_pairs

pytestmark = [pytest.mark.slow, pytest.mark.distributed, pytest.mark.usefixtures("one_thread")]

WIDTH = 384
WORDS = ["a", "cat", "sat", "on", "the", "mat"]


@pytest.fixture(scope="module")
def options(minilm) -> Options:
    """As small as it gets, with one layer of the encoder."""
    texts = [(candidate, [reference]) for candidate, reference in zip(*real_pairs(40), strict=True)]
    return Options(rounds=2, threads=1, pairs=2, model=minilm, num_layers=1, texts=texts)


def by_name(figures: list) -> dict:
    found = {figure.what: figure for figure in figures}
    assert len(found) == len(figures)
    return found


def test_texts_are_short_and_distinct():
    texts = short_texts(WORDS, 500, seed=0)
    assert len({*texts}) == 500
    assert {len(text.split()) for text in texts} == {3, 4, 5, 6}
    assert {word for text in texts for word in text.split()[:-1]} == {*WORDS}
    assert texts == short_texts(WORDS, 500, seed=0) != short_texts(WORDS, 500, seed=1)


def test_peaks_include_the_vectors_that_bert_score_keeps(minilm):
    tokenizer = FrozenEncoder(minilm, num_layers=1).tokenizer
    tokens = sum(len(row) for seed in (2, 3) for row in tokenizer(short_texts(WORDS, 600, seed)).ids)
    kept = tokens * WIDTH * 4
    # A part of the vectors may fit into memory that the warm-up has freed.
    assert run_fresh(peak_of_scoring, "bert-score", 600, minilm, 1, WORDS) > kept / 2 > 5e6
    for scorer in ("function", "metric"):
        assert run_fresh(peak_of_scoring, scorer, 200, minilm, 1, WORDS) > 0


def test_ranking(options, monkeypatch):
    monkeypatch.setattr(ranking, "_NUMBERS_OF_CANDIDATES", (3,))
    monkeypatch.setattr(ranking, "_NUMBERS_OF_ITEMS", (2,))
    figures = by_name(ranking.measure(options))
    for peer in ("bert-score", *(["mbrs"] if find_spec("mbrs") else [])):
        assert figures[f"3 candidates, float32: largest difference from {peer}"].values[0] < 1e-6
        assert figures[f"3 candidates, float32: faster than {peer}"].values
    assert figures["peak memory of 2 items of 16 candidates"].values[0] >= 0


def test_unknown_scorer(minilm):
    with pytest.raises(ValueError, match="scorer='both' is not one of 'function', 'metric', 'bert-score'"):
        peak_of_scoring("both", 10, minilm, 1, WORDS)


def test_growth_needs_two_sizes(options):
    with pytest.raises(ValueError, match="pairs must be at least 2, to compare fewer with more, got 1"):
        peak_memory.measure(replace(options, pairs=1))


def test_peak_memory(options, monkeypatch):
    peaks = {("function", 20): 3e6, ("function", 200): 12e6, ("metric", 20): 4e6, ("metric", 200): 5e6}
    peaks |= {("bert-score", 2): 1e6, ("bert-score", 4): 2e6}

    def run_fresh(function, scorer, pairs, *arguments):
        assert (function, arguments[:2]) == (peak_of_scoring, (options.model, options.threads))
        return peaks[scorer, pairs]

    monkeypatch.setattr(peak_memory, "run_fresh", run_fresh)
    figures = peak_memory.measure(replace(options, pairs=200))
    assert [(figure.what, figure.unit, *figure.values) for figure in figures] == [
        ("function: peak at 20 pairs", "MB", 3),
        ("function: peak at 200 pairs", "MB", 12),
        ("function: peak at 200 pairs by that at 20", "times", 4),
        ("function: growth per pair from 20 to 200 pairs", "kB", 50),
        ("metric: peak at 20 pairs", "MB", 4),
        ("metric: peak at 200 pairs", "MB", 5),
        ("metric: peak at 200 pairs by that at 20", "times", 1.25),
        ("metric: growth per pair from 20 to 200 pairs", "kB", pytest.approx(1e3 / 180)),
        ("bert-score: growth per pair from 2 to 4 pairs", "kB", 500),
    ]
    targets = {figure.what: figure.target for figure in figures if figure.target is not None}
    assert targets == {"function: peak at 200 pairs": 300, "metric: peak at 200 pairs": 300}
    assert figures[1].at_most


def by_loops(encoder: FrozenEncoder, candidate: str, reference: str, special_keys: bool) -> tuple[list[float], bool]:
    """Precision, recall and F1 of one pair, and whether some token is most similar to a special one."""
    ours, theirs = (encoder.encode([text]).vectors[0] for text in (candidate, reference))
    means, special = [], False
    for queries, keys in ((ours, theirs), (theirs, ours)):
        best = []
        for query in queries[1:-1]:
            similarities = [float(query @ key) for key in keys]
            within = max(similarities[1:-1])
            special |= max(similarities) > within
            best.append(max(similarities) if special_keys else within)
        means.append(sum(best) / len(best))
    precision, recall = means
    return [precision, recall, 2 * precision * recall / (precision + recall)], special


def test_both_metrics_score_the_same_pairs(minilm, encoder):
    lengths = [[len(row) for row in encoder.tokenizer(texts).ids] for texts in real_pairs(240)]
    # Torchmetrics' metric finds the reference of each candidate only where texts come in the order of their lengths.
    pairs: list[tuple[str, str]] = []
    longest = (0, 0)
    for own, other, *pair in sorted(zip(*lengths, *real_pairs(240), strict=True)):
        if own > longest[0] and other > longest[1]:
            longest = own, other
            pairs.append(tuple(pair))
    assert len(pairs) >= 6
    trainer = validation._quiet_trainer()
    scores = {}
    for way in ("ours", "ours, references known", "torchmetrics"):
        module = Validation(make_metric(way, minilm, 5), pairs)
        for _ in range(2):
            trainer.validate(module, verbose=False)
        scores[way] = torch.stack([module.scores[name] for name in ("precision", "recall", "f1")], dim=1)
    torch.testing.assert_close(scores["ours"], scores["ours, references known"])
    agreeing = []
    for i, pair in enumerate(pairs):
        with_special, some_special = by_loops(encoder, *pair, special_keys=True)
        without, _ = by_loops(encoder, *pair, special_keys=False)
        assert scores["ours"][i].tolist() == pytest.approx(with_special, abs=1e-5)
        assert scores["torchmetrics"][i].tolist() == pytest.approx(without, abs=1e-5)
        if not some_special:
            agreeing.append(i)
    # The only difference there is: a token may be matched with a special one in ours, as in bert-score.
    assert 2 <= len(agreeing) < len(pairs)
    torch.testing.assert_close(scores["ours"][agreeing], scores["torchmetrics"][agreeing], atol=1e-4, rtol=0)


def test_each_rank_encodes_its_texts(minilm, options):
    # Both ranks get the last pair of an odd number of pairs.
    assert texts_per_rank(distinct_pairs(options.texts, 5), minilm, 1) == [6, 6]


def test_pairs_hold_no_text_twice():
    texts = [("a", ["b", "c"]), ("b", ["d"]), ("e", ["e"]), ("f", ["a"]), ("g", ["h"])]
    assert distinct_pairs(texts, 2) == [("a", "b"), ("g", "h")]
    with pytest.raises(ValueError, match=r"the texts give 2 pairs of distinct texts, not 3: ask for fewer"):
        distinct_pairs(texts, 3)


def test_validation(options):
    found = by_name(validation.measure(replace(options, pairs=6)))
    first, *others = [figure for name, figure in found.items() if name.startswith("validation of 6 pairs, ")]
    assert first.what == "validation of 6 pairs, torchmetrics by callback"
    assert (first.unit, first.target, first.at_most) == ("times", 2, False)
    has_bfloat16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert [figure.what.partition(" by ")[2] for figure in others] == [
        "callback, references known",
        *["callback, dtype auto"] * has_bfloat16,
        "ours",
        "ours, references known",
    ]
    for figure in (first, *others):
        assert len(figure.values) == 2
        assert min(figure.values) > 0
    shares = [figure for name, figure in found.items() if name.startswith("texts that rank")]
    assert [share.values for share in shares] == [[0.5], [0.5]]
    assert all(share.met and share.target == 0.52 for share in shares)


def test_imports_are_timed_after_others():
    assert importing.seconds_of_import("given = 3", "assert given == 3; print('text')") > 0
    with pytest.raises(subprocess.CalledProcessError):
        importing.seconds_of_import("pass", "import no_such_package")


def test_importing(options, monkeypatch):
    calls = []
    monkeypatch.setattr(
        importing, "seconds_of_import", lambda before, statement: calls.append((before, statement)) or len(calls)
    )
    found = by_name(importing.measure(replace(options, rounds=2)))
    package, bare, peer = found.values()
    assert package.what == "importing package"
    assert (package.target, package.at_most) == (0.15, True)
    assert bare.target is peer.target is None
    assert {figure.unit for figure in found.values()} == {"s"}
    # The first call compiles all files; then the statements take turns.
    assert [figure.values for figure in (package, bare, peer)] == [[2, 7], [3, 5], [4, 6]]
    assert [statement == "import bert_score" for _, statement in calls[1:]] == [False, False, True, False, True, False]
    assert all("torchmetrics" in before for before, _ in calls)
    assert ["PreTrainedModel" in before for before, _ in calls[1:]] == [False, True, False, True, False, False]


def gradients(steps: Steps, way: str) -> tuple:
    steps.run(way)
    return steps.hidden.grad, steps.head.weight.grad, steps.head.bias.grad


def test_steps_give_the_gradients_of_their_losses(options):
    steps = Steps(options, positions=7)
    assert steps.labels.shape == (2, 7)
    first = steps.loss.encoder.tokenizer([options.texts[0][0]]).ids[0][1:8]
    assert steps.labels[0].tolist() == first
    assert Steps(replace(options, pairs=1_000), positions=7).labels.shape == (8, 7)
    steps.run("encoder")
    assert steps.hidden.grad is steps.head.weight.grad is None
    assert steps.embeds.grad.norm() > 0
    logits = steps.head(steps.hidden)
    of_cross_entropy = F.cross_entropy(logits.permute(0, 2, 1), steps.labels)
    of_loss = steps.loss(logits, steps.labels)
    leaves = (steps.hidden, steps.head.weight, steps.head.bias)
    expected = [torch.autograd.grad(loss, leaves, retain_graph=True) for loss in (of_cross_entropy, of_loss)]
    both = [sum(parts) for parts in zip(*expected, strict=True)]
    for way, wanted in (
        ("cross-entropy", expected[0]),
        ("from logits", both),
        ("from hidden states", both),
        ("from logits, alone", expected[1]),
        ("from hidden states, alone", expected[1]),
    ):
        for found, right in zip(gradients(steps, way), wanted, strict=True):
            assert right.norm() > 0
            torch.testing.assert_close(found, right, atol=1e-6, rtol=1e-4)


def test_the_encoders_pass_is_that_of_its_layers(options):
    steps = Steps(options, positions=7)
    steps.run("encoder")
    embeds = steps.embeds.detach().requires_grad_()
    mask = torch.ones(embeds.shape[:2], dtype=torch.bool)
    hidden = steps.loss.encoder._backbone.run(torch.device("cpu"), mask, inputs_embeds=embeds)
    (expected,) = torch.autograd.grad(hidden.sum(), embeds)
    torch.testing.assert_close(steps.embeds.grad, expected, atol=1e-4, rtol=1e-3)


def test_loss_step(options, monkeypatch):
    monkeypatch.setattr(loss_step, "MADE_UP_SIZES", (1024, 20_000, 64))
    # The small generator's batch has 64 texts.
    short = [(" ".join(text.split()[:3]), [" ".join(reference.split()[:3])]) for text, [reference] in options.texts]
    found = by_name(loss_step.measure(replace(options, pairs=1, texts=short)))
    for way in ("from logits", "from hidden states"):
        added = found[f"loss {way}: added time by the encoder's"]
        assert (len(added.values), added.unit, added.target, added.at_most) == (2, "times", 1.3, True)
        assert found[f"loss {way}: added peak"].unit == "MB"
    ratio = found["expected embeddings: peak beyond gradient by the plain product's"]
    assert 0 < ratio.values[0] < 1
    assert (ratio.target, ratio.at_most) == (0.25, True)
    small = [figure for name, figure in found.items() if name.startswith("training step of a small generator, layer ")]
    assert len(small) == 4
    assert all(len(figure.values) == 2 and min(figure.values) > 0 for figure in small)
    assert all((figure.unit, figure.target, figure.at_most) == ("times", 3, True) for figure in small)
