"""VocabularyBridge between tokenizers that agree: which do, and what they share."""

import pytest
import torch
from transformers import AutoTokenizer

from bertscore_tm import FrozenEncoder
from bertscore_tm.losses.soft.bridge.vocabulary import VocabularyBridge
from tests.support.generator_tokenizers import TEXTS, content_of, like, wrapped
from tests.support.models import EVERY_FAMILY, KINDS, tiny_model
from tests.support.soft_predictions import CPU, content_ids, tiny

pytestmark = pytest.mark.usefixtures("one_thread")


def renumber(content):
    """Give all tokens other numbers."""
    vocab = content["model"]["vocab"]
    order = torch.randperm(len(vocab), generator=torch.Generator().manual_seed(1)).tolist()
    if content["model"]["type"] == "Unigram":
        names = [name for name, _ in vocab]
        content["model"]["vocab"] = [vocab[order.index(i)] for i in range(len(vocab))]
        numbers = dict(zip(names, order, strict=True))
        content["model"]["unk_id"] = order[content["model"]["unk_id"]]
    else:
        numbers = content["model"]["vocab"] = {name: order[i] for name, i in vocab.items()}
    for added in content["added_tokens"]:
        added["id"] = numbers[added["content"]]
    content["added_tokens"].sort(key=lambda added: added["id"])
    for name, special in content["post_processor"]["special_tokens"].items():
        special["ids"] = [numbers[name]]


def renamed(kind):
    """What makes of RoBERTa's kind of tokenizer one of GPT-2's: the same merges, one special token of another name."""
    content = content_of(kind)
    specials = {added["content"] for added in content["added_tokens"]}
    names = ["<|endoftext|>", *(name for name in content["model"]["vocab"] if name not in specials)]
    content["model"]["vocab"] = {name: i for i, name in enumerate(names)}
    content["added_tokens"] = [{**content["added_tokens"][0], "id": 0, "content": "<|endoftext|>"}]
    content["post_processor"] = None
    return content


def test_the_encoders_own_tokenizer_shares_the_table(encoder, minilm):
    bridge = VocabularyBridge(AutoTokenizer.from_pretrained(minilm), encoder)
    assert bridge.mode == "identity"
    assert bridge.embedding_table(CPU).data_ptr() == encoder.embedding_table(CPU).data_ptr()
    assert bridge.control_ids == encoder.tokenizer.control_ids
    assert bridge.end_ids == encoder.tokenizer.end_ids
    weights = torch.arange(bridge.vocab_size).float()
    torch.testing.assert_close(bridge.average_weights(weights), weights)


@pytest.mark.parametrize("family", ["bert", "mpnet", "deberta", "deberta-v2", "xlm-roberta", "gpt2"])
def test_other_numbers(family):
    encoder = tiny(family)
    bridge = VocabularyBridge(like(EVERY_FAMILY[family], renumber), encoder)
    assert bridge.mode == "identity"
    texts = [" " + text for text in TEXTS] if encoder.tokenizer.prefix_space else TEXTS
    soft = bridge.embed_texts(texts)
    for text, embeddings, content in zip(texts, soft.embeddings, soft.content, strict=True):
        expected = encoder.embedding_table(CPU)[content_ids(encoder, [text])[0]]
        assert torch.equal(embeddings[content], expected)


@pytest.mark.parametrize("order", [1, -1])
def test_gpt2_and_roberta(order):
    # Special tokens of other names and numbers, the same merges and space marks.
    gpt2 = wrapped(renamed("bytes"), KINDS["gpt2"].roles)
    first, second = (gpt2, like("bytes"))[::order]
    model, _ = tiny_model("roberta")
    encoder = FrozenEncoder(model, second, num_layers=2)
    bridge = VocabularyBridge(first, encoder)
    assert bridge.mode == "identity"
    table, names = encoder.embedding_table(CPU), second.get_vocab()
    for name, i in first.get_vocab().items():
        expected = table[names[name]] if name in names else torch.zeros(table.shape[1])
        assert torch.equal(bridge.embedding_table(CPU)[i], expected)


def test_added_tokens_take_the_pieces_of_their_text(encoder, minilm):
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    tokenizer.add_tokens(["<table_row>"])
    bridge = VocabularyBridge(tokenizer, encoder)
    assert bridge.mode == "identity"
    table = encoder.embedding_table(CPU)
    expected = table[content_ids(encoder, ["<table_row>"])[0]].mean(0)
    torch.testing.assert_close(bridge.embedding_table(CPU)[-1], expected)
    assert torch.equal(bridge.embedding_table(CPU)[:-1], table)


@pytest.mark.parametrize("family", ["bert", "deberta", "deberta-v2", "xlm-roberta"])
def test_the_same_names_cut_otherwise(family):
    def cut_otherwise(content):
        model = content["model"]
        if model["type"] == "WordPiece":
            content["normalizer"] = None  # no lower case
        elif model["type"] == "BPE":
            model["merges"][-300:] = model["merges"][-300:][::-1]
        else:
            scores = [score for _, score in model["vocab"]][::-1]
            model["vocab"] = [[name, score] for (name, _), score in zip(model["vocab"], scores, strict=True)]

    changed = like(EVERY_FAMILY[family], cut_otherwise)
    assert changed.get_vocab() == tiny(family).tokenizer.vocabulary
    assert VocabularyBridge(changed, tiny(family)).mode != "identity"


def test_spaces_written_otherwise():
    def without_spaces(content):
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}]}
        content["pre_tokenizer"]["pretokenizers"].append({**byte_level})

    byte_level = content_of("deberta")["pre_tokenizer"]
    changed = like("deberta", without_spaces)
    assert VocabularyBridge(changed, tiny("deberta")).mode != "identity"
    with pytest.raises(ValueError, match="mode='identity' needs tokenizers that split texts into the same tokens"):
        VocabularyBridge(changed, tiny("deberta"), "identity")
