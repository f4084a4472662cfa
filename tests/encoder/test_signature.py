"""The signature as a mapping: frozen, hashable, picklable, and printed as one line."""

import copy
import json
import pickle

import pytest

from bertscore_tm import FrozenEncoder, Signature
from bertscore_tm.encoder.signature import describe_differences

FIELDS = {"model": "a/b|c", "contents": "01", "tokenizer": "23", "revision": "main", "layer": 5, "special": None}


def test_a_signature_is_a_frozen_mapping_of_strings():
    signature = Signature(FIELDS)

    assert signature == {"model": "a/b|c", "contents": "01", "tokenizer": "23", "revision": "main", "layer": "5"}
    assert (len(signature), signature["layer"], signature.get("special")) == (5, "5", None)
    for change in (
        lambda: signature.__setitem__("layer", "6"),
        lambda: signature.update(layer="6"),
        lambda: setattr(signature, "layer", "6"),
    ):
        with pytest.raises((AttributeError, TypeError)):
            change()
    assert json.loads(json.dumps(dict(signature))) == signature


def test_equal_signatures_are_equal_keys_in_any_process():
    signature = Signature(FIELDS)
    others = [
        pickle.loads(pickle.dumps(signature)),
        copy.deepcopy(signature),
        Signature(dict(reversed(FIELDS.items()))),
    ]

    for other in others:
        assert other == signature
        assert len({other, signature}) == 1

    assert Signature(FIELDS | {"layer": 6}) not in {signature}


def test_the_line_shows_hashes_after_the_model():
    signature = Signature(FIELDS | {"idf": "references", "rescale": "no"})

    assert str(signature) == "model:a/b|c#01#23@main|layer:5|idf:references|rescale:no"
    assert str(signature | {"idf": 3, "thoughts": "stripped"}).endswith("|layer:5|idf:3|rescale:no|thoughts:stripped")
    assert str(signature.select("model", "contents", "special")) == "model:a/b|c#01"
    assert str(Signature({})) == ""


def test_fields_of_an_encoder_say_what_its_hash_is_of(minilm, encoder):
    signature = FrozenEncoder(minilm, encoder.tokenizer.tokenizer, num_layers=2).signature()

    assert [*signature][:3] == ["model", "contents", "tokenizer"]
    assert signature["contents"] == encoder.signature()["contents"]
    assert describe_differences(signature, encoder.signature()).startswith("tokenizer (")
