"""Show how the tokens of a candidate and a reference match, and how much each adds to the score.

Examples::

    bertscore-tm show "a cat sleeps" "the kitten is sleeping" --lang en
    bertscore-tm show "a cat sleeps" "the kitten is sleeping" --output matches.pdf
    bertscore-tm show "a cat sleeps" "the kitten is sleeping" --contributions --output shares.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from bertscore_tm.cli import options, report
from bertscore_tm.cli.charts import PICTURE_SUFFIXES
from bertscore_tm.cli.distributed import choose_device
from bertscore_tm.cli.errors import CommandError, replace_arguments_with_options

if TYPE_CHECKING:
    from bertscore_tm.plotting.alignment import AlignedText, Alignment

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "show"
HELP = "show how the tokens of a candidate and a reference match"

_DOTS_PER_INCH = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments.

    Args:
        parser: the command's parser.
    """
    parser.add_argument("candidate", help="the text to score (put -- before a text that starts with -)")
    parser.add_argument("reference", help="its reference")
    options.add_encoder_arguments(parser)
    options.add_idf_arguments(parser, references=False)
    options.add_rescale_arguments(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o",
        "--output",
        type=report.output_path,
        metavar="FILE",
        help="write a picture (.png, .pdf, .svg), a web page (.html) or the text (.txt) to this file",
    )
    group.add_argument(
        "--contributions",
        action="store_true",
        help="draw how much each token adds to the score, as web pages always do, instead of the matrix of matches",
    )


def run(arguments: argparse.Namespace) -> int:
    """Show a pair of texts.

    Args:
        arguments: the parsed arguments.

    Returns:
        The exit code.

    Raises:
        CommandError: an argument is invalid.
    """
    report.check_output_path(arguments.output)
    suffix = ".txt" if arguments.output is None else Path(arguments.output).suffix.lower()
    if suffix not in (*PICTURE_SUFFIXES, ".html", ".txt"):
        raise CommandError(
            f"argument --output: {arguments.output} must end with {', '.join(PICTURE_SUFFIXES)}, .html or .txt, which "
            f"selects the format"
        )
    if arguments.contributions and suffix == ".txt":
        raise CommandError("--contributions needs a picture: pass --output with a .png, .pdf or .svg file")
    for name in ("candidate", "reference"):
        if not getattr(arguments, name).strip():
            raise CommandError(f"the {name} is empty, so its score is 0: pass a text with tokens")
    idf_sents = options.read_idf_texts(arguments)

    from bertscore_tm.plotting.functional import align_and_warn
    from bertscore_tm.scoring.signature import score_signature
    from bertscore_tm.scoring.token_weights import token_weights

    device = choose_device(arguments.device)
    encoder = options.build_encoder(arguments)
    baseline = options.find_baseline(encoder, arguments)
    try:
        weights = token_weights(encoder, idf_sents=idf_sents, device=device)
        alignment = align_and_warn(arguments.candidate, arguments.reference, encoder, weights, device, baseline)
    except ValueError as error:
        raise CommandError(replace_arguments_with_options(str(error))) from error
    if suffix == ".txt":
        signature = score_signature(encoder, weights.source, baseline)
        content: str | bytes = f"{format_alignment(alignment)}\nsignature: {signature}\n"
    elif suffix == ".html":
        content = alignment.to_html()
    else:
        figure = alignment.plot_contributions() if arguments.contributions else alignment.plot()
        file = BytesIO()
        figure.savefig(file, format=suffix.removeprefix("."), dpi=_DOTS_PER_INCH)
        content = file.getvalue()
    report.write_output(content, arguments.output)
    return 0


def format_alignment(alignment: Alignment) -> str:
    """Format an alignment as text.

    Args:
        alignment: the alignment.

    Returns:
        The scores, and a table of tokens for each text, with the token weights where they differ.
    """
    weighted = alignment.is_weighted
    candidate, reference = alignment.candidate, alignment.reference
    return "\n".join(
        (
            f"P {alignment.precision:.4f}  R {alignment.recall:.4f}  F1 {alignment.f1:.4f}\n",
            _format_tokens("candidate", candidate, "reference", reference, "precision", weighted),
            _format_tokens("reference", reference, "candidate", candidate, "recall", weighted),
        )
    )


def _format_tokens(
    name: str, text: AlignedText, other_name: str, other: AlignedText, score: str, weighted: bool
) -> str:
    """Format one row per token: the token, its best match, their similarity, and its part of the score."""
    rows = [[name, f"best match in {other_name}", "similarity", *(["weight"] if weighted else []), f"part of {score}"]]
    columns = (text.matches.tolist(), text.best.tolist(), text.weights.tolist(), text.shares.tolist())
    for number, (match, best, weight, share) in enumerate(zip(*columns, strict=True)):
        matched = "special token" if match < 0 else _number_token(match, other.tokens)
        cells = [_number_token(number, text.tokens), matched, f"{best:.4f}"]
        rows.append([*cells, *([f"{weight:.4f}"] if weighted else []), f"{share:.4f}"])
    if abs(text.special_share) >= 5e-5:
        rows.append(["special tokens", "", "", *([""] if weighted else []), f"{text.special_share:.4f}"])
    return report.align_columns(rows, num_left=2)


def _number_token(index: int, tokens: Sequence[str]) -> str:
    """Return a token with its number from 1, padded to the width of the last number."""
    return f"{index + 1:>{len(str(len(tokens)))}} {tokens[index]}"
