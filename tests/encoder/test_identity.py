"""What counts as the same encoder: the contents of models, folders and tokenizers, and functions by object."""

import copy
import pickle

import pytest
import torch
from tokenizers import normalizers
from tokenizers.pre_tokenizers import PreTokenizer
from torchmetrics import MetricCollection
from transformers import ByT5Tokenizer, T5Model
from transformers.tokenization_mistral_common import MistralCommonBackend

from bertscore_tm import BERTScore, FrozenEncoder
from tests.support.models import last_hidden_state, randomised, tiny_config, tiny_model
from tests.support.ranks import run_ranks

PAIRS = ["a cat sat on the mat", "rain tomorrow"], ["the cat sat", "sun today"]


def score(encoder):
    metric = BERTScore(encoder, component="f1", reduction="none")
    metric.update(PAIRS[0], PAIRS[1])
    return metric.compute()


# Contents.


@pytest.mark.parametrize("source", ["ready model", "folder"])
def test_a_model_that_changes_scores_with_its_new_weights_while_the_old_ones_are_in_use(tmp_path, source):
    model, tokenizer = copy.deepcopy(tiny_model("bert"))
    model.train()

    def encoder():
        if source == "folder":
            return FrozenEncoder(save(model, tmp_path / "model"), num_layers=2)
        return FrozenEncoder(model, tokenizer, num_layers=2)

    before = encoder()
    first, signature = score(before), before.signature()
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert len(model.encoder.layer) == 3
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=0.7)
    after = encoder()
    expected = score(FrozenEncoder(copy.deepcopy(model), tokenizer, num_layers=2))
    assert torch.equal(score(after), expected)
    assert not torch.allclose(expected, first, atol=1e-3)
    assert torch.equal(score(before), first)
    assert after.signature() != signature
    if source == "folder":
        with pytest.raises(OSError, match=r"contents of .*model.* changed.*create the encoder again"):
            before.signature()
        return
    # Both copies keep their weights in other processes.
    for copied in (before, after):
        assert torch.equal(score(pickle.loads(pickle.dumps(copied))), score(copied))


def save(model, folder):
    model.save_pretrained(folder)
    tiny_model("bert")[1].save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("use", [FrozenEncoder.backbone, lambda encoder, device: encoder.tokenizer])
def test_a_folder_that_changes_before_it_is_loaded_is_an_error(tmp_path, use):
    model = copy.deepcopy(tiny_model("bert")[0])
    encoder = FrozenEncoder(save(model, tmp_path / "model"), num_layers=2)
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=0.7)
    save(model, tmp_path / "model")
    with pytest.raises(OSError, match=r"contents of .*model.* changed.*create the encoder again"):
        use(encoder, "cpu")


# Tokenizers.


def require_separate(encoders, agreeing, differing):
    """Check that a collection of two metrics, which agree on its first batch, gives what each gives alone."""
    metrics = {str(number): BERTScore(encoder, component="f1") for number, encoder in enumerate(encoders)}
    collection = MetricCollection({name: metric.clone() for name, metric in metrics.items()})
    for preds, target in ((agreeing, agreeing), (differing, PAIRS[1])):
        collection.update(preds, target)
        for metric in metrics.values():
            metric.update(preds, target)
    alone = {name: metric.compute() for name, metric in metrics.items()}
    assert abs(alone["0"] - alone["1"]) > 1e-3
    assert encoders[0].cache("cpu") is not encoders[1].cache("cpu")
    assert collection.compute() == alone


