"""Writers of samples to the loggers of Lightning."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.pytorch.loggers import Logger

from bertscore_tm.callbacks.samples.selection import Sample
from bertscore_tm.callbacks.trainer import is_of_class
from bertscore_tm.utilities.files import write_atomically
from bertscore_tm.utilities.untrusted_text import for_spreadsheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SampleTable", "write_samples"]

# Characters per cell in TensorBoard, whose tables have no scroll bar.
_MAX_CELL_LENGTH = 400


@dataclass(frozen=True)
class SampleTable:
    """Samples of a validation or test run.

    Args:
        key: name of the table in the logger.
        step: number of optimizer steps so far.
        samples: the rows.
        pictures: figures of alignments by name.
    """

    key: str
    step: int
    samples: Sequence[Sample]
    pictures: dict[str, Figure]

    @property
    def columns(self) -> list[str]:
        """Column names; inputs are left out if none is known."""
        inputs = ["input"] if any(sample.input is not None for sample in self.samples) else []
        return ["kind", "example", "P", "R", "F1", *inputs, "prediction", "reference"]

    @property
    def rows(self) -> list[list[Any]]:
        """Cells of each row in the order of ``columns``, numbers and texts; several references are lines of a text."""
        cells = []
        for sample in self.samples:
            row = {
                "kind": sample.kind,
                "example": sample.number,
                "P": round(sample.precision, 4),
                "R": round(sample.recall, 4),
                "F1": round(sample.f1, 4),
                "input": sample.input or "",
                "prediction": sample.prediction,
                "reference": "\n".join(sample.references),
            }
            cells.append([row[name] for name in self.columns])
        return cells

    def format_csv(self) -> str:
        """Return the table with its header in the format CSV, of which a spreadsheet computes no cell as a formula."""
        text = StringIO(newline="")
        rows = [[for_spreadsheet(cell) if isinstance(cell, str) else cell for cell in row] for row in self.rows]
        csv.writer(text).writerows([self.columns, *rows])
        return text.getvalue()


def write_samples(logger: Logger | None, table: SampleTable, folder: str) -> None:
    """Write samples to TensorBoard, Weights and Biases, or files in the folder of another logger or in ``folder``."""
    if is_of_class(logger, "TensorBoardLogger"):
        _write_tensorboard(logger, table)
    elif is_of_class(logger, "WandbLogger"):
        _write_wandb(logger, table)
    else:
        _write_files(getattr(logger, "log_dir", None) or folder, table)


def _write_wandb(logger: Any, table: SampleTable) -> None:
    logger.log_table(table.key, columns=table.columns, data=table.rows, step=table.step)
    for name, figure in table.pictures.items():
        logger.log_image(f"{table.key}/{name}", [figure], step=table.step)


def _write_files(folder: str, table: SampleTable) -> None:
    start = f"{folder}/samples/{table.key}_step_{table.step}"
    with _open_file(f"{start}.csv", "w", newline="", encoding="utf-8") as file:
        file.write(table.format_csv())
    for name, figure in table.pictures.items():
        with _open_file(f"{start}_{name}.png", "wb") as file:
            figure.savefig(file, format="png")


def _open_file(path: str, mode: str, **options: Any) -> AbstractContextManager[Any]:
    folder = path.rpartition("/")[0]
    filesystem = get_filesystem(folder)
    filesystem.makedirs(folder, exist_ok=True)
    return write_atomically(path, mode, filesystem=filesystem, **options)


def _write_tensorboard(logger: Any, table: SampleTable) -> None:
    rows = [table.columns, ["---"] * len(table.columns), *table.rows]
    markdown = "\n".join("| " + " | ".join(map(_escape_cell, cells)) + " |" for cells in rows)
    logger.experiment.add_text(table.key, markdown, table.step)
    for name, figure in table.pictures.items():
        logger.experiment.add_figure(f"{table.key}/{name}", figure, table.step)


def _escape_cell(cell: Any) -> str:
    if not isinstance(cell, str) or cell == "---":
        return str(cell)
    short = cell if len(cell) <= _MAX_CELL_LENGTH else cell[:_MAX_CELL_LENGTH] + " …"
    # Neither HTML nor Markdown in a generated text may be rendered.
    escaped = re.sub(r"([\\`*_{}\[\]()#+\-.!|])", r"\\\1", escape(short, quote=False))
    return "<br>".join(escaped.splitlines())
