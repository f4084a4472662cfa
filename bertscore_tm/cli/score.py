"""Score candidate texts against references: mean precision, recall and F1, and those of each pair.

Examples::

    bertscore-tm score -c hyps.txt -r refs.txt --lang en
    bertscore-tm score -c hyps.txt -r refs1.txt refs2.txt --idf --rescale --per-segment
    bertscore-tm score -c pairs.jsonl --json --output scores.json
    torchrun --nproc-per-node 4 -m bertscore_tm.cli score -c hyps.txt -r refs.txt
"""

from __future__ import annotations

import argparse

from bertscore_tm.cli import inputs, options, pairs, ranks, report, scoring

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "score"
HELP = "score candidate texts against references"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments.

    Args:
        parser: its parser.
    """
    pairs.add_pair_arguments(parser)
    options.add_encoder_arguments(parser)
    options.add_idf_arguments(parser)
    options.add_rescale_arguments(parser)
    group = report.add_output_arguments(parser)
    group.add_argument(
        "--per-segment", action="store_true", help="give the scores of each pair too; pairs, references count from 0"
    )
    group.add_argument("--all-layers", action="store_true", help="give the scores of every layer up to --num-layers")


def run(arguments: argparse.Namespace) -> int:
    """Score files and print the result.

    Args:
        arguments: the parsed arguments.

    Returns:
        The exit code.

    Raises:
        CommandError: something is wrong with the arguments or files.
    """
    report.check_output(arguments.output)
    inputs.check_standard_input([arguments.candidates, *(arguments.references or ()), arguments.idf_file])
    scored = _score(arguments)
    if scored is not None:
        if arguments.json:
            text = scored.document(arguments.per_segment)
        else:
            text = scored.table() if arguments.per_segment else scored.summary()
        report.write_output(text, arguments.output)
    return 0


def _score(arguments: argparse.Namespace) -> report.Report | None:
    """The result, in the first process only."""
    with ranks.join() as team:
        texts, idf_sents = team.from_first(lambda: (pairs.read_pairs(arguments), options.read_idf_texts(arguments)))
        scored = scoring.score_texts(
            team, arguments, texts, texts.references, idf_sents, all_layers=arguments.all_layers
        )
    if scored is None:
        return None
    last = scored.encoder.num_layers
    return report.Report(
        scores=scored.scores,
        best_reference=scored.best_reference,
        layers=list(range(last + 1)) if arguments.all_layers else [last],
        num_references=sum(map(len, texts.references)),
        signature=scored.signature,
        all_layers=arguments.all_layers,
    )
