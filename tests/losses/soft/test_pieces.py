"""Pieces of a generator's tokens in the encoder's vocabulary, against loops over real tokenizers."""

import pytest
import torch

from bertscore_tm.encoder.soft_tokens import embedding_table
from bertscore_tm.losses.soft.bridge import VocabularyBridge
from bertscore_tm.losses.soft.pieces import decode_tokens
from tests.support.generators import generator
from tests.support.soft_predictions import CPU, content_ids, tiny

GENERATORS = ["byte-bpe", "sentencepiece", "words"]


@pytest.mark.parametrize("kind", GENERATORS)
def test_rows_are_means_of_the_pieces_of_the_tokens_text(encoder, kind):
    tokenizer = generator(kind)
    ids = tokenizer("the cat returns a list", add_special_tokens=False)["input_ids"]

    assert "".join(decode_tokens(tokenizer, ids)).strip() == "the cat returns a list"
    bridge = VocabularyBridge(tokenizer, encoder, "mean")
    table = embedding_table(encoder, CPU)
    made = bridge.embedding_table(CPU)
    texts = decode_tokens(tokenizer, list(range(len(tokenizer))))
    words = [text.replace("\ufffd", "") for text in texts]
    special_ids = set(tokenizer.all_special_ids)
    silent = set()  # tokens without a piece
    for i, (word, pieces) in enumerate(zip(words, content_ids(encoder, words), strict=True)):
        if i in special_ids or not pieces:
            silent.add(i)
            assert not made[i].any()
        elif word[0] == " ":
            expected = table[pieces].mean(0)
            torch.testing.assert_close(made[i], expected, atol=1e-6, rtol=0)
        else:
            assert made[i].any()
    # Blank ones and parts of characters can be predicted.
    assert bridge.control_ids == sorted(tokenizer.all_special_ids)
    assert (silent > {*bridge.control_ids}) == (kind != "words")
    counts = bridge.pieces.average_weights(torch.ones(len(table)))
    torch.testing.assert_close(counts, torch.tensor([float(i not in silent) for i in range(len(texts))]))


@pytest.mark.parametrize(
    ("family", "tokens", "expected"),
    [
        ("minilm", "Ġlist s", "list##s"),
        ("minilm", "( s", "(s"),
        ("minilm", "Ġ1 2", "1##2"),
        ("minilm", "Ġlist . s", "list.s"),
        # At the start of a text there is a space only where the encoder's tokenizer puts one.
        *((family, "Ġlist ( Ġlist ( list", "▁list(▁list(list") for family in ("roberta", "xlm-roberta")),
        ("deberta", "Ġlist ( Ġlist ( list", "list(▁list(list"),
    ],
)
def test_pieces_depend_on_the_preceding_character(encoder, family, tokens, expected):
    bridge = VocabularyBridge(generator("byte-bpe"), encoder if family == "minilm" else tiny(family), "expand")
    names = bridge.generator_tokenizer.get_vocab()
    ids = torch.tensor([[names[token] for token in tokens.split()]])
    pieces, _, is_piece = bridge.pieces.expand(ids, torch.ones_like(ids, dtype=torch.bool))
    decoded = "".join(bridge.encoder.tokenizer.tokens(pieces[is_piece].tolist()))

    assert decoded.replace("Ġ", "▁") == expected
