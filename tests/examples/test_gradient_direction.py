"""The benchmark of gradients: its policy gradient is that of the expected score, and its losses do what they say."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest
import torch
from torch.nn import functional as F  # noqa: N812
from transformers import T5Config, T5ForConditionalGeneration

from bertscore_tm import FrozenEncoder
from bertscore_tm.functional import bert_score
from bertscore_tm.losses import BERTScoreReward, SoftBERTScoreLoss, sequence_log_probs
from examples.benchmarks import gradient_direction, small_generator
from examples.benchmarks.gradient_direction import (
    cosine,
    find_gradients,
    match_prefix,
    match_without_prefix,
    relax_to_samples,
    summarize,
    to_cosines,
    weight_by_entropy,
)
from examples.benchmarks.small_generator import Task, encoder_of_texts, make_task, train_generator

pytestmark = pytest.mark.usefixtures("one_thread")

LINES = ["a cat sat", "the cat ran", "a dog sat", "the dog ran"]
POSITIONS = 2


@pytest.fixture(scope="module")
def task(minilm) -> Task:
    return Task(encoder_of_texts(str(minilm), LINES, 1), LINES, LINES, frozenset())


@pytest.fixture(scope="module")
def reward(minilm) -> BERTScoreReward:
    return BERTScoreReward(FrozenEncoder(minilm, num_layers=1), device="cpu")


@pytest.fixture(scope="module")
def model(task) -> T5ForConditionalGeneration:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        size = task.encoder.tokenizer.vocab_size
        sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": size}
        ends = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 3}
        return T5ForConditionalGeneration(T5Config(**sizes, **ends)).eval()


def exact_policy_gradient(model, task, reward, lines) -> torch.Tensor:
    """Gradient of minus the expected reward, over all sequences that the generator can write."""
    batch, size = task.collate(lines), task.encoder.tokenizer.vocab_size
    others = [token for token in range(size) if token != 3]
    sequences = [(3, 0), *product(others, range(size))]
    ids = torch.tensor(sequences).expand(len(lines), -1, -1)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[:, 0, 1] = False
    texts = task.encoder.tokenizer.tokenizer.batch_decode(sequences, skip_special_tokens=True)
    rewards = torch.tensor([reward(texts, [line] * len(texts)) for line in lines])
    probabilities = sequence_log_probs(model, batch.inputs, ids, mask).sum(-1).exp()
    assert probabilities.sum(1).tolist() == pytest.approx([1.0] * len(lines), abs=1e-5)
    expected = -(probabilities * rewards).sum(1).mean()
    gradients = torch.autograd.grad(expected, list(model.parameters()), allow_unused=True)
    pairs = zip(model.parameters(), gradients, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in pairs])


@pytest.fixture
def two_positions(monkeypatch):
    monkeypatch.setattr(gradient_direction, "_LONGEST_SAMPLE", POSITIONS)


@pytest.mark.usefixtures("two_positions")
@pytest.mark.filterwarnings("ignore:.*candidates scored 0")
def test_the_policy_gradient_is_on_average_that_of_the_expected_score(model, task, reward):
    exact = exact_policy_gradient(model, task, reward, LINES[:2])
    torch.manual_seed(0)
    gradients = find_gradients(model, task, reward, LINES[:2], samples=1500, candidates=4)
    halves = [gradients[name] for name in ("policy gradient", "policy gradient, other half")]
    for half in halves:
        assert cosine(half, exact) > 0.97
        assert float(half.norm() / exact.norm()) == pytest.approx(1, abs=0.1)
    found = to_cosines(gradients)
    assert found["policy gradient"] == pytest.approx(cosine(*halves))
    # The samples of both halves differ, and so do those of the losses.
    assert found["policy gradient"] < 0.9999
    assert found["policy gradient of the candidates"] < 0.99
    assert all(-1 <= value <= 1 for value in found.values())
    assert len(found) == len(gradients) - 1


def test_the_cosine_of_a_gradient_with_itself_is_1():
    g = torch.randn(50, generator=torch.Generator().manual_seed(0))
    gradients = {"policy gradient": g, "policy gradient, other half": g, "same": 3 * g, "opposite": -g}
    assert to_cosines(gradients) == pytest.approx({"policy gradient": 1, "same": 1, "opposite": -1})


def test_without_the_prefix_repeating_what_was_given_no_longer_pays(task):
    labels = task.collate(["the cat sat", "a dog ran"]).labels
    given = torch.cat([labels[:, :1], labels[:, :-1]], 1)
    size = task.encoder.tokenizer.vocab_size
    right, repeated = (30.0 * F.one_hot(ids, size) for ids in (labels, given))

    def score(logits, matching) -> float:
        return 1 - SoftBERTScoreLoss(task.encoder, matching=matching)(logits, labels).item()

    found = {
        matching: (score(right, matching), score(repeated, matching))
        for matching in ("softmax", match_without_prefix, match_prefix)
    }
    default, without, prefix = found.values()
    assert without[0] > 0.95
    assert without[1] < default[1] - 0.1
    assert prefix[1] > prefix[0] + 0.1


def test_equal_entropies_leave_the_loss_as_it_is(task):
    labels = task.collate(["the cat sat", "a dog"]).labels
    logits = torch.randn(1, 1, task.encoder.tokenizer.vocab_size, generator=torch.Generator().manual_seed(0))
    same = logits.expand(*labels.shape, -1)
    losses = [
        SoftBERTScoreLoss(task.encoder, matching=matching)(same, labels).item()
        for matching in ("softmax", weight_by_entropy(same, labels))
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_through_samples_the_loss_is_the_samples_score(task):
    batch, sampled = task.collate(["a cat sat"]), "the cat ran"
    ids = task.collate([sampled]).labels
    logits = torch.randn(*ids.shape, task.encoder.tokenizer.vocab_size, generator=torch.Generator().manual_seed(0))
    relaxation = partial(relax_to_samples, ids)
    loss = SoftBERTScoreLoss(task.encoder, relaxation=relaxation, matching="max")
    logits.requires_grad_()
    value = loss(logits, batch.lines, ids != 3)
    assert 1 - value.item() == pytest.approx(bert_score([sampled], batch.lines, task.encoder)["f1"].item(), abs=1e-5)
    value.backward()
    assert logits.grad[:, :3].abs().sum() > 0


def test_a_task_holds_lines_out_and_trains(minilm, monkeypatch):
    sizes = {"_HELD_OUT": 1, "_FEWEST_LINES_PER_PIECE": 1, "_FREQUENT_PIECES": 1, "_BATCH_SIZE": 2, "_WIDTH": 8}
    for name, value in (sizes | {"_HEAD_WIDTH": 4}).items():
        monkeypatch.setattr(small_generator, name, value)
    texts = [*LINES, "The cat ran", "the bird sang", "word " * 20]
    task = make_task(texts, str(minilm), 1)
    assert sorted([*task.train, *task.held_out]) == sorted([*LINES, "the bird sang"])
    batch = task.collate(["a dog sat"])
    assert task.encoder.tokenizer.tokenizer.decode(batch.labels[0], skip_special_tokens=True) == "a dog sat"
    assert batch.labels[0, -1] == 3
    before = torch.random.get_rng_state()
    models = [train_generator(task, 2, seed=0) for _ in range(2)]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert models[0][1] == models[1][1]
    assert len(models[0][1]) == 2
    with pytest.raises(ValueError, match="2 of 2 lines are short"):
        make_task(LINES[:2], str(minilm), 1)


def test_differences_are_paired_by_generator():
    runs = [{"policy gradient": 0.64, "soft loss": soft, "other": soft + 0.25} for soft in (0.1, 0.3)]
    half, soft, other = summarize(runs)
    assert half["exact"] == pytest.approx(0.8)
    assert soft["cosine"] == pytest.approx(0.2)
    assert soft["low"] < 0 < soft["exact"] == pytest.approx(0.25)
    assert other["minus_soft_low"] == pytest.approx(0.25) == pytest.approx(other["minus_soft_high"])
