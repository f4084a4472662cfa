"""Writers of samples to the loggers of Lightning."""

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

# Characters per cell in TensorBoard, whose tables have no scroll bar.
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
        step_name: the step as files are named after it: ``step_499``, or with the number of the validation in the
            training, if it is a further one of this step, ``step_499_validation_3``.
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
        """Column names; inputs are left out if none is known."""
        inputs = ["input"] if any(sample.input is not None for sample in self.samples) else []
        return ["kind", "example", "P", "R", "F1", *inputs, "prediction", "reference"]

    @property
    def rows(self) -> list[list[Any]]:
        """Cells of each row in the order of ``columns``, numbers and texts; several references are lines of a text."""
        rows = []
        for sample in self.samples:
            scores = [round(score, 4) for score in (sample.precision, sample.recall, sample.f1)]
            inputs = [sample.input or ""] if "input" in self.columns else []
            texts = [*inputs, sample.prediction, "\n".join(sample.references)]
            # Loggers fail at unpaired surrogates.
            rows.append([sample.kind, sample.number, *scores, *(for_terminal(text, keep="\n\r\t") for text in texts)])
        return rows

    def format_csv(self) -> str:
        """Return the table with its header in the format CSV, of which a spreadsheet computes no cell as a formula."""
        text = StringIO(newline="")
        rows = [[for_spreadsheet(cell) if isinstance(cell, str) else cell for cell in row] for row in self.rows]
        csv.writer(text).writerows([self.columns, *rows])
        return text.getvalue()


def write_samples(logger: Any, table: SampleTable, trainer: pl.Trainer) -> None:
    """Write samples to TensorBoard, Weights and Biases, or files in the folder of the run in another logger."""
    pictures = {f"{table.key}/{name}": figure for name, figure in table.pictures.items()}
    if is_of_class(logger, "TensorBoardLogger"):
        rows = [table.columns, ["---"] * len(table.columns), *table.rows]
        markdown = "\n".join("| " + " | ".join(map(_escape_cell, cells)) + " |" for cells in rows)
        logger.experiment.add_text(table.key, markdown, table.step)
        for name, figure in pictures.items():
            logger.experiment.add_figure(name, figure, table.step)
    elif is_of_class(logger, "WandbLogger"):
        logger.log_table(table.key, columns=table.columns, data=table.rows, step=table.step)
        for name, figure in pictures.items():
            logger.log_image(name, [figure], step=table.step)
    else:
        folder = find_run_folder(trainer, logger)
        start = choose_unused(f"{folder}/samples/{table.key}_{table.step_name}", ".csv", "SampleLogger")
        write_file(f"{start}.csv", table.format_csv(), "SampleLogger")
        for name, figure in table.pictures.items():
            image = BytesIO()
            figure.savefig(image, format="png")
            write_file(f"{start}_{name}.png", image.getvalue(), "SampleLogger")


def _escape_cell(cell: Any) -> str:
    if not isinstance(cell, str) or cell == "---":
        return str(cell)
    short = cell if len(cell) <= _MAX_CELL_LENGTH else cell[:_MAX_CELL_LENGTH] + " …"
    # Neither HTML nor Markdown in a generated text may be rendered.
    escaped = re.sub(r"([\\`*_{}\[\]()#+\-.!|])", r"\\\1", escape(short, quote=False))
    return "<br>".join(escaped.splitlines())
