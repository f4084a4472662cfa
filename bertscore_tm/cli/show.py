"""Show how the tokens of a candidate and a reference match, and how much each adds to the score.

The pair is given as two texts, or taken from files: --row takes pairs by their number, from 1, --worst those with the
lowest scores. Of several references the best one is shown.

Examples::

    bertscore-tm show "a cat sleeps" "the kitten is sleeping" --language en
    bertscore-tm show "a cat sleeps" "the kitten is sleeping" -o matches.pdf
    bertscore-tm show "a cat sleeps" "the kitten is sleeping" -o shares.html
    bertscore-tm show hyps.txt refs.txt --worst 5
    bertscore-tm show pairs.jsonl --row 17 --json
"""

from __future__ import annotations

import argparse
import os
from io import BytesIO
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli import options, output
from bertscore_tm.cli.distributed import RankGroup
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.joined_files import Systems, read_corpus

if TYPE_CHECKING:
    from bertscore_tm.views import Alignment

# Formats that show one pair.
_PICTURES = (".png", ".pdf", ".svg", ".html")
_DOTS_PER_INCH = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    help = "a candidate and its reference (put -- before a text that starts with -), or files with --row or --worst"
    parser.add_argument("files", metavar="TEXT", nargs="*", help=help)
    group = options.add_file_arguments(parser, in_order=False)
    help = "show these pairs of the files; they count from 1, as in score --per-segment"
    group.add_argument("--row", type=int, nargs="+", metavar="N", help=help)
    help = "show the N pairs of the files with the lowest score, the lowest first"
    group.add_argument("--worst", type=options.positive, metavar="N", help=help)
    options.add_component_argument(group, "the score of --worst")
    options.add_source_arguments(group)
    options.add_scoring_arguments(parser, of_references=False)
    options.add_output_arguments(parser, (".txt", ".json", *_PICTURES))


def run(arguments: argparse.Namespace, ranks: RankGroup) -> None:
    """Show pairs of texts."""
    if arguments.candidates or arguments.references or arguments.row or arguments.worst:
        options.take_files(arguments)
    if arguments.suffix in _PICTURES and (arguments.worst or len(arguments.row or [0])) > 1:
        remedy = "give a single --row, or --worst 1; score --report shows all"
        raise CommandError(f"{arguments.output} can show one pair: {remedy}")
    systems = ranks.run_on_first(lambda: _read(arguments))

    from bertscore_tm.cli.scored_corpus import score_systems
    from bertscore_tm.views import Alignment

    scored = score_systems(ranks, arguments, systems)
    if scored is None:
        return
    numbers = range(len(systems.references))
    rows = arguments.row or [i + 1 for i in numbers]
    pairs: list[dict[str, Any]] = []
    for i in numbers if arguments.worst is None else scored.worst(arguments.worst, arguments.component):
        described = scored.describe_texts(i)
        candidate, reference, *_ = described.values()
        has_tokens = all(scored.encoder.tokenizer([candidate, reference]).has_content)
        alignment = Alignment(**vars(scored.align(candidate, reference))) if has_tokens else None
        row = None if arguments.candidates is None else rows[i]
        pairs.append({"row": row, **described, "alignment": alignment})
    if arguments.suffix == ".json":
        for pair in pairs:
            pair["alignment"] = pair["alignment"] and pair["alignment"].to_dict()
        content: str | bytes = output.to_json({"pairs": pairs, "signature": scored.signature})
    elif arguments.suffix == ".txt":
        content = "\n".join([*map(_format_pair, pairs), f"signature: {scored.signature}\n"])
    else:
        content = _draw(pairs[0]["alignment"], arguments.suffix)
    output.write_output(content, arguments.output)


def _read(arguments: argparse.Namespace) -> Systems:
    """Return the pairs of the files, only the rows if some are given, or that of the command line."""
    if arguments.candidates is None:
        if arguments.references or arguments.row or arguments.worst or arguments.sources or len(arguments.files) != 2:
            raise CommandError("give two texts, a candidate and its reference, or files and --row or --worst")
        if all(os.path.isfile(text) for text in arguments.files):  # noqa: PTH113
            raise CommandError(f"{arguments.files[0]} is a file: add --row N or --worst N to show pairs of files")
        return Systems({"candidates": arguments.files[:1]}, [arguments.files[1:]])
    if (arguments.row is None) == (arguments.worst is None):
        raise CommandError("give either --row N or --worst N to choose the pairs of the files")
    systems = read_corpus(arguments, [arguments.candidates]).read("candidates")
    if arguments.row is None:
        return systems
    if not 1 <= min(arguments.row) <= max(arguments.row) <= len(systems.references):
        raise CommandError(f"argument --row: {arguments.candidates} has the rows 1 to {len(systems.references)}")
    return systems.select([row - 1 for row in arguments.row])


def _format_pair(pair: dict[str, Any]) -> str:
    head = "" if pair["row"] is None else f"row {pair['row']}\n{output.format_texts(pair)}\n"
    return f"{head}{pair['alignment'] or 'a text has no tokens to match'}\n"


def _draw(alignment: Alignment | None, suffix: str) -> str | bytes:
    if alignment is None:
        raise CommandError("nothing to draw: a text has no tokens")
    if suffix == ".html":
        return alignment.to_html()
    file = BytesIO()
    alignment.plot().savefig(file, format=suffix.removeprefix("."), dpi=_DOTS_PER_INCH)
    return file.getvalue()
