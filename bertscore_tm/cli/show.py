"""Show how the tokens of a candidate and a reference match, and how much each adds to the score.

The pair is given as two texts, or taken from files: --row takes pairs by their number, --worst those with the lowest
scores. Of several references the best one is shown.

Examples::

    bertscore-tm show "a cat sleeps" "the kitten is sleeping" --language en
    bertscore-tm show "a cat sleeps" "the kitten is sleeping" --output matches.pdf
    bertscore-tm show "a cat sleeps" "the kitten is sleeping" --output shares.html
    bertscore-tm show -c hyps.txt -r refs.txt --worst 5
    bertscore-tm show -c pairs.jsonl --row 17 --json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli import options, report, text_arguments
from bertscore_tm.cli.distributed import choose_device
from bertscore_tm.cli.errors import CommandError, replace_arguments_with_options

if TYPE_CHECKING:
    import torch

    from bertscore_tm.encoder import FrozenEncoder
    from bertscore_tm.scoring.alignment import Alignment
    from bertscore_tm.scoring.texts import TextPairs
    from bertscore_tm.scoring.token_weights import TokenWeights

__all__ = ["HELP", "NAME", "ShownPair", "add_arguments", "run"]

NAME = "show"
HELP = "show how the tokens of a candidate and a reference match"

_PICTURE_SUFFIXES = (".png", ".pdf", ".svg")
_DOTS_PER_INCH = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("candidate", nargs="?", help="the text to score (put -- before a text that starts with -)")
    parser.add_argument("reference", nargs="?", help="its reference")
    group = text_arguments.add_file_arguments(parser)
    group.add_argument(
        "--row",
        type=options.integer_of_at_least(0),
        nargs="+",
        metavar="N",
        help="show these pairs of the files; they count from 0, as in score --per-segment",
    )
    group.add_argument(
        "--worst",
        type=options.integer_of_at_least(1),
        metavar="N",
        help="show the N pairs of the files with the lowest score, the lowest first",
    )
    options.add_component_argument(group, "the score of --worst")
    text_arguments.add_column_arguments(parser)
    options.add_encoder_arguments(parser)
    options.add_idf_arguments(parser, references=False)
    options.add_rescale_arguments(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o",
        "--output",
        type=report.output_path,
        metavar="FILE",
        help="write a picture (.png, .pdf, .svg) or a web page (.html) of one pair, or the text (.txt) or the numbers "
        "(.json), to this file",
    )
    group.add_argument("--json", action="store_true", help="print tokens, matches and shares as one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Show pairs of texts."""
    report.check_files(
        arguments.output, arguments.candidates, *(arguments.references or ()), options.idf_file(arguments)
    )
    suffix = _choose_format(arguments)
    texts = _read(arguments)
    idf_sents = options.read_idf_texts(arguments)

    from bertscore_tm.functional import align
    from bertscore_tm.scoring.signature import score_signature
    from bertscore_tm.scoring.token_weights import token_weights

    device = choose_device(arguments.device)
    encoder = options.build_encoder(arguments)
    baseline = options.find_baseline(encoder, arguments)
    try:
        weights = token_weights(encoder, False if idf_sents is None else idf_sents, device=device)
        shown = []
        for row, candidate, reference in _choose_pairs(texts, arguments, encoder, weights, device):
            alignment = None
            if row is None or all(encoder.tokenizer([candidate, reference]).has_content):
                alignment = align(candidate, reference, encoder, idf=weights, rescale=arguments.rescale)
            shown.append(ShownPair(row, candidate, reference, alignment))
    except ValueError as error:
        raise CommandError(replace_arguments_with_options(str(error))) from error
    signature = score_signature(encoder, weights.source, baseline)
    report.write_output(_format_pairs(shown, suffix, signature), arguments.output)
    return 0


