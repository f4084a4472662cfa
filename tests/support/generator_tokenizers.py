"""Tokenizers of generators."""

import json
from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.support.models import KINDS, tiny_tokenizer
from tests.support.texts import real_pairs

SPECIALS = ["<s>", "<pad>", "</s>"]
GENERATORS = ["byte-bpe", "sentencepiece", "words"]
TEXTS = [
    "The cat sat on the mat.",
    "returns a list of snake_case names, or None",
    "a café (naïve) costs 1,234 euros 🙂",
]


@cache
def texts_to_train_on():
    return [text for side in real_pairs(240) for text in side]


def wrapped(content, roles, **options):
    """A tokenizer of transformers from what a tokenizer file holds."""
    tokenizer = Tokenizer.from_str(json.dumps(content))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles, **options)


def content_of(kind):
    """What the file of a tiny tokenizer holds."""
    return json.loads(tiny_tokenizer(kind).backend_tokenizer.to_str())


def like(kind, change=None):
    """A tiny tokenizer that decodes, with something changed."""
    content = content_of(kind)
    if change is not None:
        change(content)
    return wrapped(content, KINDS[kind].roles)


def cut_to(texts, tokenizer):
    """A WordPiece tokenizer whose vocabulary is cut to the pieces of some texts, as for a small domain."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    names = tokenizer.convert_ids_to_tokens(sorted({i for row in tokenizer(texts)["input_ids"] for i in row}))
    roles = {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    specials = sorted({*roles.values()})
    vocabulary = {name: i for i, name in enumerate([*specials, *(name for name in names if name not in specials)])}
    content["model"]["vocab"] = vocabulary
    for token in content["added_tokens"]:
        token["id"] = vocabulary[token["content"]]
    content["post_processor"] = None
    return wrapped(content, roles)


def trained(model, trainer, pre_tokenizer, decoder=None, normalizer=None):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    if decoder is not None:
        tokenizer.decoder = decoder
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator([*texts_to_train_on(), *TEXTS], trainer)
    roles = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    if tokenizer.token_to_id("<unk>") is not None:
        roles["unk_token"] = "<unk>"
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)


@cache
def generator(kind):
    """A generator's tokenizer, trained on real texts."""
    if kind == "byte-bpe":
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=3000, special_tokens=SPECIALS, initial_alphabet=byte_level.alphabet(), show_progress=False
        )
        return trained(models.BPE(), trainer, byte_level, decoders.ByteLevel())
    specials = [*SPECIALS, "<unk>"]
    if kind == "sentencepiece":
        trainer = trainers.UnigramTrainer(
            vocab_size=1500, special_tokens=specials, unk_token="<unk>", show_progress=False
        )
        return trained(models.Unigram(), trainer, pre_tokenizers.Metaspace(), decoders.Metaspace(), normalizers.NFKC())
    trainer = trainers.WordLevelTrainer(vocab_size=9000, special_tokens=specials, show_progress=False)
    return trained(models.WordLevel(unk_token="<unk>"), trainer, pre_tokenizers.BertPreTokenizer())
