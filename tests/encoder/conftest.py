"""Tiny models for several files."""

import copy

import pytest
from transformers import (
    BertConfig,
    BertModel,
    FNetConfig,
    FNetModel,
    MobileBertConfig,
    MobileBertModel,
)

from tests.support.encoders import WIDTH
from tests.support.models import (
    randomised,
    tiny_model,
    tiny_tokenizer,
)


@pytest.fixture(scope="module")
def models():
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "intermediate_size": 48}
    sizes["vocab_size"] = len(tiny_tokenizer("wordpiece"))
    mobile = MobileBertConfig(**sizes, embedding_size=16, num_attention_heads=4, intra_bottleneck_size=16)
    made = {
        "bert": BertModel(BertConfig(**sizes, num_attention_heads=4)),
        "mobilebert": MobileBertModel(mobile),
        "fnet": FNetModel(FNetConfig(**sizes)),
    }
    return {name: randomised(model) for name, model in made.items()}


@pytest.fixture
def fresh_tiny():
    """A ready BERT that no other test uses."""
    return copy.deepcopy(tiny_model("bert"))
