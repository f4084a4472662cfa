"""How samples look in TensorBoard, in Weights & Biases, and as CSV files."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger

from bertscore_tm.callbacks.samples.selection import Sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Page", "writer_for"]

# TensorBoard shows tables without a scroll bar.
_SHORTENED = 400


@dataclass(frozen=True)
class Page:
    """What is written after a validation or test run.

    Args:
        key: name of the table.
        step: number of optimizer steps so far.
        samples: the rows.
        pictures: figures by name.
    """

    key: str
    step: int
    samples: Sequence[Sample]
    pictures: dict[str, Figure]

    @property
    def columns(self) -> list[str]:
        """Names of the table's columns; without input where no sample has one."""
        names = ["kind", "example", "P", "R", "F1", "input", "prediction", "reference", "out of place", "missed"]
        return names if any(one.input is not None for one in self.samples) else [n for n in names if n != "input"]

    def rows(self, between: str) -> list[list[Any]]:
        """Return the cells.

        Args:
            between: what stands between several references.
        """
        cells = []
        for one in self.samples:
            scores = [round(score, 4) for score in (one.precision, one.recall, one.f1)]
            start = [one.kind, one.number, *scores, *([one.input or ""] if "input" in self.columns else [])]
            cells.append([*start, one.prediction, between.join(one.references), one.out_of_place, one.missed])
        return cells


def writer_for(logger: Logger) -> Callable[[Any, Page], None] | None:
    """Return the function that writes a page to a logger.

    Args:
        logger: one of the trainer's loggers.

    Returns:
        A function of the logger and the page, or ``None`` for loggers of other kinds.
    """
    writers: dict[type[Logger], Callable[[Any, Page], None]] = {
        TensorBoardLogger: _write_tensorboard,
        WandbLogger: _write_wandb,
        CSVLogger: _write_csv,
    }
    return next((write for kind, write in writers.items() if isinstance(logger, kind)), None)


def _write_tensorboard(logger: TensorBoardLogger, page: Page) -> None:
    lines = [page.columns, ["---"] * len(page.columns), *page.rows("\n")]
    table = "\n".join("| " + " | ".join(map(_markdown, cells)) + " |" for cells in lines)
    logger.experiment.add_text(page.key, table, page.step)
    for name, figure in page.pictures.items():
        logger.experiment.add_figure(f"{page.key}/{name}", figure, page.step)


def _markdown(cell: Any) -> str:
    if not isinstance(cell, str) or cell == "---":
        return str(cell)
    short = cell if len(cell) <= _SHORTENED else cell[:_SHORTENED] + " …"
    # Texts may hold anything; none of it is markup.
    escaped = re.sub(r"([\\`*_{}\[\]()#+\-.!|])", r"\\\1", escape(short, quote=False))
    return "<br>".join(escaped.splitlines())


def _write_wandb(logger: WandbLogger, page: Page) -> None:
    logger.log_table(page.key, columns=page.columns, data=page.rows("\n"), step=page.step)
    for name, figure in page.pictures.items():
        logger.log_image(f"{page.key}/{name}", [figure], step=page.step)


def _write_csv(logger: CSVLogger, page: Page) -> None:
    folder = f"{logger.log_dir}/samples"
    files = get_filesystem(folder)
    files.makedirs(folder, exist_ok=True)
    start = f"{folder}/{page.key}_step_{page.step}"
    with _whole(files, f"{start}.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([page.columns, *page.rows("\n")])
    for name, figure in page.pictures.items():
        with _whole(files, f"{start}_{name}.png", "wb") as file:
            figure.savefig(file, format="png")


@contextmanager
def _whole(files: Any, path: str, mode: str, **options: Any) -> Generator[Any, None, None]:
    """Open a file for writing that is there once it is complete, or not at all."""
    partial = f"{path}.part"
    try:
        with files.open(partial, mode, **options) as file:
            yield file
        files.mv(partial, path)
    finally:
        if files.exists(partial):
            files.rm(partial)
