"""Show how the tokens of one candidate and one reference match, and what each adds to the score.

Examples::

    bertscore-tm show "a cat sleeps" "the kitten is sleeping" --lang en
    bertscore-tm show "a cat sleeps" "the kitten is sleeping" --output matches.pdf
    bertscore-tm show "a cat sleeps" "the kitten is sleeping" --contributions --output shares.png
"""

from __future__ import annotations

import argparse
import unicodedata
import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from bertscore_tm.cli import options, ranks, report
from bertscore_tm.cli.errors import CommandError, in_options

if TYPE_CHECKING:
    import torch

    from bertscore_tm.encoder import FrozenEncoder
    from bertscore_tm.scoring.alignment import AlignedText, Alignment
    from bertscore_tm.scoring.rescaling import LayerBaseline

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "show"
HELP = "show how the tokens of one pair match"

_PICTURES = (".png", ".pdf", ".svg")
_DOTS_PER_INCH = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments.

    Args:
        parser: its parser.
    """
    parser.add_argument("candidate", help="the text to score (put -- before texts that begin with -)")
    parser.add_argument("reference", help="its reference")
    options.add_encoder_arguments(parser)
    options.add_idf_arguments(parser, references=False)
    options.add_rescale_arguments(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="draw a picture (.png, .pdf, .svg) or a web page (.html) instead of printing text (.txt)",
    )
    group.add_argument(
        "--contributions",
        action="store_true",
        help="draw what each token adds to the score rather than the matrix of matches, as web pages always do",
    )


def run(arguments: argparse.Namespace) -> int:
    """Show a pair.

    Args:
        arguments: the parsed arguments.

    Returns:
        The exit code.

    Raises:
        CommandError: something is wrong with the arguments.
    """
    report.check_output(arguments.output)
    suffix = ".txt" if arguments.output is None else Path(arguments.output).suffix.lower()
    if suffix not in (*_PICTURES, ".html", ".txt"):
        raise CommandError(
            f"argument --output: {arguments.output} must end with {', '.join(_PICTURES)}, .html or .txt, which chooses "
            f"what is drawn"
        )
    if arguments.contributions and suffix == ".txt":
        raise CommandError("--contributions is for pictures: pass --output with the name of one")
    for name in ("candidate", "reference"):
        if not getattr(arguments, name).strip():
            raise CommandError(f"the {name} is empty: its score is 0, and there is nothing to show")
    idf_sents = options.read_idf_texts(arguments)

    device = ranks.choose_device(arguments.device)
    encoder = options.build_encoder(arguments)
    baseline = options.find_baseline(encoder, arguments)
    try:
        if suffix == ".txt":
            shown: str | bytes = _text(arguments, encoder, idf_sents, device, baseline)
        else:
            shown = _drawn(arguments, encoder, idf_sents, device)
    except ValueError as error:
        raise CommandError(in_options(str(error))) from error
    report.write_output(shown, arguments.output)
    return 0


def _drawn(
    arguments: argparse.Namespace, encoder: FrozenEncoder, idf_sents: list[str] | None, device: torch.device
) -> str | bytes:
    from bertscore_tm.functional import align

    alignment = align(
        arguments.candidate,
        arguments.reference,
        encoder,
        lang=arguments.lang,
        idf_sents=idf_sents,
        rescale_with_baseline=arguments.rescale or arguments.baseline is not None,
        baseline_path=arguments.baseline,
        device=device,
    )
    suffix = Path(arguments.output).suffix.lower()
    if suffix == ".html":
        return alignment.to_html()
    figure = alignment.plot_contributions() if arguments.contributions else alignment.plot()
    file = BytesIO()
    figure.savefig(file, format=suffix.removeprefix("."), dpi=_DOTS_PER_INCH)
    return file.getvalue()


def _text(
    arguments: argparse.Namespace,
    encoder: FrozenEncoder,
    idf_sents: list[str] | None,
    device: torch.device,
    baseline: LayerBaseline | None,
) -> str:
    from bertscore_tm.scoring.alignment import compute_alignment
    from bertscore_tm.scoring.messages import describe_truncation
    from bertscore_tm.scoring.signature import score_signature
    from bertscore_tm.scoring.token_weights import token_weights

    weights = token_weights(encoder, idf_sents=idf_sents, device=device)
    alignment = compute_alignment(arguments.candidate, arguments.reference, encoder, weights, device, baseline=baseline)
    if alignment.num_truncated:
        warnings.warn(
            f"{describe_truncation(alignment.num_truncated, encoder.tokenizer.max_length)}; long_text='window' shows "
            f"whole texts",
            stacklevel=1,
        )
    signature = score_signature(encoder, weights.source, baseline)
    return in_terminal(alignment, weighted=idf_sents is not None) + f"\nsignature: {signature}\n"


def in_terminal(alignment: Alignment, *, weighted: bool) -> str:
    """Return an alignment as text.

    Args:
        alignment: the alignment.
        weighted: whether to show the tokens' weights.

    Returns:
        The scores, and for each text a table of its tokens.
    """
    candidate, reference = alignment.candidate, alignment.reference
    return "\n".join(
        (
            f"P {alignment.precision:.4f}  R {alignment.recall:.4f}  F1 {alignment.f1:.4f}\n",
            _table("candidate", candidate, "reference", reference, "precision", weighted),
            _table("reference", reference, "candidate", candidate, "recall", weighted),
        )
    )


def _table(name: str, text: AlignedText, other_name: str, other: AlignedText, score: str, weighted: bool) -> str:
    """One row per token: the token, its best match, their similarity, and its part of the score."""
    rows = [[name, f"best match in {other_name}", "similarity", *(["weight"] if weighted else []), f"part of {score}"]]
    columns = (text.matches.tolist(), text.best.tolist(), text.weights.tolist(), text.shares.tolist())
    for number, (match, best, weight, share) in enumerate(zip(*columns, strict=True)):
        matched = "special token" if match < 0 else _numbered(match, other.tokens)
        cells = [_numbered(number, text.tokens), matched, f"{best:.4f}"]
        rows.append([*cells, *([f"{weight:.4f}"] if weighted else []), f"{share:.4f}"])
    if abs(text.special_share) >= 5e-5:
        rows.append(["special tokens", "", "", *([""] if weighted else []), f"{text.special_share:.4f}"])
    return _aligned(rows)


def _numbered(number: int, tokens: Sequence[str]) -> str:
    return f"{number + 1:>{len(str(len(tokens)))}} {tokens[number]}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Lines with two columns of texts and further ones of numbers."""
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        padding = [" " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = [
            cell + space if place < 2 else space + cell
            for place, (cell, space) in enumerate(zip(row, padding, strict=True))
        ]
        lines.append("  ".join(cells) + "\n")
    return "".join(lines)


def _width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(
        0 if unicodedata.category(c) in ("Mn", "Me", "Cf") else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )
