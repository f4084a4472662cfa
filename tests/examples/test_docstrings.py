"""The docstrings that programs train on, and the generator that they train."""

import re
from itertools import chain

import torch
from transformers import AutoModel, AutoTokenizer

from examples.programs import docstrings
from examples.programs.docstrings import Collate, load_corpus, load_generator

# Marks of code, links and tables, which prose does not have.
MARKUP = re.compile(r"``|>>>|https?://|:\w+:`|\.\. \w+::|(?<!\S)-----|\\")
TESTS = {"test", "tests", "idle_test"}


def summaries(pairs):
    return [pair.summary for pair in pairs]


def test_standard_library_alone_gives_a_clean_corpus(docstring_pairs):
    modules = [pair.module for pair in docstring_pairs]
    parts = {part for module in modules for part in module.split(".")}

    assert len(docstring_pairs) > 1000
    assert modules == sorted(modules)
    assert {"argparse", "asyncio", "unittest"} <= {module.split(".")[0] for module in modules}
    assert not parts & TESTS
    for pair in docstring_pairs:
        assert pair.summary.isascii()
        assert pair.summary not in pair.document
        for text in (pair.document, pair.summary):
            assert text == " ".join(text.split())
            assert not MARKUP.search(text), text


def test_sides_share_no_module_and_do_not_depend_on_other_pairs(docstring_pairs, monkeypatch):
    monkeypatch.setattr(docstrings, "collect_pairs", lambda packages: list(docstring_pairs))
    corpus = load_corpus()
    sides = [[pair for _, pair in side] for side in corpus]
    modules = [{pair.module for pair in side} for side in sides]

    monkeypatch.setattr(docstrings, "collect_pairs", lambda packages: sides[2])
    again = load_corpus()

    assert sum(map(len, modules)) == len({pair.module for pair in docstring_pairs})
    assert len(set.union(*modules)) == sum(map(len, modules))
    for side in corpus:
        assert len(side) > 100
        assert [index for index, _ in side] == list(range(len(side)))
    assert sorted(summaries(chain(*sides))) == sorted(summaries(docstring_pairs))
    assert again.train == again.validation == []
    assert len(again.test) == len(corpus.test)


def test_the_generator_starts_from_minilms_weights(corpus, minilm):
    rows = corpus.train[:100]
    full = AutoTokenizer.from_pretrained(minilm)

    model, tokenizer = load_generator(rows, encoder_layers=1, decoder_layers=1)

    assert len(tokenizer) < 3000 < len(full)
    for _, pair in rows:
        assert tokenizer.tokenize(pair.summary)[:22] == full.tokenize(pair.summary)[:22]
    ids = full.convert_tokens_to_ids(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    original = AutoModel.from_pretrained(minilm).get_input_embeddings().weight
    for half in (model.encoder, model.decoder):
        torch.testing.assert_close(half.get_input_embeddings().weight, original[ids])
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all(name.startswith("encoder.") or "word_embeddings" in name for name in frozen)
    assert any("crossattention" in name for name in trained)


def test_a_batch_has_indices_and_labels_without_the_start(corpus):
    rows = corpus.train[3:5]
    model, tokenizer = load_generator(corpus.train[:100], encoder_layers=1, decoder_layers=1)
    expected = tokenizer(summaries(pair for _, pair in rows), max_length=24, truncation=True)["input_ids"]

    batch = Collate(tokenizer)(rows)

    assert batch["index"].tolist() == [3, 4]
    labels = [row[row != -100].tolist() for row in batch["labels"]]
    assert labels == [ids[1:] for ids in expected]
    assert {ids[0] for ids in expected} == {model.config.decoder_start_token_id}
    logits = model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"]).logits
    assert logits.shape == (*batch["labels"].shape, len(tokenizer))
