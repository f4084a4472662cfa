"""Arguments that several commands share, and the encoder, idf corpus and baseline that they describe."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, get_args

from bertscore_tm.cli.distributed import choose_device
from bertscore_tm.cli.inputs import FORMATS, read_texts
from bertscore_tm.encoder_options import SHELL_OPTIONS, Option
from bertscore_tm.utilities.score_names import SCORES

if TYPE_CHECKING:
    from bertscore_tm.encoder import FrozenEncoder


def _proportion(text: str) -> float:
    """Return a number between 0 and 1, as the type of an argument."""
    if not 0 < float(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number between 0 and 1, such as 0.95, got {text!r}")
    return float(text)


def add_file_arguments(
    parser: argparse.ArgumentParser, candidates: str = "texts to score, one per line", *, in_order: bool = True
) -> argparse._ArgumentGroup:
    """Declare the arguments for files of candidates and references, and return their group."""
    group = parser.add_argument_group("texts")
    if in_order:
        group.add_argument("files", metavar="FILE", nargs="*", help="the files of -c and then of -r, in order")
    help = f"{candidates}; - is standard input; files with columns or keys may also contain the references"
    group.add_argument("-c", "--candidates", metavar="FILE", help=help)
    add_reference_argument(group)
    return group


def add_reference_argument(group: argparse._ArgumentGroup) -> None:
    """Declare the argument for files of references."""
    help = "references of the candidates, line by line; each further file adds one to every candidate"
    group.add_argument("-r", "--references", metavar="FILE", nargs="+", action="extend", help=help)


def take_files(arguments: argparse.Namespace) -> list[str | None]:
    """Take files that were given in order for candidates and references, and return all files that are read."""
    files = list(arguments.files)
    if arguments.candidates is None and files:
        arguments.candidates = files.pop(0)
    if files:
        arguments.references = [*files, *(arguments.references or ())]
    return [arguments.candidates, *(arguments.references or ()), arguments.idf]


def add_document_argument(group: argparse._ArgumentGroup) -> None:
    """Declare the argument for the column of the documents."""
    help = "column or key of each text's document, in the first file with columns, to resample whole documents"
    group.add_argument("--document-column", metavar="NAME", help=help)


def add_scoring_arguments(
    parser: argparse.ArgumentParser,
    candidates: str = "candidate",
    *,
    all_layers: bool = False,
    of_references: bool = True,
    rescale: bool = True,
) -> None:
    """Declare the arguments for file formats and columns, the encoder, idf and rescaling.

    ``candidates`` is the column of the candidates; without ``of_references`` only the texts of a file give the idf.
    """
    add = parser.add_argument_group("file formats").add_argument
    add("--format", choices=FORMATS, help="format of all files (default: by suffix; txt for standard input)")
    help = "column, or without header its number from 1, or JSON key of the candidates (default: %(default)s)"
    add("--candidate-column", metavar="NAME", default=candidates, help=help)
    help = "column or key of the references, in JSON also an array; repeatable (default: reference or references)"
    add("--reference-column", metavar="NAME", action="append", help=help)
    add_encoder_arguments(parser, all_layers=all_layers)
    group = parser.add_argument_group("token weights and rescaling" if rescale else "token weights")
    optional: dict[str, Any] = {"nargs": "?", "const": True} if of_references else {}
    corpus = "the references or, with a file, in these texts" if of_references else "these texts"
    help = f"weight tokens by their idf in {corpus}, one per line or in the column text"
    group.add_argument("--idf", default=False, metavar="FILE", help=help, **optional)
    if rescale:
        add_rescale_argument(group)


def add_rescale_argument(group: argparse._ArgumentGroup) -> None:
    """Declare the argument for the baseline."""
    help = "map the score of unrelated texts to 0, by the published table or this one of bertscore-tm baseline"
    group.add_argument("--rescale", nargs="?", const=True, default=False, metavar="TABLE", help=help)


def add_encoder_arguments(parser: argparse.ArgumentParser, *, all_layers: bool = False) -> None:
    """Declare the encoder's arguments."""
    add = parser.add_argument_group("encoder").add_argument
    add("-m", "--model", metavar="NAME", help="hub model or local folder (default: by --language)")
    add("--language", "--lang", metavar="CODE", help="language of the texts: model and baseline (default: en)")
    for name, (kind, option) in SHELL_OPTIONS.items():
        default = option.default_help or ("%(default)s" if option.default else "")
        help = f"{option.help} (default: {default})" if default else option.help
        if all_layers and name == "num_layers":
            help = "use the layers from 0, the embeddings, to L (default: all)"
        names = [option.flag] if option.flag else []
        add(*names, f"--{name.replace('_', '-')}", help=help, **_describe_values(kind, option))


def _describe_values(kind: Any, option: Option) -> dict[str, Any]:
    """Return what argparse needs to read the values of an option of the encoder, whose type it is given."""
    if kind is bool:
        return {"action": "store_true"}
    if kind == bool | None:
        return {"action": argparse.BooleanOptionalAction}
    type = int if int in get_args(kind) else str
    return {"type": type, "default": option.default, "metavar": option.metavar, "choices": option.choices}


def add_component_argument(group: argparse._ArgumentGroup, use: str) -> None:
    """Declare the argument for precision, recall or F1, and what it is used for."""
    group.add_argument("--component", choices=SCORES, default="f1", help=f"{use} (default: %(default)s)")


def add_confidence_argument(group: argparse._ArgumentGroup, default: float | None = 0.95) -> None:
    """Declare the argument for intervals, which are left out without a default."""
    described = "coverage of the intervals (default: %(default)s)"
    if default is None:
        described = "also print Student's t intervals of the means with this coverage, such as 0.95"
    group.add_argument("--confidence", type=_proportion, metavar="X", default=default, help=described)


def build_encoder(arguments: argparse.Namespace, *, all_layers: bool = False) -> FrozenEncoder:
    """Return the encoder that the arguments describe, of all layers up to ``--num-layers`` if requested.

    The model is loaded on first use.
    """
    from bertscore_tm.encoder import FrozenEncoder

    options = {name: getattr(arguments, name) for name in SHELL_OPTIONS}
    options |= {"all_layers": all_layers, "device": choose_device(arguments.device)}
    if arguments.model is None or arguments.language is not None:
        encoder = FrozenEncoder.for_language(arguments.language or "en", arguments.model, **options)
    else:
        encoder = FrozenEncoder(arguments.model, **options)
    # Loading the tokenizer checks --max-length and --long-text.
    _ = encoder.tokenizer
    return encoder


def read_idf(arguments: argparse.Namespace) -> bool | list[str]:
    """Return the value of ``--idf``; the texts of a file, if it is one."""
    return arguments.idf if isinstance(arguments.idf, bool) else read_texts(arguments.idf)
