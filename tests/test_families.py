import pytest
from transformers import AutoConfig, FNetConfig, FNetModel, GPT2Config, GPT2Model

from bertscore_tm import FrozenEncoder
from bertscore_tm.families import FAMILIES, family_of
from tests.support import FAMILIES as TINY
from tests.support import tiny_model, tiny_tokenizer


def test_every_supported_family_is_tested():
    assert set(FAMILIES) == set(TINY)


@pytest.mark.parametrize(
    ("family", "options", "limit"),
    [
        ("bert", {"max_position_embeddings": 512}, 512),
        ("distilbert", {"max_position_embeddings": 512}, 512),
        ("roberta", {"max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ("xlm-roberta", {"max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ("mpnet", {"max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ("deberta", {"relative_attention": True, "position_biased_input": False}, None),
        ("deberta-v2", {"relative_attention": True, "position_biased_input": False}, None),
        ("deberta", {"relative_attention": True, "position_biased_input": True}, 512),
    ],
)
def test_number_of_positions(family, options, limit):
    config = AutoConfig.for_model(family, **options)
    assert family_of(config).max_positions(config) == limit


@pytest.mark.parametrize(
    "family", [name for name in TINY if family_of(tiny_model(name)[0].config).max_positions(tiny_model(name)[0].config)]
)
def test_the_model_takes_as_many_tokens_as_positions_and_no_more(family):
    model, tokenizer = tiny_model(family)
    limit = family_of(model.config).max_positions(model.config)
    text = "a " * 100
    with pytest.raises(ValueError, match=f"exceeds the {limit} positions"):
        FrozenEncoder(model, tokenizer, num_layers=1, max_length=limit + 1).tokenizer(["a"])
    encoder = FrozenEncoder(model, tokenizer, num_layers=1, max_length=limit)
    assert encoder.encode([text]).lengths.tolist() == [limit]


@pytest.mark.parametrize(
    "model",
    [
        FNetModel(FNetConfig(vocab_size=800, hidden_size=16, num_hidden_layers=1, intermediate_size=16)),
        GPT2Model(GPT2Config(vocab_size=800, n_embd=16, n_layer=1, n_head=2)),
    ],
    ids=["fnet", "gpt2"],
)
def test_unsupported_families_are_named(model, tmp_path):
    kind = model.config.model_type
    with pytest.raises(ValueError, match=f"type '{kind}' are not supported.*roberta"):
        FrozenEncoder(model, tiny_tokenizer("wordpiece"), num_layers=1)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"type '{kind}' are not supported.*roberta"):
        FrozenEncoder(tmp_path, num_layers=1)
