"""The options that several commands share: their arguments in the shell, and the records that commands read."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from bertscore_tm.cli.files import FORMATS
from bertscore_tm.utilities.checks import SCORE_NAMES
from bertscore_tm.utilities.files import expand_home

if TYPE_CHECKING:
    from bertscore_tm.encoder import EncoderOptions

_PRECISIONS = ("float32", "bfloat16", "float16", "float64", "auto")
# Arguments whose values are files to read, if they are strings or lists.
_INPUT_FILES = ("files", "candidates", "references", "sources", "corpus", "idf", "rescale", "baseline_path")
# Defaults of arguments that shared code reads, for commands that do not declare them.
_UNDECLARED = {
    **dict.fromkeys(_INPUT_FILES),
    "idf": False,
    "rescale": False,
    "hash": None,
    "source_column": None,
    "document_column": None,
    "group_column": None,
    "output": None,
    "json": False,
    "report": None,
    "title": None,
}


def set_defaults(parser: argparse.ArgumentParser) -> None:
    """Set the values of the shared arguments for commands that do not declare them."""
    parser.set_defaults(**_UNDECLARED)


def input_files(arguments: argparse.Namespace) -> list[str]:
    """Return the files that a command reads."""
    paths = []
    for name in _INPUT_FILES:
        value = getattr(arguments, name)
        # The values of --idf and --rescale are True or False, while those of --idf-from and --rescale-from are files.
        if isinstance(value, str):
            paths.append(value)
        elif isinstance(value, list):
            paths += value
    return paths


@dataclass(frozen=True)
class EncoderChoice:
    """The model of a command, its language, the device, and the other options of the encoder."""

    model: str | None
    language: str | None
    device: str | None
    options: EncoderOptions

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Self:
        """Return the choice of a command that declares the encoder's arguments."""
        options: EncoderOptions = {
            "num_layers": arguments.num_layers,
            "listed_as": arguments.listed_as,
            "revision": arguments.revision,
            "trust_remote_code": arguments.trust_remote_code,
            "dtype": arguments.dtype,
            "batch_size": arguments.batch_size,
            "max_length": arguments.max_length,
            "long_text": arguments.long_text,
            "prefix_space": arguments.prefix_space,
            "exclude_special_tokens": arguments.exclude_special_tokens,
        }
        return cls(arguments.model, arguments.language, arguments.device, options)


@dataclass(frozen=True)
class ScoringChoice:
    """What changes the scores of a command.

    Args:
        encoder: the encoder.
        idf: whether document frequencies are counted in the references, or the file in whose texts they are counted.
        format: format of the file of ``idf``. ``None`` for that of its suffix.
        rescale: whether scores are rescaled by the published table, or the file of another table.
        strip_thoughts: whether thoughts are removed.
        hash: hash of ``bert-score``, whose settings replace those that are not given. ``None`` for no hash.
    """

    encoder: EncoderChoice
    idf: bool | str
    format: str | None
    rescale: bool | str
    strip_thoughts: bool
    hash: str | None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Self:
        """Return the choice of a command that declares the arguments for scoring."""
        return cls(
            encoder=EncoderChoice.of(arguments),
            idf=arguments.idf,
            format=arguments.format,
            rescale=arguments.rescale,
            strip_thoughts=arguments.strip_thoughts,
            hash=arguments.hash,
        )

    def signature_fields(self) -> dict[str, str | None]:
        """Return the fields that this choice adds to the signature of a score."""
        if self.strip_thoughts:
            return {"thoughts": "stripped"}
        return {"thoughts": None}


