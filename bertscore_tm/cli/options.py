"""Arguments that several commands share, and what they make: the encoder, the weights' corpus, the baseline."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bertscore_tm.cli.errors import CommandError, in_options
from bertscore_tm.cli.inputs import read_texts

if TYPE_CHECKING:
    from bertscore_tm.encoder import FrozenEncoder
    from bertscore_tm.scoring.rescaling import LayerBaseline

__all__ = [
    "add_encoder_arguments",
    "add_idf_arguments",
    "add_rescale_arguments",
    "build_encoder",
    "find_baseline",
    "read_idf_texts",
]


def add_encoder_arguments(parser: argparse.ArgumentParser, *, all_layers: bool = False) -> None:
    """Declare which encoder to use and how.

    Args:
        parser: the command's parser.
        all_layers: whether the command looks at all layers.
    """
    group = parser.add_argument_group("encoder")
    group.add_argument("-m", "--model", metavar="NAME", help="model on the hub, or local folder (default: by --lang)")
    group.add_argument(
        "--lang", default="en", help="language of the texts: chooses model and baseline (default: %(default)s)"
    )
    group.add_argument(
        "-l",
        "--num-layers",
        type=int,
        metavar="L",
        help="look at the layers from 0, the embeddings, to L (default: all)"
        if all_layers
        else "layer whose vectors are compared; 0 is the embeddings, -1 the last (default: the model's tuned layer)",
    )
    group.add_argument("--revision", help="revision of a hub model")
    group.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the model")
    group.add_argument(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16", "float16", "float64", "auto"),
        help="precision of the encoder (default: %(default)s)",
    )
    group.add_argument("--device", help="where to compute, such as cpu or cuda:1 (default: a GPU where there is one)")
    group.add_argument("-b", "--batch-size", type=int, metavar="N", help="largest number of texts per forward pass")
    group.add_argument(
        "--max-length", type=int, metavar="N", help="largest number of tokens per text (default: what the model takes)"
    )
    group.add_argument(
        "--long-text",
        default="truncate",
        choices=("truncate", "window", "error"),
        help="what becomes of longer texts: cut, encoded in overlapping windows, or refused (default: %(default)s)",
    )
    group.add_argument("--stride", type=int, metavar="N", help="tokens from one window to the next (default: half one)")


def add_idf_arguments(parser: argparse.ArgumentParser, *, references: bool = True) -> None:
    """Declare how tokens are weighted.

    Args:
        parser: the command's parser.
        references: whether there are enough references to take the idf from.
    """
    group = parser.add_argument_group("weights")
    if references:
        group.add_argument("--idf", action="store_true", help="weight tokens by their idf in the references")
    group.add_argument(
        "--idf-file",
        metavar="FILE",
        help="weight tokens by their idf in these texts, one per line (in TSV and JSON lines: text)",
    )


def add_rescale_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare whether scores are rescaled.

    Args:
        parser: the command's parser.
    """
    group = parser.add_argument_group("rescaling")
    group.add_argument(
        "--rescale", action="store_true", help="map the expected score of unrelated texts to 0, by a published baseline"
    )
    group.add_argument("--baseline", metavar="FILE", help="rescale by a table of your own (see bertscore-tm baseline)")


def build_encoder(arguments: argparse.Namespace, *, all_layers: bool = False) -> FrozenEncoder:
    """Make the encoder that :func:`add_encoder_arguments` describes.

    Args:
        arguments: the parsed arguments.
        all_layers: give the outputs of all layers up to ``--num-layers``.

    Returns:
        The encoder; its weights are loaded when it is first used.

    Raises:
        CommandError: the model or a setting is not supported.
        OSError: the model cannot be loaded.
    """
    from bertscore_tm.encoder import make_encoder

    try:
        encoder = make_encoder(
            arguments.model,
            lang=arguments.lang,
            num_layers=arguments.num_layers,
            all_layers=all_layers,
            dtype=arguments.dtype,
            revision=arguments.revision,
            trust_remote_code=arguments.trust_remote_code,
            max_length=arguments.max_length,
            batch_size=arguments.batch_size,
            long_text=arguments.long_text,
            stride=arguments.stride,
        )
        # Made on first use otherwise; it checks the options about lengths.
        _ = encoder.tokenizer
    except ValueError as error:
        raise CommandError(in_options(str(error))) from error
    return encoder


def read_idf_texts(arguments: argparse.Namespace) -> list[str] | None:
    """Read the texts that idf is taken from.

    Args:
        arguments: the parsed arguments of :func:`add_idf_arguments`.

    Returns:
        The texts of ``--idf-file``, ``None`` without it.

    Raises:
        CommandError: the file cannot be read.
    """
    return None if arguments.idf_file is None else read_texts(arguments.idf_file)


def find_baseline(encoder: FrozenEncoder, arguments: argparse.Namespace) -> LayerBaseline | None:
    """Return the baseline that the arguments of :func:`add_rescale_arguments` select.

    Args:
        encoder: the encoder.
        arguments: the parsed arguments, with those of :func:`add_encoder_arguments`.

    Returns:
        The baseline of the encoder's layers, or ``None`` without rescaling.

    Raises:
        CommandError: the file cannot be read, is malformed or has no row for the encoder's layer.
        ValueError: there is no published table for the language and model.
    """
    from bertscore_tm.scoring import rescaling

    rescale = arguments.rescale or arguments.baseline is not None
    try:
        return rescaling.find_baseline(encoder, arguments.lang, rescale, arguments.baseline)
    except OSError as error:
        raise CommandError(f"{arguments.baseline}: {error.strerror or error}") from error
    except ValueError as error:
        if arguments.baseline is None:
            raise
        raise CommandError(f"{arguments.baseline}: {error}") from error
