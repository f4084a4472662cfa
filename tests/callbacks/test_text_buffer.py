"""Buffering of small batches: equal scores, few encoder calls, and errors that lose nothing."""

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torchmetrics.text import CharErrorRate

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback, TextListener, text_buffer
from bertscore_tm.callbacks.text_buffer import TextBuffer
from bertscore_tm.functional import bert_score
from tests.support.lightning_modules import Returns, chooser, trainer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def shallow(minilm):
    """An encoder that keeps no vectors from other tests."""
    return FrozenEncoder(minilm, num_layers=1)


@pytest.fixture
def encoded(monkeypatch):
    """Numbers of texts in each call of ``FrozenEncoder.encode``."""
    counts, encode = [], FrozenEncoder.encode

    def record(self, texts, *args, **kwargs):
        counts.append(len(texts) if isinstance(texts, list) else len(texts.ids))
        return encode(self, texts, *args, **kwargs)

    monkeypatch.setattr(FrozenEncoder, "encode", record)
    return counts


def metric_of(encoder, **options):
    return BERTScore(encoder, reduction="none", cache_bytes=0, **options)


def f1_of(preds, target, encoder):
    return bert_score(preds, target, encoder)["f1"]


@pytest.mark.parametrize(("limit", "num_updates"), [(1, 10), (2_000, None), (65_536, 1)])
def test_scores_equal_those_of_one_update_per_batch(pairs, shallow, monkeypatch, limit, num_updates):
    monkeypatch.setattr(text_buffer, "_NUM_CHARACTERS_CPU", limit)
    preds, target = (side[:40] for side in pairs)
    metric, sizes = metric_of(shallow), []
    update = metric.update

    def record(candidates, references, indices):
        sizes.append(sum(map(len, candidates)) + sum(len(text) for texts in references for text in texts))
        update(candidates, references, indices)

    monkeypatch.setattr(metric, "update", record)
    buffer = TextBuffer(metric, "bertscore")
    for start in range(0, 40, 4):
        buffer.add(preds[start : start + 4], target[start : start + 4], range(start, start + 4))
    buffer.flush()
    buffer.flush()
    assert len(sizes) == num_updates or (num_updates is None and 1 < len(sizes) < 10)
    assert all(size >= limit for size in sizes[:-1])
    scores = metric.compute()
    for name, expected in bert_score(preds, target, shallow).items():
        assert torch.allclose(scores[name], expected, rtol=0, atol=1e-6)


