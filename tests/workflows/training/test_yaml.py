"""Callbacks, metrics and losses from configuration files: jsonargparse reads their signatures."""

import json
from typing import Any

import pytest
from jsonargparse import ArgumentParser
from lightning.pytorch.callbacks import Callback
from torch import nn

from bertscore_tm import BERTScore, FrozenEncoder, losses
from bertscore_tm.callbacks import BERTScoreCallback
from bertscore_tm.losses import SoftBERTScoreLoss, VocabularyBridge


def built(kind: Any, **config: Any) -> Any:
    parser = ArgumentParser()
    parser.add_argument("--it", type=kind)
    return parser.instantiate(parser.parse_string(json.dumps({"it": config}))).it


def of(class_path: str, **init_args: Any) -> dict[str, Any]:
    return {"class_path": class_path, "init_args": init_args}


def encoder_of(model: Any, **options: Any) -> dict[str, Any]:
    return of("bertscore_tm.FrozenEncoder", model=str(model), **options)


def test_several_metrics_and_a_generator(minilm):
    model = str(minilm)
    metrics = {
        "plain": of("bertscore_tm.BERTScore", encoder=encoder_of(minilm, num_layers=2)),
        "idf": of("bertscore_tm.BERTScore", encoder=encoder_of(minilm, num_layers=4), idf=True),
        "rouge": of("torchmetrics.text.ROUGEScore", rouge_keys=["rouge1"]),
    }
    generate = of("bertscore_tm.callbacks.CausalGenerate", tokenizer=model, prompt_key="question", target_key="answer")
    generate["dict_kwargs"] = {"max_new_tokens": 3}

    callback = built(Callback, **of("bertscore_tm.callbacks.BERTScoreCallback", metric=metrics, generate=generate))

    assert isinstance(callback, BERTScoreCallback)
    assert list(callback.metrics) == ["plain", "idf", "rouge"]
    assert [callback.metrics[name].encoder.num_layers for name in ("plain", "idf")] == [2, 4]
    plain = BERTScore(FrozenEncoder(minilm, num_layers=4), idf=True)
    assert callback.metrics["idf"].signature() == plain.signature()
    assert callback.generate.generate_kwargs == {"max_new_tokens": 3}
    assert (callback.generate.prompt_key, callback.generate.target_key) == ("question", "answer")
    assert callback.generate.tokenizer.vocab_size == callback.metrics["idf"].encoder.tokenizer.vocab_size


def test_a_loss_with_a_tokenizer_and_weights(minilm):
    config = of(
        "bertscore_tm.losses.SoftBERTScoreLoss",
        encoder=encoder_of(minilm, num_layers=2),
        tokenizer=str(minilm),
        matching="max",
        idf=["a cat", "a dog"],
    )

    loss = built(nn.Module, **config)

    assert isinstance(loss, SoftBERTScoreLoss)
    assert (loss.relaxation, loss.matching) == ("softmax", "max")
    assert isinstance(loss.bridge, VocabularyBridge)
    assert loss.bridge.mode == "identity"
    assert str(loss.weights.source).startswith("2#")


def test_the_reward_and_the_sequence_level_loss(minilm):
    config = of("bertscore_tm.losses.BERTScoreReward", encoder=encoder_of(minilm, num_layers=2))

    assert built(losses.BERTScoreReward, **config)(["a cat"], ["a cat"]) == [pytest.approx(1.0, abs=1e-6)]
    assert built(nn.Module, **of("bertscore_tm.losses.MinimumRiskLoss", alpha=0.1)).alpha == 0.1


def test_early_stopping_takes_lightnings_arguments():
    callback = built(Callback, **of("bertscore_tm.callbacks.BERTScoreEarlyStopping", patience=7, strict=False))
    assert (callback.patience, callback.strict) == (7, False)
