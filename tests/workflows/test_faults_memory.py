"""Out of memory: the encoder continues in smaller batches with the same scores, or the error names the remedy."""

import gc
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from bertscore_tm.encoder import encoder as encoder_module
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.models import tiny_model
from tests.support.shell import run_here, write_lines
from tests.support.texts import real_pairs

LAYER = 2
COUNT = 30
OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


@pytest.fixture
def encoder(minilm) -> FrozenEncoder:
    """The real encoder, with no memory limit known from another test."""
    return FrozenEncoder(minilm, num_layers=LAYER)


class Limited:
    """A forward pass that runs out of memory beyond a number of tokens."""

    def __init__(self, forward: Callable[..., Any], limit: int, error: BaseException) -> None:
        self.forward, self.limit, self.error = forward, limit, error
        self.sizes: list[int] = []
        self.failures = 0

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        size = inputs["attention_mask"].numel()
        if size > self.limit:
            self.failures += 1
            raise self.error
        self.sizes.append(size)
        return self.forward(*args, **inputs)


@pytest.fixture
def limit(monkeypatch, encoder):
    """Limit the model's memory to a number of tokens."""
    model = encoder.backbone(torch.device("cpu"))

    def to(tokens: int, error: BaseException = OUT_OF_MEMORY) -> Limited:
        limited = Limited(type(model).forward.__get__(model), tokens, error)
        monkeypatch.setattr(model, "forward", limited)
        return limited

    return to


def test_batches_are_halved_with_a_warning_and_the_same_scores(encoder, limit):
    preds, target = real_pairs(COUNT)
    wanted = bert_score(preds, target, encoder)
    limited = limit(300)

    with pytest.warns(UserWarning, match=r"out of memory on cpu with \d+ texts of up to \d+ .*batch_size .* to \d+"):
        halved = bert_score(preds, target, encoder)

    assert 0 < limited.failures < 8
    torch.testing.assert_close(halved, wanted, rtol=0, atol=1e-6)


def test_the_encoder_remembers_the_largest_batch_that_fits(encoder, limit):
    preds, target = real_pairs(COUNT)
    limited = limit(300)
    with pytest.warns(UserWarning, match="out of memory"):
        bert_score(preds, target, encoder)
    failures = limited.failures
    limited.sizes.clear()

    with warnings.catch_warnings(action="error"):
        bert_score(preds, target, encoder)

    assert limited.failures == failures
    assert max(limited.sizes) > 75


def test_batches_are_halved_if_the_result_does_not_fit(encoder, monkeypatch):
    preds, target = real_pairs(COUNT)
    wanted = bert_score(preds, target, encoder)
    allocate = torch.Tensor.new_empty
    errors = [OUT_OF_MEMORY]

    def fail_first(tensor, *size, **options):
        if errors:
            raise errors.pop()
        return allocate(tensor, *size, **options)

    monkeypatch.setattr(torch.Tensor, "new_empty", fail_first)

    with pytest.warns(UserWarning, match=r"out of memory on cpu with \d+ texts"):
        halved = bert_score(preds, target, encoder)

    assert not errors
    torch.testing.assert_close(halved["f1"], wanted["f1"], rtol=0, atol=1e-6)


def test_a_halved_budget_recovers(encoder, limit):
    preds, target = real_pairs(COUNT)
    limited = limit(300)
    with pytest.warns(UserWarning, match="out of memory"):
        bert_score(preds, target, encoder)
    device = torch.device("cpu")
    budgets = [encoder._budgets[device]]

    limited.limit = 10_000
    while device in encoder._budgets:
        encoder.encode(["a cat"])
        budgets.append(encoder._budgets.get(device, 2048))

    assert budgets == sorted(budgets)
    assert len(budgets) > 50


def test_unloading_frees_the_model_and_its_vectors(minilm):
    encoder = FrozenEncoder(minilm, num_layers=LAYER, exclude_special_tokens=True)
    metric = BERTScore(encoder)
    metric.update(["a cat sat"], ["the cat sat"])
    vectors = encoder.cache("cpu")
    assert vectors.num_bytes > 0

    encoder.unload("cpu")

    # Other encoders may use the model.
    assert "cpu" not in encoder._backbone.models
    assert vectors.num_bytes == 0
    metric.update(["a cat sat"], ["the cat sat"])
    first, second = metric.scores
    assert torch.equal(first, second)


