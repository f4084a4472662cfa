"""Comparison of two tokenizers: which of their tokens have the same name, and whether they split texts alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from bertscore_tm.encoder.tokenization import TextTokenizer

__all__ = ["find_named_pieces"]

# Settings of a tokenizer's model that differ although texts are split alike, or that are compared apart.
_OTHER_SETTINGS = {"vocab", "merges", "unk_id"}


def find_named_pieces(
    generator: PreTrainedTokenizerBase, encoder: TextTokenizer, texts: Sequence[str]
) -> tuple[Tensor, bool] | None:
    """Return the encoder's token of the name of each of a generator's tokens, where both split texts by the same rules.

    Rules are the normalizer, the pre-tokenizer and the settings of the model; names of special tokens may differ. The
    generator's vocabulary may be a part of the encoder's, such as a WordPiece vocabulary that was cut to a domain's
    texts; and tokens may have been added to one of the tokenizers.

    Args:
        generator: the generator's tokenizer.
        encoder: the encoder's tokenizer.
        texts: text of each of the generator's tokens; empty for ids without a token.

    Returns:
        The encoder's ids, -1 without one of the name, shape (vocabulary,), and whether both tokenizers split every text
        into tokens of the same names; ``None`` where rules differ, or the encoder lacks a token that was not added.
    """
    rules = [_splitting_rules(tokenizer) for tokenizer in (generator, encoder.tokenizer)]
    if rules[0]["rules"] != rules[1]["rules"]:
        return None
    encoder_vocabulary = encoder.vocabulary
    ids = torch.full((len(texts),), -1, dtype=torch.long, device="cpu")
    for name, i in generator.get_vocab().items():
        ids[i] = encoder_vocabulary.get(name, -1)
    specials = {*generator.all_special_tokens, *encoder.tokenizer.all_special_tokens}
    special_ids = {*generator.all_special_ids}
    is_missing = any(ids[i] < 0 and i not in special_ids and text.strip() for i, text in enumerate(texts))
    agree = _have_equal_models(rules[0]["model"], rules[1]["model"], specials)
    if is_missing and not agree:
        return None
    added = ({*tokenizer.get_added_vocab()} - specials for tokenizer in (generator, encoder.tokenizer))
    return ids, agree and next(added) == next(added)


def _splitting_rules(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return the rules by which a tokenizer splits texts, and the model with its vocabulary."""
    if not tokenizer.is_fast:
        rules = {"class": type(tokenizer).__name__, "options": tokenizer.init_kwargs}
        return {"rules": rules, "model": {"type": "slow", "vocab": tokenizer.get_vocab()}}
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    model = {name: value for name, value in content["model"].items() if name not in _OTHER_SETTINGS}
    return {"rules": (content["normalizer"], content["pre_tokenizer"], model), "model": content["model"]}


def _have_equal_models(generator: dict[str, Any], encoder: dict[str, Any], specials: set[str]) -> bool:
    """Compare merges, or else the names of tokens, with their probabilities where they have any."""
    if "merges" in generator:
        return bool(generator["merges"] == encoder["merges"])
    vocabularies = []
    for model in (generator, encoder):
        entries = map(tuple, model["vocab"]) if isinstance(model["vocab"], list) else zip(model["vocab"])
        vocabularies.append({entry for entry in entries if entry[0] not in specials})
    return vocabularies[0] == vocabularies[1]
