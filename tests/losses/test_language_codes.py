"""Generators whose labels begin with the code of a language, a special token that the encoder may have too."""

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.losses import SoftBERTScoreLoss

pytestmark = pytest.mark.usefixtures("one_thread")

REFERENCES = ["a cat sat on the mat", "it rains in the north today"]
CANDIDATES = ["the dog ran to the home", "we met in the south today"]  # of as many tokens


@pytest.fixture(scope="module")
def with_codes(minilm):
    """Return an encoder whose tokenizer has codes, as those of mBART and NLLB do, and the tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    tokenizer.add_special_tokens({"additional_special_tokens": ["de_DE", "en_XX"]})
    model = AutoModel.from_pretrained(minilm)
    with torch.random.fork_rng(devices=[]):
        model.resize_token_embeddings(len(tokenizer))
    return FrozenEncoder(model, tokenizer, num_layers=5), tokenizer


@pytest.mark.parametrize("bridged", [False, True])
def test_codes_are_not_text(with_codes, bridged):
    encoder, tokenizer = with_codes
    code = tokenizer.convert_tokens_to_ids("de_DE")

    def ids_of(texts):
        return torch.tensor([[code, *tokenizer.encode(text)[1:]] for text in texts])

    logits = 100.0 * torch.nn.functional.one_hot(ids_of(CANDIDATES), len(tokenizer))
    loss = SoftBERTScoreLoss(encoder, tokenizer=tokenizer if bridged else None, matching="max", reduction="none")
    expected = bert_score(CANDIDATES, REFERENCES, encoder)["f1"]
    torch.testing.assert_close(1 - loss(logits, ids_of(REFERENCES)), expected, atol=1e-5, rtol=0)
    # A code gets no probability where text is expected.
    likelier = logits.float().index_fill(2, torch.tensor([code]), 200.0)
    torch.testing.assert_close(1 - loss(likelier, ids_of(REFERENCES)), expected, atol=1e-5, rtol=0)