def test_memory_of_models_with_reference_cycles_is_returned(minilm, monkeypatch):
    encoder = FrozenEncoder(minilm, num_layers=1, dtype="float64")
    model = weakref.ref(encoder.backbone("cpu"))
    alive = []
    # The hook of a layer knows the model, as that of a profiler.
    hook = partial(lambda model, *_: None, model())
    model().encoder.layer[0].register_forward_hook(hook)
    del hook
    monkeypatch.setattr(encoder_module, "empty_cache", lambda device: alive.append(model() is not None))

    encoder.unload("cpu")

    assert alive == [False]


def test_a_ready_model_stays_on_the_cpu():
    encoder = FrozenEncoder(*tiny_model("bert"), num_layers=2)
    copied = weakref.ref(encoder.backbone("meta"))
    encoder.unload("meta")

    gc.collect()

    assert copied() is None

    encoder.unload()
    assert encoder._backbone.models.keys() == {"cpu"}
    assert encoder.encode(["a cat"]).vectors.isfinite().all()


# The first attempt halves a batch of two texts.
@pytest.mark.filterwarnings("ignore:out of memory on cpu with 2 texts:UserWarning")
def test_a_single_text_too_large_is_an_error_that_loses_nothing(encoder, limit):
    metric = BERTScore(encoder, cache_bytes=0)
    preds, target = ["a cat sat", "a dog ran " * 40], ["the cat sat", "the dog"]
    metric.update(preds[:1], target[:1])
    wanted = bert_score(preds, target, encoder)["f1"].mean().item()

    limited = limit(100)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            metric.update(preds[1:], target[1:])
    limited.limit = 10_000
    metric.update(preds[1:], target[1:])

    assert metric.compute()["f1"].item() == pytest.approx(wanted, abs=1e-6)


def test_other_errors_are_raised_as_they_are(encoder, limit):
    limited = limit(300, RuntimeError("a bug"))

    with pytest.raises(RuntimeError, match=r"^a bug$"):
        bert_score(*real_pairs(COUNT), encoder)

    assert limited.failures == 1


def test_a_loss_is_never_split(encoder, limit):
    loss = SoftBERTScoreLoss(encoder)
    logits = torch.randn(4, 8, encoder.tokenizer.vocab_size, generator=torch.Generator().manual_seed(0))
    logits.requires_grad_()
    target = ["a cat", "hello", "rain", "a dog"]
    wanted = torch.autograd.grad(loss(logits, target), logits)[0]
    limited = limit(20)

    with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory\. Tried to allocate 2 GiB$"):
        loss(logits, target)

    assert limited.failures == 1
    limited.limit = 10_000
    assert torch.equal(torch.autograd.grad(loss(logits, target), logits)[0], wanted)


@pytest.fixture
def score_files(minilm, capsys, tmp_path):
    """Function that scores two files in the shell, and returns what is printed."""
    preds, target = real_pairs(COUNT)
    write_lines(tmp_path / "c", preds)
    write_lines(tmp_path / "r", target)
    files = ["-c", tmp_path / "c", "-r", tmp_path / "r"]
    return partial(run_here, capsys, "score", *files, "-m", minilm, "-l", LAYER, "--device", "cpu")


def test_the_shell_warns_of_smaller_batches_in_one_line_each(score_files, limit):
    wanted = score_files().out
    limit(300)

    printed = score_files()

    assert printed.out == wanted
    lines = printed.err.splitlines()
    assert lines
    for line in lines:
        assert line.startswith("bertscore-tm: warning: out of memory on cpu with ")
        assert "--batch-size" in line


def test_the_shell_ends_with_one_line_if_no_batch_fits(score_files, limit):
    limit(5)

    *_, line = score_files(exit_code=1).err.splitlines()

    assert line.startswith("bertscore-tm: error: CUDA out of memory")
