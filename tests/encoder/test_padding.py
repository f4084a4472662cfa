"""Models that mix padding into real tokens, or whose forward pass hides that it takes an attention mask."""

import copy
import functools

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoModel,
    BertConfig,
    BertModel,
    FNetConfig,
    FNetModel,
    MobileBertConfig,
    MobileBertModel,
)

from bertscore_tm import FrozenEncoder, bert_score
from tests.support.models import randomised, tiny_config, tiny_tokenizer
from tests.support.texts import real_pairs

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}


def vectors(model, inputs):
    return model(**inputs).last_hidden_state


def vectors_without_mask(model, inputs):
    return model(inputs["input_ids"]).last_hidden_state


@pytest.fixture(scope="module")
def models():
    tokenizer = tiny_tokenizer("wordpiece")
    sizes = SIZES | {"vocab_size": len(tokenizer)}
    mobile = MobileBertConfig(**sizes, embedding_size=16, num_attention_heads=4, intra_bottleneck_size=16)
    made = {
        "bert": BertModel(BertConfig(**sizes, num_attention_heads=4)),
        "mobilebert": MobileBertModel(mobile),
        "fnet": FNetModel(FNetConfig(**sizes)),
    }
    return {name: randomised(model) for name, model in made.items()}


@pytest.mark.parametrize(
    ("name", "forward"),
    [("bert", vectors), ("mobilebert", vectors), ("fnet", vectors_without_mask), ("bert", vectors_without_mask)],
)
def test_scores_of_any_model_do_not_depend_on_neighbours(models, name, forward):
    tokenizer = tiny_tokenizer("wordpiece")
    candidates, references = ([text[:60] for text in texts] for texts in real_pairs(12))
    together = bert_score(candidates, references, FrozenEncoder(models[name], tokenizer, forward_fn=forward))["f1"]
    single = FrozenEncoder(models[name], tokenizer, forward_fn=forward, batch_size=1)
    pairs = zip(candidates, references, strict=True)
    alone = [bert_score([candidate], [reference], single)["f1"] for candidate, reference in pairs]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-6, rtol=0)


def test_a_long_text_does_not_switch_the_frequencies_of_others():
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
    rope |= {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
    config = tiny_config("phi3", rope_parameters=rope, original_max_position_embeddings=16)
    model, tokenizer = randomised(AutoModel.from_config(config)), tiny_tokenizer("phi3")
    texts = ["a cat sat", "hello", "the quick brown fox jumps over the lazy dog near a bank" * 2]
    encoder = FrozenEncoder(model, tokenizer, num_layers=2)
    alone = torch.cat([encoder.encode([text]).vectors[0] for text in texts])
    torch.testing.assert_close(encoder.encode(texts).vectors[0], alone, atol=2e-6, rtol=0)
    padded = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    mask = padded.attention_mask.bool()
    soft = encoder.encode_soft(encoder.embedding_table("cpu")[padded.input_ids], mask)[0]
    torch.testing.assert_close(soft[mask], alone, atol=2e-6, rtol=0)


def test_a_model_is_probed_once_and_batched_by_equal_length_only_where_padding_matters(models):
    calls = []

    def counted(model, inputs):
        calls.append(tuple(inputs["input_ids"].shape))
        return vectors(model, {"input_ids": inputs["input_ids"]} if isinstance(model, FNetModel) else inputs)

    texts = ["a", "a cat sat", "a dog ran"]
    for name, batches in (("bert", [3]), ("fnet", [2, 1])):
        encoder = FrozenEncoder(models[name], tiny_tokenizer("wordpiece"), forward_fn=counted)
        assert calls[:5] == [(1, 21), (1, 4), (1, 4), (1, 2), (4, 21)]
        calls.clear()
        encoder.encode(texts)
        assert [rows for rows, _ in calls] == batches
        calls.clear()


class ForwardsAll(BertModel):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class DropsMask(BertModel):
    def forward(self, **kwargs):
        return super().forward(**kwargs | {"attention_mask": None})


class TakesIdsOnly(BertModel):
    def forward(self, input_ids):
        return super().forward(input_ids)


TEXTS = ["a", "a cat sat", "a dog ran", "the quick brown fox jumps over the lazy dog near a bank"]


def without_names(forward):
    """A patch such as a profiler's."""

    def patched(self, *args, **kwargs):
        return forward(self, *args, **kwargs)

    return patched


def with_class(model, kind):
    made = kind(model.config).eval()
    made.load_state_dict(model.state_dict())
    return made


@pytest.mark.parametrize("kind", [ForwardsAll, DropsMask, TakesIdsOnly, "patched"])
def test_a_forward_pass_without_argument_names_gets_the_mask_or_no_padding(models, kind, monkeypatch):
    tokenizer = tiny_tokenizer("wordpiece")
    plain = FrozenEncoder(models["bert"], tokenizer, num_layers=2)
    expected = torch.cat([plain.encode([text]).vectors for text in TEXTS], 1)
    if kind == "patched":
        monkeypatch.setattr(BertModel, "forward", without_names(BertModel.forward))
        model = copy.deepcopy(models["bert"])
    else:
        model = with_class(models["bert"], kind)
    batches = []
    encoder = FrozenEncoder(model, tokenizer, num_layers=2)
    encoder.encode(["a", "b"])
    encoder.backbone("cpu").register_forward_pre_hook(
        lambda model, args, kwargs: batches.append(kwargs), with_kwargs=True
    )
    torch.testing.assert_close(encoder.encode(TEXTS).vectors, expected, atol=2e-6, rtol=0)
    batches.clear()
    encoder.encode(TEXTS)
    assert len(batches) == (3 if kind is TakesIdsOnly else 1)
    assert encoder.signature().split("|")[1:] == plain.signature().split("|")[1:]
    if kind is TakesIdsOnly:
        with pytest.raises(ValueError, match=r"TakesIdsOnly does not return the hidden states.*forward_fn="):
            FrozenEncoder(model, tokenizer, num_layers=2, all_layers=True)
        return
    ids = [torch.tensor(row) for row in encoder.tokenizer(TEXTS).ids]
    mask = pad_sequence([torch.ones_like(row, dtype=torch.bool) for row in ids], batch_first=True)
    embeds = encoder.embedding_table("cpu")[pad_sequence(ids, batch_first=True)]
    torch.testing.assert_close(encoder.encode_soft(embeds, mask)[:, mask], expected, atol=2e-6, rtol=0)


def test_a_forward_method_replaced_by_a_function_is_an_error(models):
    """A copy would run the original model, whose layers are not cut and whose training goes on."""
    model = copy.deepcopy(models["bert"])
    model.forward = functools.partial(type(model).forward, model)  # copied with the model
    expected = FrozenEncoder(models["bert"], tiny_tokenizer("wordpiece"), num_layers=2).encode(TEXTS).vectors
    found = FrozenEncoder(model, tiny_tokenizer("wordpiece"), num_layers=2).encode(TEXTS).vectors
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)
    for module in (model, model.encoder.layer[0].attention):
        replaced = module.forward
        module.forward = lambda *args, forward=replaced, **kwargs: forward(*args, **kwargs)
        with pytest.raises(ValueError, match=r"forward method of .* was replaced by a function"):
            FrozenEncoder(model, tiny_tokenizer("wordpiece"), num_layers=2)
        module.forward = replaced
