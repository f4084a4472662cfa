"""Score candidate texts against references: precision, recall and F1, as means or for each pair.

Examples::

    bertscore-tm score -c hyps.txt -r refs.txt --language en
    bertscore-tm score -c hyps.txt -r refs1.txt refs2.txt --idf --rescale --per-segment
    bertscore-tm score -c pairs.jsonl --json --output scores.json
    torchrun --nproc-per-node 4 -m bertscore_tm.cli score -c hyps.txt -r refs.txt
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli import options, report, text_arguments
from bertscore_tm.cli.distributed import join_ranks
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.scored_corpus import score_across_ranks
from bertscore_tm.cli.shards import remove_shards
from bertscore_tm.utilities.user_warnings import warn_user

if TYPE_CHECKING:
    from bertscore_tm.scoring.texts import TextPairs

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "score"
HELP = "score candidate texts against references"

_SUFFIXES = (".txt", ".json", ".tsv", ".csv")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    text_arguments.add_pair_arguments(parser)
    options.add_encoder_arguments(parser)
    options.add_idf_arguments(parser)
    options.add_rescale_arguments(parser)
    group = report.add_output_arguments(parser, _SUFFIXES)
    group.add_argument(
        "--per-segment",
        action="store_true",
        help="also print the scores of each pair; pairs and references count from 0",
    )
    options.add_confidence_argument(group, None)
    text_arguments.add_document_argument(group)
    group.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="show the progress on standard error even if it is not a terminal",
    )
    _add_bert_score_options(parser)


def _add_bert_score_options(parser: argparse.ArgumentParser) -> None:
    """Accept the options of the ``bert-score`` command too, without listing them."""

    def add(*names: str, dest: str, **options: Any) -> None:
        parser.add_argument(*names, dest=dest, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **options)

    add("--cand", dest="candidates")
    add("--ref", dest="references", nargs="+", action="extend")
    add("--num_layers", dest="num_layers", type=int)
    add("--batch_size", dest="batch_size", type=int)
    add("-s", "--seg_level", dest="per_segment", action="store_true")
    add("--lang", dest="language")
    add("--rescale_with_baseline", dest="rescale", action="store_true")
    add("--baseline_path", dest="baseline_path")
    add("--nthreads", dest="nthreads", type=int)
    add("--use_fast_tokenizer", dest="use_fast_tokenizer", action="store_true")


def run(arguments: argparse.Namespace) -> int:
    """Score files and print the result."""
    unused = [f"--{name}" for name in ("nthreads", "use_fast_tokenizer") if name in arguments]
    if unused:
        warn_user(f"{', '.join(unused)}: no effect here (see bertscore-tm score --help)")
    if arguments.rescale is True:
        arguments.rescale = getattr(arguments, "baseline_path", True)
    files = [arguments.candidates, *(arguments.references or ()), options.idf_file(arguments)]
    report.check_files(arguments.output, *files)
    suffix = report.choose_format(arguments.output, _SUFFIXES, ".json" if arguments.json else ".txt")
    if suffix in (".tsv", ".csv") and not arguments.per_segment:
        raise CommandError(
            f"argument --output: a {suffix} file lists the scores of each pair: add --per-segment, or name it .txt"
        )
    scored = _score(arguments)
    if scored is not None:
        if suffix == ".json":
            text = scored.format_json(arguments.per_segment)
        elif arguments.per_segment:
            text = scored.format_table("," if suffix == ".csv" else "\t")
        else:
            text = scored.format_summary()
        report.write_output(text, arguments.output)
        if suffix == ".csv":
            report.write_output(scored.format_summary(), None)
        remove_shards(arguments)
    return 0


def _score(arguments: argparse.Namespace) -> report.ScoreReport | None:
    """Return the report on rank 0, ``None`` on all other ranks."""
    with join_ranks() as ranks:
        texts, groups, idf_texts = ranks.run_on_first(lambda: _read(arguments))
        scored = score_across_ranks(ranks, arguments, texts, idf_texts)
    if scored is None:
        return None
    return report.ScoreReport(
        scores=scored.scores[:, 0],
        best_reference=scored.best_reference[0],
        layer=scored.encoder.num_layers,
        num_references=sum(map(len, texts.references)),
        signature=scored.signature,
        confidence=arguments.confidence,
        bounds=(scored.bounds[0][:, 0], scored.bounds[1][:, 0]),
        documents=groups,
    )


def _read(arguments: argparse.Namespace) -> tuple[TextPairs, list[str] | None, list[str] | None]:
    """Return the pairs, the document of each, and the texts for idf."""
    if arguments.confidence is not None:
        from bertscore_tm.statistics import scipy_stats

        scipy_stats()
    elif arguments.document_column is not None:
        raise CommandError("argument --document-column: it changes intervals only, so give --confidence too")
    texts = text_arguments.read_pairs(arguments)
    paths = [path for path in (arguments.candidates, *(arguments.references or ())) if path is not None]
    groups = text_arguments.read_documents(paths, arguments, len(texts))
    return texts, groups, options.read_idf_texts(arguments)
