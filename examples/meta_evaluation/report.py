"""Markdown tables and records of figures, and differences between two packages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from examples.meta_evaluation.run import Result

# Figures that differ by less agree to four decimals.
TOLERANCE = 5e-5


@dataclass(frozen=True)
class Setting:
    """Settings of a score.

    Args:
        layer: encoder layer.
        idf: weight tokens by idf.
    """

    layer: int
    idf: bool


def table(file: str, settings: Sequence[Setting], ours: Result, theirs: Result | None) -> str:
    """Return a result as a Markdown table with one row per setting.

    Args:
        file: name of the file.
        settings: the rows.
        ours: this package's figures.
        theirs: the reference package's figures of the same protocol and rating.

    Returns:
        Heading and table.
    """
    about = ", ".join(filter(None, (ours.protocol, ours.rating, ours.size)))
    names = ["layer", "idf"]
    columns = [[str(setting.layer) for setting in settings], ["yes" if setting.idf else "no" for setting in settings]]
    for name in ours.figures:
        names.append(name)
        columns.append(_shown(name, ours))
        if theirs is not None:
            names.append(f"{name} (bert-score)")
            columns.append(_shown(name, theirs))
    lines = [names, ["---"] * len(names), *zip(*columns, strict=True)]
    return "\n".join([f"### {file}: {about}", "", *("| " + " | ".join(line) + " |" for line in lines)])


def records(
    file: str, settings: Sequence[Setting], ours: Result, theirs: Result | None
) -> Iterator[dict[str, str | int | float | bool | None]]:
    """Yield each figure of a result as a record with its file, protocol, rating and setting.

    Args:
        file: name of the file.
        settings: setting of each value.
        ours: this package's figures.
        theirs: the reference package's figures.

    Yields:
        One flat record per figure; with ``reference`` if ``theirs`` is given.
    """
    for name, values in ours.figures.items():
        for i, (setting, value) in enumerate(zip(settings, values, strict=True)):
            record: dict[str, str | int | float | bool | None] = {
                "file": file,
                "protocol": ours.protocol,
                "rating": ours.rating,
                "figure": name,
                "layer": setting.layer,
                "idf": setting.idf,
                "value": value,
            }
            if name in ours.spreads:
                record["spread"] = ours.spreads[name][i]
            if theirs is not None:
                record["reference"] = theirs.figures[name][i]
            yield record


def differences(ours: Result, theirs: Result) -> list[float]:
    """Return the difference of each figure from the reference package's.

    Args:
        ours: this package's figures.
        theirs: the reference package's figures.

    Returns:
        Absolute differences; infinite if only one package has a value, omitted if neither has.
    """
    found = []
    for name, values in ours.figures.items():
        for value, other in zip(values, theirs.figures[name], strict=True):
            if value is not None and other is not None:
                found.append(abs(value - other))
            elif value is not other:
                found.append(float("inf"))
    return found


def _shown(name: str, result: Result) -> list[str]:
    """Return the values of a figure, with their spread over draws if there are several."""
    spreads = result.spreads.get(name, [None] * len(result.figures[name]))
    return [
        "-" if value is None else f"{value:.4f}" if spread is None else f"{value:.4f} ± {spread:.4f}"
        for value, spread in zip(result.figures[name], spreads, strict=True)
    ]
