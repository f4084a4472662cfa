"""The published tables of ``bert-score``: default models by language, tuned layers and baselines.

A ``model`` is its name on the hub, a ``language`` its code, such as ``"en"``, ``"de"`` or ``"en-sci"`` for scientific
English. ``data/SOURCE.md`` states the source and licence of the tables.
"""

import json
import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["baseline", "baseline_languages", "default_model", "listed_as", "models", "tuned_layer"]

# Owners to which the hub moved models that had none. The published tables contain the old names.
_OWNERS = ("FacebookAI", "albert", "distilbert", "google-bert", "google-t5", "xlnet")

# The hash that bert-score prints, unless a custom table has rescaled the scores.
_HASH = re.compile(r"(.+)_L(\d+)_(idf|no-idf)_version=.+\(hug_trans=.+?\)(-rescaled)?(?:_fast-tokenizer)?")
_DATA = Path(__file__).parent / "data"
_TABLES: dict[str, Any] = json.loads((_DATA / "models.json").read_text(encoding="utf-8"))
# Codes of two letters. Any three letters count as a code too.
_LANGUAGES = (_DATA / "iso_639_1.txt").read_text(encoding="utf-8").split()

# Codes of three letters for the languages with a model of their own.
_THREE_LETTERS = {"eng": "en", "chi": "zh", "cmn": "zh", "zho": "zh", "tur": "tr"}


def default_model(language: str) -> str:
    """Return the default model of a language, else multilingual BERT.

    Raises:
        ValueError: it is not a language code, or is another code of a language in the table, such as ``"eng"``.

    Example:
        >>> default_model("en")
        'roberta-large'
    """
    languages: dict[str, str] = _TABLES["languages"]
    code = language.lower()
    base = re.split("[-_]", code)[0]
    base = _THREE_LETTERS.get(base, base)
    if code not in languages and base in languages:
        raise ValueError(
            f"language={language!r} has no default model, but {base!r} has one: pass language={base!r} or a model"
        )
    if base not in _LANGUAGES and not re.fullmatch("[a-z]{3}", base):
        raise ValueError(f"language must be a language code such as 'en' or 'de', got {language!r}")
    return languages.get(code, str(_TABLES["other_languages"]))


def models() -> list[str]:
    """Return the names of all models with a tuned layer, in the published order.

    Example:
        >>> len(models())
        140
    """
    return list(_TABLES["models"])


def listed_as(model: str) -> str | None:
    """Return the name of a model in the published tables, ``None`` if it has none.

    Models that the tables list without an owner are also found with their current one.

    Example:
        >>> listed_as("FacebookAI/roberta-large"), listed_as("my/model")
        ('roberta-large', None)
    """
    owner, _, name = model.rpartition("/")
    bare = name if owner in _OWNERS else model
    return next((name for name in (model, bare) if name in _TABLES["models"]), None)


def tuned_layer(model: str) -> int:
    """Return the layer whose scores correlate best with human judgements on WMT16 (Zhang et al. 2020).

    Raises:
        ValueError: the model is not listed.

    Example:
        >>> tuned_layer("roberta-large")
        17
    """
    remedy = (
        "pass num_layers (--num-layers), -1 for the last layer, or, for a copy of a listed model, its name as the "
        "encoder's listed_as (--listed-as)"
    )
    return _find_layer(model, remedy)


def name_of_copy(name: str) -> str:
    """Return the listed model that the configuration of a local folder names as its origin, else the given name."""
    path = Path(name) / "config.json"
    if not path.is_file():
        return name
    # Read the file itself, because from_pretrained replaces the origin by the folder.
    origin = json.loads(path.read_text(encoding="utf-8")).get("_name_or_path")
    if origin is None or listed_as(origin) is None:
        return name
    return str(origin)


