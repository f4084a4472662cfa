"""Texts as users pass them: checked, and converted to lists of strings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from bertscore_tm.utilities.warnings import warn_user

# Candidates, and the references of each, by position or by key.
Texts = str | Sequence[str] | Mapping[Any, str]
References = Texts | Sequence[Sequence[str]] | Mapping[Any, Sequence[str]]
_DECODE = "decode token ids with their tokenizer first, as with batch_decode"
# A string that looks like the repr of a list in Python, JSON or NumPy: ['a', 'b'], ["a", "b"] or ['a' 'b'].
_STRINGIFIED_LIST = re.compile(r"""\s*\[\s*('.*'|".*")\s*\]\s*""", re.DOTALL)


@dataclass(frozen=True)
class TextPairs:
    """Validated texts: each candidate with its references, or references alone, without candidates.

    Lists of references may be empty until :meth:`omit_blank_references`, after which each has at least one.
    """

    candidates: list[str]
    references: list[list[str]]

    def __len__(self) -> int:
        return len(self.candidates)

    def select(self, indices: Sequence[int]) -> TextPairs:
        """Return the candidates with these indices, with their references."""
        candidates: list[str] = []
        # References alone have no candidates.
        if self.candidates:
            candidates = [self.candidates[i] for i in indices]
        return TextPairs(candidates, [self.references[i] for i in indices])

    def distinct(self) -> list[str]:
        """Return the distinct texts."""
        return list(dict.fromkeys(chain(self.candidates, chain.from_iterable(self.references))))

    def omit_blank_references(self) -> TextPairs:
        """Return the candidates with their references that are not blank, or one blank reference where all are."""
        return TextPairs(self.candidates, [omit_blank(references) for references in self.references])

    def restore_indices(self, best_reference: Tensor) -> Tensor:
        """Convert indices of references that are not blank to indices of all, shape (layers, candidates)."""
        restored = best_reference.clone()  # (layers, candidates)
        for i, references in enumerate(self.references):
            indices = counted_references(references)
            # Without a blank reference, both kinds of indices are the same.
            if len(indices) < len(references):
                restored[:, i] = torch.tensor(indices, device="cpu")[best_reference[:, i]]  # (layers,)
        return restored


def omit_blank(references: Sequence[str]) -> list[str]:
    """Return the references that are not blank, the first one if all are blank, or a blank one for an empty list.

    Example:
        >>> omit_blank(["a cat", "", " "]), omit_blank([" ", ""]), omit_blank([])
        (['a cat'], [' '], [''])
    """
    counted = counted_references(references)
    if not counted:
        return [""]
    return [references[i] for i in counted]


def counted_references(references: Sequence[str]) -> list[int]:
    """Return the indices of the references that are not blank, or of the first one if all are blank."""
    indices = [i for i, text in enumerate(references) if text.strip()]
    if references and not indices:
        return [0]
    return indices


def as_text_pairs(
    preds: Any, target: Any, names: tuple[str, str] = ("preds", "target"), *, require_references: bool = False
) -> TextPairs:
    """Check candidates and references, blank ones too, and convert them to lists.

    Sequences may be lists, tuples, iterators, arrays of numpy or pyarrow, or columns of a data frame; each row of an
    array or data frame with several columns holds the references of one candidate. Mappings are joined by their keys.
    ``names`` are those of the arguments, for errors. With ``require_references`` an empty list of references is an
    error.
    """
    if isinstance(preds, str) and isinstance(target, str):
        preds, target = [preds], [target]
    if isinstance(preds, Mapping) and isinstance(target, Mapping):
        _require_keys(preds, target, names[0], names[1])
        _require_keys(target, preds, names[1], names[0])
        target = [target[key] for key in preds]
        preds = list(preds.values())
    _warn_of_other_index(preds, target, names)
    candidates = as_documents(preds, names[0])
    references = as_references(target, names[1], require_references=require_references)
    if len(candidates) != len(references):
        raise ValueError(
            f"{names[0]} and {names[1]} must have equal lengths, got {len(candidates)} and {len(references)}. Put "
            f"several references of one candidate into a list"
        )
    warn_of_stringified_lists(chain(candidates, chain.from_iterable(references)))
    return TextPairs(candidates, references)


def _require_keys(texts: Mapping[Any, Any], other: Mapping[Any, Any], name: str, other_name: str) -> None:
    """Raise an error that names a key of another mapping that a mapping lacks."""
    missing = [key for key in other if key not in texts]
    if missing:
        raise ValueError(
            f"{name} has no key {missing[0]!r}, which {other_name} has: {len(missing)} of {len(other)} are missing"
        )


def warn_of_stringified_lists(texts: Iterable[str]) -> None:
    """Warn if a text looks like the repr of a list, such as a cell of a CSV file, because it counts as one text."""
    # Look for the bracket first, because the pattern is slower and few texts start with a bracket.
    if any("[" in text[:4] and _STRINGIFIED_LIST.fullmatch(text) for text in texts):
        warn_user(
            "lists such as \"['a', 'b']\" are among the texts, and each is scored as a single text. If they are "
            "several references, convert them first, as with json.loads or ast.literal_eval"
        )


def _warn_of_other_index(preds: Any, target: Any, names: tuple[str, str]) -> None:
    """Warn if two columns of pandas have the same labels in another order, since they are paired by position."""
    index: Any = getattr(preds, "index", None)
    other: Any = getattr(target, "index", None)
    have_labels = hasattr(index, "equals") and hasattr(other, "equals")
    if not have_labels or index.equals(other):
        return
    # Columns with different labels, such as those of two files, can only be paired by position.
    have_same_labels = Counter(index) == Counter(other)
    if have_same_labels:
        warn_user(
            f"{names[0]} and {names[1]} have the same index in another order, and are paired by position. To pair them "
            f"by label, pass {names[1]}.loc[{names[0]}.index]"
        )


def as_references(target: Any, name: str, *, require_references: bool = False) -> list[list[str]]:
    """Return the references of each candidate as lists of strings, blank ones too.

    With ``require_references`` an empty list of references is an error.
    """
    references = []
    for i, entry in enumerate(as_list(target, name, dimensions=2)):
        if isinstance(entry, str):
            texts = [entry]
        else:
            texts = as_documents(entry, f"{name}[{i}]")
        if require_references and not texts:
            raise ValueError(f"{name}[{i}] is empty: every candidate needs at least one reference")
        references.append(texts)
    return references


def as_list(texts: Any, name: str, dimensions: int = 1) -> list[Any]:
    """Return the elements or rows of a sequence, an iterator, an array or a column; a string is an error.

    Arrays may have at most this number of ``dimensions``: 1 for texts, 2 for lists of references.
    """
    if isinstance(texts, str):
        raise TypeError(f"{name} is a single string: pass a list of texts")
    if hasattr(texts, "shape") or hasattr(texts, "to_numpy"):
        texts = _read_array(texts, name)
    # Sequences and iterators that are not arrays have one dimension.
    num_dimensions = getattr(texts, "ndim", 1)
    if not 1 <= num_dimensions <= dimensions:
        raise TypeError(f"{name} must have one text per row, got {type(texts).__name__} of shape {texts.shape}")
    # Mappings and sets are iterable too, but have no order of texts.
    is_sequence = isinstance(texts, Iterable) and not isinstance(texts, Mapping | Set | bytes | bytearray)
    if not is_sequence:
        raise TypeError(f"{name} must be a string or a sequence of strings, got {describe_given(texts)}")
    return list(texts)


def _read_array(texts: Any, name: str) -> Any:
    """Return an array or a column as what iterates over its rows; missing values and numbers are an error."""
    # NaN of NumPy and NaT of pandas have attributes of arrays.
    if _is_missing(texts):
        raise TypeError(f"{name} must be a string or a sequence of strings, got {describe_given(texts)}")
    if hasattr(texts, "shape") and _has_integers(texts):
        kind = type(texts).__name__
        if isinstance(texts, Tensor):
            kind = "a tensor"
        raise TypeError(f"{name} must be texts, got {kind} of shape {tuple(texts.shape)}: {_DECODE}")
    if not hasattr(texts, "to_numpy"):
        # An array of NumPy iterates over its rows. A table of pyarrow does not iterate, so as_list rejects it.
        return texts
    if hasattr(texts, "to_pylist"):
        # to_numpy of an array of pyarrow fails for texts.
        return texts.to_pylist()
    # A data frame would iterate over the names of its columns.
    return texts.to_numpy()


def describe_given(value: Any) -> str:
    """Describe a value that is not a text for an error: shortened, with its type and what to do with it."""
    shown = repr(value)
    if len(shown) > 80:
        shown = f"{shown[:77]}..."
    described = f"{shown} ({type(value).__name__})"
    if isinstance(value, bytes | bytearray):
        return f"{described}: decode bytes to a string first, as with .decode('utf-8')"
    if _is_missing(value):
        return f"{described}, a missing value: drop or fill it, as with dropna() or fillna('')"
    if _is_tokenized(value):
        return f"{described}: {_DECODE}"
    return described


def _is_missing(value: Any) -> bool:
    """Return whether a value marks a missing one: None, NaN, or NA and NaT of pandas."""
    is_nan = isinstance(value, Real) and value != value
    # Compared by name, because pandas need not be installed.
    is_missing_in_pandas = type(value).__name__ in {"NAType", "NaTType"}
    return value is None or is_nan or is_missing_in_pandas


def _is_tokenized(value: Any) -> bool:
    """Return whether a value holds token ids instead of a text."""
    if isinstance(value, Mapping):
        return "input_ids" in value
    if isinstance(value, Sequence) and len(value) > 0:
        return all(isinstance(number, int) for number in value)
    return _has_integers(value)


def _has_integers(value: Any) -> bool:
    """Return whether a value is an integer, an array of integers or a tensor."""
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    return type(value) is int or isinstance(value, Tensor) or kind in {"i", "u"}


def as_documents(value: Any, name: str) -> list[str]:
    """Return a sequence of strings as a list; an error about anything else names the argument."""
    texts: list[str] = as_list(value, name)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{i}] must be a string, got {describe_given(text)}")
    return texts