@dataclass(frozen=True)
class ShownPair:
    """A pair of texts and its alignment.

    Args:
        row: its number in the files, ``None`` for texts from the command line.
        candidate: the candidate.
        reference: its reference; of several the best one.
        alignment: the alignment, ``None`` if a text has no tokens.
    """

    row: int | None
    candidate: str
    reference: str
    alignment: Alignment | None

    def format_text(self) -> str:
        """Return the pair as text.

        Returns:
            For a pair of a file its number, then scores and tables, or why there are none.
        """
        head = "" if self.row is None else f"row {self.row}\n"
        if self.alignment is None:
            return f"{head}a text has no tokens, so the score is 0\n"
        return f"{head}{self.alignment!r}\n"

    def to_dict(self) -> dict[str, Any]:
        """Return the pair for JSON.

        Returns:
            Number, texts, and the alignment, which is null if a text has no tokens.
        """
        return {
            "row": self.row,
            "candidate_text": self.candidate,
            "reference_text": self.reference,
            "alignment": None if self.alignment is None else self.alignment.to_dict(),
        }


def _choose_format(arguments: argparse.Namespace) -> str:
    """Return the suffix that stands for the format of the output."""
    suffixes = (*_PICTURE_SUFFIXES, ".html", ".txt", ".json")
    suffix = report.choose_format(arguments.output, suffixes, ".json" if arguments.json else ".txt")
    num_rows = arguments.worst or len(arguments.row or [0])
    if num_rows > 1 and suffix in (*_PICTURE_SUFFIXES, ".html"):
        raise CommandError(f"{arguments.output} can show one pair: give a single --row, or --worst 1")
    return suffix


def _read(arguments: argparse.Namespace) -> TextPairs:
    """Return the pairs of the files, or the one of the command line."""
    from bertscore_tm.scoring.texts import TextPairs

    if arguments.candidates is None:
        if arguments.references is not None or arguments.row is not None or arguments.worst is not None:
            raise CommandError("-r, --row and --worst choose from files: give -c FILE too")
        for name in ("candidate", "reference"):
            if getattr(arguments, name) is None:
                raise CommandError(
                    f"no {name}: give two texts, or -c FILE with --row or --worst (see bertscore-tm show --help)"
                )
            if not getattr(arguments, name).strip():
                raise CommandError(f"the {name} is empty, so its score is 0: pass a text with tokens")
        return TextPairs([arguments.candidate], [[arguments.reference]])
    if arguments.candidate is not None:
        raise CommandError("give two texts or files (-c, -r), not both")
    if (arguments.row is None) == (arguments.worst is None):
        raise CommandError("give either --row N or --worst N to choose the pairs of the files")
    texts = text_arguments.read_files(arguments)
    for row in arguments.row or ():
        if row >= len(texts):
            raise CommandError(
                f"argument --row: {row} does not exist: {arguments.candidates} has the rows 0 to {len(texts) - 1}"
            )
    return texts


def _choose_pairs(
    texts: TextPairs,
    arguments: argparse.Namespace,
    encoder: FrozenEncoder,
    weights: TokenWeights,
    device: torch.device,
) -> list[tuple[int | None, str, str]]:
    """Return number, candidate and best reference of each pair to show."""
    if arguments.candidates is None:
        return [(None, texts.candidates[0], texts.references[0][0])]
    from bertscore_tm.scoring.corpus import score_corpus
    from bertscore_tm.scoring.texts import TextPairs

    rows = list(range(len(texts))) if arguments.row is None else arguments.row
    scored = score_corpus(
        TextPairs([texts.candidates[row] for row in rows], [texts.references[row] for row in rows]),
        encoder,
        weights,
        device,
    )
    order = list(range(len(rows)))
    if arguments.worst is not None:
        scores = scored.scores[report.SCORES.index(arguments.component), 0]
        order = scores.argsort(stable=True)[: arguments.worst].tolist()
    best = scored.best_reference[0].tolist()
    return [(rows[i], texts.candidates[rows[i]], texts.references[rows[i]][best[i]]) for i in order]


def _format_pairs(shown: Sequence[ShownPair], suffix: str, signature: str) -> str | bytes:
    if suffix == ".json":
        document = {"pairs": [pair.to_dict() for pair in shown], "signature": signature}
        return json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n"
    if suffix == ".txt":
        return "\n".join([*(pair.format_text() for pair in shown), f"signature: {signature}\n"])
    (pair,) = shown
    if pair.alignment is None:
        raise CommandError(f"row {pair.row} cannot be drawn: a text has no tokens, so the score is 0")
    if suffix == ".html":
        return pair.alignment.to_html()
    figure = pair.alignment.plot()
    file = BytesIO()
    figure.savefig(file, format=suffix.removeprefix("."), dpi=_DOTS_PER_INCH)
    return file.getvalue()
