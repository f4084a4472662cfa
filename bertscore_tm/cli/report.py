"""Write the web page of a training from the files of the callback ScoredTextWriter or BERTScoreReport.

The page compares all validations text by text.

Examples::

    bertscore-tm report lightning_logs/version_0 -o training.html
    bertscore-tm report texts --prefix val_news -o news.html
"""

import argparse
from pathlib import Path

from bertscore_tm.cli import options, output
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.ranks import RankGroup


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    help = "folder of a training, with files such as val_step_499.jsonl or a folder texts with them"
    parser.add_argument("folder", metavar="FOLDER", help=help)
    help = "name of the files before _step_, such as val_news (default: %(default)s)"
    parser.add_argument("--prefix", metavar="NAME", default="val", help=help)
    options.add_title_argument(options.add_output_argument(parser, (".html",)))


def run(arguments: argparse.Namespace, ranks: RankGroup) -> None:
    """Write the page on the first rank."""
    ranks.run_on_first(lambda: _write_page(arguments))


def _write_page(arguments: argparse.Namespace) -> None:
    from bertscore_tm.report import Report

    pattern = f"{arguments.prefix}_step_*.jsonl"
    folder = Path(arguments.folder)
    paths = list(folder.glob(pattern)) or list((folder / "texts").glob(pattern))
    if not paths:
        raise CommandError(f"{folder} has no files {pattern}, as ScoredTextWriter writes them: give --prefix")
    page = Report.from_files(paths, title=arguments.title)
    output.write_output(page.to_html().encode(), arguments.output)