def positive(text: str) -> int:
    """Return a whole number of at least 1, as the type of an argument."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text!r}")
    return number


def _proportion(text: str) -> float:
    """Return a number between 0 and 1, as the type of an argument."""
    number = float(text)
    if not 0 < number < 1:
        raise argparse.ArgumentTypeError(f"must be a number between 0 and 1, such as 0.95, got {text!r}")
    return number


def _output_file(path: str) -> str | None:
    """Return the path of an output file, or ``None`` for standard output."""
    # /dev/stdout is not opened, because that would overwrite a log file, to which standard output appends.
    if path in ("-", "/dev/stdout"):
        return None
    return expand_home(path)


def add_file_arguments(
    parser: argparse.ArgumentParser, candidates: str = "texts to score, one per line"
) -> argparse._ArgumentGroup:
    """Declare the arguments for files of candidates and references, and return their group."""
    group = parser.add_argument_group("texts")
    # The files may be given with -c and -r instead, so the parser requires none.
    group.add_argument(
        "files", metavar="FILE", nargs="*", type=expand_home, help="the files of -c and then of -r, in order"
    )
    group.add_argument(
        "-c",
        "--candidates",
        metavar="FILE",
        type=expand_home,
        help=f"{candidates}; - is standard input. Files with columns or keys may also contain the references",
    )
    add_reference_argument(group)
    return group


def add_reference_argument(group: argparse._ArgumentGroup) -> None:
    """Declare the argument for files of references."""
    group.add_argument(
        "-r",
        "--references",
        metavar="FILE",
        nargs="+",
        action="extend",
        type=expand_home,
        help="references of the candidates, line by line. Each further file adds one to every candidate",
    )


def add_source_arguments(group: argparse._ArgumentGroup) -> None:
    """Declare the arguments for the file of the sources and its column."""
    group.add_argument(
        "--sources",
        metavar="FILE",
        type=expand_home,
        help="texts from which the candidates were generated, line by line or joined by a key. May be the file of -c",
    )
    group.add_argument("--source-column", metavar="NAME", help="column or key of the sources (default: source)")


def add_label_arguments(group: argparse._ArgumentGroup) -> None:
    """Declare the arguments for the columns of the documents and of the groups."""
    group.add_argument(
        "--document-column",
        metavar="NAME",
        help="column or key of each text's document, in the first file that has it. Documents are resampled as a whole",
    )
    group.add_argument(
        "--group-column",
        metavar="NAME",
        help="column or key of each text's group, such as its domain, in the first file that has it. Each "
        "group is scored",
    )


def add_scoring_arguments(
    parser: argparse.ArgumentParser,
    candidates: str = "candidate",
    *,
    of_references: bool = True,
    rescale: bool = True,
) -> None:
    """Declare the arguments for file formats and columns, the encoder, idf and rescaling.

    Args:
        parser: the parser of the command.
        candidates: default name of the column of the candidates.
        of_references: whether document frequencies can be counted in the references, besides the texts of a file.
        rescale: whether the command can rescale scores.
    """
    group = parser.add_argument_group("file formats")
    add_format_argument(group)
    group.add_argument(
        "--candidate-column",
        metavar="NAME",
        default=candidates,
        help="column, or without header its number from 1, or JSON key of the candidates (default: %(default)s)",
    )
    group.add_argument(
        "--reference-column",
        metavar="NAME",
        action="append",
        help="column or key of the references, in JSON also an array; repeatable (default: reference or references)",
    )
    group.add_argument(
        "--key",
        metavar="NAME",
        help="column by which rows of several files are joined, or none for their order (default: an id that all have)",
    )
    group.add_argument(
        "--strip-thoughts",
        action="store_true",
        help="remove the <think> block of a reasoning model before a candidate. A block that is cut off leaves no text",
    )
    add_encoder_arguments(parser)
    title = "token weights"
    if rescale:
        title = "token weights and rescaling"
    group = parser.add_argument_group(title)
    # --idf and --idf-from exclude each other, because they set the same value.
    choices = group.add_mutually_exclusive_group()
    if of_references:
        choices.add_argument("--idf", action="store_true", help="weight tokens by their idf in the references")
    add_idf_file_argument(choices)
    if rescale:
        add_rescale_arguments(group)
    if rescale and of_references:
        group.add_argument(
            "--hash",
            metavar="HASH",
            help="take model, layer, idf and rescaling from this hash of bert-score, unless they are given too",
        )


def add_format_argument(group: argparse._ArgumentGroup) -> None:
    """Declare the argument for the format of the files that are read."""
    group.add_argument(
        "--format",
        choices=FORMATS,
        metavar="NAME",
        help=f"format of all files: {', '.join(FORMATS)} (default: by suffix, without .gz; for - txt)",
    )


def add_idf_file_argument(group: argparse._ActionsContainer) -> None:
    """Declare the argument for the file of the texts whose idf weights the tokens."""
    group.add_argument(
        "--idf-from",
        dest="idf",
        default=False,
        metavar="FILE",
        type=expand_home,
        help="weight tokens by their idf in these texts, one per line or in the column text",
    )


def add_rescale_arguments(group: argparse._ArgumentGroup) -> None:
    """Declare the arguments for the baseline, which exclude each other, because they set the same value."""
    choices = group.add_mutually_exclusive_group()
    choices.add_argument(
        "--rescale", action="store_true", help="map the score of unrelated texts to 0, by the published table"
    )
    choices.add_argument(
        "--rescale-from",
        dest="rescale",
        default=False,
        metavar="TABLE",
        type=expand_home,
        help="the same by this table, as of bertscore-tm baseline",
    )


def add_encoder_arguments(parser: argparse.ArgumentParser, *, all_layers: bool = False) -> None:
    """Declare the encoder's arguments. With ``all_layers``, the command uses all layers up to ``--num-layers``."""
    group = parser.add_argument_group("encoder")
    group.add_argument("-m", "--model", metavar="NAME", help="hub model or local folder (default: by --language)")
    group.add_argument(
        "--language", "--lang", metavar="CODE", help="language of the texts: model and baseline (default: en)"
    )
    layers_help = "layer whose token vectors are compared: 0 is the embeddings, -1 the last (default: the tuned layer)"
    if all_layers:
        layers_help = "use the layers from 0, the embeddings, to L (default: all)"
    group.add_argument("-l", "--num-layers", metavar="L", type=int, help=layers_help)
    group.add_argument(
        "--listed-as", metavar="NAME", help="listed model whose layer and baseline a copy or fine-tuned model uses"
    )
    group.add_argument("--revision", help="revision of a hub model")
    group.add_argument("--trust-remote-code", action="store_true", help="run code from the model's repository")
    group.add_argument(
        "--dtype",
        metavar="NAME",
        choices=_PRECISIONS,
        default="float32",
        help=f"precision of the encoder: {', '.join(_PRECISIONS)} (default: %(default)s)",
    )
    group.add_argument(
        "--device", help="device that encodes, such as cpu or cuda:1 (default: a GPU, cuda or mps, if available)"
    )
    group.add_argument("-b", "--batch-size", metavar="N", type=int, help="maximum number of texts per forward pass")
    group.add_argument(
        "--max-length",
        metavar="N",
        type=int,
        help="maximum number of tokens per text, special tokens included (default: the model's maximum)",
    )
    group.add_argument(
        "--long-text",
        choices=("truncate", "window", "error"),
        default="truncate",
        help="truncate longer texts, encode them in overlapping windows, or stop (default: %(default)s)",
    )
    group.add_argument(
        "--prefix-space",
        action=argparse.BooleanOptionalAction,
        help="put a space before each text (default: as the model's family needs it)",
    )
    group.add_argument(
        "--exclude-special-tokens",
        action="store_true",
        help="leave the special tokens around a text, such as cls and sep, out of the matching",
    )


