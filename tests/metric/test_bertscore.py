"""The metric in one process: the same numbers as the function, however the data comes in."""

import warnings
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from bertscore_tm import Baseline, BERTScore, FrozenEncoder
from bertscore_tm.alignment.alignment import compute_alignment
from bertscore_tm.functional import bert_score
from bertscore_tm.losses import SoftBERTScoreLoss
from bertscore_tm.scoring import corpus
from bertscore_tm.scoring.corpus import forget_batch
from bertscore_tm.scoring.idf import token_weights
from bertscore_tm.scoring.settings import ScoreSettings
from tests.support.metrics import FIRST, SECOND, VOCABULARY, assert_close, assert_equal, mean, per_pair, updated
from tests.support.models import counted_texts
from tests.support.texts import real_pairs

TEXTS = real_pairs(9, words=9)


@pytest.mark.parametrize(
    ("how", "first", "second"),
    [("update", [0, 1], None), ("forward", None, [0]), ("merge_state", [0, 1], None), ("merge_state", None, [0])],
)
def test_indices_come_always_or_never(encoder, how, first, second):
    metric = BERTScore(encoder)
    metric.update(*FIRST, indices=first)
    before = metric.compute()
    arguments = (*SECOND, second)
    if how == "merge_state":
        other = BERTScore(encoder)
        other.update(*SECOND, indices=second)
        arguments = (other,)

    with pytest.raises(ValueError, match="indices"):
        getattr(metric, how)(*arguments)

    assert_equal(metric.compute(), before, 0)


@pytest.mark.parametrize("indices", [[0], [0, 1, 2], [[0, 1]], [0.0, 1.0], [True, False], 3])
def test_malformed_indices_are_refused(encoder, indices):
    metric = BERTScore(encoder)

    with pytest.raises(ValueError, match="2 integers"):
        metric.update(*FIRST, indices=indices)

    assert metric.metric_state["scores"] == []


@pytest.mark.parametrize("idf", [False, True])
def test_empty_update_changes_nothing(encoder, idf):
    metric = BERTScore(encoder, idf=idf, reduction="none")

    updated(metric, ([], []), FIRST, ([], []))
    metric.update([], [], indices=[])
    of_nothing = metric([], [])

    assert_equal(metric.compute(), per_pair(encoder, FIRST, idf=idf))
    assert {value.shape for value in of_nothing.values()} == {(0,)}


@pytest.mark.parametrize("sync_on_compute", [True, False])
def test_warns_with_counts_once_per_compute(minilm, sync_on_compute):
    encoder = FrozenEncoder(minilm, num_layers=2, max_length=8)
    metric = BERTScore(encoder, sync_on_compute=sync_on_compute)

    with warnings.catch_warnings(action="error"):
        metric(["", " \n", "fine"], ["some text", "more text", "fine"])
        metric.update(["word " * 20, "other " * 20], ["word " * 9, "short"])
    with pytest.warns(UserWarning, match="scored 0|longer than") as caught:
        metric.compute()

    zero, long = (str(warning.message) for warning in caught)
    assert zero == "2 candidates scored 0 because the text or each of its references is empty"
    assert long.startswith("3 texts are longer than 8 tokens")


