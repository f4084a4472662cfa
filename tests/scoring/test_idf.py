"""Token weights: mappings, document frequencies and errors."""

import math
from collections import Counter, defaultdict

import pytest
import torch

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.scoring import idf as idf_module
from tests.support.texts import real_pairs


@pytest.mark.parametrize(
    ("idf", "error", "message"),
    [
        (defaultdict(float, {-1: 1.0}), ValueError, "has the key -1"),
        ({30522: 1.0}, ValueError, "has the key 30522, but keys must be token ids from 0 to 30521"),
        ({"cat": 1.0}, ValueError, "has the key 'cat'"),
        ({5: -1.0}, ValueError, r"idf\[5\] is -1.0, but weights must be finite and at least 0"),
        ({5: float("nan")}, ValueError, r"idf\[5\] is nan, but weights must be"),
        *(
            (defaultdict(lambda value=value: value), ValueError, f"the default of idf is {value}, but weights must be")
            for value in (-1.0, float("inf"), float("nan"))
        ),
        ("yes", TypeError, "idf is a single string"),
        (None, TypeError, "idf must be True, False, texts, a mapping"),
        ([], ValueError, "idf is empty"),
    ],
)
def test_a_malformed_idf_is_refused(minilm, idf, error, message):
    encoder = FrozenEncoder(minilm, num_layers=2)

    with pytest.raises(error, match=message):
        bert_score(["a"], ["b"], encoder, idf=idf)


@pytest.fixture
def blocks(monkeypatch):
    """Documents are counted in blocks of four."""
    monkeypatch.setattr(idf_module, "TEXTS_PER_BLOCK", 4)


@pytest.fixture
def short(minilm):
    """An encoder that truncates texts after twelve tokens."""
    return FrozenEncoder(minilm, num_layers=1, max_length=12)


TEXTS = real_pairs(10)[1]


def weigh(encoder):
    """Weights log((N + 1) / (df + 1)) of all tokens, by counting the documents of ``TEXTS`` that contain them."""
    counts = Counter()
    for ids in encoder.tokenizer(TEXTS).rows():
        counts.update(set(ids))
    frequencies = [counts[token] for token in range(encoder.tokenizer.vocab_size)]
    return torch.tensor(
        [math.log((len(TEXTS) + 1) / (frequency + 1)) for frequency in frequencies], dtype=torch.float64
    )


@pytest.mark.usefixtures("blocks")
@pytest.mark.filterwarnings("error")
def test_weights_of_references_count_all_blocks(short):
    # The pairs' own warning counts the texts that are too long.
    weights = idf_module.token_weights(short, True, TEXTS)

    torch.testing.assert_close(weights.table, weigh(short), rtol=0, atol=1e-12)
    assert weights.source.num_documents == len(TEXTS)


@pytest.mark.usefixtures("blocks")
def test_weights_count_all_blocks_and_warn_of_long_texts(short):
    rows = short.tokenizer.tokenizer(TEXTS)["input_ids"]
    num_long = sum(len(row) > 12 for row in rows)

    with pytest.warns(UserWarning, match=f"^{num_long} texts of idf are longer than 12 tokens"):
        weights = idf_module.token_weights(short, TEXTS)

    torch.testing.assert_close(weights.table, weigh(short), rtol=0, atol=1e-12)
    assert weights.source.num_documents == len(TEXTS)
