"""Write the web page of a training from the files of the callback ScoredTextWriter or BERTScoreReport.

The page compares all validations text by text. With the encoder that scored them (-m or --language), and the same idf
and rescaling, some pairs of the last validation open to their token matches.

Examples::

    bertscore-tm report lightning_logs/version_0/texts -o training.html
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
    parser.add_argument("folder", metavar="FOLDER", help="folder with files such as val_step_499.jsonl")
    help = "name of the files before _step_, such as val_news (default: %(default)s)"
    parser.add_argument("--prefix", metavar="NAME", default="val", help=help)
    options.add_encoder_arguments(parser)
    group = parser.add_argument_group("token weights and rescaling")
    group.add_argument("--idf", action="store_true", help="weight tokens by their idf in the references")
    options.add_rescale_arguments(group)
    output.add_title_argument(output.add_output_arguments(parser, (".html",)))


def run(arguments: argparse.Namespace, ranks: RankGroup) -> None:
    """Write the page."""
    output.choose_format(ranks, arguments, (".html",))
    ranks.run_on_first(lambda: _write_page(arguments))


def _write_page(arguments: argparse.Namespace) -> None:
    from bertscore_tm.core.scores import selection_f1
    from bertscore_tm.report import Report, alignment_options
    from bertscore_tm.report.history import read_history, step_of

    pattern = f"{arguments.prefix}_step_*.jsonl"
    paths = [str(path) for path in Path(arguments.folder).glob(pattern)]
    if not paths:
        raise CommandError(f"{arguments.folder} has no files {pattern}, as ScoredTextWriter writes them: give --prefix")
    rescale = options.read_baseline(arguments)
    settings: dict[str, Any] = {"title": arguments.title}
    if arguments.model is not None or arguments.language is not None:
        _, references, _ = read_history([max(paths, key=step_of)])
        encoder = options.build_encoder(arguments)
        settings |= alignment_options(encoder, references, arguments.idf, rescale, selection_f1)
    page = Report.from_files(paths, num_alignments=40, **settings)
    output.write_output(page.to_html().encode(), arguments.output)
