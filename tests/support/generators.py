"""Tokenizers of generators, trained on real texts."""

from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.support.texts import real_pairs

SPECIALS = ["<s>", "<pad>", "</s>"]
ROLES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}

TEXTS = [
    "The cat sat on the mat.",
    "returns a list of snake_case names, or None",
    "a café (naïve) costs 1,234 euros 🙂",
]


@cache
def texts_to_train_on():
    """Return real texts for the training of tokenizers."""
    return [text for side in real_pairs(240) for text in side]


@cache
def generator(kind):
    """A generator's tokenizer, trained on real texts."""
    specials = list(SPECIALS)
    unknown = {}
    if kind != "byte-bpe":
        specials.append("<unk>")
        unknown = {"unk_token": "<unk>"}
    options = {"special_tokens": specials, "show_progress": False}
    if kind == "byte-bpe":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=3000, initial_alphabet=alphabet, **options)
    elif kind == "sentencepiece":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=1500, unk_token="<unk>", **options)
    else:
        # It splits where the encoder's tokenizer splits.
        tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordLevelTrainer(**options)
    tokenizer.train_from_iterator([*texts_to_train_on(), *TEXTS], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ROLES, **unknown)
