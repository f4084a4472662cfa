"""Writers of samples to the loggers of Lightning."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.pytorch.loggers import CometLogger, CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from bertscore_tm.callbacks.samples.selection import Sample
from bertscore_tm.utilities.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SampleTable", "find_writer"]

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
        """Column names; ``"input"`` is left out if the inputs of all samples are unknown."""
        names = ["kind", "example", "P", "R", "F1", "input", "prediction", "reference", "out of place", "missed"]
        return names if any(one.input is not None for one in self.samples) else [n for n in names if n != "input"]

    def rows(self, separator: str) -> list[list[Any]]:
        """Return the cells of each row.

        Args:
            separator: separator of several references.

        Returns:
            Numbers and texts in the order of ``columns``.
        """
        cells = []
        for one in self.samples:
            scores = [round(score, 4) for score in (one.precision, one.recall, one.f1)]
            start = [one.kind, one.number, *scores, *([one.input or ""] if "input" in self.columns else [])]
            cells.append([*start, one.prediction, separator.join(one.references), one.out_of_place, one.missed])
        return cells

    def format_csv(self) -> str:
        """Return the table with its header in the format CSV."""
        text = StringIO(newline="")
        csv.writer(text).writerows([self.columns, *self.rows("\n")])
        return text.getvalue()


def find_writer(logger: Logger) -> Callable[[Any, SampleTable], None] | None:
    """Return the function that writes samples to a logger.

    Args:
        logger: one of the trainer's loggers.

    Returns:
        A function of the logger and the samples, or ``None`` if this kind of logger is not supported.
    """
    writers: dict[type[Logger], Callable[[Any, SampleTable], None]] = {
        TensorBoardLogger: _write_tensorboard,
        WandbLogger: _write_wandb,
        CSVLogger: _write_csv,
        MLFlowLogger: _write_mlflow,
        CometLogger: _write_comet,
    }
    return next((write for kind, write in writers.items() if isinstance(logger, kind)), None)


def _write_tensorboard(logger: TensorBoardLogger, table: SampleTable) -> None:
    rows = [table.columns, ["---"] * len(table.columns), *table.rows("\n")]
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


def _write_wandb(logger: WandbLogger, table: SampleTable) -> None:
    logger.log_table(table.key, columns=table.columns, data=table.rows("\n"), step=table.step)
    for name, figure in table.pictures.items():
        logger.log_image(f"{table.key}/{name}", [figure], step=table.step)


def _write_csv(logger: CSVLogger, table: SampleTable) -> None:
    folder = f"{logger.log_dir}/samples"
    filesystem = get_filesystem(folder)
    filesystem.makedirs(folder, exist_ok=True)
    start = f"{folder}/{table.key}_step_{table.step}"
    with write_atomically(f"{start}.csv", "w", filesystem=filesystem, newline="", encoding="utf-8") as file:
        file.write(table.format_csv())
    for name, figure in table.pictures.items():
        with write_atomically(f"{start}_{name}.png", "wb", filesystem=filesystem) as file:
            figure.savefig(file, format="png")


def _write_mlflow(logger: MLFlowLogger, table: SampleTable) -> None:
    # MLflow shows artifacts without their history: the step is part of the names.
    folder = f"samples/{table.key}_step_{table.step}"
    logger.experiment.log_text(logger.run_id, table.format_csv(), f"{folder}.csv")
    for name, figure in table.pictures.items():
        logger.experiment.log_figure(logger.run_id, figure, f"{folder}_{name}.png")


def _write_comet(logger: CometLogger, table: SampleTable) -> None:
    filename = f"{table.key}_step_{table.step}.csv"
    logger.experiment.log_table(filename, tabular_data=table.rows("\n"), headers=table.columns)
    for name, figure in table.pictures.items():
        logger.experiment.log_figure(figure_name=f"{table.key}/{name}", figure=figure, step=table.step)
