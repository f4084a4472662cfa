"""The metric's flat states: tokens come back, and the bytes that are promised."""

from __future__ import annotations

from itertools import chain

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.core.matching import MatchedPairs
from bertscore_tm.metric.states import pack_tokens, token_dtypes, unpack_tokens
from bertscore_tm.scoring.corpus import MatchedTexts


@pytest.mark.parametrize("vocab_size", [30_522, 65_536, 65_537])
@pytest.mark.parametrize("keep", [None, [True, False, True]])
def test_tokens_come_back(vocab_size, keep):
    def ids(count):
        return torch.cat([torch.tensor([0, vocab_size - 1]), torch.randint(vocab_size, (count - 2,))])

    pairs = MatchedPairs(
        candidate_ids=ids(9),
        candidate_best=torch.rand(9, 2),
        candidate_lengths=torch.tensor([2, 3, 0, 4]),
        reference_ids=ids(8),
        reference_best=torch.rand(8, 2),
        reference_lengths=torch.tensor([1, 1, 5, 1]),
    )
    counts = torch.tensor([1, 2, 1])
    packed = pack_tokens(MatchedTexts(pairs, counts, 0), vocab_size)
    assert {name: values.dtype for name, values in packed.items() if name.endswith("_ids")} == {
        name: dtype for name, dtype in token_dtypes(vocab_size).items() if name.endswith("_ids")
    }
    flat = {name: values.flatten().to(token_dtypes(vocab_size)[name]) for name, values in packed.items()}
    found = unpack_tokens(flat, 2, None if keep is None else torch.tensor(keep))
    kept_pairs = [0, 1, 2, 3] if keep is None else [0, 3]
    for side in ("candidate", "reference"):
        lengths = getattr(pairs, f"{side}_lengths").tolist()
        starts = [sum(lengths[:number]) for number in range(4)]
        places = list(chain(*(range(starts[pair], starts[pair] + lengths[pair]) for pair in kept_pairs)))
        for name in (f"{side}_ids", f"{side}_best"):
            assert torch.equal(getattr(found.pairs, name), getattr(pairs, name)[places])
        assert getattr(found.pairs, f"{side}_lengths").tolist() == [lengths[pair] for pair in kept_pairs]
    assert found.counts.tolist() == ([1, 2, 1] if keep is None else [1, 1])


@pytest.mark.parametrize(
    ("options", "indices"),
    [({}, False), ({"reduction": "none"}, True), ({"confidence": 0.9}, False), ({"idf": True}, True)],
)
def test_bytes_of_the_states(minilm, options, indices):
    """Three numbers per pair; with idf, an id of two bytes and a similarity per token; never texts or vectors."""
    encoder = FrozenEncoder(minilm, num_layers=0)
    preds = ["a cat sat on the mat", "it rains"] * 500
    target = ["the cat is on the mat", "it will rain tomorrow"] * 500
    metric = BERTScore(encoder, **options)
    for _ in range(3):
        metric.update(preds, target, indices=list(range(1000)) if indices else None)
    parts = [part for state in metric.metric_state.values() for part in (state if isinstance(state, list) else [state])]
    kept = sum(part.untyped_storage().nbytes() for part in parts)
    tokens = sum(map(len, encoder.tokenizer([*preds, *target]).ids))
    per_update = 6 * tokens + 12 * 1000 if "idf" in options else 12 * 1000
    assert kept == 3 * (per_update + (8 * 1000 if indices else 0)) + 8 * (1 + 9)
