"""Rescaling of scores by the rows of a baseline table for an encoder."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from bertscore_tm import catalog
from bertscore_tm.core.scores import rescale
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.utilities.downloads import download
from bertscore_tm.utilities.user_warnings import warn_user

__all__ = ["LayerBaseline", "find_baseline", "rescale_scores", "score_range", "select_rows"]


@dataclass(frozen=True)
class LayerBaseline:
    """Baseline of the compared layers.

    Its string is the value of ``rescale:`` in the signature.

    Args:
        rows: baseline of precision, recall and F1, shape (3, layers).
        table: language code of a published table, or name of a file.
        digest: first 8 hexadecimal digits of the file's SHA-256; empty for a published table.

    Example:
        >>> str(LayerBaseline(torch.zeros(3, 1), "mine.csv", "0a1b2c3d"))
        'mine.csv#0a1b2c3d'
    """

    rows: Tensor
    table: str
    digest: str = ""

    def of_layer(self, layer: int) -> LayerBaseline:
        """Return the baseline of one layer, with rows of shape (3, 1)."""
        return replace(self, rows=self.rows[:, layer : layer + 1])

    def __str__(self) -> str:
        return f"{self.table}#{self.digest}" if self.digest else self.table


def find_baseline(
    encoder: FrozenEncoder,
    lang: str,
    rescale_with_baseline: bool,
    baseline_path: str | os.PathLike[str] | None = None,
    baseline_url: str | None = None,
) -> LayerBaseline | None:
    """Read the baseline of the encoder's layers.

    Args:
        encoder: the encoder.
        lang: language code of a published table.
        rescale_with_baseline: whether to rescale; ``False`` with a table gives a warning.
        baseline_path: file of a table to use instead of a published one.
        baseline_url: https address of such a file, of at most 1 MiB.

    Returns:
        The baseline, or ``None`` without rescaling.

    Warns:
        UserWarning: a table is given without rescaling, or a published one is used although the encoder excludes
            special tokens.

    Raises:
        ValueError: there is no published table, both a path and an address are given, the address is not one of https,
            or the table is malformed or has no row for the encoder's layer.
        OSError: the file or address cannot be read.
    """
    if not rescale_with_baseline:
        if baseline_path is not None or baseline_url is not None:
            warn_user("scores are not rescaled by the given baseline: pass rescale_with_baseline=True")
        return None
    if baseline_path is None and baseline_url is None:
        if encoder.tokenizer.exclude_special_tokens:
            warn_user(
                f"the published baseline of {encoder.listed_name} includes matches with special tokens, which "
                f"exclude_special_tokens=True leaves out: pass a table made with the same setting, as by bertscore-tm "
                f"baseline --exclude-special-tokens, as baseline_path="
            )
        return LayerBaseline(select_rows(encoder, catalog.baseline(lang, encoder.listed_name)), lang.lower())
    if baseline_path is not None and baseline_url is not None:
        raise ValueError("got both baseline_path= and baseline_url=: pass one of them")
    if baseline_path is not None:
        name, content = Path(baseline_path).name, Path(baseline_path).read_bytes()
    else:
        assert baseline_url is not None
        name, content = baseline_url.rpartition("/")[2], download(baseline_url)
    table = catalog.parse_baseline(content.decode("utf-8"), name)
    return LayerBaseline(select_rows(encoder, table), name, hashlib.sha256(content).hexdigest()[:8])


def select_rows(encoder: FrozenEncoder, table: Tensor) -> Tensor:
    """Select the rows of a baseline table for the encoder's layers.

    Args:
        encoder: the encoder.
        table: baseline of every layer, shape (layers of the model + 1, 3).

    Returns:
        Baseline of precision, recall and F1, shape (3, layers).

    Raises:
        ValueError: the table has no row for the encoder's layer.
    """
    if len(table) <= encoder.num_layers:
        raise ValueError(
            f"the baseline table ends at layer {len(table) - 1}, but the encoder's layer is {encoder.num_layers}"
        )
    first = 0 if encoder.all_layers else encoder.num_layers
    return table[first : encoder.num_layers + 1].T


def rescale_scores(scores: Tensor, baseline: LayerBaseline | None) -> Tensor:
    """Rescale precision, recall and F1, each by its own baseline.

    Args:
        scores: precision, recall and F1, shape (3, layers, pairs).
        baseline: the baseline of the same layers, or ``None`` to return the scores unchanged.

    Returns:
        Shape (3, layers, pairs).
    """
    if baseline is None:
        return scores
    return torch.stack([rescale(score, b) for score, b in zip(scores, baseline.rows, strict=True)])


def score_range(num_layers: int, baseline: LayerBaseline | None) -> tuple[Tensor, Tensor]:
    """Return the least and the largest possible precision, recall and F1.

    Args:
        num_layers: number of compared layers.
        baseline: the baseline of these layers, or ``None`` for scores that are not rescaled.

    Returns:
        Shape (3, layers) each, float64: -1 and 1, rescaled.

    Example:
        >>> least, largest = score_range(1, LayerBaseline(torch.full((3, 1), 0.6, dtype=torch.float64), "en"))
        >>> [round(x, 3) for x in (least[2].item(), largest[2].item())]
        [-4.0, 1.0]
    """
    ends = torch.tensor([-1.0, 1.0], dtype=torch.float64, device="cpu").expand(3, num_layers, 2)
    least, largest = rescale_scores(ends, baseline).sort(-1).values.unbind(-1)
    return least, largest
