"""Write the web page of a training from the files of the callback ScoredTextWriter or BERTScoreReport.

The page compares all validations text by text. With the encoder that scored them (-m or --language), and the same idf
and rescaling, some pairs of the last validation open to their token matches.

Examples::

    bertscore-tm report lightning_logs/version_0/texts -o training.html
    bertscore-tm report texts --prefix val_news -o news.html -m my/model -l 5
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from bertscore_tm.cli import options, report
from bertscore_tm.cli.distributed import RankGroup
from bertscore_tm.cli.errors import CommandError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folder", metavar="FOLDER", help="folder with files such as val_step_499.jsonl")
    help = "name of the files before _step_, such as val_news (default: the only one that begins with val)"
    parser.add_argument("--prefix", metavar="NAME", help=help)
    options.add_encoder_arguments(parser)
    group = parser.add_argument_group("token weights and rescaling")
    group.add_argument("--idf", action="store_true", help="weight tokens by their idf in the references")
    options.add_rescale_argument(group)
    report.add_title_argument(report.add_output_arguments(parser, (".html",)))


def run(arguments: argparse.Namespace, ranks: RankGroup) -> None:
    """Write the page."""
    report.choose_format(arguments, (".html",))
    paths = _find_files(Path(arguments.folder), arguments.prefix)

    from bertscore_tm.report import Report
    from bertscore_tm.report.history import read_history
    from bertscore_tm.scoring.alignment import compute_alignment
    from bertscore_tm.scoring.rescaling import find_baseline
    from bertscore_tm.scoring.signature import score_signature
    from bertscore_tm.scoring.token_weights import token_weights

    settings: dict[str, Any] = {"title": arguments.title}
    if arguments.model is not None or arguments.language is not None:
        encoder = options.build_encoder(arguments)
        baseline = find_baseline(encoder, arguments.rescale)
        references = list(chain.from_iterable(read_history(paths[-1:]).references))
        weights = token_weights(encoder, arguments.idf, references, encoder.device)
        settings["encoder"] = encoder
        settings["signature"] = score_signature(encoder, weights.source, baseline)
        settings["align"] = partial(
            compute_alignment, encoder=encoder, weights=weights, device=encoder.device, baseline=baseline
        )
    report.write_output(
        Report.from_files(paths, num_alignments=40, **settings).to_html().encode(), arguments.output, is_announced=False
    )
    print(f"{report.format_count(len(paths), 'validation')}: {arguments.output}")


def _find_files(folder: Path, prefix: str | None) -> list[str]:
    """Return the files of one dataloader, by rising step."""
    from bertscore_tm.report.history import step_of

    paths = [path for path in folder.glob("*_step_*.jsonl") if path.stem.rpartition("_")[2].isdecimal()]
    prefixes = sorted({path.stem.rpartition("_step_")[0] for path in paths})
    if prefix is None:
        prefixes = [name for name in prefixes if name.startswith("val")] or prefixes
        if len(prefixes) > 1:
            raise CommandError(f"{folder} has the files of {', '.join(prefixes)}: choose one with --prefix")
        prefix = prefixes[0] if prefixes else "val"
    chosen = [str(path) for path in paths if path.stem.rpartition("_step_")[0] == prefix]
    if not chosen:
        raise CommandError(f"{folder} has no files such as {prefix}_step_499.jsonl, as ScoredTextWriter writes them")
    return sorted(chosen, key=step_of)
