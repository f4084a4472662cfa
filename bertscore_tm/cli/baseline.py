r"""Make a baseline table for rescaling: the expected score of random pairs of texts, for every layer of a model.

The table has the published format, one row per layer. Other commands read it with "--rescale-from", Python
with "rescale=". The text file should contain many unrelated texts of the kind and language to be scored, one per line;
repeated and blank texts are left out.

Examples::

    bertscore-tm baseline sentences.txt -m my/model -o my-model.csv
    bertscore-tm baseline corpus.jsonl.gz --column text --language de -o de.csv
    bertscore-tm score c.txt r.txt -m my/model -l 9 --rescale-from my-model.csv
"""

import argparse
from typing import Any

from bertscore_tm.cli import options, output
from bertscore_tm.cli.files import choose_with, read_texts
from bertscore_tm.cli.ranks import RankGroup
from bertscore_tm.utilities.warnings import warn_user


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    group = parser.add_argument_group("texts")
    group.add_argument("corpus", metavar="FILE", help="many unrelated texts, one per line; - is standard input")
    options.add_format_argument(group)
    help = "column or JSON key of the texts (default: %(default)s)"
    group.add_argument("--column", metavar="NAME", default="text", help=help)
    options.add_encoder_arguments(parser, all_layers=True)
    add = parser.add_argument_group("pairs").add_argument
    help = "number of random pairs (default: %(default)s; the published tables use a million)"
    add("--pairs", type=int, metavar="N", default=10_000, help=help)
    help = "seed of the random pairs (default: %(default)s)"
    add("--seed", type=int, default=0, help=help)
    options.add_output_arguments(parser, (".csv",))


def run(arguments: argparse.Namespace, ranks: RankGroup) -> None:
    """Make the table on the first rank and print it with its standard errors."""
    ranks.run_on_first(lambda: _measure(arguments))


def _measure(arguments: argparse.Namespace) -> None:
    texts = read_texts(arguments.corpus, arguments.format, arguments.column, remedy=choose_with("--column"))

    from bertscore_tm.cli.encoder import EncoderChoice, build_encoder
    from bertscore_tm.scoring.baselines import make_baseline
    from bertscore_tm.scoring.warnings import describe_truncation

    encoder = build_encoder(EncoderChoice.of(arguments), all_layers=True)
    baseline = make_baseline(encoder, texts, arguments.pairs, arguments.seed)
    output.write_output(baseline.to_csv(), arguments.output)
    if baseline.num_truncated:
        truncation = describe_truncation(baseline.num_truncated, encoder.tokenizer.max_length)
        warn_user(f"{truncation} (of {baseline.num_texts} texts)")
    document = {
        "mean": dict(zip(output.SCORE_NAMES, baseline.mean.T.tolist(), strict=True)),
        "standard_error": dict(zip(output.SCORE_NAMES, baseline.standard_error.T.tolist(), strict=True)),
        "num_pairs": baseline.num_pairs,
        "num_texts": baseline.num_texts,
        "num_truncated": baseline.num_truncated,
        "seed": arguments.seed,
        "signature": str(baseline.signature),
        "output": arguments.output,
    }
    output.write_output(output.to_json(document) if arguments.json else _format_summary(document), None)


def _format_summary(document: dict[str, Any]) -> str:
    columns = [
        [f"{mean:.4f} ± {error:.4f}" for mean, error in zip(document["mean"][name], errors, strict=True)]
        for name, errors in document["standard_error"].items()
    ]
    rows = [[str(layer), *cells] for layer, cells in enumerate(zip(*columns, strict=True))]
    return (
        f"{output.format_rows([['layer', *output.SCORE_LABELS.values()], *rows])}mean ± standard error of "
        f"{document['num_pairs']} random pairs of {document['num_texts']} distinct texts, seed {document['seed']}\n"
        f"signature: {document['signature']}\n"
    )
