"""Texts of pictures, and what pictures show."""

from itertools import pairwise

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModel, PreTrainedTokenizerFast

from bertscore_tm import FrozenEncoder
from tests.support.models import randomised, tiny_config

CANDIDATE, REFERENCE = "The weather is unbelievably cold today.", "It is freezing today, isn't it?"


def text_labels(axis):
    """Return the labels of an axis that are not empty."""
    return [label for label in axis.get_ticklabels() if label.get_text()]


def words(axis):
    """Return the texts of the labels of an axis."""
    return [label.get_text() for label in text_labels(axis)]


def no_overlap(labels):
    """Return whether no label covers a part of the next one."""
    boxes = [label.get_window_extent() for label in labels]
    return all(not a.overlaps(b) for a, b in pairwise(boxes))


def encoder_of_words(*texts):
    """An encoder whose tokens are separated by spaces."""
    distinct = dict.fromkeys(" ".join(texts).split())
    others = map(str, range(99))
    vocabulary = {word: number for number, word in enumerate(["[UNK]", *distinct, *others])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]")
    model = AutoModel.from_config(tiny_config("bert", vocab_size=len(vocabulary)))
    return FrozenEncoder(randomised(model), tokenizer, num_layers=1)
