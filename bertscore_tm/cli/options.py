"""Arguments that several commands share, and the encoder, idf corpus and baseline that they describe."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli.errors import CommandError, replace_arguments_with_options
from bertscore_tm.cli.inputs import read_texts

if TYPE_CHECKING:
    from bertscore_tm.encoder import FrozenEncoder
    from bertscore_tm.scoring.rescaling import LayerBaseline

__all__ = [
    "add_component_argument",
    "add_confidence_argument",
    "add_encoder_arguments",
    "add_idf_arguments",
    "add_rescale_arguments",
    "build_encoder",
    "find_baseline",
    "idf_file",
    "integer_of_at_least",
    "read_idf_texts",
]


def integer_of_at_least(minimum: int) -> Callable[[str], int]:
    """Return an argument type for integers with a lower bound.

    Args:
        minimum: the smallest allowed value.

    Returns:
        A function that parses an argument.

    Example:
        >>> integer_of_at_least(1)("7")
        7
    """

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError(f"must be an integer of at least {minimum}, got {text!r}")
        return value

    return parse


def add_encoder_arguments(parser: argparse.ArgumentParser, *, all_layers: bool = False) -> None:
    """Declare the encoder's arguments.

    Args:
        parser: the command's parser.
        all_layers: whether the command uses all layers.
    """
    group = parser.add_argument_group("encoder")
    group.add_argument("-m", "--model", metavar="NAME", help="hub model or local folder (default: by --language)")
    group.add_argument(
        "--language", metavar="CODE", help="language of the texts; selects model and baseline (default: en)"
    )
    group.add_argument(
        "-l",
        "--num-layers",
        type=int,
        metavar="L",
        help="use the layers from 0, the embeddings, to L (default: all)"
        if all_layers
        else "layer whose token vectors are compared; 0 is the embeddings, -1 the last (default: the tuned layer)",
    )
    group.add_argument("--revision", help="revision of a hub model")
    group.add_argument("--trust-remote-code", action="store_true", help="run code from the model's repository")
    group.add_argument(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16", "float16", "float64", "auto"),
        help="precision of the encoder (default: %(default)s)",
    )
    group.add_argument("--device", help="device, such as cpu or cuda:1 (default: a GPU, cuda or mps, if available)")
    group.add_argument("-b", "--batch-size", type=int, metavar="N", help="maximum number of texts per forward pass")
    group.add_argument(
        "--max-length", type=int, metavar="N", help="maximum number of tokens per text (default: the model's maximum)"
    )
    group.add_argument(
        "--long-text",
        default="truncate",
        choices=("truncate", "window", "error"),
        help="truncate longer texts, encode them in overlapping windows, or stop with an error (default: %(default)s)",
    )
    group.add_argument(
        "--stride", type=int, metavar="N", help="tokens from one window to the next (default: half a window)"
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


def add_idf_arguments(parser: argparse.ArgumentParser, *, references: bool = True) -> None:
    """Declare the arguments for idf token weights.

    Args:
        parser: the command's parser.
        references: whether the command has a corpus of references to compute the idf from.
    """
    group = parser.add_argument_group("token weights")
    optional: dict[str, Any] = {"nargs": "?", "const": True} if references else {}
    group.add_argument(
        "--idf",
        default=False,
        metavar="FILE",
        help=f"weight tokens by their idf in {'the references or, with a file, in ' if references else ''}these texts, "
        f"one per line (in TSV and JSON lines the column text)",
        **optional,
    )


def add_rescale_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments for rescaling."""
    group = parser.add_argument_group("rescaling")
    group.add_argument(
        "--rescale",
        nargs="?",
        const=True,
        default=False,
        metavar="TABLE",
        help="map the expected score of unrelated texts to 0, by the published baseline or this table (see "
        "bertscore-tm baseline)",
    )


