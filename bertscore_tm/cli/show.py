"""Show how the tokens of a candidate and a reference match, and how much each adds to the score.

For pairs of files, use "bertscore-tm score": --worst prints their texts, and --report writes a page with their tokens.

Examples::

    bertscore-tm show "a cat sleeps" "the kitten is sleeping" --language en
    bertscore-tm show "a cat sleeps" "the kitten is sleeping" -o matches.pdf
    bertscore-tm show "a cat sleeps" "the kitten is sleeping" -o shares.html
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

from bertscore_tm.cli import options, output
from bertscore_tm.cli.options import EncoderChoice
from bertscore_tm.cli.output import Output

if TYPE_CHECKING:
    from bertscore_tm.cli.resume import Session

_DOTS_PER_INCH = 200


@dataclass(frozen=True)
class ShowOptions:
    """The two texts that are aligned, and what changes their scores.

    ``idf`` is a file whose texts are counted, or ``False``. ``rescale`` is the file of a baseline table, or whether to
    use the published one. ``format`` is the format of the file of ``idf``, ``None`` for that of its suffix.
    """

    candidate: str
    reference: str
    encoder: EncoderChoice
    idf: bool | str
    format: str | None
    rescale: bool | str

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> ShowOptions:
        """Return the options that the arguments give."""
        return cls(
            candidate=arguments.candidate,
            reference=arguments.reference,
            encoder=EncoderChoice.of(arguments),
            idf=arguments.idf,
            format=arguments.format,
            rescale=arguments.rescale,
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("candidate", metavar="CANDIDATE", help="a text; put -- before one that starts with -")
    parser.add_argument("reference", metavar="REFERENCE", help="the text that it is compared with")
    options.add_encoder_arguments(parser)
    group = parser.add_argument_group("token weights and rescaling")
    options.add_idf_file_argument(group)
    options.add_format_argument(group)
    options.add_rescale_arguments(group)
    options.add_output_arguments(parser, (".txt", ".json", ".png", ".pdf", ".svg", ".html"))


def run(arguments: argparse.Namespace, session: Session) -> None:
    """Show the pair on the first rank."""
    command = ShowOptions.of(arguments)
    session.ranks.run_on_first(lambda: _show(command, session.output))


def _show(command: ShowOptions, target: Output) -> None:
    """Align the texts, and write the alignment in the format of the output."""
    # Import torch and transformers when the command runs, so that errors in arguments are reported soon.
    from bertscore_tm.cli.encoder import build_encoder, read_baseline, read_idf
    from bertscore_tm.functional import align
    from bertscore_tm.scoring.settings import ScoreSettings

    # Read these files before the model, which takes longer, so that errors in them are reported soon.
    rescale = read_baseline(command.rescale)
    idf = read_idf(command.idf, command.format)
    encoder = build_encoder(command.encoder)
    alignment = align(command.candidate, command.reference, encoder, idf=idf, rescale=rescale)
    # An alignment does not store its settings, so build the equivalent ones for the signature.
    settings = ScoreSettings.create(encoder, idf, rescale)
    signature = str(settings.signature())
    content: str | bytes
    if target.suffix == ".txt":
        content = f"{alignment!r}\n\nsignature: {signature}\n"
    elif target.suffix == ".json":
        document = {
            "candidate_text": command.candidate,
            "reference_text": command.reference,
            "alignment": alignment.to_dict(),
            "signature": signature,
        }
        content = output.to_json(document)
    elif target.suffix == ".html":
        content = alignment.to_html()
    else:
        # Draw the picture in memory, so that the file is written completely or not at all.
        picture = BytesIO()
        alignment.plot().savefig(picture, format=target.suffix.removeprefix("."), dpi=_DOTS_PER_INCH)
        content = picture.getvalue()
    output.write_output(content, target.path)
