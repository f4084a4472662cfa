"""The frozen encoder: shared, frozen, cut, exact, and quiet."""

import copy
import gc
import weakref

import numpy as np
import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from bertscore_tm.encoder.encoder import Batches
from tests.support.encoders import TEXTS
from tests.support.models import last_hidden_state, live_models, tiny_model


@pytest.mark.filterwarnings("ignore:this processor has no bfloat16 instructions")
def test_equal_settings_share_one_model(minilm, encoder):
    same = FrozenEncoder(f"{minilm}/../{minilm.rsplit('/', 1)[1]}", num_layers=-2, batch_size=3, max_length=50)

    assert same.backbone("cpu") is encoder.backbone("cpu")
    for other in ({"num_layers": 4}, {"num_layers": 5, "dtype": "bfloat16"}):
        assert FrozenEncoder(minilm, **other).backbone("cpu") is not encoder.backbone("cpu")


def test_metric_loss_and_callback_together_hold_one_copy(minilm):
    from bertscore_tm.callbacks import BERTScoreCallback
    from bertscore_tm.losses import SoftBERTScoreLoss

    before = live_models()
    metric = BERTScore(FrozenEncoder(minilm, num_layers=4))
    loss = SoftBERTScoreLoss(FrozenEncoder(minilm, num_layers=4))
    callback = BERTScoreCallback(BERTScore(FrozenEncoder(minilm, num_layers=4)))
    clones = metric.clone(), copy.deepcopy(loss), copy.deepcopy(metric)
    owners = [metric, loss, callback.metric, *clones]
    for owner in owners:
        owner.encoder.encode(["a cat"])
    metric.update(["a cat"], ["the cat"])

    assert len({id(owner.encoder.backbone("cpu")) for owner in owners}) == 1
    # An encoder of another test may still hold this model in memory.
    assert len(live_models() - before) <= 1
    owned = [p for owner in (metric, loss, callback.metric, *clones) for p in owner.parameters()]
    assert not owned
    assert not any(owner.state_dict() for owner in (metric, callback.metric))


def test_copies_share_weights_until_the_last_is_dropped(minilm):
    first = FrozenEncoder(minilm, num_layers=1, dtype="float64")
    second = copy.deepcopy(first)
    copied = copy.copy(first)
    model = weakref.ref(first.backbone("cpu"))

    assert second.backbone("cpu") is copied.backbone("cpu") is model()
    other = FrozenEncoder(minilm, num_layers=3, dtype="float64")
    other.backbone("cpu")
    del first, second
    gc.collect()
    assert model() is not None
    del copied
    gc.collect()
    assert model() is None


def test_the_model_stays_frozen_and_in_its_precision(encoder):
    model = encoder.backbone("cpu")
    expected = encoder.encode(TEXTS).vectors

    assert not expected.requires_grad
    model.train()
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(encoder.encode(TEXTS).vectors, expected)
        assert not any(module.training for module in model.modules())
    finally:
        model.eval()  # other tests share it


def test_negative_layers_count_from_the_last(minilm):
    encoders = [FrozenEncoder(minilm, num_layers=layer) for layer in range(-7, 0)]

    assert [encoder.num_layers for encoder in encoders] == [*range(7)]
    assert FrozenEncoder(minilm, num_layers=np.int64(2)).signature() == encoders[2].signature()
    assert repr(FrozenEncoder(minilm, num_layers=torch.tensor(2))) == repr(encoders[2])
    assert repr(encoders[2]) == f"FrozenEncoder({minilm!r}, layer 2, float32)"
    assert "layers 0-6" in repr(FrozenEncoder(minilm, all_layers=True))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dtype": "int3"}, ValueError, "dtype='int3' is not one of 'float32', 'bfloat16', 'float16'"),
        ({"long_text": "cut"}, ValueError, "long_text='cut' is not one of 'truncate', 'window', 'error'"),
        *(({"max_length": length}, ValueError, "no room") for length in (2, 0, -1)),
        ({"max_length": 513}, ValueError, "512 pos"),
        *(({"num_layers": n}, ValueError, rf"num_layers .* {n} is not one of the layers 0 to 6") for n in (7, -8)),
        *(({"num_layers": n}, TypeError, "num_layers must be an integer, got ") for n in (2.0, True)),
        ({"max_length": "64"}, TypeError, "max_length must be an integer, got "),
        *(({"batch_size": n}, ValueError, rf"batch_size .* must be at least 1, got {n}") for n in (0, -1)),
        *(({"dtype": dtype}, ValueError, "is not one of 'float32', ") for dtype in (torch.int8, torch.complex64, None)),
        ({"layers": 5}, TypeError, "unexpected keyword argument 'layers'"),
    ],
)
def test_impossible_settings(minilm, options, error, message):
    with pytest.raises(error, match=message):
        FrozenEncoder(minilm, **{"num_layers": 2} | options).encode(["a"])