def add_component_argument(group: argparse._ArgumentGroup, use: str = "the score") -> None:
    """Declare the argument for precision, recall or F1, and what it is used for."""
    group.add_argument(
        "--component",
        choices=("precision", "recall", "f1"),
        default="f1",
        help=f"{use}: precision, recall or f1 (default: %(default)s)",
    )


def add_confidence_argument(group: argparse._ArgumentGroup, default: float | None = 0.95) -> None:
    """Declare the argument for intervals, which are left out without a default."""
    described = "coverage of the intervals (default: %(default)s)"
    if default is None:
        described = "also print Student's t intervals of the means with this coverage, such as 0.95"
    group.add_argument("--confidence", type=_proportion, metavar="X", default=default, help=described)


def build_encoder(arguments: argparse.Namespace, *, all_layers: bool = False) -> FrozenEncoder:
    """Return the encoder that the arguments describe.

    Args:
        arguments: the parsed arguments of :func:`add_encoder_arguments`.
        all_layers: return the outputs of all layers up to ``--num-layers``.

    Returns:
        The encoder. The model is loaded on first use.

    Raises:
        CommandError: the model or an option is not supported.
        OSError: the model cannot be loaded.
    """
    from bertscore_tm.encoder import FrozenEncoder

    try:
        options: dict[str, Any] = {
            "num_layers": arguments.num_layers,
            "all_layers": all_layers,
            "dtype": arguments.dtype,
            "revision": arguments.revision,
            "trust_remote_code": arguments.trust_remote_code,
            "max_length": arguments.max_length,
            "batch_size": arguments.batch_size,
            "long_text": arguments.long_text,
            "stride": arguments.stride,
            "prefix_space": arguments.prefix_space,
            "exclude_special_tokens": arguments.exclude_special_tokens,
            "device": arguments.device,
        }
        if arguments.model is None or arguments.language is not None:
            encoder = FrozenEncoder.for_language(arguments.language or "en", arguments.model, **options)
        else:
            encoder = FrozenEncoder(arguments.model, **options)
        # Loading the tokenizer checks --max-length, --long-text and --stride.
        _ = encoder.tokenizer
    except ValueError as error:
        raise CommandError(replace_arguments_with_options(str(error))) from error
    return encoder


def idf_file(arguments: argparse.Namespace) -> str | None:
    """Return the file of texts that give the idf, if there is one.

    Args:
        arguments: the parsed arguments of :func:`add_idf_arguments`.
    """
    return None if isinstance(arguments.idf, bool) else str(arguments.idf)


def read_idf_texts(arguments: argparse.Namespace) -> list[str] | None:
    """Read the texts whose document frequencies give the idf.

    Args:
        arguments: the parsed arguments of :func:`add_idf_arguments`.

    Returns:
        The texts of the file of ``--idf``, or ``None`` without a file.

    Raises:
        CommandError: the file cannot be read.
    """
    path = idf_file(arguments)
    return None if path is None else read_texts(path)


def find_baseline(encoder: FrozenEncoder, arguments: argparse.Namespace) -> LayerBaseline | None:
    """Return the baseline to rescale with.

    Args:
        encoder: the encoder.
        arguments: the parsed arguments of :func:`add_encoder_arguments` and :func:`add_rescale_arguments`.

    Returns:
        The baseline of the encoder's layers, or ``None`` without rescaling.

    Raises:
        CommandError: the file cannot be read, is malformed or has no row for the encoder's layer.
        ValueError: no table is published for the language and model.
    """
    from bertscore_tm.scoring import rescaling

    try:
        return rescaling.find_baseline(encoder, arguments.rescale)
    except OSError as error:
        raise CommandError(f"{arguments.rescale}: {error.strerror or error}") from error
    except ValueError as error:
        if arguments.rescale is True:
            raise
        raise CommandError(f"{arguments.rescale}: {error}") from error


def _proportion(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must be a number between 0 and 1, such as 0.95, got {text!r}")
    return value
