"""Comparison of two tokenizers: which of their tokens have the same name, and whether they split texts alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from bertscore_tm.encoder.tokenization import TextTokenizer

__all__ = ["find_named_pieces"]

# Settings of a tokenizer's model that differ although texts are split alike, or that are compared apart.
_OTHER_SETTINGS = {"vocab", "merges", "unk_id"}


def find_named_pieces(
    generator: PreTrainedTokenizerBase, encoder: TextTokenizer, texts: Sequence[str]
) -> tuple[list[int], bool]:
    """Return the encoder's token of the name of each of a generator's tokens, where both split texts by the same rules.

    Rules are the normalizer, the pre-tokenizer and the settings of the model; names of special tokens may differ. The
    generator's vocabulary may be a part of the encoder's, such as a WordPiece vocabulary that was cut to a domain's
    texts; and tokens may have been added to one of the tokenizers.

    Args:
        generator: the generator's tokenizer.
        encoder: the encoder's tokenizer.
        texts: text of each of the generator's tokens; empty for ids without a token.

    Returns:
        The encoder's id of each token, -1 without one of the name, and all -1 where rules differ or the encoder lacks a
        token that was not added; and whether both tokenizers split every text into tokens of the same names.
    """
    ids = [-1] * len(texts)
    if not (generator.is_fast and encoder.tokenizer.is_fast):
        return ids, False
    contents = [json.loads(tokenizer.backend_tokenizer.to_str()) for tokenizer in (generator, encoder.tokenizer)]
    models = [content["model"] for content in contents]
    settings = [{name: value for name, value in model.items() if name not in _OTHER_SETTINGS} for model in models]
    rules = [(content["normalizer"], content["pre_tokenizer"]) for content in contents]
    if rules[0] != rules[1] or settings[0] != settings[1]:
        return ids, False
    encoder_vocabulary = encoder.vocabulary
    for name, i in generator.get_vocab().items():
        ids[i] = encoder_vocabulary.get(name, -1)
    specials = {*generator.all_special_tokens, *encoder.tokenizer.all_special_tokens}
    special_ids = {*generator.all_special_ids}
    is_missing = any(ids[i] < 0 and i not in special_ids and text.strip() for i, text in enumerate(texts))
    agree = _have_equal_models(models[0], models[1], specials)
    if is_missing and not agree:
        return [-1] * len(texts), False
    added = [{*tokenizer.get_added_vocab()} - specials for tokenizer in (generator, encoder.tokenizer)]
    return ids, agree and added[0] == added[1]


def _have_equal_models(generator: dict[str, Any], encoder: dict[str, Any], specials: set[str]) -> bool:
    """Compare merges, or else the names of tokens, with their probabilities where they have any."""
    if "merges" in generator:
        return bool(generator["merges"] == encoder["merges"])
    vocabularies = []
    for model in (generator, encoder):
        entries = map(tuple, model["vocab"]) if isinstance(model["vocab"], list) else zip(model["vocab"])
        vocabularies.append({entry for entry in entries if entry[0] not in specials})
    return vocabularies[0] == vocabularies[1]
