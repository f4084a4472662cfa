"""The encoder, idf corpus and baseline that a command chooses."""

import os
from dataclasses import replace

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
    model = choice.encoder.model
    text = choice.hash or model or ""
    settings = catalog.read_hash(text)
    if choice.hash and not settings:
        raise CommandError(
            f"argument --hash: not one of bert-score (-custom-rescaled needs its table), got {text!r}. A valid one is "
            f"{_HASH_EXAMPLE!r}"
        )
    if not settings:
        return choice
    encoder = choice.encoder
    if model is None or model == text:
        encoder = replace(encoder, model=settings["model"])
    if encoder.options["num_layers"] is None:
        options = encoder.options.copy()
        options["num_layers"] = settings["num_layers"]
        encoder = replace(encoder, options=options)
    choice = replace(
        choice,
        encoder=encoder,
        idf=choice.idf or settings["idf"],
        rescale=choice.rescale or settings["rescale"],
        hash=None,
    )
    corpus = ""
    if choice.idf is True:
        corpus = ", nor perhaps the texts of its idf (--idf-from)"
    warn_user(f"{text}: published scores may differ from these, which do not use its versions{corpus}")
    return choice


def build_encoder(choice: EncoderChoice, *, all_layers: bool = False) -> FrozenEncoder:
    """Return the chosen encoder, of all layers up to ``--num-layers`` if requested.

    The model is loaded on first use.
    """
    catalog.require_no_hash("argument --model", choice.model)
    listed_as = choice.options["listed_as"]
    if listed_as is not None:
        # Before the configuration of the model, which may be downloaded.
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
        precision = fast_half_precision(encoder.device) if encoder.dtype == "auto" else encoder.dtype
        return {**encoder.option_fields(), "model": encoder.identity, "precision": precision}

    ranks.require_equal(describe)
    return encoder


def choose_device(device: str | None) -> torch.device:
    """Return the device of this rank: by default a GPU if available, a different one for each rank."""
    try:
        chosen = default_device(device)
        if device is not None:
            # Its numbers must be readable, as those of "meta" are not.
            torch.empty(0, dtype=torch.uint8, device=chosen).cpu()
    except (RuntimeError, AssertionError, ImportError) as error:
        cause = str(error).splitlines()[0].partition(". ")[0]
        remedy = f"without --device, {default_device()} is used"
        raise CommandError(f"argument --device: {device!r} cannot be used here: {cause}; {remedy}") from error
    if str(chosen) == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return chosen


def read_baseline(rescale: bool | str) -> Rescale:
    """Return the table of ``--rescale-from``, or whether ``--rescale`` is given."""
    return rescale if isinstance(rescale, bool) else Baseline.read(rescale)


def read_idf(idf: bool | str, file_format: str | None) -> bool | list[str]:
    """Return whether ``--idf`` counts the references, or the texts of the file of ``--idf-from``."""
    if isinstance(idf, bool):
        return idf
    is_known = idf.lower().removesuffix(".gz").endswith(tuple(f".{name}" for name in FORMATS))
    remedy = "Name the column of the texts 'text', which --idf-from reads"
    return read_texts(idf, None if is_known else file_format, remedy=remedy)
