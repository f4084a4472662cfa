"""Document frequencies, and the weight of every token id with and without idf."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bertscore_tm.core.token_vectors import segment_ids

__all__ = ["DocumentFrequencies", "accumulator", "idf_weights", "special_token_weights"]


@dataclass(frozen=True)
class DocumentFrequencies:
    """Number of documents in which each token id occurs.

    Args:
        counts: documents per id, shape (vocabulary,), int64.
        num_documents: number of documents, shape (), int64.
    """

    counts: Tensor
    num_documents: Tensor

    @classmethod
    def of(cls, ids: Tensor, lengths: Tensor, vocab_size: int) -> DocumentFrequencies:
        """Count documents.

        Args:
            ids: token ids of all documents, packed, shape (tokens,).
            lengths: tokens per document, shape (documents,).
            vocab_size: number of token ids.

        Returns:
            The frequencies; an id counts once per document, equal documents count each.

        Example:
            >>> DocumentFrequencies.of(torch.tensor([1, 1, 2, 2]), torch.tensor([3, 1]), 4).counts.tolist()
            [0, 1, 2, 0]
        """
        documents = segment_ids(lengths, len(ids))
        distinct = torch.unique(documents * vocab_size + ids.long()) % vocab_size
        counts = torch.bincount(distinct, minlength=vocab_size)
        return cls(counts, torch.tensor(len(lengths), device=ids.device))

    def __add__(self, other: DocumentFrequencies) -> DocumentFrequencies:
        return DocumentFrequencies(self.counts + other.counts, self.num_documents + other.num_documents)


def idf_weights(frequencies: DocumentFrequencies) -> Tensor:
    r"""Return the inverse document frequency of every token id.

    .. math:: \mathrm{idf}(w) = \log \frac{M + 1}{\mathrm{df}(w) + 1}

    with M documents (Zhang et al. 2020, section 3, with plus-one smoothing).

    Args:
        frequencies: document frequencies over the references.

    Returns:
        Shape (vocabulary,), float64 where the device has it; log(M + 1) for ids that never occur.

    Example:
        >>> frequencies = DocumentFrequencies(torch.tensor([2, 1, 0]), torch.tensor(2))
        >>> idf_weights(frequencies).exp()
        tensor([1.0000, 1.5000, 3.0000], dtype=torch.float64)
    """
    dtype = accumulator(frequencies.counts.device)
    documents = frequencies.num_documents.to(dtype)
    return torch.log((documents + 1) / (frequencies.counts.to(dtype) + 1))


def special_token_weights(unweighted_ids: list[int], vocab_size: int, device: torch.device) -> Tensor:
    """Return the weight of every token id without idf: 1, and 0 for the cls and sep tokens.

    Args:
        unweighted_ids: ids of weight 0.
        vocab_size: number of token ids.
        device: where to put the table.

    Returns:
        Shape (vocabulary,).

    Example:
        >>> special_token_weights([0, 2], 4, torch.device("cpu")).tolist()
        [0.0, 1.0, 0.0, 1.0]
    """
    weights = torch.ones(vocab_size, dtype=accumulator(device), device=device)
    weights[unweighted_ids] = 0
    return weights


def accumulator(device: torch.device) -> torch.dtype:
    """Return the dtype of weights and sums on a device.

    Args:
        device: the device.

    Returns:
        float64, or float32 on Apple's GPUs, which do not support it.

    Example:
        >>> accumulator(torch.device("cpu")), accumulator(torch.device("mps"))
        (torch.float64, torch.float32)
    """
    return torch.float32 if device.type == "mps" else torch.float64
