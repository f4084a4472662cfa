"""The encoder that arguments describe, and the settings that an encoder to share forbids."""

import pytest
import torch

from bertscore_tm import FrozenEncoder
from bertscore_tm.encoder import default_device, make_encoder
from tests.support.models import tiny_model


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


def test_an_error_names_the_settings_that_contradict_an_encoder(encoder):
    model, tokenizer = tiny_model("bert")
    settings = {"num_layers": 0, "truncation": False, "dtype": torch.bfloat16, "max_length": None}
    with pytest.raises(ValueError, match="pass num_layers, truncation, dtype, model, user_tokenizer to it"):
        make_encoder(encoder, model=model, user_tokenizer=tokenizer, **settings)


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
    for available, name in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=available: found)
        assert default_device() == torch.device(name)
        assert default_device("meta") == torch.device("meta")
