"""Which model for a language, which layer of a model, and which baseline to rescale by.

The tables are the published ones of ``bert-score``; ``data/SOURCE.md`` states source and licence.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "baseline",
    "default_model",
    "listed_as",
    "models",
    "parse_baseline",
    "published_correlation",
    "tuned_layer",
]

# The hub moved models that had no owner to these; the published tables have the old names.
_OWNERS = ("FacebookAI", "albert", "distilbert", "google-bert", "google-t5", "xlnet")


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


def models() -> list[str]:
    """Return the names of all models with a published layer.

    Returns:
        Names as on the hub, in the published order.

    Example:
        >>> len(models())
        140
    """
    return list(_tables()["models"])


def listed_as(model: str) -> str | None:
    """Return the name under which the published tables list a model.

    Args:
        model: name of the model on the hub; models without an owner may be called with today's, such as
            ``FacebookAI/roberta-large``.

    Returns:
        The listed name, or ``None`` for a model that is not listed.

    Example:
        >>> listed_as("FacebookAI/roberta-large"), listed_as("my/model")
        ('roberta-large', None)
    """
    owner, _, name = model.rpartition("/")
    bare = name if owner in _OWNERS else model
    return next((known for known in (model, bare) if known in _tables()["models"]), None)


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
    layer: int = _entry(model, "tuned layer", "pass num_layers=...")["num_layers"]
    return layer


def published_correlation(model: str) -> float | None:
    """Return how well a model's scores at its tuned layer agree with human judgements.

    Args:
        model: name of the model on the hub.

    Returns:
        Pearson correlation on the to-English pairs of WMT16 (of WMT18 English-Turkish for the Turkish models), as
        published with ``bert-score``; ``None`` where none is published.

    Raises:
        ValueError: the model is not listed.

    Example:
        >>> published_correlation("roberta-large")
        0.738597
    """
    entry = _entry(model, "correlation", "bertscore-tm tune-layers measures it on judgements of your own")
    correlation: float | None = entry.get("wmt16_pearson", entry.get("wmt18_en_tr_pearson"))
    return correlation


def _entry(model: str, what: str, remedy: str) -> dict[str, Any]:
    listed = listed_as(model)
    if listed is None:
        near = _nearest(model, models())
        hint = f"; the nearest listed names are {', '.join(near)}" if near else ""
        raise ValueError(f"no {what} is known for {model!r}: {remedy}{hint}")
    entry: dict[str, Any] = _tables()["models"][listed]
    return entry


def _nearest(name: str, known: Iterable[str]) -> list[str]:
    """Names like the given one, or like the last part of a path."""
    known = list(known)
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return get_close_matches(name, known, n=3) or get_close_matches(last, known, n=3)


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
        return parse_baseline(Path(path).read_text(encoding="utf-8"), os.fspath(path))
    tables = _data() / "baselines"
    languages = sorted(entry.name for entry in tables.iterdir())
    remedy = "pass baseline_path= (`bertscore-tm baseline` makes a table), or turn rescale_with_baseline off"
    looked = f"no baseline for language {lang!r} and model {model!r} (looked for baselines/{lang}/{model}.csv)"
    # Compared with the names that exist, so that no name can lead out of the folder.
    if lang.lower() not in languages:
        raise ValueError(f"{looked}: {remedy}; languages with tables are {', '.join(languages)}")
    known = _names(tables / lang.lower())
    name = listed_as(model) or model
    if name not in known:
        near = _nearest(name, known)
        hint = f"; the nearest names with a table are {', '.join(near)}" if near else ""
        raise ValueError(f"{looked}: {remedy}{hint}; models with a table for {lang!r}: {', '.join(sorted(known))}")
    return parse_baseline(known[name].read_text(encoding="utf-8"), f"{lang}/{name}")


def _names(folder: Traversable, prefix: str = "") -> dict[str, Traversable]:
    found: dict[str, Traversable] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            found.update(_names(entry, f"{prefix}{entry.name}/"))
        else:
            found[prefix + entry.name.removesuffix(".csv")] = entry
    return found


def parse_baseline(text: str, name: str) -> Tensor:
    r"""Read a baseline table.

    Args:
        text: the table: comma-separated, header ``LAYER,P,R,F``, one row per layer from 0.
        name: what to call it in errors.

    Returns:
        Shape (layers, 3), float64.

    Raises:
        ValueError: the table is malformed.

    Example:
        >>> parse_baseline("LAYER,P,R,F\n0,0.1,0.2,0.3", "mine")
        tensor([[0.1000, 0.2000, 0.3000]], dtype=torch.float64)
    """
    rows = list(csv.reader(text.splitlines()))
    if not rows or [name.strip() for name in rows[0]] != ["LAYER", "P", "R", "F"]:
        raise ValueError(f"baseline table {name} does not begin with the header LAYER,P,R,F")
    try:
        values = [[float(cell) for cell in row] for row in rows[1:]]
    except ValueError as error:
        raise ValueError(f"baseline table {name}: {error}") from error
    for number, row in enumerate(values):
        if len(row) != 4 or row[0] != number:
            raise ValueError(f"baseline table {name}: line {number + 2} is not layer {number} with three values")
    return torch.tensor(values, dtype=torch.float64).reshape(-1, 4)[:, 1:]
