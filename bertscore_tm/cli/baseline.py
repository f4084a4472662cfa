r"""Make a baseline table for rescaling: the expected score of random pairs of texts, for every layer of a model.

The table has the published format, one row per layer. Other commands read it with "--rescale", Python with
"rescale=". The text file should contain many unrelated texts of the kind and language to be scored, one per line;
repeated and blank texts are left out. An interrupted run resumes when the same command is given again.

Examples::

    bertscore-tm baseline -t sentences.txt -m my/model -o my-model.csv
    bertscore-tm baseline -t corpus.jsonl.gz --column text --language de --pairs 100000 -o german.csv
    torchrun --nproc-per-node 4 -m bertscore_tm.cli baseline -t sentences.txt -o roberta-large.csv
    bertscore-tm score -c hyps.txt -r refs.txt -m my/model -l 9 --rescale my-model.csv
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from bertscore_tm.cli import options, report
from bertscore_tm.cli.distributed import RankGroup, choose_device, join_ranks
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.inputs import FORMATS, read_texts
from bertscore_tm.cli.scored_corpus import score_shards
from bertscore_tm.cli.shards import input_digest, open_shards, remove_shards
from bertscore_tm.utilities.columns import align_columns
from bertscore_tm.utilities.user_warnings import warn_user

if TYPE_CHECKING:
    from bertscore_tm.baselines import MeasuredBaseline
    from bertscore_tm.scoring.corpus import CorpusScores
    from bertscore_tm.scoring.texts import TextPairs

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "baseline"
HELP = "make a baseline table for rescaling, for any model and text file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    group = parser.add_argument_group("texts")
    group.add_argument(
        "-t", "--texts", metavar="FILE", required=True, help="many unrelated texts, one per line; - is standard input"
    )
    group.add_argument(
        "--format", choices=FORMATS, help="format of the file (default: by suffix, where .txt.gz is .txt)"
    )
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
        type=options.integer_of_at_least(2),
        metavar="N",
        default=10_000,
        help="number of random pairs; the standard error falls with its square root (default: %(default)s; the "
        "published tables use a million)",
    )
    group.add_argument(
        "--seed", type=options.integer_of_at_least(0), default=0, help="seed of the random pairs (default: %(default)s)"
    )
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o",
        "--output",
        type=report.file_path,
        metavar="FILE",
        required=True,
        help="write the complete table to this file (.csv)",
    )
    group.add_argument("--json", action="store_true", help="print means and standard errors as one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Make the table and print it with its standard errors."""
    report.check_files(arguments.output, arguments.texts)
    report.choose_format(arguments.output, (".csv",), ".csv")
    with join_ranks() as ranks:
        baseline, limit = _make(arguments, ranks)
        if ranks.rank == 0:
            report.write_output(baseline.to_csv(), arguments.output)
            remove_shards(arguments)
    if ranks.rank == 0:
        if baseline.num_truncated:
            from bertscore_tm.scoring.messages import describe_truncation

            truncation = describe_truncation(baseline.num_truncated, limit)
            warn_user(f"{truncation} (of {baseline.num_texts} texts)")
        format_baseline = _format_json if arguments.json else _format_summary
        report.write_output(format_baseline(baseline, arguments), None)
    return 0


def _make(arguments: argparse.Namespace, ranks: RankGroup) -> tuple[MeasuredBaseline, int | None]:
    texts = ranks.run_on_first(lambda: _read_distinct(arguments))

    from bertscore_tm.baselines import make_baseline
    from bertscore_tm.scoring.token_weights import token_weights

    device = ranks.run_on_all(lambda: choose_device(arguments.device))
    encoder = ranks.run_on_all(lambda: options.build_encoder(arguments, all_layers=True))
    weights = token_weights(encoder, device=device)
    num_pairs, seed = arguments.pairs, arguments.seed
    settings = {"input": input_digest(texts), "seed": seed, "pairs": num_pairs}
    with open_shards(ranks, arguments, num_pairs, encoder, settings) as shards:

        def score(pairs: TextPairs) -> CorpusScores | None:
            return score_shards(shards, pairs, encoder, weights, device)

        baseline = ranks.run_on_all(
            lambda: make_baseline(
                encoder, texts, num_pairs, seed, save_every=num_pairs, score=score, run_on_first=ranks.run_on_first
            )
        )
    return baseline, encoder.tokenizer.max_length


def _read_distinct(arguments: argparse.Namespace) -> list[str]:
    texts = read_texts(arguments.texts, arguments.format, arguments.column)
    num_distinct = len({text.strip() for text in texts} - {""})
    if num_distinct < 2:
        raise CommandError(
            f"{arguments.texts}: random pairs need at least 2 distinct texts that are not blank, got {num_distinct}"
        )
    return texts


def _format_summary(baseline: MeasuredBaseline, arguments: argparse.Namespace) -> str:
    rows = [["layer", *report.SCORE_LABELS.values()]]
    for layer, (means, errors) in enumerate(zip(baseline.mean.tolist(), baseline.standard_error.tolist(), strict=True)):
        rows.append([str(layer), *(f"{mean:.4f} ± {error:.4f}" for mean, error in zip(means, errors, strict=True))])
    return (
        f"{align_columns(rows)}mean ± standard error of {baseline.num_pairs} random pairs of "
        f"{baseline.num_texts} distinct texts, seed {arguments.seed}\nsignature: {baseline.signature}\n"
        f"written to {arguments.output}\n"
    )


def _format_json(baseline: MeasuredBaseline, arguments: argparse.Namespace) -> str:
    document = {
        **{
            key: dict(zip(report.SCORES, values.T.mul(1e6).round().div(1e6).tolist(), strict=True))
            for key, values in (("mean", baseline.mean), ("standard_error", baseline.standard_error))
        },
        "num_pairs": baseline.num_pairs,
        "num_texts": baseline.num_texts,
        "num_truncated": baseline.num_truncated,
        "seed": arguments.seed,
        "signature": baseline.signature,
        "output": arguments.output,
    }
    return json.dumps(document, allow_nan=False) + "\n"
