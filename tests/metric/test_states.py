"""The metric's flat states: few parts, the same values, and the bytes that are promised."""

from __future__ import annotations

from itertools import chain

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.core.matching import MatchedPairs
from bertscore_tm.metric import states
from bertscore_tm.metric.states import TOKEN_STATES, append, pack_tokens, token_dtypes, unpack_tokens
from bertscore_tm.scoring.corpus import MatchedTexts, encode_texts, match_encoded
from bertscore_tm.scoring.texts import as_text_pairs


@pytest.fixture(scope="module", autouse=True)
def _small_parts():
    """Small parts are smaller, so that few values are enough for large parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "_SIZES", (4, 16, 512))
        yield


@settings(deadline=None, max_examples=60)
@given(sizes=st.lists(st.sampled_from([0, 1, 3, 4, 5, 15, 16, 17, 300, 511, 512, 600]), min_size=1, max_size=80))
def test_append_keeps_all_values_in_order(sizes):
    parts: list[torch.Tensor] = []
    given_out: list[torch.Tensor] = []
    for number, size in enumerate(sizes):
        before, values = list(parts), torch.full((size,), number, dtype=torch.int32)
        given_out.append(values)
        parts = append(before, values)
        # What others hold of the state before stays as it was.
        assert torch.equal(torch.cat([*before, values]), torch.cat(given_out))
    assert torch.equal(torch.cat(parts), torch.cat(given_out))


@pytest.mark.parametrize("size", [1, 3, 15])
def test_parts_stay_few(size):
    parts: list[torch.Tensor] = []
    count = 5000
    for number in range(count):
        parts = append(parts, torch.full((size,), number))
    assert torch.equal(torch.cat(parts), torch.arange(count).repeat_interleave(size))
    # Three sizes of small parts at most, and large ones.
    large = [part for part in parts if len(part) >= 512]
    assert len(parts) - len(large) < 3 * 64
    assert sum(map(len, large)) >= 512


def test_parts_without_values_stay_few():
    """As tokens of empty texts have, in families without special tokens."""
    parts: list[torch.Tensor] = []
    for number in range(5000):
        parts = append(parts, torch.empty(0, dtype=torch.int32))
        assert len(parts) <= min(number + 1, 64)
    assert len(torch.cat(parts)) == 0


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
    [({}, False), ({}, True), ({"reduction": "none"}, True), ({"confidence": 0.9}, False), ({"idf": True}, True)],
)
def test_bytes_of_200_000_pairs(minilm, options, indices):
    """One batch is really encoded; its states are then merged as those of further batches would be."""
    encoder = FrozenEncoder(minilm, num_layers=0)
    preds = ["a cat sat on the mat", "it rains"] * 500
    target = ["the cat is on the mat", "it will rain tomorrow"] * 500
    batch, metric = BERTScore(encoder, **options), BERTScore(encoder, **options)
    batch.update(preds, target, indices=list(range(1000)) if indices else None)
    for _ in range(200):
        metric.merge_state(batch)
    storages = {
        part.untyped_storage().data_ptr(): part.untyped_storage().nbytes()
        for state in metric.metric_state.values()
        for part in (state if isinstance(state, list) else [state])
    }
    tokens = 0
    if "idf" in options:
        matched = match_encoded(texts := as_text_pairs(preds, target), encode_texts(texts, encoder, "cpu")).pairs
        tokens = 200 * (len(matched.candidate_ids) + len(matched.reference_ids))
        assert {*TOKEN_STATES} <= metric.metric_state.keys()
    constant = 1000
    assert sum(storages.values()) <= 32 * 200_000 + 8 * tokens + constant
    if not options and not indices:
        assert sum(storages.values()) < constant
