r"""Make a baseline table for rescaling: the expected score of random pairs of texts, for every layer of a model.

The table has the published format, one row per layer. Other commands read it with "--rescale-from", Python
with "rescale=". The text file should contain many unrelated texts, one per line, of the kind and language to be scored.
Repeated and blank texts are left out.

Examples::

    bertscore-tm baseline sentences.txt -m my/model -o my-model.csv
    bertscore-tm baseline corpus.jsonl.gz --column text --language de -o de.csv
    bertscore-tm score c.txt r.txt -m my/model -l 9 --rescale-from my-model.csv
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli import options, output
from bertscore_tm.cli.files import choose_with, read_texts
from bertscore_tm.cli.options import EncoderChoice
from bertscore_tm.cli.output import Output
from bertscore_tm.utilities.files import expand_home
from bertscore_tm.utilities.warnings import warn_user

if TYPE_CHECKING:
    from bertscore_tm.cli.resume import Session


@dataclass(frozen=True)
class BaselineOptions:
    """The texts whose random pairs are scored, and how many pairs.

    ``column`` has the texts. ``format`` is the format of the file, ``None`` for that of its suffix.
    """

    corpus: str
    format: str | None
    column: str
    encoder: EncoderChoice
    num_pairs: int
    seed: int

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> BaselineOptions:
        """Return the options that the arguments give."""
        return cls(
            corpus=arguments.corpus,
            format=arguments.format,
            column=arguments.column,
            encoder=EncoderChoice.of(arguments),
            num_pairs=arguments.pairs,
            seed=arguments.seed,
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    group = parser.add_argument_group("texts")
    group.add_argument(
        "corpus", metavar="FILE", type=expand_home, help="many unrelated texts, one per line; - is standard input"
    )
    options.add_format_argument(group)
    group.add_argument(
        "--column", metavar="NAME", default="text", help="column or JSON key of the texts (default: %(default)s)"
    )
    options.add_encoder_arguments(parser, all_layers=True)
    group = parser.add_argument_group("pairs")
    group.add_argument(
        "--pairs",
        type=int,
        metavar="N",
        default=10_000,
        help="number of random pairs (default: %(default)s; the published tables use a million)",
    )
    group.add_argument("--seed", type=int, default=0, help="seed of the random pairs (default: %(default)s)")
    options.add_output_arguments(parser, (".csv",))


def run(arguments: argparse.Namespace, session: Session) -> None:
    """Make the table on the first rank and print it with its standard errors."""
    command = BaselineOptions.of(arguments)
    session.ranks.run_on_first(lambda: _measure(command, session.output))


def _measure(command: BaselineOptions, target: Output) -> None:
    """Compute the table, write it, and print its means and standard errors."""
    texts = read_texts(command.corpus, command.format, command.column, remedy=choose_with("--column"))

    # Import torch and transformers after the files are read, so that errors in files are reported soon.
    from bertscore_tm.cli.encoder import build_encoder
    from bertscore_tm.scoring.baselines import make_baseline
    from bertscore_tm.scoring.warnings import describe_truncation

    encoder = build_encoder(command.encoder, all_layers=True)
    baseline = make_baseline(encoder, texts, command.num_pairs, command.seed)
    # Write the table before the summary is printed, because the table is the result.
    output.write_output(baseline.to_csv(), target.path)
    if baseline.num_truncated:
        truncation = describe_truncation(baseline.num_truncated, encoder.tokenizer.max_length)
        warn_user(f"{truncation} (of {baseline.num_texts} texts). To read whole texts, pass --long-text window")
    document = {
        "mean": dict(zip(output.SCORE_NAMES, baseline.mean.T.tolist(), strict=True)),
        "standard_error": dict(zip(output.SCORE_NAMES, baseline.standard_error.T.tolist(), strict=True)),
        "num_pairs": baseline.num_pairs,
        "num_texts": baseline.num_texts,
        "num_truncated": baseline.num_truncated,
        "seed": command.seed,
        "signature": str(baseline.signature),
        "output": target.path,
    }
    if target.is_json:
        content = output.to_json(document)
    else:
        content = _format_summary(document)
    output.write_output(content, None)


def _format_summary(document: dict[str, Any]) -> str:
    """Return a table of the means by layer, and the settings of the random pairs."""
    rows = [["layer", *output.SCORE_LABELS.values()]]
    num_layers = len(document["mean"]["f1"])
    for layer in range(num_layers):
        cells = [str(layer)]
        for name in output.SCORE_NAMES:
            mean = document["mean"][name][layer]
            error = document["standard_error"][name][layer]
            cells.append(f"{mean:.4f} ± {error:.4f}")
        rows.append(cells)
    return (
        f"{output.format_rows(rows)}mean ± standard error of "
        f"{document['num_pairs']} random pairs of {document['num_texts']} distinct texts, seed {document['seed']}\n"
        f"signature: {document['signature']}\n"
    )
