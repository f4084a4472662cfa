"""Which model for a language, which layer of a model, and which baseline to rescale by.

The tables are the published ones of ``bert-score``; ``data/SOURCE.md`` states source and licence.
"""

from __future__ import annotations

import csv
import json
import os
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["baseline", "default_model", "tuned_layer"]


@cache
def _tables() -> dict[str, Any]:
    tables: dict[str, Any] = json.loads((_data() / "models.json").read_text(encoding="utf-8"))
    return tables


def _data() -> Traversable:
    return files("bertscore_tm") / "data"


def default_model(lang: str) -> str:
    """Return the model that is used for a language.

    Args:
        lang: language code, such as ``"en"``, ``"de"`` or ``"en-sci"`` for scientific English.

    Returns:
        A model name on the hub; languages without a model of their own get multilingual BERT.

    Example:
        >>> default_model("en")
        'roberta-large'
    """
    tables = _tables()
    model: str = tables["languages"].get(lang.lower(), tables["other_languages"])
    return model


def tuned_layer(model: str) -> int:
    """Return the layer of a model whose scores agree best with human judgements (WMT16, Zhang et al. 2020).

    Args:
        model: name of the model on the hub.

    Returns:
        The layer's number.

    Raises:
        ValueError: no layer is published for the model.

    Example:
        >>> tuned_layer("roberta-large")
        17
    """
    models = _tables()["models"]
    if model not in models:
        near = get_close_matches(model, models, n=3)
        hint = f"; the nearest listed names are {', '.join(near)}" if near else ""
        raise ValueError(f"no tuned layer is known for {model!r}: pass num_layers=...{hint}")
    layer: int = models[model]["num_layers"]
    return layer


def baseline(lang: str, model: str, path: str | os.PathLike[str] | None = None) -> Tensor:
    """Return the baseline table that scores of a model are rescaled by.

    Args:
        lang: language code.
        model: name of the model on the hub.
        path: a table of your own instead: comma-separated, header ``LAYER,P,R,F``, one row per layer from 0.

    Returns:
        Expected precision, recall and F1 of random pairs, shape (layers + 1, 3), float64.

    Raises:
        ValueError: there is no published table for the language and model, or the table is malformed.
        FileNotFoundError: ``path`` does not exist.

    Example:
        >>> baseline("en", "roberta-large")[17].tolist()
        [0.83150584, 0.8314941, 0.83122575]
    """
    if path is not None:
        return _read_table(Path(path))
    tables = _data() / "baselines"
    folder = tables / lang.lower() if lang.lower() in {entry.name for entry in tables.iterdir()} else None
    # Compared with the names that exist, so that no name can lead out of the folder.
    known = _names(folder) if folder is not None else {}
    if model not in known:
        listed = f"; models with a table for {lang!r}: {', '.join(sorted(known))}" if known else ""
        raise ValueError(
            f"no baseline for language {lang!r} and model {model!r} (looked for baselines/{lang}/{model}.csv): pass "
            f"baseline_path= with a table of your own, or turn rescale_with_baseline off{listed}"
        )
    return _read_table(known[model])


def _names(folder: Traversable, prefix: str = "") -> dict[str, Traversable]:
    found: dict[str, Traversable] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            found.update(_names(entry, f"{prefix}{entry.name}/"))
        else:
            found[prefix + entry.name.removesuffix(".csv")] = entry
    return found


def _read_table(path: Traversable) -> Tensor:
    rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    if not rows or [name.strip() for name in rows[0]] != ["LAYER", "P", "R", "F"]:
        raise ValueError(f"baseline table {path} does not begin with the header LAYER,P,R,F")
    try:
        values = [[float(cell) for cell in row] for row in rows[1:]]
    except ValueError as error:
        raise ValueError(f"baseline table {path}: {error}") from error
    for number, row in enumerate(values):
        if len(row) != 4 or row[0] != number:
            raise ValueError(f"baseline table {path}: line {number + 2} is not layer {number} with three values")
    return torch.tensor(values, dtype=torch.float64).reshape(-1, 4)[:, 1:]
