"""What tests of encoders share: texts, the rounding of tiny models, and attention by plain products."""

import torch

from tests.support.rounding import rounding
from tests.support.texts import real_pairs

CPU = torch.device("cpu")
LAYER = 2
# The tiny models' width, which all their sums have, and the limit for unit vectors.
WIDTH = 32
ROUNDING = rounding(torch.float32, WIDTH)
# Families whose attention depends on the distance of two tokens.
RELATIVE = ["deberta", "deberta-v2", "mpnet", "t5"]
TEXTS = ["a cat sat on the mat", "", "hello", "the quick brown fox jumps over the lazy dog"]


def texts(count=9):
    """Real texts; together longer than the 64 positions of the tiny models."""
    return [" ".join(text.split()[: 3 + 2 * i]) for i, text in enumerate(real_pairs(count)[0])]


def batching(encoder):
    """Whether the loaded model packs, pads or encodes one text at a time."""
    return encoder._backbone.loaded(CPU).batching


def attend_by_products(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=None, window_size=(-1, -1)):
    """What torch's kernel computes on a GPU: tokens of a text attend to so many before and after them."""
    assert cu_seq_q.dtype == torch.int32
    assert torch.equal(cu_seq_q, cu_seq_k)
    assert max_q == max_k == cu_seq_q.diff().max()
    steps = torch.arange(len(query))
    text = torch.bucketize(steps, cu_seq_q.long(), right=True)
    before, after = (len(query) if size < 0 else size for size in window_size)
    distance = steps[:, None] - steps
    allowed = (text[:, None] == text) & (distance <= before) & (distance >= -after)
    queries, keys, values = (state.transpose(0, 1) for state in (query, key, value))
    scores = queries @ keys.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    return (scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ values).transpose(0, 1)