EDITS = {
    "truncation": lambda model, tokenizer: setattr(tokenizer, "truncation_side", "left"),
    "limit": lambda model, tokenizer: setattr(tokenizer, "model_max_length", 9),
    "separator": lambda model, tokenizer: setattr(tokenizer, "sep_token", "[UNK]"),
    "normalizer": lambda model, tokenizer: setattr(
        tokenizer.backend_tokenizer, "normalizer", normalizers.BertNormalizer(lowercase=False)
    ),
    "new token": lambda model, tokenizer: tokenizer.add_tokens(["mat"]),
    "configuration": lambda model, tokenizer: setattr(model.config, "num_attention_heads", 2),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_changed_tokenizer_or_configuration_has_another_signature_and_cache(edit):
    model, tokenizer = copy.deepcopy(tiny_model("bert"))
    before = FrozenEncoder(model, tokenizer, num_layers=2)
    signature, cache = before.signature(), before.cache("cpu")
    # Its use changes nothing: calls leave their limits in the tokenizer.
    tokenizer(["a cat"], truncation=True, max_length=5, padding="max_length")
    assert FrozenEncoder(model, tokenizer, num_layers=2).signature() == signature
    EDITS[edit](model, tokenizer)
    after = FrozenEncoder(model, tokenizer, num_layers=2)
    assert after.signature() != signature
    assert after.cache("cpu") is not cache


def test_tokenizers_written_in_python_are_compared_by_their_settings_and_files(tmp_path):
    model = randomised(T5Model(tiny_config("t5", vocab_size=384)))
    ByT5Tokenizer().save_pretrained(tmp_path)
    tokenizers = [ByT5Tokenizer(), ByT5Tokenizer.from_pretrained(tmp_path), ByT5Tokenizer()]
    tokenizers[2].truncation_side = "left"
    same, loaded, other = (FrozenEncoder(model, tokenizer, num_layers=1).signature() for tokenizer in tokenizers)
    assert same == loaded != other


class Characters:
    """A pre-tokenizer in Python, which the tokenizers package cannot serialise: single characters."""

    def pre_tokenize(self, text):
        text.split(lambda _, part: [part[i : i + 1] for i in range(len(str(part)))])


def test_a_tokenizer_that_cannot_be_copied_is_refused():
    model, tokenizer = tiny_model("bert")
    custom = copy.deepcopy(tokenizer)
    custom.backend_tokenizer.pre_tokenizer = PreTokenizer.custom(Characters())  # like RoFormer's
    with pytest.raises(ValueError, match=r"cannot be copied \(.*cannot be serialized.*\)\. .* pass the folder"):
        FrozenEncoder(model, custom, num_layers=2)


def test_a_tokenizer_of_a_folder_is_loaded_again_instead_of_pickled(tmp_path):
    encoder = FrozenEncoder(save(tiny_model("bert")[0], tmp_path), num_layers=2)
    expected = score(encoder)
    # As that of RoFormer.
    encoder.tokenizer.tokenizer.backend_tokenizer.pre_tokenizer = PreTokenizer.custom(Characters())
    assert torch.equal(score(pickle.loads(pickle.dumps(encoder))), expected)


def test_tokenizers_of_mistral_common_are_refused_by_name():
    tokenizer = object.__new__(MistralCommonBackend)  # to make one needs its package
    with pytest.raises(TypeError, match=r"a MistralCommonBackend lists no added tokens.*PreTrainedTokenizerFast"):
        FrozenEncoder(tiny_model("mistral")[0], tokenizer, num_layers=1)


# Functions of the caller.


def scaled(factor):
    """Return a function that differs from others of its name in texts of more than four tokens."""

    def forward(model, inputs):
        states = model(**inputs).last_hidden_state
        return torch.cat([states[:, :4], states[:, 4:] + factor], dim=1)

    return forward


def test_a_collection_keeps_functions_of_one_name_apart(encoder):
    model, tokenizer = encoder.backbone("cpu"), encoder.tokenizer.tokenizer
    functions = [scaled(0.0), scaled(0.5)]
    encoders = [FrozenEncoder(model, tokenizer, forward_fn=function) for function in functions]
    require_separate(encoders, ["hello", "rain"], PAIRS[0])


def score_on_rank(rank):
    model, tokenizer = tiny_model("bert")
    metric = BERTScore(FrozenEncoder(model, tokenizer, forward_fn=last_hidden_state), component="f1")
    metric.update(PAIRS[0][rank : rank + 1], PAIRS[1][rank : rank + 1])
    return float(metric.compute())


@pytest.mark.distributed
def test_ranks_with_a_function_agree():
    model, tokenizer = tiny_model("bert")
    encoder = FrozenEncoder(model, tokenizer, forward_fn=last_hidden_state)
    assert run_ranks(score_on_rank, 2) == pytest.approx([float(score(encoder).mean())] * 2, abs=1e-6)