def find_listed(name: str, depth: int | None = None) -> tuple[str, int]:
    """Return the name in the tables and the tuned layer of a listed model, which has ``depth`` layers if given."""
    num_layers = _find_layer(name, "listed_as (--listed-as) must be in catalog.models()")
    model = listed_as(name) or name
    if depth is None:
        return model, num_layers
    languages = baseline_languages(model)
    if languages:
        # A baseline has one row per layer, and one for the embedding output.
        fits = depth == len(baseline(languages[0], model)) - 1
    else:
        # Without a baseline, only the tuned layer of a listed model is known, which the model must have.
        fits = depth >= num_layers
    if not fits:
        raise ValueError(f"listed_as (--listed-as) {name!r} does not fit: this model has {depth} layers")
    return model, num_layers


def _find_layer(model: str, remedy: str) -> int:
    """Return the tuned layer of a listed model, or raise an error with the remedy and similar names."""
    listed = listed_as(model)
    if listed is None:
        similar = similar_names(model, models())
        hint = ""
        if similar:
            hint = f"; similar listed names: {', '.join(similar)}"
        raise ValueError(f"no tuned layer is published for {model!r}: {remedy}{hint}")
    return int(_TABLES["models"][listed]["num_layers"])


def read_hash(text: str) -> dict[str, Any]:
    """Return model, layer, idf and rescaling in a hash that ``bert-score`` prints; an empty dict if it is not one."""
    match = _HASH.fullmatch(text)
    if match is None:
        return {}
    model, num_layers, idf, rescaled = match.groups()
    return {"model": model, "num_layers": int(num_layers), "idf": idf == "idf", "rescale": rescaled is not None}


def require_no_hash(argument: str, value: object) -> None:
    """Raise an error, with the settings, if a model's name is a hash that ``bert-score`` prints."""
    if settings := read_hash(str(value)):
        listed = ", ".join(f"{name} {setting}" for name, setting in settings.items())
        raise ValueError(f"{argument}: {value} is a hash, not a model: pass its settings as arguments, {listed}")


def similar_names(name: str, names: Iterable[str]) -> list[str]:
    """Return at most three of the names that are similar to a name, or to the last part of a path, best first."""
    names = list(names)
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return get_close_matches(name, names, n=3) or get_close_matches(last, names, n=3)


def baseline(language: str, model: str) -> Tensor:
    """Return the published baseline table of a model, by which its scores are rescaled.

    Returns:
        Expected precision, recall and F1 of random pairs, shape (layers + 1, 3), float64.

    Raises:
        ValueError: no table is published for the language and model.

    Example:
        >>> baseline("en", "roberta-large")[17].tolist()
        [0.83150584, 0.8314941, 0.83122575]
    """
    languages = _find_tables()
    remedy = (
        "pass a table (`bertscore-tm baseline` makes one) or, for a copy of a listed model, its name as the encoder's "
        "listed_as (--listed-as), or do not rescale"
    )
    missing = f"no baseline for language {language!r} and model {model!r}"
    # Compare with the existing names, because a name such as "../x" would be a path outside the folder.
    if language.lower() not in languages:
        raise ValueError(f"{missing}: {remedy}; languages with tables are {', '.join(languages)}")
    tables = languages[language.lower()]
    name = listed_as(model) or model
    if name not in tables:
        shown = similar_names(name, tables) or sorted(tables)[:5]
        raise ValueError(f"{missing}: {remedy}; models with a table for {language!r} include {', '.join(shown)}")
    return torch.from_numpy(np.loadtxt(tables[name], delimiter=",", skiprows=1, usecols=(1, 2, 3)))


def baseline_languages(model: str) -> list[str]:
    """Return the languages for which a model has a published baseline table, sorted.

    Example:
        >>> baseline_languages("roberta-large"), baseline_languages("bert-base-chinese")
        (['en'], ['zh'])
    """
    name = listed_as(model) or model
    return [language for language, tables in _find_tables().items() if name in tables]


@cache
def _find_tables() -> dict[str, dict[str, Path]]:
    """Return the files of the tables by language and by the name of their model, which may have an owner."""
    tables: dict[str, dict[str, Path]] = {}
    for path in sorted((_DATA / "baselines").rglob("*.csv")):
        language, _, name = path.relative_to(_DATA / "baselines").as_posix().removesuffix(".csv").partition("/")
        tables.setdefault(language, {})[name] = path
    return tables
