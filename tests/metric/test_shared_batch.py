"""One batch: encoded once for all metrics of an encoder, in steps of bounded memory, and left out when it fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics import MetricCollection

from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from bertscore_tm.encoder.vector_cache import VectorCache
from bertscore_tm.functional import SCORES
from bertscore_tm.scoring import corpus
from bertscore_tm.scoring.corpus import forget_batch
from tests.support.texts import real_pairs, several_references

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 1e-6
LAYERS = 2
COUNT = 12
PREDS, TARGET = ([" ".join(text.split()[:9]) for text in side] for side in real_pairs(COUNT))
SEVERAL = several_references(TARGET)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, encoder: FrozenEncoder) -> list[list[str]]:
    """The texts of each call of ``encode``, of any encoder."""
    forget_batch(encoder, torch.device("cpu"))
    texts: list[list[str]] = []
    encode = FrozenEncoder.encode

    def recording(self: FrozenEncoder, given: Any, *args: Any, **options: Any) -> Any:
        texts.append(list(given))
        return encode(self, given, *args, **options)

    monkeypatch.setattr(FrozenEncoder, "encode", recording)
    return texts


def batch(numbers: Sequence[int], target: Sequence[Any] = TARGET) -> tuple[list[str], list[Any]]:
    return [PREDS[i] for i in numbers], [target[i] for i in numbers]


def check(found: dict[str, Tensor], encoder: FrozenEncoder, numbers: Sequence[int], **settings: Any) -> None:
    """Compare with the scores of the function."""
    wanted = bert_score(*batch(numbers, settings.pop("target", TARGET)), encoder, **settings)
    for name in SCORES:
        mean = found[name].ndim < wanted[name].ndim
        torch.testing.assert_close(
            found[name], wanted[name].mean(-1) if mean else wanted[name], rtol=0, atol=TOLERANCE, check_dtype=False
        )


# --- sharing


def test_metrics_that_alternate_with_other_texts(encoder):
    first, second = BERTScore(encoder), BERTScore(encoder, idf=True)
    for number in range(3):
        first.update(*batch([number]))
        second.update(*batch([number + 1]))
    check(first.compute(), encoder, range(3))
    check(second.compute(), encoder, range(1, 4), idf=True)


def test_references_of_the_next_epoch_come_from_the_default_cache(encoder, calls):
    metric = BERTScore(encoder)
    metric.update(*batch([0, 1]))
    metric.reset()
    calls.clear()
    metric.update(*batch([0, 1]))
    assert [text for call in calls for text in call] == PREDS[:2]
    check(metric.compute(), encoder, [0, 1])


def test_nothing_is_kept_after_compute_or_reset(encoder):
    owner = encoder.cache(torch.device("cpu"))
    metric = BERTScore(encoder)
    for end in (metric.compute, metric.reset):
        metric.update(*batch([0]))
        assert owner in corpus._latest
        end()
        assert owner not in corpus._latest
    assert isinstance(owner, VectorCache)


# --- steps


@pytest.mark.parametrize("settings", [{}, {"idf": True, "reduction": "none"}], ids=str)
def test_a_large_update_is_cut_into_steps(encoder, calls, monkeypatch, settings):
    """Each step has few texts, pairs keep their order, and metrics share the batch all the same."""
    numbers_per_step = 250 * 384
    monkeypatch.setattr(corpus, "_ELEMENTS_PER_STEP", numbers_per_step)
    kinds = {
        "given": BERTScore(encoder, cache_bytes=0, **settings),
        "f1": BERTScore(encoder, component="f1", cache_bytes=0),
    }
    order = [7, 3, 11, 0, 5, 1, 9, 2, 8, 4, 10, 6]
    collection = MetricCollection(kinds, compute_groups=False)
    collection.update(*batch(order, SEVERAL))
    assert 2 < len(calls) < COUNT
    for call in calls:
        assert sum(map(len, encoder.tokenizer(call).ids)) <= numbers_per_step / 384
    check(kinds["given"].compute(), encoder, order, target=SEVERAL, idf=settings.get("idf", False))


def test_a_step_that_fails_leaves_the_whole_update_out(encoder, monkeypatch):
    metric = BERTScore(encoder, reduction="none")
    metric.update(*batch([0]))
    monkeypatch.setattr(corpus, "_ELEMENTS_PER_STEP", 250 * 384)
    encode, left = FrozenEncoder.encode, [3]

    def failing_later(self: FrozenEncoder, *args: Any, **options: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise torch.OutOfMemoryError("too much")
        return encode(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(FrozenEncoder, "encode", failing_later)
        with pytest.raises(torch.OutOfMemoryError, match="too much"):
            metric.update(*batch(range(COUNT)))
    assert left == [0]
    metric.update(*batch([1, 2]))
    check(metric.compute(), encoder, range(3))
