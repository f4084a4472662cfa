"""Packed texts with relative positions: each kind equals the original model."""

import copy
import gc
import pickle
import weakref

import pytest
import torch

from bertscore_tm import FrozenEncoder
from bertscore_tm.encoder.families import PACKED, PADDED
from tests.support.encoders import CPU, LAYER, RELATIVE, ROUNDING, batching, texts
from tests.support.models import randomised, tiny_model


@pytest.mark.parametrize(
    ("family", "options", "expected"),
    [
        ("deberta", {"pos_att_type": ["c2p"]}, PACKED),
        ("deberta", {"pos_att_type": ["p2c"], "max_relative_positions": 9, "position_biased_input": True}, PACKED),
        ("deberta", {"relative_attention": False, "position_biased_input": True}, PACKED),
        ("deberta", {"talking_head": True}, PADDED),
        ("deberta-v2", {"share_att_key": False, "position_buckets": -1, "max_relative_positions": 9}, PACKED),
        ("deberta-v2", {"share_att_key": False, "pos_att_type": ["p2c"]}, PACKED),
        ("deberta-v2", {"pos_att_type": ["c2p"], "position_buckets": 4}, PACKED),
        ("deberta-v2", {"conv_kernel_size": 3}, PADDED),
    ],
)
def test_kinds_of_relative_positions(family, options, expected):
    """Layers across tokens are padded."""
    model, tokenizer = tiny_model(family)
    config = copy.deepcopy(model.config)
    config.update(options)
    encoder = FrozenEncoder(randomised(type(model)(config)), tokenizer, num_layers=LAYER)

    assert batching(encoder) == expected
    alone = torch.cat([encoder.encode([text]).vectors for text in texts()], 1)
    torch.testing.assert_close(encoder.encode(texts()).vectors, alone, atol=ROUNDING, rtol=0)


@pytest.mark.parametrize("family", RELATIVE)
def test_copies_with_relative_positions_are_packed_too(family):
    """As on a second device, from a pickle or after `unload`; and no cycle keeps a model in memory."""
    model, tokenizer = tiny_model(family)
    encoder = FrozenEncoder(model, tokenizer, num_layers=LAYER)
    expected = encoder.encode(texts()).vectors
    copied = FrozenEncoder(model, tokenizer, num_layers=LAYER)
    copied._backbone.models.clear()
    copied._backbone._place(CPU, lambda dtype: encoder._backbone._cut_copy(encoder.backbone("cpu"), dtype))

    for other in (copied, pickle.loads(pickle.dumps(encoder))):
        torch.testing.assert_close(other.encode(texts()).vectors, expected, atol=ROUNDING, rtol=0)
        assert batching(other) == PACKED
    gc.collect()
    gc.disable()
    try:
        parts = [weakref.ref(part) for part in copied.backbone("cpu").modules()]
        copied._backbone.models.clear()
        assert not any(part() for part in parts)
    finally:
        gc.enable()
