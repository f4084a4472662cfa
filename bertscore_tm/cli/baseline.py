r"""Make a baseline to rescale by: the expected score of random pairs of texts, for every layer of any model.

The table is written in the published format, one row per layer, and is read by "--baseline" of the other commands and
by "baseline_path=" in Python. The text file should hold many unrelated texts of the kind and language that will be
scored, one per line; repeated and blank ones are left out. An interrupted run goes on where it was when the same
command is given again.

Examples::

    bertscore-tm baseline -t sentences.txt -m my/model -o my-model.csv
    bertscore-tm baseline -t corpus.jsonl.gz --column text --lang de --pairs 100000 -o german.csv
    torchrun --nproc-per-node 4 -m bertscore_tm.cli baseline -t sentences.txt -o roberta-large.csv
    bertscore-tm score -c hyps.txt -r refs.txt -m my/model -l 9 --baseline my-model.csv
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from bertscore_tm.cli import numbers, options, ranks, report
from bertscore_tm.cli.inputs import FORMATS, read_texts
from bertscore_tm.cli.tables import aligned

if TYPE_CHECKING:
    from bertscore_tm.baselines import Baseline
    from bertscore_tm.scoring.corpus import CorpusScores
    from bertscore_tm.texts import TextPairs

__all__ = ["HELP", "NAME", "add_arguments", "run", "state_path"]

NAME = "baseline"
HELP = "make a baseline to rescale by, for any model, from any text file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments.

    Args:
        parser: its parser.
    """
    group = parser.add_argument_group("texts")
    group.add_argument(
        "-t", "--texts", metavar="FILE", required=True, help="many unrelated texts, one per line; - is standard input"
    )
    group.add_argument("--format", choices=FORMATS, help="how to read the file; default: by suffix (.txt.gz is .txt)")
    group.add_argument(
        "--column",
        metavar="NAME",
        default="text",
        help="TSV column or JSON key of the texts (default: %(default)s)",
    )
    options.add_encoder_arguments(parser, all_layers=True)
    group = parser.add_argument_group("pairs")
    group.add_argument(
        "--pairs",
        type=numbers.at_least(2),
        metavar="N",
        default=10_000,
        help="number of random pairs; the standard error falls with its square root (default: %(default)s; the "
        "published tables have a million)",
    )
    group.add_argument("--seed", type=numbers.at_least(0), default=0, help="of the drawing (default: %(default)s)")
    group.add_argument(
        "--save-every",
        type=numbers.at_least(1),
        metavar="N",
        default=1000,
        help="pairs after which the state is saved, in OUTPUT.partial.json (default: %(default)s)",
    )
    group = parser.add_argument_group("output")
    group.add_argument("-o", "--output", metavar="FILE", required=True, help="write the table there, once and whole")
    group.add_argument("--json", action="store_true", help="print means and standard errors as one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Make the table, and print it with its standard errors.

    Args:
        arguments: the parsed arguments.

    Returns:
        The exit code.

    Raises:
        CommandError: something is wrong with the arguments or files.
    """
    report.check_output(arguments.output)
    state = state_path(arguments.output)
    with ranks.join() as team:
        if team.rank == 0 and state.exists():
            print(f"bertscore-tm: going on from {state}", file=sys.stderr)
        made, limit = _make(arguments, team, state)
        if team.rank == 0:
            report.write_output(made.table(), arguments.output)
            state.unlink()
    if team.rank == 0:
        if made.num_truncated:
            from bertscore_tm.scoring.messages import describe_truncation

            warnings.warn(
                f"{describe_truncation(made.num_truncated, limit)} (of {made.num_texts} texts)",
                stacklevel=1,
            )
        report.write_output(_document(made, arguments) if arguments.json else _summary(made, arguments), None)
    return 0


def state_path(output: str) -> Path:
    """Return where the state of an unfinished table is kept.

    Args:
        output: the table's file.

    Returns:
        A file beside it.

    Example:
        >>> state_path("roberta-large.csv").name
        'roberta-large.csv.partial.json'
    """
    return Path(output + ".partial.json")


def _make(arguments: argparse.Namespace, team: ranks.Team, state: Path) -> tuple[Baseline, int | None]:
    texts = team.from_first(lambda: read_texts(arguments.texts, arguments.format, arguments.column))

    from bertscore_tm.baselines import make_baseline
    from bertscore_tm.scoring.messages import progress_bar
    from bertscore_tm.scoring.token_weights import token_weights

    device = team.together(lambda: ranks.choose_device(arguments.device))
    encoder = team.together(lambda: options.build_encoder(arguments, all_layers=True))
    weights = token_weights(encoder, device=device)

    def score(pairs: TextPairs) -> CorpusScores | None:
        return team.score(pairs, encoder, weights, device)

    with progress_bar(arguments.pairs, team.rank == 0 and sys.stderr.isatty()) as progress:
        made = team.together(
            lambda: make_baseline(
                encoder,
                texts,
                arguments.pairs,
                arguments.seed,
                save_every=arguments.save_every,
                state_path=state,
                progress=progress,
                score=score,
                once=team.from_first,
            )
        )
    return made, encoder.tokenizer.max_length


def _summary(made: Baseline, arguments: argparse.Namespace) -> str:
    rows = [["layer", "P", "R", "F1"]]
    for layer, (means, errors) in enumerate(zip(made.mean.tolist(), made.standard_error.tolist(), strict=True)):
        rows.append([str(layer), *(f"{mean:.4f} ± {error:.4f}" for mean, error in zip(means, errors, strict=True))])
    return (
        f"{aligned(rows)}mean ± standard error of {made.num_pairs} random pairs of {made.num_texts} distinct texts, "
        f"seed {arguments.seed}\nsignature: {made.signature}\nwritten to {arguments.output}\n"
    )


def _document(made: Baseline, arguments: argparse.Namespace) -> str:
    found = {
        **{
            key: dict(zip(report.SCORES, values.T.mul(1e6).round().div(1e6).tolist(), strict=True))
            for key, values in (("mean", made.mean), ("standard_error", made.standard_error))
        },
        "num_pairs": made.num_pairs,
        "num_texts": made.num_texts,
        "num_truncated": made.num_truncated,
        "seed": arguments.seed,
        "signature": made.signature,
        "output": arguments.output,
    }
    return json.dumps(found, allow_nan=False) + "\n"
