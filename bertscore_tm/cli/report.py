"""Write the web page of a training from the files of the callback ScoredTextWriter or BERTScoreReport.

The page compares all validations text by text, or the best ones of several trainings. With the encoder that scored them
(-m or --language), and the same idf and rescaling, some pairs open to their token matches.

Examples::

    bertscore-tm report lightning_logs/version_0 -o training.html
    bertscore-tm report logs/version_0 logs/version_1 -o runs.html
    bertscore-tm report texts --prefix val_news -o news.html -m my/model -l 5
"""

import argparse
from pathlib import Path
from typing import Any

from bertscore_tm.cli import options, output
from bertscore_tm.cli.distributed import RankGroup
from bertscore_tm.cli.errors import CommandError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    help = "folder of a training, with files such as val_step_499.jsonl or a folder texts with them"
    parser.add_argument("folders", metavar="FOLDER", nargs="+", help=help)
    help = "name of the files before _step_, such as val_news (default: %(default)s)"
    parser.add_argument("--prefix", metavar="NAME", default="val", help=help)
    options.add_encoder_arguments(parser)
    group = parser.add_argument_group("token weights and rescaling")
    group.add_argument("--idf", action="store_true", help="weight tokens by their idf in the references")
    options.add_rescale_arguments(group)
    options.add_title_argument(options.add_output_arguments(parser, (".html",)))


def run(arguments: argparse.Namespace, ranks: RankGroup) -> None:
    """Write the page."""
    ranks.run_on_first(lambda: _write_page(arguments))


def _write_page(arguments: argparse.Namespace) -> None:
    from bertscore_tm.cli.encoders import build_encoder, read_baseline
    from bertscore_tm.core.scores import selection_f1
    from bertscore_tm.report import Report, alignment_options
    from bertscore_tm.report.history import read_history, step_of

    pattern = f"{arguments.prefix}_step_*.jsonl"
    runs: dict[str, list[str]] = {}
    for folder in arguments.folders:
        paths = [*Path(folder).glob(pattern)] or [*Path(folder, "texts").glob(pattern)]
        if not paths:
            raise CommandError(f"{folder} has no files {pattern}, as ScoredTextWriter writes them: give --prefix")
        if folder in runs:
            raise CommandError(f"{folder} is given twice")
        runs[folder] = [str(path) for path in paths]
    first, *others = runs.values()
    rescale = read_baseline(arguments)
    settings: dict[str, Any] = {"title": arguments.title}
    if arguments.model is not None or arguments.language is not None:
        _, references, *_ = read_history([max(first, key=step_of)])
        encoder = build_encoder(arguments)
        settings |= alignment_options(encoder, references, arguments.idf, rescale, selection_f1)
    page = Report.from_files(runs if others else first, num_alignments=40, **settings)
    output.write_output(page.to_html().encode(), arguments.output)
