"""The encoder that arguments describe, and the settings that an encoder to share forbids."""

import re

import numpy as np
import pytest
import torch

import bertscore_tm
from bertscore_tm import BERTScore, BERTScorer, FrozenEncoder, bert_score
from bertscore_tm.cli import main
from bertscore_tm.encoder import default_device, make_encoder
from bertscore_tm.losses import BERTScoreReward, SoftBERTScoreLoss
from tests.support.models import save_tiny_model, tiny_model


@pytest.fixture(scope="module")
def encoder():
    return FrozenEncoder(*tiny_model("bert"), num_layers=1)


def test_an_encoder_is_shared_as_it_is(encoder):
    assert make_encoder(encoder) is encoder
    defaults = {"num_layers": None, "all_layers": False, "truncation": True, "batch_size": None, "long_text": None}
    for dtype in ("float32", torch.float32):
        assert make_encoder(encoder, lang="de", dtype=dtype, **defaults) is encoder


def test_options_are_compared_by_value(encoder):
    """A value equal to the default but not the same object changes nothing."""
    assert make_encoder(encoder, dtype="".join(["float", "32"]), truncation=1, revision=None) is encoder


OWN = {"num_layers": 2, "all_layers": True, "max_length": 20, "batch_size": 3, "dtype": "bfloat16"}
WINDOWS = {"num_layers": 2, "long_text": "window", "stride": 4, "max_length": 20}


@pytest.mark.parametrize(
    ("own", "agreeing", "contradicting"),
    [
        (OWN, OWN | {"num_layers": -2, "dtype": torch.bfloat16}, {"num_layers": 1, "max_length": 19, "batch_size": 2}),
        (OWN, {"all_layers": True}, {"dtype": "float64", "truncation": False, "long_text": "window"}),
        # Whether all layers up to this one are wanted, or this one alone, is not said.
        (OWN, {"max_length": 20}, {"num_layers": 2}),
        (WINDOWS, WINDOWS, {"stride": 5, "all_layers": True, "long_text": "error"}),
        ({"truncation": False, "num_layers": 1}, {"truncation": False}, {"num_layers": 2}),
        ({"truncation": False, "num_layers": 1}, {"long_text": "error", "num_layers": 1}, {"long_text": "truncate"}),
        ({"prefix_space": True, "num_layers": 1}, {"prefix_space": True}, {"prefix_space": False}),
        ({"num_layers": 1}, {"exclude_special_tokens": False}, {"exclude_special_tokens": True}),
    ],
)
def test_arguments_that_agree_with_an_encoder_are_accepted(own, agreeing, contradicting):
    encoder = FrozenEncoder(*tiny_model("bert"), **own)
    assert make_encoder(encoder, **agreeing) is encoder
    assert make_encoder(encoder, user_tokenizer=tiny_model("bert")[1]) is encoder
    for name, value in contradicting.items():
        with pytest.raises(ValueError, match=f"contradicts {name}={value!r}: remove the argument, or pass it to"):
            make_encoder(encoder, **agreeing | {name: value} if name != "num_layers" else {name: value})


def test_every_entry_point_takes_the_options_of_the_tokenizer(tmp_path, capsys):
    folder, pair = save_tiny_model("bert", tmp_path), (["a cat"], ["the cat"])
    settings = {"num_layers": 1, "prefix_space": True, "exclude_special_tokens": True}
    arguments = ["--candidate-text", "a cat", "--reference-text", "the cat", "-m", folder, "-l", "1", "--device", "cpu"]
    assert main(["score", *arguments, "--prefix-space", "--exclude-special-tokens"]) == 0
    signatures = [
        capsys.readouterr().out,
        bert_score(*pair, folder, return_hash=True, **settings)["hash"],
        BERTScore(folder, **settings).signature(),
        BERTScorer(folder, **settings).hash,
        bertscore_tm.score(*pair, folder, return_hash=True, **settings)[1],
        BERTScoreReward(folder, **settings).encoder.signature(),
        SoftBERTScoreLoss(folder, **settings).encoder.signature(),
    ]
    assert all("|space:yes|" in signature for signature in signatures)
    assert all("|special:excluded" in signature for signature in signatures)
    options = {name: value for name, value in settings.items() if name != "num_layers"}
    assert bertscore_tm.align("a cat", "the cat", folder, 1, **options).settings.endswith("without special tokens")


def test_an_error_names_the_settings_that_contradict_an_encoder(encoder):
    settings = {"num_layers": 0, "truncation": False, "dtype": torch.bfloat16, "max_length": None}
    named = "num_layers=0, truncation=False, dtype=torch.bfloat16, model, user_tokenizer"
    with pytest.raises(ValueError, match=f"contradicts {re.escape(named)}: remove"):
        make_encoder(encoder, model=tiny_model("bert")[0], user_tokenizer=tiny_model("gpt2")[1], **settings)


@pytest.mark.parametrize("number", [np.int64(2), np.uint8(2), torch.tensor(2), -2])
def test_integers_of_any_kind(number):
    model, tokenizer = tiny_model("bert")
    encoder = make_encoder(model=model, user_tokenizer=tokenizer, num_layers=number)
    assert type(encoder.num_layers) is int
    assert encoder.num_layers == 2
    assert make_encoder(encoder, num_layers=number) is encoder
    options = {"max_length": np.int64(20), "stride": np.int32(4), "batch_size": np.int64(3), "long_text": "window"}
    sized = make_encoder(model=model, user_tokenizer=tokenizer, num_layers=number, **options)
    numbers = [sized.tokenizer.max_length, sized.tokenizer.stride, sized.batch_size]
    assert numbers == [20, 4, 3]
    assert {type(one) for one in numbers} == {int}


@pytest.mark.parametrize("wrong", [2.0, "2", True, torch.tensor(2.0), np.float32(2)])
@pytest.mark.parametrize("name", ["num_layers", "max_length", "stride", "batch_size"])
def test_other_numbers_are_refused_at_once(name, wrong):
    model, tokenizer = tiny_model("bert")
    options = {"num_layers": 1, "long_text": "window"} | {name: wrong}
    with pytest.raises(TypeError, match=f"{name} must be an integer, got {re.escape(repr(wrong))}"):
        FrozenEncoder(model, tokenizer, **options)
    if name == "num_layers":
        with pytest.raises(TypeError, match="num_layers must be an integer"):
            BERTScore(FrozenEncoder(model, tokenizer, all_layers=True), num_layers=wrong)


def test_a_model_and_a_name_exclude_each_other():
    model, tokenizer = tiny_model("bert")
    with pytest.raises(ValueError, match="pass model_name_or_path='roberta-large' or model=, not both"):
        make_encoder("roberta-large", model=model, user_tokenizer=tokenizer)
    with pytest.raises(ValueError, match="user_forward_fn needs a ready model"):
        make_encoder("roberta-large", user_forward_fn=lambda model, inputs: inputs["input_ids"])


def test_options_and_a_ready_model_reach_the_encoder():
    model, tokenizer = tiny_model("bert")
    encoder = make_encoder(model=model, user_tokenizer=tokenizer, num_layers=2, max_length=9, batch_size=3)
    assert (encoder.num_layers, encoder.tokenizer.max_length, encoder.batch_size) == (2, 9, 3)


def test_the_default_device_is_the_gpu_if_there_is_one(monkeypatch):
    for cuda, mps, name in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=cuda: found)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda found=mps: found)
        assert default_device() == torch.device(name)
        assert default_device("meta") == torch.device("meta")
