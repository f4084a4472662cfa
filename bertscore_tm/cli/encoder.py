"""The encoder, idf corpus and baseline that a command chooses."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bertscore_tm import catalog
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.files import FORMATS, read_texts
from bertscore_tm.cli.options import EncoderChoice, ScoringChoice
from bertscore_tm.cli.ranks import RankGroup
from bertscore_tm.device.precision import fast_half_precision
from bertscore_tm.encoder import FrozenEncoder, default_device
from bertscore_tm.scoring.rescaling import Baseline, Rescale
from bertscore_tm.utilities.warnings import warn_user

_HASH_EXAMPLE = "roberta-large_L17_no-idf_version=0.3.12(hug_trans=4.57.6)"


def take_hash(choice: ScoringChoice) -> ScoringChoice:
    """Return a choice with the settings of its hash of ``bert-score`` in place of those that are not given.

    The hash may be given as the model too.
    """
    text = choice.hash or choice.encoder.model or ""
    settings = catalog.read_hash(text)
    if choice.hash and not settings:
        # A hash with -custom-rescaled does not contain the table of its baseline, so its scores cannot be reproduced.
        problem = f"argument --hash: {text!r} is not a hash of bert-score, or one with -custom-rescaled"
        raise CommandError(f"{problem}. Give one such as {_HASH_EXAMPLE}")
    if not settings:
        return choice
    choice = replace(
        choice,
        encoder=_take_encoder(choice.encoder, text, settings),
        idf=choice.idf or settings["idf"],
        rescale=choice.rescale or settings["rescale"],
        hash=None,
    )
    problem = f"published scores of {text} may differ from these, which do not use its versions"
    remedy = "Publish the signature of these"
    if choice.idf is True:
        remedy = "If its idf counted other texts than the references, pass them with --idf-from FILE"
    warn_user(f"{problem}. {remedy}")
    return choice


def _take_encoder(encoder: EncoderChoice, text: str, settings: dict[str, Any]) -> EncoderChoice:
    """Return the encoder with the model and layer of a hash, unless they are given."""
    if encoder.model is None or encoder.model == text:
        encoder = replace(encoder, model=settings["model"])
    if encoder.options["num_layers"] is None:
        options = encoder.options.copy()
        options["num_layers"] = settings["num_layers"]
        encoder = replace(encoder, options=options)
    return encoder


def build_encoder(choice: EncoderChoice, *, all_layers: bool = False) -> FrozenEncoder:
    """Return the chosen encoder, of all layers up to ``--num-layers`` if requested.

    The model is loaded on first use.
    """
    catalog.require_no_hash("argument --model", choice.model)
    listed_as = choice.options["listed_as"]
    if listed_as is not None:
        # Check this name before the configuration of the model is read, which may be downloaded.
        catalog.find_listed(listed_as)
    options = choice.options.copy()
    options["all_layers"] = all_layers
    options["device"] = choose_device(choice.device)
    if choice.model is None or choice.language is not None:
        encoder = FrozenEncoder.for_language(choice.language or "en", choice.model, **options)
    else:
        encoder = FrozenEncoder(choice.model, **options)
    # Loading the tokenizer checks --max-length and --long-text.
    _ = encoder.tokenizer
    return encoder


def build_encoders(ranks: RankGroup, choice: EncoderChoice) -> FrozenEncoder:
    """Return this rank's encoder, or raise an error on all ranks if one has another model or precision."""
    encoder = ranks.run_on_all(lambda: build_encoder(choice))

    def describe() -> dict[str, object]:
        precision: object = encoder.dtype
        if precision == "auto":
            # The choice depends on the device, so ranks may differ.
            precision = fast_half_precision(encoder.device)
        return {**encoder.option_fields(), "model": encoder.identity, "precision": precision}

    ranks.require_equal(describe)
    return encoder


def choose_device(device: str | None) -> torch.device:
    """Return the device of this rank: by default a GPU if available, a different one for each rank."""
    try:
        chosen = default_device(device)
        if device is not None:
            # Copy a tensor back, which fails for devices without data, such as "meta".
            torch.empty(0, dtype=torch.uint8, device=chosen).cpu()
    except (RuntimeError, AssertionError, ImportError) as error:
        # torch adds a list of devices, or advice for its developers, after the first sentence.
        cause = str(error).splitlines()[0].partition(". ")[0]
        remedy = f"Remove --device to use {default_device()}"
        raise CommandError(f"argument --device: {device!r} cannot be used here: {cause}. {remedy}") from error
    # Each process of torchrun on a host takes its own GPU. "cuda" would be the first GPU for all of them.
    if str(chosen) == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return chosen


def read_baseline(rescale: bool | str) -> Rescale:
    """Return the table of ``--rescale-from``, or whether ``--rescale`` is given."""
    if isinstance(rescale, bool):
        return rescale
    return Baseline.read(rescale)


def read_idf(idf: bool | str, file_format: str | None) -> bool | list[str]:
    """Return whether ``--idf`` counts the references, or the texts of the file of ``--idf-from``."""
    if isinstance(idf, bool):
        return idf
    suffix = Path(idf.lower().removesuffix(".gz")).suffix
    if suffix.removeprefix(".") in FORMATS:
        # --format may describe only the texts to score, so a known suffix of this file takes precedence.
        file_format = None
    return read_texts(idf, file_format, remedy="Name the column of the texts 'text', which --idf-from reads")
