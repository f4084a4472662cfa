"""Comparison of two tokenizers: whether they split texts into tokens of the same names."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from bertscore_tm.encoder.tokenization import TextTokenizer
from bertscore_tm.losses.soft.bridge.text_pieces import decode_tokens, tokenize_texts

__all__ = ["find_named_pieces", "find_shared_tokens"]

# Tokens per text that both tokenizers split.
_TOKENS_PER_PROBE = 64
# Tokenizers with a smaller share of either vocabulary in common are not compared on texts.
_SMALLEST_COMMON_SHARE = 0.9
# Texts in which normalizers, space marks and digit rules of similar tokenizers differ.
_PROBES = (
    " The QUICK Brown fox's 2nd café, naïve Ångström — coöperation!",
    " two  spaces,\ta tab,\n\na new  line \r\n and a\u00a0hard one",
    " don't they'll WE'RE (so-called) snake_case camelCase x+=1; a.b.c /usr/bin 3.14159 1,000,000 12345",
    " ﬁne ｆｕｌｌ　ｗｉｄｔｈ cafe\u0301 \u200bzero\u200dwidth ½ ² ™ …",
    " 日本語と中文 한국어 Привет мир γειά مرحبا שלום 🙂👍🏽",
)


def find_shared_tokens(
    generator: PreTrainedTokenizerBase, vocabulary: dict[str, int], encoder: TextTokenizer, texts: Sequence[str]
) -> Tensor | None:
    """Return the encoder's id of each of the generator's tokens where both tokenizers split texts alike.

    They do if their models agree (merges, or the probabilities of pieces), and if all their tokens, joined into texts,
    and texts in which normalizers differ, are split into tokens of the same names. Names of special tokens may differ,
    as may a space before the text; tokens that were added to one tokenizer may be missing in the other.

    Args:
        generator: the generator's tokenizer.
        vocabulary: its token strings and their ids.
        encoder: the encoder's tokenizer.
        texts: text of each of the generator's tokens, as from :func:`decode_tokens`; empty for ids without a token.

    Returns:
        Shape (ids of the generator,), int64, -1 for tokens that the encoder does not have; ``None`` otherwise.
    """
    encoder_vocabulary = encoder.vocabulary
    num_common = sum(token in encoder_vocabulary for token in vocabulary)
    if num_common < _SMALLEST_COMMON_SHARE * max(len(vocabulary), len(encoder_vocabulary)):
        return None
    shared = torch.full((len(texts),), -1, dtype=torch.long, device="cpu")
    pairs = [(i, encoder_vocabulary.get(token, -1)) for token, i in vocabulary.items()]
    ids, encoder_ids = torch.tensor(pairs, device="cpu").T
    shared[ids] = encoder_ids
    rules = _splitting_rules(generator), _splitting_rules(encoder.tokenizer)
    if vocabulary == encoder_vocabulary and rules[0] == rules[1]:
        return shared
    specials = {*generator.all_special_tokens, *encoder.tokenizer.all_special_tokens}
    if not _have_equal_models(*rules, specials):
        return None
    # Texts in which one tokenizer finds an added token that the other does not have prove nothing.
    added = {*generator.get_added_vocab()} ^ {*encoder.tokenizer.get_added_vocab()}
    foreign = re.compile("|".join(map(re.escape, added)) or "(?!)")
    words = [*texts, *decode_tokens(encoder.tokenizer, sorted(encoder_vocabulary.values()))]
    words = [word for word in words if not foreign.search(word)]
    step = _TOKENS_PER_PROBE
    # A space first, since some tokenizers put one before every text.
    probes = [*_PROBES, *(" " + "".join(words[i : i + step]) for i in range(0, len(words), step))]
    probes = [probe for probe in probes if not foreign.search(probe)]
    names = shared.clone()
    if generator.unk_token_id is not None and encoder.tokenizer.unk_token_id is not None:
        names[generator.unk_token_id] = encoder.tokenizer.unk_token_id
    named = names.tolist()
    first, second = tokenize_texts(generator, probes), tokenize_texts(encoder.tokenizer, probes)
    return shared if [[named[i] for i in row] for row in first] == second else None


def find_named_pieces(
    generator: PreTrainedTokenizerBase, vocabulary: dict[str, int], encoder: TextTokenizer, texts: Sequence[str]
) -> Tensor | None:
    """Return the encoder's id of each of the generator's tokens where the generator has a part of the same vocabulary.

    Both are fast tokenizers of one kind with the same normalizer and pre-tokenizer, and every token of the generator is
    a token of the same name in the encoder, such as a WordPiece vocabulary that was cut to a domain's texts. The
    generator splits some words into more tokens than the encoder, but into pieces that the encoder has.

    Arguments and result are those of :func:`find_shared_tokens`; blank and special tokens need no piece.
    """
    if not (generator.is_fast and encoder.tokenizer.is_fast):
        return None
    ours, theirs = (_without_vocabulary(_splitting_rules(tokenizer)) for tokenizer in (generator, encoder.tokenizer))
    if ours != theirs:
        return None
    special, encoder_vocabulary = {*generator.all_special_ids}, encoder.vocabulary
    named = torch.full((len(texts),), -1, dtype=torch.long, device="cpu")
    for token, i in vocabulary.items():
        if i in special or not texts[i].strip():
            continue
        if token not in encoder_vocabulary:
            return None
        named[i] = encoder_vocabulary[token]
    return named


def _without_vocabulary(rules: dict[str, Any]) -> dict[str, Any]:
    model = {name: value for name, value in rules["model"].items() if name not in ("vocab", "merges", "unk_id")}
    return {"normalizer": rules["normalizer"], "pre_tokenizer": rules["pre_tokenizer"], "model": model}


def _splitting_rules(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return what determines how a tokenizer splits texts, as far as tokenizers of its kind publish it."""
    if not tokenizer.is_fast:
        return {"class": type(tokenizer).__name__, "options": tokenizer.init_kwargs}
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    return {key: content[key] for key in ("normalizer", "pre_tokenizer", "model", "added_tokens")}


def _have_equal_models(ours: dict[str, Any], theirs: dict[str, Any], specials: set[str]) -> bool:
    """Compare merges and probabilities of pieces, whose differences probes might miss."""
    if "model" not in ours or "model" not in theirs:
        return ours == theirs
    first, second = ours["model"], theirs["model"]
    if first["type"] != second["type"] or first.get("merges") != second.get("merges"):
        return False
    if first["type"] != "Unigram":
        return True
    scores = dict(map(tuple, first["vocab"]))
    return all(scores.get(token, score) == score for token, score in second["vocab"] if token not in specials)
