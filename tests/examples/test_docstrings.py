"""The docstrings that programs train on, and the generator that they train."""

import re

import torch
from transformers import AutoModel, AutoTokenizer

from examples.programs import docstrings
from examples.programs.docstrings import Collate, load_corpus, load_generator


def test_standard_library_alone_gives_a_clean_corpus(docstring_pairs):
    assert len(docstring_pairs) > 1000
    modules = [pair.module for pair in docstring_pairs]
    assert modules == sorted(modules)
    assert {"argparse", "asyncio", "unittest"} <= {module.split(".")[0] for module in modules}
    assert not any(part in ("test", "tests", "idle_test") for module in modules for part in module.split("."))
    for pair in docstring_pairs:
        assert pair.summary.isascii()
        assert pair.summary not in pair.document
        for text in (pair.document, pair.summary):
            assert text == " ".join(text.split())
            assert not re.search(r"``|>>>|https?://|:\w+:`|\.\. \w+::|(?<!\S)-----|\\", text), text


def test_sides_share_no_module_and_do_not_depend_on_other_pairs(docstring_pairs, corpus, monkeypatch):
    sides = [{pair.module for _, pair in side} for side in corpus]
    assert sum(map(len, sides)) == len(set.union(*sides)) == len({pair.module for pair in docstring_pairs})
    assert min(map(len, corpus)) > 100
    assert all([index for index, _ in side] == list(range(len(side))) for side in corpus)
    assert sorted(pair.summary for side in corpus for _, pair in side) == sorted(p.summary for p in docstring_pairs)
    monkeypatch.setattr(docstrings, "collect_pairs", lambda packages: [pair for _, pair in corpus.test])
    again = load_corpus()
    assert (again.train, again.validation, len(again.test)) == ([], [], len(corpus.test))


def test_the_generator_starts_from_minilms_weights(corpus, minilm):
    rows = corpus.train[:100]
    model, tokenizer = load_generator(rows, encoder_layers=1, decoder_layers=1)
    full = AutoTokenizer.from_pretrained(minilm)
    assert len(tokenizer) < 3000 < len(full)
    for _, pair in rows:
        assert tokenizer.tokenize(pair.summary)[:22] == full.tokenize(pair.summary)[:22]
    ids = full.convert_tokens_to_ids(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    original = AutoModel.from_pretrained(minilm).get_input_embeddings().weight
    for half in (model.encoder, model.decoder):
        torch.testing.assert_close(half.get_input_embeddings().weight, original[ids])
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert all(name.startswith("encoder.") or "word_embeddings" in name for name in frozen)
    assert any("crossattention" in name for name, _ in model.named_parameters() if name not in frozen)

    batch = Collate(tokenizer)(rows[3:5])
    assert batch["index"].tolist() == [3, 4]
    expected = tokenizer([pair.summary for _, pair in rows[3:5]], max_length=24, truncation=True)["input_ids"]
    assert [row[row != -100].tolist() for row in batch["labels"]] == [ids[1:] for ids in expected]
    assert {ids[0] for ids in expected} == {model.config.decoder_start_token_id}
    shape = model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"]).logits.shape
    assert shape == (*batch["labels"].shape, len(tokenizer))
