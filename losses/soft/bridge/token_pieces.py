"""Builds piece tables from what tokenizers do with texts.

Names of classes play no role, so word pieces, byte-level and sentencepiece tokenizers and whole words all work.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from bertscore_tm.encoder.tokenization import TextTokenizer
from bertscore_tm.losses.soft.bridge.piece_table import Context, PieceTable
from bertscore_tm.losses.soft.bridge.shared_tokens import find_named_pieces, find_shared_tokens
from bertscore_tm.losses.soft.bridge.text_pieces import TokenizedRows, decode_tokens, tokenize_texts

__all__ = ["build_piece_table"]

# What incomplete characters decode to.
_INCOMPLETE = "\ufffd"
# Beginnings that put a token into each context; rare ones, so that they seldom merge with it.
_STEMS = {
    Context.SPACE: ("a ", "of "),
    Context.WORD: ("q7", "x3", "qx", "zj", "vq"),
    Context.OTHER: ('"', "(", "%", "]", "~"),
}


def build_piece_table(generator: PreTrainedTokenizerBase, encoder: TextTokenizer) -> PieceTable:
    """Find the encoder's pieces of every token of a generator.

    Where both tokenizers split texts into the same tokens, or the generator's vocabulary is a part of the encoder's, a
    token's piece is that of the same name. Otherwise its pieces are those into which the encoder's tokenizer, with its
    normalizer, splits its text.

    Args:
        generator: the generator's tokenizer.
        encoder: the encoder's tokenizer.

    Returns:
        The table.
    """
    vocabulary = generator.get_vocab()
    ids = sorted({*vocabulary.values()})
    # Ids may have gaps, so that there are more of them than tokens.
    vocab_size = ids[-1] + 1
    texts = [""] * vocab_size
    for i, text in zip(ids, decode_tokens(generator, ids), strict=True):
        texts[i] = text.replace(_INCOMPLETE, "")
    special = set(generator.all_special_ids)
    control = torch.ones(vocab_size, dtype=torch.bool, device="cpu")
    control[torch.tensor(ids, dtype=torch.long, device="cpu")] = False
    control[[i for i in special if i < vocab_size]] = True

    shared = find_shared_tokens(generator, vocabulary, encoder, texts)
    identity = shared is not None
    if shared is None:
        shared = find_named_pieces(generator, vocabulary, encoder, texts)
    if shared is None:
        shared = torch.full((vocab_size,), -1, dtype=torch.long, device="cpu")
    # Rows of shared tokens are single ids, of all others none yet.
    starts = torch.arange(vocab_size, device="cpu")[:, None].repeat(1, len(Context))
    lengths = (shared >= 0).long()[:, None].repeat(1, len(Context))
    pieces = shared
    others = [i for i, known in enumerate(shared.tolist()) if known < 0 and i not in special and texts[i].strip()]
    if others:
        split = _split_in_contexts([texts[i] for i in others], encoder)
        rows = torch.tensor(others, device="cpu")
        starts[rows] = split.starts.view(-1, len(Context)) + len(pieces)
        lengths[rows] = split.lengths.view(-1, len(Context))
        pieces = torch.cat([pieces, split.ids])
    counts = lengths.flatten()
    return PieceTable(
        offsets=torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
        pieces=TokenizedRows(pieces, starts.flatten(), counts).pack(),
        shares=(_usual_context(texts).flatten().float() / counts).repeat_interleave(counts),
        follows=_following_contexts(texts),
        control=control,
        identity=identity,
    )


def _split_in_contexts(texts: Sequence[str], encoder: TextTokenizer) -> TokenizedRows:
    """Split each text in each context, rows numbered ``4 * text + context``.

    A text that brings a space with it is split as after a space in all contexts but the first.
    """
    start = tokenize_texts(encoder.tokenizer, [encoder.prepare(text) for text in texts])
    words = [text.strip() for text in texts]
    attached = torch.tensor(
        [i for i, text in enumerate(texts) if not text[0].isspace()], dtype=torch.long, device="cpu"
    )
    rows = {Context.TEXT_START: start, Context.SPACE: _split_after(Context.SPACE, words, encoder).fill_empty(start)}
    for context in (Context.WORD, Context.OTHER):
        # Texts with a space are split as after a space.
        base = rows[Context.SPACE]
        found = _split_after(context, [words[i] for i in attached.tolist()], encoder)
        found = found.fill_empty(start.select(attached))
        starts = base.starts.index_copy(0, attached, found.starts + len(base.ids))
        lengths = base.lengths.index_copy(0, attached, found.lengths)
        rows[context] = TokenizedRows(torch.cat([base.ids, found.ids]), starts, lengths)
    begins = torch.tensor([0, *(len(rows[context].ids) for context in Context)], device="cpu").cumsum(0)
    starts = torch.stack([rows[context].starts + begins[context] for context in Context], dim=1)
    lengths = torch.stack([rows[context].lengths for context in Context], dim=1)
    # A text that vanishes in a context, such as a hard space, would have no position there.
    lengths[(lengths == 0).any(1)] = 0
    return TokenizedRows(torch.cat([rows[context].ids for context in Context]), starts.flatten(), lengths.flatten())


def _split_after(context: Context, words: Sequence[str], encoder: TextTokenizer) -> TokenizedRows:
    """Split words that are attached to a stem; rows are empty where every stem merges with the word."""
    starts, lengths = torch.zeros(2, len(words), dtype=torch.long, device="cpu")
    ids, left = torch.zeros(0, dtype=torch.long, device="cpu"), torch.arange(len(words), device="cpu")
    for stem in _STEMS[context]:
        prepared = [encoder.prepare(stem + words[i]) for i in left.tolist()]
        rows = tokenize_texts(encoder.tokenizer, [encoder.prepare(stem), *prepared])
        size = int(rows.lengths[0])
        kept = rows.lengths[1:] > size
        for place in range(size):
            there = (rows.starts[1:] + place).clamp(max=len(rows.ids) - 1)
            kept &= rows.ids[there] == rows.ids[place]
        starts[left[kept]] = rows.starts[1:][kept] + size + len(ids)
        lengths[left[kept]] = rows.lengths[1:][kept] - size
        ids, left = torch.cat([ids, rows.ids]), left[~kept]
        if not len(left):
            break
    return TokenizedRows(ids, starts, lengths)


def _usual_context(texts: Sequence[str]) -> Tensor:
    """Return 1 for the context in which each text mostly occurs, for the mean, shape (tokens, contexts)."""
    spaced = {text.lower() for text in texts if text[:1].isspace()}
    usual = []
    for text in texts:
        if not text or text[0].isspace():
            usual.append(Context.SPACE)
        else:
            # A text that is a token with a space too is seldom a part of a word: it would have merged with the rest.
            usual.append(Context.TEXT_START if f" {text.lower()}" in spaced else Context.WORD)
    return torch.nn.functional.one_hot(torch.tensor(usual, device="cpu"), len(Context))


def _following_contexts(texts: Sequence[str]) -> Tensor:
    """Return the context that each text makes for the next token, shape (tokens,)."""
    last = [text[-1:] for text in texts]
    contexts = {character: int(_context_after(character)) for character in {*last}}
    return torch.tensor([contexts[character] for character in last], device="cpu")


def _context_after(character: str) -> Context:
    if not character or character.isspace():
        return Context.SPACE
    return Context.WORD if character.isalnum() else Context.OTHER
