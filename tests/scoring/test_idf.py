"""Token weights: mappings, document frequencies and errors."""

import warnings
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
def test_a_malformed_idf(minilm, idf, error, message):
    with pytest.raises(error, match=message):
        bert_score(["a"], ["b"], FrozenEncoder(minilm, num_layers=2), idf=idf)


@pytest.mark.parametrize("idf", [True, "texts"])
def test_document_frequencies_are_those_of_all_blocks(minilm, monkeypatch, idf):
    encoder = FrozenEncoder(minilm, num_layers=1, max_length=12)
    texts = real_pairs(10)[1]
    arguments = (texts, None) if idf == "texts" else (True, texts)
    monkeypatch.setattr(idf_module, "TEXTS_PER_BLOCK", 4)
    long = sum(len(row) > 12 for row in encoder.tokenizer.tokenizer(texts)["input_ids"])
    warned = pytest.warns(UserWarning, match=f"^{long} texts of idf are longer than 12 tokens")
    with warned if idf == "texts" else warnings.catch_warnings(action="error"):  # those of the pairs tell
        result = idf_module.token_weights(encoder, *arguments)
    counts = Counter(token for ids in encoder.tokenizer(texts).rows() for token in set(ids))
    expected = torch.tensor([counts[token] for token in range(len(result.table))], dtype=torch.float64)
    torch.testing.assert_close(result.table, ((len(texts) + 1) / (expected + 1)).log(), rtol=0, atol=1e-12)
    assert result.source.num_documents == len(texts)
