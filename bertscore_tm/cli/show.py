"""Show how the tokens of a candidate and a reference match, and how much each adds to the score.

The pair is given as two texts, or taken from files: --row takes pairs by their number, from 1, --worst those with the
lowest scores. Of several references the best one is shown.

Examples::

    bertscore-tm show "a cat sleeps" "the kitten is sleeping" --language en
    bertscore-tm show "a cat sleeps" "the kitten is sleeping" --output matches.pdf
    bertscore-tm show "a cat sleeps" "the kitten is sleeping" --output shares.html
    bertscore-tm show hyps.txt refs.txt --worst 5
    bertscore-tm show pairs.jsonl --row 17 --json
"""

from __future__ import annotations

import argparse
from io import BytesIO
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli import options, report
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.inputs import names_a_file, read_files

if TYPE_CHECKING:
    from bertscore_tm.encoder import FrozenEncoder
    from bertscore_tm.scoring.texts import TextPairs
    from bertscore_tm.scoring.token_weights import TokenWeights
    from bertscore_tm.views import Alignment

# Formats that show one pair.
_PICTURES = (".png", ".pdf", ".svg", ".html")
_SUFFIXES = (".txt", ".json", *_PICTURES)
_DOTS_PER_INCH = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    help = "a candidate and its reference (put -- before a text that starts with -), or files with --row or --worst"
    parser.add_argument("files", metavar="TEXT", nargs="*", help=help)
    group = options.add_file_arguments(parser, in_order=False)
    positive = options.integer_of_at_least(1)
    help = "show these pairs of the files; they count from 1, as in score --per-segment"
    group.add_argument("--row", type=positive, nargs="+", metavar="N", help=help)
    help = "show the N pairs of the files with the lowest score, the lowest first"
    group.add_argument("--worst", type=positive, metavar="N", help=help)
    options.add_component_argument(group, "the score of --worst")
    options.add_scoring_arguments(parser, of_references=False)
    report.add_output_arguments(parser, _SUFFIXES)


def run(arguments: argparse.Namespace) -> None:
    """Show pairs of texts."""
    if arguments.candidates or arguments.references or arguments.row or arguments.worst:
        options.take_files(arguments)
    inputs = (arguments.candidates, *(arguments.references or ()), options.idf_file(arguments))
    suffix = report.choose_format(arguments, _SUFFIXES, *inputs)
    if suffix in _PICTURES and (arguments.worst or len(arguments.row or [0])) > 1:
        raise CommandError(
            f"{arguments.output} can show one pair: give a single --row, or --worst 1; score --report shows all"
        )
    texts = _read(arguments)
    idf_texts = options.read_idf_texts(arguments)

    from bertscore_tm.functional import align
    from bertscore_tm.scoring.signature import score_signature
    from bertscore_tm.scoring.token_weights import token_weights

    encoder = options.build_encoder(arguments)
    baseline = options.find_baseline(encoder, arguments)
    weights = token_weights(encoder, idf_texts or False)
    shown: list[dict[str, Any]] = []
    for row, candidate, reference in _choose_pairs(texts, arguments, encoder, weights):
        alignment = None
        if row is None or all(encoder.tokenizer([candidate, reference]).has_content):
            alignment = align(candidate, reference, encoder, idf=weights, rescale=arguments.rescale)
        shown.append({"row": row, "candidate_text": candidate, "reference_text": reference, "alignment": alignment})
    signature = score_signature(encoder, weights.source, baseline)
    if suffix == ".json":
        for pair in shown:
            pair["alignment"] = None if pair["alignment"] is None else pair["alignment"].to_dict()
        report.write_output(report.to_json({"pairs": shown, "signature": signature}), arguments.output)
    elif suffix == ".txt":
        report.write_output("\n".join([*map(_format_pair, shown), f"signature: {signature}\n"]), arguments.output)
    else:
        report.write_output(_draw(shown[0], suffix), arguments.output)


def _read(arguments: argparse.Namespace) -> TextPairs:
    """Return the pairs of the files, or the one of the command line."""
    from bertscore_tm.scoring.texts import TextPairs

    if arguments.candidates is None:
        if arguments.references or arguments.row or arguments.worst or len(arguments.files) != 2:
            raise CommandError("give two texts, a candidate and its reference, or files and --row or --worst")
        if all(map(names_a_file, arguments.files)):
            raise CommandError("both texts are names of files: add --row N or --worst N to show their pairs")
        return TextPairs(arguments.files[:1], [arguments.files[1:]])
    if (arguments.row is None) == (arguments.worst is None):
        raise CommandError("give either --row N or --worst N to choose the pairs of the files")
    texts = read_files(arguments)
    for row in arguments.row or ():
        if row > len(texts):
            rows = f"{arguments.candidates} has the rows 1 to {len(texts)}"
            raise CommandError(f"argument --row: {row} does not exist: {rows}")
    return texts


def _choose_pairs(
    texts: TextPairs, arguments: argparse.Namespace, encoder: FrozenEncoder, weights: TokenWeights
) -> list[tuple[int | None, str, str]]:
    """Return number, candidate and best reference of each pair to show."""
    if arguments.candidates is None:
        return [(None, texts.candidates[0], texts.references[0][0])]
    from bertscore_tm.scoring.corpus import score_corpus

    rows = list(range(len(texts))) if arguments.row is None else [row - 1 for row in arguments.row]
    chosen = texts.select(rows)
    scored = score_corpus(chosen, encoder, weights, encoder.device)
    order = list(range(len(rows)))
    if arguments.worst is not None:
        scores = scored.scores[report.SCORES.index(arguments.component), 0]
        order = scores.argsort(stable=True)[: arguments.worst].tolist()
    best = scored.best_reference[0].tolist()
    return [(rows[i] + 1, chosen.candidates[i], chosen.references[i][best[i]]) for i in order]


def _format_pair(pair: dict[str, Any]) -> str:
    head = "" if pair["row"] is None else f"row {pair['row']}\n"
    shown = "a text has no tokens, so the score is 0" if pair["alignment"] is None else repr(pair["alignment"])
    return f"{head}{shown}\n"


def _draw(pair: dict[str, Any], suffix: str) -> str | bytes:
    alignment: Alignment | None = pair["alignment"]
    if alignment is None:
        raise CommandError(f"row {pair['row']} cannot be drawn: a text has no tokens, so the score is 0")
    if suffix == ".html":
        return alignment.to_html()
    file = BytesIO()
    alignment.plot().savefig(file, format=suffix.removeprefix("."), dpi=_DOTS_PER_INCH)
    return file.getvalue()