def test_indices_reach_the_metric(pairs, shallow):
    metric = metric_of(shallow)
    buffer = TextBuffer(metric, "bertscore")
    preds, target = (side[:6] for side in pairs)
    order = [4, 1, 5, 0, 3, 2]
    for part in (order[:2], order[2:], [1]):  # the last pair is a duplicate
        buffer.add([preds[i] for i in part], [[target[i]] for i in part], part)
    buffer.flush()
    assert torch.allclose(metric.compute()["f1"], f1_of(preds, target, shallow), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("device", "layers", "limit"), [("cpu", 1, 65_536), ("meta", 1, 131_072), ("cpu", None, 65_536 // 7)]
)
def test_limit_depends_on_device_and_layers(minilm, device, layers, limit):
    encoder = FrozenEncoder(minilm, num_layers=layers, all_layers=layers is None)
    assert TextBuffer(BERTScore(encoder).to(device), "bertscore")._limit == limit


@pytest.mark.parametrize("error", [KeyboardInterrupt, torch.OutOfMemoryError, ValueError])
@pytest.mark.parametrize("when", ["add", "flush"])
def test_an_error_leaves_buffer_and_metric_as_they_were(pairs, shallow, monkeypatch, error, when):
    preds, target = (side[:6] for side in pairs)
    metric = metric_of(shallow)
    buffer = TextBuffer(metric, "my_score")
    buffer.add(preds[:2], target[:2], [0, 1])
    buffer.add(preds[2:4], target[2:4], [2, 3])

    def fail(*args, **kwargs):
        raise error("no")

    with monkeypatch.context() as patch:
        patch.setattr(text_buffer, "_NUM_CHARACTERS_CPU", 1)
        patch.setattr(metric, "update", fail)
        with pytest.raises(MisconfigurationException if error is ValueError else error) as caught:
            buffer.add(preds[4:], target[4:], [4, 5]) if when == "add" else buffer.flush()
    if error is ValueError:
        assert str(caught.value) == "my_score cannot score the texts of a batch: no"
    buffer.flush()
    assert torch.allclose(metric.compute()["f1"], f1_of(preds[:4], target[:4], shallow), rtol=0, atol=1e-6)


def test_a_malformed_batch_is_refused_at_once(pairs, shallow):
    metric = metric_of(shallow)
    buffer = TextBuffer(metric, "my_score")
    buffer.add(pairs[0][:2], pairs[1][:2], [0, 1])
    with pytest.raises(MisconfigurationException, match=r"my_score cannot score .*preds\[1\] must be a string"):
        buffer.add(["a", None], ["b", "c"], [2, 3])
    buffer.flush()
    assert len(metric.compute()["f1"]) == 2


# In the callback


class PairScores(TextListener):
    """Keeps the scores of every pair at the end of a run."""

    def on_texts_scored(self, trainer, pl_module, scorer, scored):
        pass

    def on_run_scored(self, trainer, pl_module, scorer, loaders):
        self.loaders = loaders


def test_metrics_with_one_encoder_encode_each_loader_once(pairs, shallow, tmp_path, encoded):
    batches = []

    class CountsBatches(CharErrorRate):
        def update(self, preds, target):
            batches.append(len(preds))
            super().update(preds, target)

    metrics = {"a": metric_of(shallow), "b": metric_of(shallow, idf=True), "cer": CountsBatches()}
    module = chooser(pairs, val_sizes=(9, 5))
    callback = BERTScoreCallback(metrics, max_batches=2)
    trainer(tmp_path, [callback]).validate(module, verbose=False)
    preds, target = ([text for _, *sides in module.seen[:2] for text in sides[side]] for side in (0, 1))
    assert torch.allclose(callback.pairs["val_a_f1_dataloader_idx_0"], f1_of(preds, target, shallow), atol=1e-6)
    assert batches == [3, 3, 3, 2]
    encoded.pop()  # the expected scores
    assert len(encoded) == 2
    assert len(callback.pairs["val_b_f1_dataloader_idx_0"]) == 6
    assert len(callback.pairs["val_b_f1_dataloader_idx_1"]) == 5


def test_a_listener_gets_the_scores_of_every_pair(pairs, shallow, tmp_path, encoded):
    listener = PairScores()
    metrics = {name: BERTScore(shallow, idf=name == "idf", cache_bytes=0) for name in ("plain", "idf")}
    module = chooser(pairs, val_sizes=(9, 5))
    run = trainer(tmp_path, [listener, BERTScoreCallback(metrics, loader_names=["news", "books"])])
    run.test(module, verbose=False)
    assert len(encoded) == 2
    assert [(one.stage, one.dataloader_idx, one.suffix) for one in listener.loaders] == [
        ("test", 0, "_news"),
        ("test", 1, "_books"),
    ]
    for loader in listener.loaders:
        seen = [batch for batch in module.seen if batch[0] == loader.dataloader_idx]
        preds, target = ([text for batch in seen for text in batch[side]] for side in (1, 2))
        for name, idf in (("plain", False), ("idf", True)):
            assert loader.metrics[name].encoder is shallow
            for score, expected in bert_score(preds, target, shallow, idf=idf).items():
                assert torch.allclose(loader.scores[name][score], expected, rtol=0, atol=1e-6)
                logged = run.callback_metrics[f"test_{name}_{score}{loader.suffix}"]
                assert logged.item() == pytest.approx(expected.mean().item(), abs=1e-6)


class FailsLater(Returns):
    """Returns a malformed batch after two good ones."""

    def evaluation_step(self, batch, batch_idx, dataloader_idx=0):
        return self.returned[batch_idx]

    validation_step = evaluation_step


def test_a_run_after_an_error_with_buffered_texts_starts_empty(pairs, shallow, tmp_path):
    good = {"preds": pairs[0][:3], "target": pairs[1][:3]}
    callback = BERTScoreCallback(metric_of(shallow))
    module = chooser(pairs, returned=[good, good, {"preds": ["a", None], "target": ["b", "c"]}], kind=FailsLater)
    with pytest.raises(MisconfigurationException, match="bertscore cannot score the texts of a batch"):
        trainer(tmp_path, [callback]).validate(module, verbose=False)
    trainer(tmp_path, [callback]).validate(chooser(pairs), verbose=False)
    assert len(callback.pairs["val_bertscore_f1"]) == 7


def test_texts_that_are_too_long_are_an_error_of_the_run(minilm, tmp_path, pairs):
    metric = BERTScore(FrozenEncoder(minilm, num_layers=1, max_length=8, long_text="error"))
    with pytest.raises(MisconfigurationException, match=r"bertscore cannot score the texts of a batch.*8"):
        trainer(tmp_path, [BERTScoreCallback(metric)]).validate(chooser(pairs), verbose=False)
