r"""Make a baseline table for rescaling: the expected score of random pairs of texts, for every layer of a model.

The table has the published format, one row per layer. Other commands read it with "--rescale", Python with
"rescale=". The text file should contain many unrelated texts of the kind and language to be scored, one per line;
repeated and blank texts are left out. An interrupted run resumes when the same command is given again.

Examples::

    bertscore-tm baseline sentences.txt -m my/model -o my-model.csv
    bertscore-tm baseline corpus.jsonl.gz --column text --language de -o de.csv
    torchrun --nproc-per-node 4 -m bertscore_tm.cli baseline texts.txt -o en.csv
    bertscore-tm score hyps.txt refs.txt -m my/model -l 9 --rescale my-model.csv
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli import options, report
from bertscore_tm.cli.distributed import RankGroup, join_ranks
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.inputs import FORMATS, read_texts
from bertscore_tm.cli.scored_corpus import score_shards
from bertscore_tm.cli.shards import input_digest, open_shards, remove_shards
from bertscore_tm.utilities.user_warnings import warn_user

if TYPE_CHECKING:
    from bertscore_tm.baselines import MeasuredBaseline

_SUFFIXES = (".csv",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument_group("texts").add_argument
    add("texts", metavar="FILE", help="many unrelated texts, one per line; - is standard input")
    add("--format", choices=FORMATS, help="format of the file (default: by suffix, where .txt.gz is .txt)")
    options.add_quoting_argument(add)
    help = "column or JSON key of the texts (default: %(default)s)"
    add("--column", metavar="NAME", default="text", help=help)
    options.add_encoder_arguments(parser, all_layers=True)
    add = parser.add_argument_group("pairs").add_argument
    help = "number of random pairs (default: %(default)s; the published tables use a million)"
    add("--pairs", type=options.integer_of_at_least(2), metavar="N", default=10_000, help=help)
    help = "seed of the random pairs (default: %(default)s)"
    add("--seed", type=options.integer_of_at_least(0), default=0, help=help)
    report.add_output_arguments(parser, _SUFFIXES)


def run(arguments: argparse.Namespace) -> None:
    """Make the table and print it with its standard errors."""
    report.choose_format(arguments, _SUFFIXES, arguments.texts)
    with join_ranks() as ranks:
        baseline, limit = _make(arguments, ranks)
        if baseline is not None:
            report.write_output(baseline.to_csv(), arguments.output, is_announced=False)
            remove_shards(arguments)
    if baseline is not None:
        if baseline.num_truncated:
            from bertscore_tm.scoring.messages import describe_truncation

            truncation = describe_truncation(baseline.num_truncated, limit)
            warn_user(f"{truncation} (of {baseline.num_texts} texts)")
        document = _summarize(baseline, arguments)
        report.write_output(report.to_json(document) if arguments.json else _format_summary(document), None)


def _make(arguments: argparse.Namespace, ranks: RankGroup) -> tuple[MeasuredBaseline | None, int | None]:
    texts = ranks.run_on_first(lambda: _read_distinct(arguments))

    from bertscore_tm.baselines import draw_pairs
    from bertscore_tm.scoring.token_weights import token_weights

    encoder = ranks.run_on_all(lambda: options.build_encoder(arguments, all_layers=True))
    drawn = ranks.run_on_all(lambda: draw_pairs(encoder, texts, arguments.pairs, arguments.seed))
    settings = {"input": input_digest(texts), "seed": arguments.seed, "pairs": arguments.pairs}
    shards = open_shards(ranks, arguments, arguments.pairs, encoder, settings)
    scored = score_shards(shards, drawn.pairs, encoder, token_weights(encoder))
    return None if scored is None else drawn.measure(scored.scores, encoder), encoder.tokenizer.max_length


def _read_distinct(arguments: argparse.Namespace) -> list[str]:
    has_quoting = not arguments.no_quoting
    texts = read_texts(arguments.texts, arguments.format, arguments.column, has_quoting=has_quoting)
    num_distinct = len({text.strip() for text in texts} - {""})
    if num_distinct < 2:
        needed = "random pairs need at least 2 distinct texts that are not blank"
        raise CommandError(f"{arguments.texts}: {needed}, got {num_distinct}")
    return texts


def _summarize(baseline: MeasuredBaseline, arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "mean": dict(zip(report.SCORES, baseline.mean.T.tolist(), strict=True)),
        "standard_error": dict(zip(report.SCORES, baseline.standard_error.T.tolist(), strict=True)),
        "num_pairs": baseline.num_pairs,
        "num_texts": baseline.num_texts,
        "num_truncated": baseline.num_truncated,
        "seed": arguments.seed,
        "signature": baseline.signature,
        "output": arguments.output,
    }


def _format_summary(document: dict[str, Any]) -> str:
    columns = [
        [f"{mean:.4f} ± {error:.4f}" for mean, error in zip(document["mean"][name], errors, strict=True)]
        for name, errors in document["standard_error"].items()
    ]
    rows = [[str(layer), *cells] for layer, cells in enumerate(zip(*columns, strict=True))]
    return (
        f"{report.format_rows([['layer', *report.SCORE_LABELS.values()], *rows])}mean ± standard error of "
        f"{document['num_pairs']} random pairs of {document['num_texts']} distinct texts, seed {document['seed']}\n"
        f"signature: {document['signature']}\nwritten to {document['output']}\n"
    )
