"""Score candidate texts against references: precision, recall and F1, as means or for each pair.

Examples::

    bertscore-tm score -c hyps.txt -r refs.txt --lang en
    bertscore-tm score -c hyps.txt -r refs1.txt refs2.txt --idf --rescale --per-segment
    bertscore-tm score -c pairs.jsonl --json --output scores.json
    torchrun --nproc-per-node 4 -m bertscore_tm.cli score -c hyps.txt -r refs.txt
"""

from __future__ import annotations

import argparse

from bertscore_tm.cli import options, report, text_arguments
from bertscore_tm.cli.distributed import join_ranks
from bertscore_tm.cli.inputs import check_standard_input
from bertscore_tm.cli.scored_corpus import score_across_ranks

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "score"
HELP = "score candidate texts against references"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments.

    Args:
        parser: the command's parser.
    """
    text_arguments.add_pair_arguments(parser)
    options.add_encoder_arguments(parser)
    options.add_idf_arguments(parser)
    options.add_rescale_arguments(parser)
    group = report.add_output_arguments(parser)
    group.add_argument(
        "--per-segment",
        action="store_true",
        help="also print the scores of each pair; pairs and references count from 0",
    )
    group.add_argument("--all-layers", action="store_true", help="print the scores of every layer up to --num-layers")


def run(arguments: argparse.Namespace) -> int:
    """Score files and print the result.

    Args:
        arguments: the parsed arguments.

    Returns:
        The exit code.

    Raises:
        CommandError: an argument or file is invalid.
    """
    report.check_output_path(arguments.output)
    check_standard_input([arguments.candidates, *(arguments.references or ()), arguments.idf_file])
    scored = _score(arguments)
    if scored is not None:
        if arguments.json:
            text = scored.format_json(arguments.per_segment)
        else:
            text = scored.format_table() if arguments.per_segment else scored.format_summary()
        report.write_output(text, arguments.output)
    return 0


def _score(arguments: argparse.Namespace) -> report.ScoreReport | None:
    """Return the report on rank 0, ``None`` on all other ranks."""
    with join_ranks() as ranks:
        texts, idf_sents = ranks.run_on_first(
            lambda: (text_arguments.read_pairs(arguments), options.read_idf_texts(arguments))
        )
        scored = score_across_ranks(
            ranks, arguments, texts, texts.references, idf_sents, all_layers=arguments.all_layers
        )
    if scored is None:
        return None
    last = scored.encoder.num_layers
    return report.ScoreReport(
        scores=scored.scores,
        best_reference=scored.best_reference,
        layers=list(range(last + 1)) if arguments.all_layers else [last],
        num_references=sum(map(len, texts.references)),
        signature=scored.signature,
        all_layers=arguments.all_layers,
    )