def test_a_layer_cannot_be_counted_from_the_last_of_a_function():
    with pytest.raises(ValueError, match="with forward_fn, which returns one layer, num_layers must be at least 0"):
        FrozenEncoder(*tiny_model("bert"), forward_fn=last_hidden_state, num_layers=-1)


@pytest.mark.parametrize("layer", [True, 2.0, "2", torch.tensor(2.0)])
def test_a_layer_of_all_must_be_an_integer(minilm, layer):
    every = FrozenEncoder(minilm, all_layers=True)

    for call in (every.layer_number, every.signature, lambda number: BERTScore(every, layer=number)):
        with pytest.raises(TypeError, match="layer must be an integer, got "):
            call(layer)

    assert every.signature(torch.tensor(-5)) == FrozenEncoder(minilm, num_layers=2).signature()


def test_the_meta_device_is_named(minilm):
    with torch.device("meta"):
        encoder = FrozenEncoder(minilm, num_layers=1)
        metric = BERTScore(encoder)
        for call in (lambda: metric.update(["a"], ["b"]), lambda: encoder.encode(["a"], "meta")):
            with pytest.raises(ValueError, match=r"cannot be encoded on the device 'meta'.*\. Create the metric"):
                call()
        encoder.backbone("meta")
        assert bert_score(["a"], ["a"], encoder)["f1"].item() == pytest.approx(1)


def test_texts_may_be_any_iterable(encoder):
    texts = ["a cat sat", "hello"]
    expected = encoder.encode(texts).vectors

    for given in ((text for text in texts), iter(texts), tuple(texts), np.array(texts), dict.fromkeys(texts).keys()):
        assert torch.equal(encoder.encode(given).vectors, expected)


@pytest.mark.parametrize("texts", ["hello", ["a", None], [["a"]], [3], {"a": 1}])
def test_what_is_not_a_list_of_strings_is_an_error(encoder, texts):
    for call in (encoder.encode, encoder.tokenizer):
        with pytest.raises(TypeError, match="texts must be a list of strings, got "):
            call(texts)


def test_loading_prints_nothing_and_keeps_the_random_state(minilm, fresh_tiny, capfd):
    before = torch.get_rng_state()
    FrozenEncoder(minilm, num_layers=3, dtype="float64").encode(["a"])
    FrozenEncoder(fresh_tiny[0], fresh_tiny[1], num_layers=1).encode(["a"])

    assert torch.equal(torch.get_rng_state(), before)
    assert capfd.readouterr() == ("", "")


def test_a_batch_that_does_not_fit_is_repeated_in_halves():
    lengths = np.array([6, 6, 5, 5, 2, 1])
    batches = Batches(lengths, budget=24)
    memory = 12
    texts = []

    for batch in batches:
        if lengths[batch.texts].sum() > memory:
            assert batches.shrink() == (batch.texts.stop - batch.texts.start) // 2
            continue
        assert lengths[: batch.texts.start].sum() == batch.tokens.start
        assert lengths[batch.texts].sum() == batch.tokens.stop - batch.tokens.start
        texts.append(lengths[batch.texts].tolist())

    assert texts == [[6, 6], [5, 5, 2], [1]]
    assert batches.next_budget == 12


def test_batches_keep_to_the_budget_except_for_a_single_text():
    lengths = np.array([9, 4, 4, 4, 1])
    sizes = [lengths[batch.texts].tolist() for batch in Batches(lengths, budget=8)]

    assert sizes == [[9], [4, 4], [4, 1]]
    sizes = [lengths[batch.texts].tolist() for batch in Batches(lengths, budget=100, batch_size=2)]
    assert sizes == [[9, 4], [4, 4], [1]]
    assert Batches(lengths, budget=100).next_budget > 100
