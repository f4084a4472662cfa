"""The signature of a score: the settings that change it, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

# Fields that are printed behind the name of the model, and the mark before each.
_PARTS_OF_MODEL = {"contents": "#", "tokenizer": "#", "revision": "@"}


class Signature(Mapping[str, str]):
    """Frozen mapping from every setting that changes a score to its value; printed, it is one line.

    Equal signatures and equal texts give equal scores to 1e-6. The page on reporting explains the fields.

    Args:
        fields: values by name, which are converted to strings. Fields that are ``None`` are left out.

    Example:
        >>> signature = Signature({"model": "my/model", "contents": "bb6e929d", "layer": 5, "special": None})
        >>> signature["layer"], "special" in signature
        ('5', False)
        >>> print(signature)
        model:my/model#bb6e929d|layer:5
        >>> signature | {"layer": 6} == signature
        False
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = {name: str(value) for name, value in fields.items() if value is not None}

    def __getitem__(self, name: str) -> str:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def select(self, *names: str) -> Signature:
        """Return the fields with these names, as far as there are any."""
        return Signature({name: self.get(name) for name in names})

    def __or__(self, fields: Mapping[str, object]) -> Signature:
        return Signature({**self, **fields})

    def __hash__(self) -> int:
        return hash(frozenset(self.items()))

    def __str__(self) -> str:
        parts = [f"{mark}{self[name]}" for name, mark in _PARTS_OF_MODEL.items() if name in self]
        printed = {name: value for name, value in self.items() if name not in _PARTS_OF_MODEL}
        if parts:
            printed["model"] = "".join([self["model"], *parts])
        return "|".join(f"{name}:{value}" for name, value in printed.items())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._fields})"


def describe_differences(settings: Mapping[str, str], expected: Mapping[str, str]) -> str:
    """Name the settings that differ from the expected ones, with both values; empty if all are equal.

    Example:
        >>> describe_differences({"layer": "4", "idf": "no"}, {"layer": "5", "idf": "no", "special": "excluded"})
        'layer (4 instead of 5), special (default instead of excluded)'
    """
    differences = []
    for name in dict.fromkeys([*settings, *expected]):
        value, expected_value = settings.get(name, "default"), expected.get(name, "default")
        if value != expected_value:
            differences.append(f"{name} ({value} instead of {expected_value})")
    return ", ".join(differences)
