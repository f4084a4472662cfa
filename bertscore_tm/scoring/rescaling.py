"""Baselines applied to scores: which table, which of its rows, and the rescaled numbers."""

from __future__ import annotations

import hashlib
import os
import urllib.request
import warnings
from pathlib import Path

import torch
from torch import Tensor

from bertscore_tm import catalog
from bertscore_tm.core.scores import rescale
from bertscore_tm.encoder import FrozenEncoder

__all__ = ["baseline_rows", "rescale_rows", "rescale_scores"]


def rescale_rows(encoder: FrozenEncoder, table: Tensor) -> Tensor:
    """Pick the baseline of the encoder's layers.

    Args:
        encoder: the encoder.
        table: baseline of every layer, shape (layers of the model + 1, 3).

    Returns:
        Shape (3, layers): one row each for precision, recall and F1.

    Raises:
        ValueError: the table has no row for the encoder's layer.
    """
    if len(table) <= encoder.num_layers:
        raise ValueError(
            f"the baseline table ends at layer {len(table) - 1}, the encoder gives layer {encoder.num_layers}"
        )
    first = 0 if encoder.all_layers else encoder.num_layers
    return table[first : encoder.num_layers + 1].T


def rescale_scores(scores: Tensor, baseline: Tensor | None) -> Tensor:
    """Rescale precision, recall and F1 by their own baselines.

    Args:
        scores: shape (3, layers, pairs).
        baseline: shape (3, layers), or ``None`` to leave the scores as they are.

    Returns:
        Shape (3, layers, pairs).
    """
    if baseline is None:
        return scores
    return torch.stack([rescale(score, b) for score, b in zip(scores, baseline, strict=True)])


def baseline_rows(
    encoder: FrozenEncoder,
    lang: str,
    rescale_with_baseline: bool,
    baseline_path: str | os.PathLike[str] | None = None,
    baseline_url: str | None = None,
) -> tuple[Tensor | None, str]:
    """Return the baseline that a caller asks for, and what to call it in the signature.

    Args:
        encoder: the encoder.
        lang: language code of a published table.
        rescale_with_baseline: whether to rescale at all.
        baseline_path: a table of the caller's own.
        baseline_url: address of such a table.

    Returns:
        One row each for precision, recall and F1, shape (3, layers), or ``None``; and the name.

    Raises:
        ValueError: there is no such table, or it has no row for the encoder's layer.
        OSError: the file or address cannot be read.
    """
    if not rescale_with_baseline:
        if baseline_path is not None or baseline_url is not None:
            warnings.warn(
                "a baseline is given, but rescale_with_baseline is False: scores are not rescaled", stacklevel=3
            )
        return None, "no"
    if baseline_path is None and baseline_url is None:
        return rescale_rows(encoder, catalog.baseline(lang, encoder.listed_name)), lang.lower()
    if baseline_path is not None and baseline_url is not None:
        raise ValueError("pass baseline_path= or baseline_url=, not both")
    if baseline_path is not None:
        name, content = Path(baseline_path).name, Path(baseline_path).read_bytes()
    else:
        assert baseline_url is not None
        with urllib.request.urlopen(baseline_url) as response:
            name, content = baseline_url.rpartition("/")[2], response.read()
    table = catalog.parse_baseline(content.decode("utf-8"), name)
    return rescale_rows(encoder, table), f"{name}#{hashlib.sha256(content).hexdigest()[:8]}"
