"""Callbacks, metrics and losses from configuration files: jsonargparse reads their signatures."""

import json
from typing import Any

import pytest
from jsonargparse import ArgumentParser
from lightning.pytorch.callbacks import Callback
from torch import nn
from torchmetrics import Metric

from bertscore_tm import BERTScore, callbacks, losses
from bertscore_tm.callbacks import BERTScoreCallback
from bertscore_tm.losses import SoftBERTScoreLoss, VocabularyBridge

pytestmark = pytest.mark.usefixtures("one_thread")


def built(kind: Any, **config: Any) -> Any:
    parser = ArgumentParser()
    parser.add_argument("--it", type=kind)
    return parser.instantiate(parser.parse_string(json.dumps({"it": config}))).it


def of(class_path: str, **init_args: Any) -> dict[str, Any]:
    return {"class_path": class_path, "init_args": init_args}


def test_several_metrics_and_a_generator(minilm):
    model = str(minilm)
    metrics = {
        "plain": of(
            "bertscore_tm.BERTScore", model_name_or_path=of("bertscore_tm.FrozenEncoder", model=model, num_layers=2)
        ),
        "idf": of("bertscore_tm.BERTScore", model_name_or_path=model, num_layers=4, idf=True),
        "rouge": of("torchmetrics.text.ROUGEScore", rouge_keys=["rouge1"]),
    }
    generate = of("bertscore_tm.callbacks.CausalGenerate", tokenizer=model) | {"dict_kwargs": {"max_new_tokens": 3}}
    callback = built(Callback, **of("bertscore_tm.callbacks.BERTScoreCallback", metric=metrics, generate=generate))
    assert isinstance(callback, BERTScoreCallback)
    assert list(callback.metrics) == ["plain", "idf", "rouge"]
    assert [callback.metrics[name].encoder.num_layers for name in ("plain", "idf")] == [2, 4]
    assert callback.metrics["idf"].idf
    assert callback.generate.generate_kwargs == {"max_new_tokens": 3}
    assert callback.generate.tokenizer.vocab_size == callback.metrics["idf"].encoder.tokenizer.vocab_size


def test_a_metric_is_as_without_the_file(minilm):
    found = built(Metric, **of("bertscore_tm.BERTScore", model_name_or_path=str(minilm), num_layers=2))
    plain = BERTScore(minilm, num_layers=2)
    for name in ("compute_with_cache", "reduction", "cache_bytes", "compute_on_cpu", "idf", "score"):
        assert getattr(found, name) == getattr(plain, name), name
    assert found.signature() == plain.signature()


def test_a_loss_with_a_relaxation_and_a_matching_by_name(minilm):
    config = of(
        "bertscore_tm.losses.SoftBERTScoreLoss",
        model_name_or_path=str(minilm),
        num_layers=2,
        relaxation="gumbel",
        matching="transport",
    )
    loss = built(nn.Module, **config)
    assert isinstance(loss, SoftBERTScoreLoss)
    assert (loss.relaxation, loss.matching) == ("gumbel", "transport")


def test_a_loss_with_a_tokenizer_and_weights(minilm):
    model = str(minilm)
    config = of(
        "bertscore_tm.losses.SoftBERTScoreLoss",
        model_name_or_path=of("bertscore_tm.FrozenEncoder", model=model, num_layers=2),
        generator_tokenizer=model,
        idf=["a cat", "a dog"],
    )
    loss = built(nn.Module, **config)
    assert isinstance(loss.bridge, VocabularyBridge)
    assert loss.bridge.mode == "identity"
    assert str(loss.weights.source).startswith("2#")


def test_the_reward_and_the_sequence_level_losses(minilm):
    config = of("bertscore_tm.losses.BERTScoreReward", model_name_or_path=str(minilm), num_layers=2)
    assert built(losses.BERTScoreReward, **config)(["a cat"], ["a cat"]) == [pytest.approx(1.0, abs=1e-6)]
    assert built(nn.Module, **of("bertscore_tm.losses.MinimumRiskLoss", alpha=0.1)).alpha == 0.1
    assert built(nn.Module, **of("bertscore_tm.losses.SelfCriticalLoss"))


GIVEN = {
    "BERTScoreEarlyStopping": {"patience": 7, "significance": 0.01},
    "LossWeightSchedule": {"start": 0.5, "shape": "cosine", "over": 9, "by": "epoch"},
    "SampleLogger": {"num_samples": 2, "inputs": "question", "follow": [3]},
    "TemperatureAnnealing": {"end": 0.5, "shape": "exponential", "warmup": 4},
}


@pytest.mark.parametrize("name", GIVEN)
def test_every_callback_is_resolved(name):
    found = built(Callback, **of(f"bertscore_tm.callbacks.{name}", **GIVEN[name]))
    assert type(found) is getattr(callbacks, name)
    assert {key: getattr(found, key) for key in GIVEN[name]} == GIVEN[name]
