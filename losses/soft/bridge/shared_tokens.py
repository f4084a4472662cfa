"""Comparison of two tokenizers: which of their tokens have the same name, and whether they split texts alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from bertscore_tm.encoder.tokenization import TextTokenizer

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
    (rules, model), (encoder_rules, encoder_model) = map(_read_rules, (generator, encoder.tokenizer))
    if rules != encoder_rules:
        return ids, False
    encoder_vocabulary = encoder.vocabulary
    for name, i in generator.get_vocab().items():
        ids[i] = encoder_vocabulary.get(name, -1)
    specials = {*generator.all_special_tokens, *encoder.tokenizer.all_special_tokens}
    special_ids = {*generator.all_special_ids}
    is_missing = any(ids[i] < 0 and i not in special_ids and text.strip() for i, text in enumerate(texts))
    agree = _have_equal_models(model, encoder_model, specials)
    if is_missing and not agree:
        return [-1] * len(texts), False
    added = [{*tokenizer.get_added_vocab()} - specials for tokenizer in (generator, encoder.tokenizer)]
    return ids, agree and added[0] == added[1]


def _read_rules(tokenizer: PreTrainedTokenizerBase) -> tuple[Any, dict[str, Any]]:
    """Return the rules by which a tokenizer splits texts, and the model with its vocabulary."""
    if not tokenizer.is_fast:
        return (type(tokenizer).__name__, tokenizer.init_kwargs), {"vocab": tokenizer.get_vocab()}
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    settings = {name: value for name, value in content["model"].items() if name not in _OTHER_SETTINGS}
    return (content["normalizer"], content["pre_tokenizer"], settings), content["model"]


def _have_equal_models(generator: dict[str, Any], encoder: dict[str, Any], specials: set[str]) -> bool:
    """Compare merges, or else the names of tokens, with their probabilities where they have any."""
    if "merges" in generator:
        return bool(generator["merges"] == encoder["merges"])
    vocabularies = []
    for model in (generator, encoder):
        entries = map(tuple, model["vocab"]) if isinstance(model["vocab"], list) else zip(model["vocab"])
        vocabularies.append({entry for entry in entries if entry[0] not in specials})
    return vocabularies[0] == vocabularies[1]
