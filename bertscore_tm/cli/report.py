"""Write the web page of a training from the files of the callback ScoredTextWriter or BERTScoreReport.

The page compares all validations text by text.

Examples::

    bertscore-tm report lightning_logs/version_0 -o training.html
    bertscore-tm report texts --prefix val_news -o news.html
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bertscore_tm.cli import options, output
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.output import Output
from bertscore_tm.utilities.files import expand_home

if TYPE_CHECKING:
    from bertscore_tm.cli.resume import Session


@dataclass(frozen=True)
class ReportOptions:
    """The files of a training: their folder, and the prefix of their names."""

    folder: str
    prefix: str

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> ReportOptions:
        """Return the options that the arguments give."""
        return cls(arguments.folder, arguments.prefix)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        type=expand_home,
        help="folder of a training, with files such as val_step_499.jsonl or a folder texts with them",
    )
    parser.add_argument(
        "--prefix",
        metavar="NAME",
        default="val",
        help="name of the files before _step_, such as val_news (default: %(default)s)",
    )
    output_group = options.add_output_argument(parser, (".html",))
    options.add_title_argument(output_group)


def run(arguments: argparse.Namespace, session: Session) -> None:
    """Write the page on the first rank."""
    command = ReportOptions.of(arguments)
    session.ranks.run_on_first(lambda: _write_page(command, session.output))


def _write_page(command: ReportOptions, target: Output) -> None:
    """Write the page of all validations whose files are in the folder."""
    # Import torch when the command runs, so that errors in arguments are reported soon.
    from bertscore_tm.report import Report

    pattern = f"{command.prefix}_step_*.jsonl"
    folder = Path(command.folder)
    # A training may have written its texts to a folder of their own, as the pages of the callbacks suggest.
    paths = list(folder.glob(pattern)) or list((folder / "texts").glob(pattern))
    if not paths:
        raise CommandError(f"{folder} has no files {pattern}, as ScoredTextWriter writes them. Give --prefix NAME")
    page = Report.from_files(paths, title=target.title)
    output.write_output(page.to_html().encode(), target.path)