@pytest.mark.parametrize(
    ("how", "error", "step"),
    [
        ("forward", KeyboardInterrupt, 1),
        ("update", AttributeError, 1),
        ("update", torch.OutOfMemoryError, 3),
        ("forward", torch.OutOfMemoryError, 3),
    ],
)
def test_a_batch_whose_encoding_fails_can_be_passed_again(encoder, monkeypatch, how, error, step):
    metric = updated(BERTScore(encoder, reduction="none"), FIRST)
    monkeypatch.setattr(corpus, "_ELEMENTS_PER_STEP", 150 * 384)
    encode = FrozenEncoder.encode
    calls = []

    def fail_in_step(self: FrozenEncoder, *args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) == step:
            raise error("failed")
        return encode(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(FrozenEncoder, "encode", fail_in_step)
        with pytest.raises(error, match="failed"):
            getattr(metric, how)(*TEXTS)
    assert len(calls) == step

    getattr(metric, how)(*TEXTS)
    assert_equal(metric.compute(), per_pair(encoder, FIRST, TEXTS))


@pytest.mark.parametrize("end", ["compute", "reset"])
def test_no_batch_is_kept_after_compute_or_reset(encoder, end):
    owner = encoder.cache(torch.device("cpu"))
    metric = updated(BERTScore(encoder), FIRST)
    assert owner in corpus._latest

    getattr(metric, end)()

    assert owner not in corpus._latest


def synced(encoder: FrozenEncoder, **settings: Any) -> BERTScore:
    """A metric that holds the pairs of all ranks."""
    metric = updated(BERTScore(encoder, reduction="none", sync_on_compute=False, **settings), FIRST)
    metric.sync(dist_sync_fn=lambda tensor, group: [tensor], distributed_available=lambda: True)
    return metric


# With idf, the tokens of one reference have no weight.
@pytest.mark.filterwarnings("ignore:1 candidate scored 0:UserWarning")
@pytest.mark.parametrize("idf", [False, True])
def test_reset_forgets_the_pairs_of_all_ranks(encoder, idf):
    metric = synced(encoder, idf=idf)

    metric.reset()
    metric.update(*SECOND)

    assert_equal(metric.compute(), per_pair(encoder, SECOND, idf=idf))


@pytest.mark.parametrize("how", ["update", "merge_state"])
def test_a_synced_metric_refuses_pairs_that_unsync_would_drop(encoder, how):
    metric = synced(encoder)
    arguments = SECOND
    if how == "merge_state":
        arguments = (updated(BERTScore(encoder), SECOND),)

    with pytest.raises(TorchMetricsUserError, match="Call unsync first"):
        getattr(metric, how)(*arguments)

    metric.unsync()
    getattr(metric, how)(*arguments)
    assert_equal(metric.compute(), per_pair(encoder, FIRST, SECOND))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("earlier", ["none", "own", "synced"])
def test_loaded_pairs_replace_the_result_of_earlier_ones(encoder, earlier):
    saved = updated(BERTScore(encoder), SECOND)
    saved.persistent(True)
    metric = BERTScore(encoder, reduction="none")
    if earlier == "synced":
        metric = synced(encoder)
    if earlier == "own":
        metric.update(*FIRST)
    if earlier != "none":
        metric.compute()
    metric.persistent(True)

    metric.load_state_dict(saved.state_dict())

    assert_equal(metric.compute(), per_pair(encoder, SECOND))


def test_forward_encodes_each_text_once(encoder):
    # Vectors that the encoder keeps of other tests would not be encoded again.
    forget_batch(encoder, torch.device("cpu"))
    metric = BERTScore(encoder, dist_sync_on_step=True, cache_bytes=0)

    with counted_texts() as encoded:
        metric(*FIRST)
        metric.compute()

    assert sorted(encoded.values()) == [1] * 4


def test_forward_refuses_a_synced_metric(encoder):
    metric = synced(encoder)

    with pytest.raises(TorchMetricsUserError, match="unsync"):
        metric(*FIRST)


@pytest.mark.parametrize("how", ["compute", "forward"])
def test_failed_gathering_keeps_the_pairs(encoder, how):
    def fail(tensor, group):
        raise RuntimeError("connection closed by peer")

    metric = BERTScore(encoder, dist_sync_fn=fail, distributed_available_fn=lambda: True, dist_sync_on_step=True)
    metric.update(*FIRST)
    arguments = SECOND if how == "forward" else ()

    with pytest.raises(RuntimeError, match="closed by peer") as caught:
        getattr(metric, how)(*arguments)

    assert "merge_state this metric into a BERTScore with sync_on_compute=False" in caught.value.__notes__[0]
    alone = BERTScore(encoder, sync_on_compute=False)
    alone.merge_state(metric)
    assert_equal(alone.compute(), mean(per_pair(encoder, FIRST)))


COUNT = 8

# Real texts, cut short.
PREDS, TARGET = real_pairs(COUNT, words=9)

# A corpus that is not the references, with documents that come twice.
CORPUS = [*PREDS[:5], *TARGET[4:], *TARGET[4:6]]


def with_pairs(metric: BERTScore, preds: Sequence[str] = PREDS, target: Sequence[Any] = TARGET) -> BERTScore:
    """A metric with pairs in batches of three."""
    for start in range(0, len(preds), 3):
        batch = slice(start, start + 3)
        metric.update(preds[batch], target[batch])
    return metric


@pytest.mark.parametrize(("how", "side"), [("update", 0), ("forward", 1)])
def test_a_token_without_a_weight_loses_nothing(encoder, how, side):
    known = set(chain(*encoder.tokenizer([*PREDS, *TARGET]).rows()))
    mapping = {token: 1 + token % 3 for token in known}
    metric = with_pairs(BERTScore(encoder, idf=mapping, reduction="none"))
    before = metric.compute()
    count = len(metric.scores)
    bad = [PREDS[:2], TARGET[:2]]
    bad[side][0] = "zebra"

    with pytest.raises(ValueError, match=r"no weight for token id \d+ \('zebra'\).*pass texts"):
        getattr(metric, how)(*bad)

    assert len(metric.scores) == count
    assert_equal(metric.compute(), before, 0)
    assert_equal(before, bert_score(PREDS, TARGET, encoder, idf=mapping))
    metric.update(PREDS[:1], TARGET[:1])
    assert_close(metric.compute()["f1"][-1:], before["f1"][:1])


def test_a_mapping_is_read_once_and_not_changed(encoder):
    mapping = defaultdict(lambda: 0.5, {token: float(token % 5) for token in np.arange(1000, 4000)})
    every_weight = dict.fromkeys(range(VOCABULARY), 0.5) | mapping
    expected = bert_score(PREDS * 2, TARGET * 2, encoder, idf=every_weight)
    size = len(mapping)
    metric = BERTScore(encoder, idf=mapping, reduction="none")

    with_pairs(metric)
    size_after_update = len(mapping)
    mapping.clear()
    with_pairs(metric)

    assert size_after_update == size
    assert_equal(metric.compute(), expected)


@pytest.mark.parametrize("how", ["metric", "settings", "loss", "function"])
def test_weights_that_are_handed_out_are_copies(encoder, how):
    metric = BERTScore(encoder, reduction="none")
    expected = with_pairs(metric).compute()
    weights = {
        "metric": metric.token_weights,
        "settings": lambda: metric.score_settings().weights,
        "loss": lambda: SoftBERTScoreLoss(encoder).weights,
        "function": lambda: token_weights(encoder),
    }[how]()

    weights.table.fill_(0)

    for later in (metric, BERTScore(encoder, reduction="none")):
        later.reset()
        assert_equal(with_pairs(later).compute(), expected, 0)


def test_weights_and_baselines_that_are_passed_are_copied(encoder, table):
    weights = token_weights(encoder, CORPUS)
    baseline = Baseline.read(table)
    metric = BERTScore(encoder, idf=weights, rescale=baseline, reduction="none")
    expected = bert_score(PREDS, TARGET, encoder, idf=CORPUS, rescale=table)

    weights.table.fill_(1)
    baseline.table.fill_(0.5)

    assert_equal(with_pairs(metric).compute(), expected)


def test_negative_numbers_count_from_the_models_last_layer(minilm):
    """The last layer that the encoder returns may be a lower one."""
    some = FrozenEncoder(minilm, num_layers=4, all_layers=True)
    expected = bert_score(PREDS, TARGET, FrozenEncoder(minilm, num_layers=3))

    result = with_pairs(BERTScore(some, layer=-4, reduction="none")).compute()

    assert_close(result["f1"], expected["f1"])


@pytest.mark.parametrize("layer", [5, -1, -8])
def test_layers_that_the_encoder_does_not_return_are_refused(minilm, layer):
    some = FrozenEncoder(minilm, num_layers=4, all_layers=True)

    with pytest.raises(ValueError, match=rf"num_layers \(--num-layers\) {layer} is not one of the layers 0 to 4"):
        BERTScore(some, layer=layer)


def test_signatures_and_states_differ_by_picked_layer(every):
    metric = BERTScore(every, layer=2)

    for other in (BERTScore(every, layer=3), BERTScore(every)):
        assert other.signature() != metric.signature()
        with pytest.raises(ValueError, match="layer"):
            metric.merge_state(with_pairs(other))


def test_a_layer_has_one_signature_and_state_in_every_encoder(minilm, every):
    metric = BERTScore(every, layer=2)
    negative = BERTScore(every, layer=-5)
    alone = BERTScore(FrozenEncoder(minilm, num_layers=2))
    shallower = BERTScore(FrozenEncoder(minilm, num_layers=4, all_layers=True), layer=2)

    metric.merge_state(with_pairs(negative))

    assert_equal(metric.compute(), negative.compute(), 0)
    for same in (negative, negative.clone(), alone, shallower):
        assert same.signature() == metric.signature()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"reduction": "sum"}, ValueError, "reduction='sum'"),
        ({"no_such_option": 1}, ValueError, "Unexpected keyword"),
        ({"component": "F1"}, ValueError, "component='F1' is not one of 'precision', 'recall', 'f1'"),
        ({"component": True}, ValueError, "component=True is not one of"),
        ({"layer": 1}, ValueError, "layer=1 needs an encoder with all_layers=True"),
    ],
)
def test_impossible_settings_are_refused(encoder, options, error, message):
    with pytest.raises(error, match=message):
        BERTScore(encoder, **options)


