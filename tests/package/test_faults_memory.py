"""Out of memory: the encoder continues in smaller batches with the same scores, or the error names the remedy."""

from __future__ import annotations

import resource
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from bertscore_tm.cli import main
from bertscore_tm.core import matching
from bertscore_tm.core.memory import is_out_of_memory
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.texts import real_pairs

LAYER = 2
COUNT = 30
# The message of torch's CPU allocator.
CPU_ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4096 bytes. Error code 12 (Cannot allocate memory)"
)
ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError(CPU_ALLOCATOR),
    MemoryError(),
]


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

    def to(tokens: int, error: BaseException = ERRORS[0]) -> Limited:
        limited = Limited(type(model).forward.__get__(model), tokens, error)
        monkeypatch.setattr(model, "forward", limited)
        return limited

    return to


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_batches_are_halved_with_one_warning_and_the_same_scores(encoder, limit, error):
    preds, target = real_pairs(COUNT)
    wanted = bert_score(preds, target, encoder)
    limited = limit(300, error)
    with pytest.warns(
        UserWarning, match=r"out of memory on cpu with \d+ texts of up to \d+ tokens; .*batch_size=\d+"
    ) as said:
        found = bert_score(preds, target, encoder)
    assert len(said) == 1
    assert 0 < limited.failures < 8
    for name in ("precision", "recall", "f1"):
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=1e-6)
    # The encoder remembers the limit, and its batches are as large as it allows.
    limited.sizes.clear()
    failures = limited.failures
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bert_score(preds, target, encoder)
    assert limited.failures == failures
    assert max(limited.sizes) > 75


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems do not enforce RLIMIT_AS")
def test_a_message_of_onednn_counts_only_where_memory_is_short():
    """oneDNN reports a kernel without memory and a kernel that the system forbids with the same message."""
    error = RuntimeError("could not create a primitive")
    assert not is_out_of_memory(error)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    try:
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**20, limits[1]))
        assert is_out_of_memory(error)
        assert not is_out_of_memory(RuntimeError("a bug"))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_a_single_text_too_large_is_an_error_that_loses_nothing(encoder, limit):
    metric = BERTScore(encoder, cache_bytes=0)
    preds, target = ["a cat sat", "a dog ran " * 40], ["the cat sat", "the dog"]
    metric.update(preds[:1], target[:1])
    limited = limit(100)
    for _ in range(2):
        with pytest.raises(
            torch.OutOfMemoryError, match=r"a single text of 122 tokens.*max_length.*The cause: CUDA out"
        ):
            metric.update(preds[1:], target[1:])
    limited.limit = 10_000
    metric.update(preds[1:], target[1:])
    wanted = bert_score(preds, target, encoder)["f1"].mean().item()
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


def test_the_shell_prints_one_line_each(minilm, limit, capsys, tmp_path):
    preds, target = real_pairs(COUNT)
    for name, lines in (("c", preds), ("r", target)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    files = ["-c", str(tmp_path / "c"), "-r", str(tmp_path / "r")]
    arguments = ["score", *files, "-m", minilm, "-l", str(LAYER), "--device", "cpu"]
    assert main(arguments) == 0
    wanted = capsys.readouterr().out
    limit(300)
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert printed.out == wanted
    (line,) = printed.err.splitlines()
    assert line.startswith("bertscore-tm: warning: out of memory on cpu with ")
    assert "--batch-size" in line
    limit(5)
    assert main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bertscore-tm: error: out of memory on cpu with a single text of ")


def test_matching_continues_in_smaller_steps(encoder, monkeypatch):
    preds, target = real_pairs(COUNT)
    wanted = bert_score(preds, target, encoder)
    similarities, failures = matching.cosine_similarities, []

    def limited(*sides: torch.Tensor) -> torch.Tensor:
        found = similarities(*sides)
        if found.numel() > least:
            failures.append(found.numel())
            raise MemoryError
        return found

    monkeypatch.setattr(matching, "cosine_similarities", limited)
    least = 10_000
    with pytest.warns(UserWarning, match=r"with \d+ pairs of texts matched in steps of \d+ numbers; .*steps of \d+ "):
        found = bert_score(preds, target, encoder)
    assert 0 < len(failures) < 8
    for name in ("precision", "recall", "f1"):
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=1e-6)
    least = 0
    with pytest.raises(torch.OutOfMemoryError, match=r"\d+ pairs of texts to match, .*: pass fewer pairs"):
        bert_score(preds, target, encoder)