def add_component_argument(group: argparse._ArgumentGroup, use: str) -> None:
    """Declare the argument for precision, recall or F1. The help starts with ``use``."""
    group.add_argument("--component", choices=SCORE_NAMES, default="f1", help=f"{use} (default: %(default)s)")


def add_confidence_argument(group: argparse._ArgumentGroup, default: float | None = 0.95) -> None:
    """Declare the argument for the coverage of intervals. Without a default, intervals are optional."""
    described = "coverage of the intervals (default: %(default)s)"
    if default is None:
        described = "also print Student's t intervals of the means with this coverage, such as 0.95"
    group.add_argument("--confidence", type=_proportion, metavar="X", default=default, help=described)


def add_output_arguments(parser: argparse.ArgumentParser, suffixes: Sequence[str]) -> argparse._ArgumentGroup:
    """Declare the arguments for the output, a file with one of these suffixes, and return their group.

    A command with a single suffix always writes a file, and prints a summary.
    """
    group = add_output_argument(parser, suffixes)
    group.add_argument("--json", action="store_true", help="print one JSON document")
    return group


def add_output_argument(parser: argparse.ArgumentParser, suffixes: Sequence[str]) -> argparse._ArgumentGroup:
    """Declare only the argument for the output file, for a command that prints no summary, and return its group."""
    # choose_output reads the suffixes before the command runs.
    parser.set_defaults(suffixes=suffixes)
    is_always_file = len(suffixes) == 1
    as_path = _output_file
    if is_always_file:
        # Do not accept standard output, because the summary is printed there.
        as_path = expand_home
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        required=is_always_file,
        type=as_path,
        help=f"write the output to this file, in the format of its suffix: {', '.join(suffixes)}",
    )
    return group


def add_report_argument(group: argparse._ArgumentGroup) -> None:
    """Declare the argument for the web page."""
    group.add_argument(
        "--report",
        metavar="FILE",
        type=expand_home,
        help="also write a web page of all pairs, their scores and token matches to this .html file",
    )
    add_title_argument(group)


def add_title_argument(group: argparse._ArgumentGroup) -> None:
    """Declare the argument for the heading of a web page."""
    group.add_argument("--title", metavar="TEXT", help="heading of the page (default: the names of the systems)")
