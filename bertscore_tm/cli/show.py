"""Show how the tokens of a candidate and a reference match, and how much each adds to the score.

Pairs of files are shown by "bertscore-tm score": --worst prints their texts, --report writes a page with their tokens.

Examples::

    bertscore-tm show "a cat sleeps" "the kitten is sleeping" --language en
    bertscore-tm show "a cat sleeps" "the kitten is sleeping" -o matches.pdf
    bertscore-tm show "a cat sleeps" "the kitten is sleeping" -o shares.html
"""

import argparse
from io import BytesIO

from bertscore_tm.cli import options, output
from bertscore_tm.cli.ranks import RankGroup

_DOTS_PER_INCH = 200


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


def run(arguments: argparse.Namespace, ranks: RankGroup) -> None:
    """Show the pair on the first rank."""
    ranks.run_on_first(lambda: _show(arguments))


def _show(arguments: argparse.Namespace) -> None:
    from bertscore_tm.cli.encoder import EncoderChoice, build_encoder, read_baseline, read_idf
    from bertscore_tm.functional import align
    from bertscore_tm.scoring.settings import ScoreSettings

    # Read before the model, which takes longer.
    rescale, idf = read_baseline(arguments.rescale), read_idf(arguments.idf, arguments.format)
    encoder = build_encoder(EncoderChoice.of(arguments))
    candidate, reference = arguments.candidate, arguments.reference
    alignment = align(candidate, reference, encoder, idf=idf, rescale=rescale)
    signature = ScoreSettings.create(encoder, idf, rescale).signature()
    if arguments.suffix == ".txt":
        content: str | bytes = f"{alignment!r}\n\nsignature: {signature}\n"
    elif arguments.suffix == ".json":
        texts = {"candidate_text": candidate, "reference_text": reference}
        content = output.to_json({**texts, "alignment": alignment.to_dict(), "signature": str(signature)})
    elif arguments.suffix == ".html":
        content = alignment.to_html()
    else:
        picture = BytesIO()
        alignment.plot().savefig(picture, format=arguments.suffix.removeprefix("."), dpi=_DOTS_PER_INCH)
        content = picture.getvalue()
    output.write_output(content, arguments.output)