@pytest.mark.parametrize("options", [{"component": "f1", "idf": True}, {"component": "recall", "idf": CORPUS}])
def test_a_metric_of_the_same_settings_gives_pairs(encoder, options):
    metric = BERTScore(encoder, **options)
    metric.update(PREDS[:4], TARGET[:4])

    twin = with_pairs(metric.per_pair())

    assert_equal(twin.compute(), bert_score(PREDS, TARGET, encoder, idf=options["idf"]))
    assert metric.update_count == 1  # its pairs are its own


PAIR = "a cat sleeps", "the kitten is sleeping"
DOCUMENTS = ["a cat", "the kitten", "the dog is sleeping"]


def test_a_metric_aligns_with_its_own_settings(minilm, every):
    settings = ScoreSettings.create(FrozenEncoder(minilm, num_layers=5), DOCUMENTS)
    expected = compute_alignment(*PAIR, settings)

    aligned = BERTScore(every, layer=5, idf=DOCUMENTS).align(*PAIR)

    assert aligned.candidate.tokens == expected.candidate.tokens
    torch.testing.assert_close(aligned.similarity, expected.similarity, atol=1e-6, rtol=0)
    torch.testing.assert_close(aligned.candidate.shares, expected.candidate.shares, atol=1e-6, rtol=0)


def test_an_alignment_has_the_weights_of_the_pairs_so_far(minilm, every):
    encoder = FrozenEncoder(minilm, num_layers=5)
    expected = bert_score(PAIR[:1], PAIR[1:], encoder, idf=DOCUMENTS)["f1"].item()
    metric = BERTScore(every, layer=5, idf=True)

    with pytest.raises(ValueError, match=r"there are none yet\. Call update first"):
        metric.align(*PAIR)
    metric.update(["x"] * len(DOCUMENTS), DOCUMENTS)
    aligned = metric.align(*PAIR)

    assert aligned.f1 == pytest.approx(expected, abs=1e-6)
    assert aligned.settings.endswith("layer 5, idf of 3 texts")


def test_an_alignment_of_all_layers_is_refused(every):
    with pytest.raises(ValueError, match="an alignment needs a single layer"):
        BERTScore(every).align(*PAIR)
