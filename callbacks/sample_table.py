"""Table of samples, and its output to Lightning's loggers."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO, StringIO
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl

from bertscore_tm.alignment import Alignment
from bertscore_tm.callbacks.text_writer import choose_unused, write_file
from bertscore_tm.callbacks.trainer import find_run_folder, is_of_class
from bertscore_tm.utilities.untrusted_text import for_spreadsheet, for_terminal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Limit on the characters of a cell in TensorBoard, whose tables have no scroll bar.
_MAX_CELL_LENGTH = 400


@dataclass(frozen=True)
class Sample:
    """A selected example with its scores.

    Args:
        kind: reason of the selection: ``"worst"``, ``"median"``, ``"best"`` or ``"followed"``.
        number: place of the example in the data set, from 1.
        precision: precision of the prediction.
        recall: recall of the prediction.
        f1: F1 of the prediction.
        input: input of the model; ``None`` if it is not known.
        prediction: generated text.
        references: references of the prediction.
        alignment: alignment of the prediction and the closest reference, which has the highest F1; ``None`` if the
            sample has no picture.
    """

    kind: str
    number: int
    precision: float
    recall: float
    f1: float
    input: str | None
    prediction: str
    references: list[str]
    alignment: Alignment | None


@dataclass(frozen=True)
class SampleTable:
    """Samples of a validation or test run.

    Args:
        key: name of the table in the logger.
        step: number of optimizer steps so far.
        step_name: the step in the names of files: ``step_499``, or ``step_499_validation_3`` with the number of the
            validation in the training, if the step has an earlier one.
        samples: the rows.
        pictures: figures of alignments by name.
    """

    key: str
    step: int
    step_name: str
    samples: Sequence[Sample]
    pictures: dict[str, Figure]

    @property
    def columns(self) -> list[str]:
        """Column names. Inputs are left out if none is known."""
        names = ["kind", "example", "P", "R", "F1"]
        if self._has_inputs:
            names.append("input")
        return [*names, "prediction", "reference"]

    @property
    def rows(self) -> list[list[Any]]:
        """Cells of each row in the order of ``columns``, numbers and texts. Several references are lines of a text."""
        rows = []
        for sample in self.samples:
            scores = [round(score, 4) for score in (sample.precision, sample.recall, sample.f1)]
            texts = [sample.prediction, "\n".join(sample.references)]
            if self._has_inputs:
                texts.insert(0, sample.input or "")
            # Escape unpaired surrogates, because loggers raise an error for them.
            printable = [for_terminal(text, keep="\n\r\t") for text in texts]
            rows.append([sample.kind, sample.number, *scores, *printable])
        return rows

    @property
    def _has_inputs(self) -> bool:
        return any(sample.input is not None for sample in self.samples)

    def format_csv(self) -> str:
        """Return the table with its header as CSV. A spreadsheet computes no cell of it as a formula."""
        # The names of the columns are words that no spreadsheet computes, so only the cells below are escaped.
        rows: list[list[Any]] = [self.columns]
        for row in self.rows:
            cells = []
            for cell in row:
                if isinstance(cell, str):
                    cell = for_spreadsheet(cell)
                cells.append(cell)
            rows.append(cells)
        # The csv module ends lines itself.
        text = StringIO(newline="")
        csv.writer(text).writerows(rows)
        return text.getvalue()


def write_samples(logger: Any, table: SampleTable, trainer: pl.Trainer) -> None:
    """Write samples to TensorBoard or Weights and Biases, and for another logger to files in its run's folder."""
    if is_of_class(logger, "TensorBoardLogger"):
        _write_to_tensorboard(logger, table)
    elif is_of_class(logger, "WandbLogger"):
        _write_to_wandb(logger, table)
    else:
        _write_to_files(find_run_folder(trainer, logger), table)


def _write_to_tensorboard(logger: Any, table: SampleTable) -> None:
    separator = ["---"] * len(table.columns)
    lines = []
    for row in [table.columns, separator, *table.rows]:
        cells = " | ".join(_escape_cell(cell) for cell in row)
        lines.append(f"| {cells} |")
    # TensorBoard renders Markdown, and has no tables of its own.
    logger.experiment.add_text(table.key, "\n".join(lines), table.step)
    for name, figure in table.pictures.items():
        logger.experiment.add_figure(f"{table.key}/{name}", figure, table.step)


def _write_to_wandb(logger: Any, table: SampleTable) -> None:
    logger.log_table(table.key, columns=table.columns, data=table.rows, step=table.step)
    for name, figure in table.pictures.items():
        logger.log_image(f"{table.key}/{name}", [figure], step=table.step)


def _write_to_files(folder: str, table: SampleTable) -> None:
    # Pictures have the name of their table, so that all files of a validation stand together in a list.
    start = choose_unused(f"{folder}/samples/{table.key}_{table.step_name}", ".csv", "SampleLogger")
    write_file(f"{start}.csv", table.format_csv(), "SampleLogger")
    for name, figure in table.pictures.items():
        image = BytesIO()
        figure.savefig(image, format="png")
        write_file(f"{start}_{name}.png", image.getvalue(), "SampleLogger")


def _escape_cell(cell: Any) -> str:
    """Return a cell of a Markdown table, in which generated text renders neither as HTML nor as Markdown."""
    is_separator = cell == "---"
    if is_separator or not isinstance(cell, str):
        return str(cell)
    if len(cell) > _MAX_CELL_LENGTH:
        cell = cell[:_MAX_CELL_LENGTH] + " …"
    without_html = escape(cell, quote=False)
    escaped = re.sub(r"([\\`*_{}\[\]()#+\-.!|])", r"\\\1", without_html)
    return "<br>".join(escaped.splitlines())
