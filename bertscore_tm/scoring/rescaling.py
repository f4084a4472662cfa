"""Rescaling of scores by a baseline: the expected score of unrelated texts."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from bertscore_tm import catalog
from bertscore_tm.encoder import FrozenEncoder, Signature
from bertscore_tm.encoder.signature import describe_differences
from bertscore_tm.utilities.files import expand_home
from bertscore_tm.utilities.warnings import warn_user

_HEADER = ["LAYER", "P", "R", "F"]
# Fields of the signature with hashes of contents: of the model's files, and of a tokenizer that the user passed.
_HASHES = ("contents", "tokenizer")
# Fields of the signature that change the tokens of every text.
_TOKEN_FIELDS = ("space", "special")
# Fields of the signature that only change the tokens of texts over the length limit.
_LENGTH_FIELDS = ("limit", "long")
# Fields that a table keeps of the signature that it was measured with.
MEASURED_FIELDS = ("model", *_HASHES, "revision", *_TOKEN_FIELDS, *_LENGTH_FIELDS)
# A table's field with the number of tokens of the longest measured text. It is missing if a text was over the limit.
LONGEST = "longest"


@dataclass(frozen=True, eq=False)
class Baseline:
    """Expected precision, recall and F1 of unrelated texts at the layers of a model.

    Args:
        table: shape (layers, 3), float64; row 0 of a whole table is that of the embedding output.
        name: shown in the signature: a language code for a published table, else the name of a file.
        digest: first 8 hexadecimal digits of the file's SHA-256; empty for a published table.
        settings: the model, with hashes of its contents, and the settings that change the tokens of a text, as in the
            signature; and ``longest``, the number of tokens of the longest measured text, unless a text was over the
            length limit. They are in the header's comment; empty without one.

    Example:
        >>> Baseline.published("en", "roberta-large").table[17].tolist()
        [0.83150584, 0.8314941, 0.83122575]
    """

    table: Tensor
    name: str
    digest: str = ""
    settings: Signature = field(default_factory=lambda: Signature({}))

    @classmethod
    def published(cls, language: str, model: str) -> Baseline:
        """Return a table published with ``bert-score``.

        Args:
            language: language code.
            model: name of the model on the hub.

        Returns:
            The baseline.

        Raises:
            ValueError: no table is published for them.
        """
        return cls(catalog.baseline(language, model), language.lower())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Baseline:
        """Read a table from a file.

        Args:
            path: comma-separated file with the header ``LAYER,P,R,F`` and one row per layer from 0. A comment at the
                end of the header may hold the model and its settings as JSON, as ``bertscore-tm baseline`` writes it.

        Returns:
            The baseline.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is malformed.
        """
        file = Path(expand_home(path))
        content = file.read_bytes()
        name = file.name
        # A file in another encoding is reported below, because it does not start with the header.
        lines = content.decode("utf-8-sig", "replace").rstrip().splitlines() or [""]
        header, *rows = csv.reader(lines)
        if [cell.partition("#")[0].strip() for cell in header] != _HEADER:
            raise ValueError(
                f"baseline table {name} must start with the header {','.join(_HEADER)}, as `bertscore-tm baseline` "
                f"writes it"
            )
        try:
            values = [[float(cell) for cell in row] for row in rows]
        except ValueError as error:
            raise ValueError(f"baseline table {name}: {error}") from error
        for number, row in enumerate(values):
            is_row_of_layer = len(row) == 4 and row[0] == number
            if not is_row_of_layer:
                raise ValueError(f"baseline table {name}: line {number + 2} must be layer {number} with three values")
        # Without rows the shape is (0, 4), so that `select` raises the error about a missing layer.
        rows_of_layers = torch.tensor(values, dtype=torch.float64, device="cpu").reshape(-1, 4)  # (layers, 4)
        _, _, comment = header[-1].partition("#")
        return cls(
            table=rows_of_layers[:, 1:],
            name=name,
            digest=hashlib.sha256(content).hexdigest()[:8],
            settings=_read_settings(comment.strip(), name),
        )

    def to_csv(self) -> str:
        r"""Return the table in the format that :meth:`read` reads.

        The header ends with a comment, the settings as JSON. ``bert-score`` and torchmetrics read the table too: they
        skip the header, but not a line of comments.

        Returns:
            Header ``LAYER,P,R,F`` and one line per layer from 0, six decimals.

        Example:
            >>> rows = torch.tensor([[0.25, 0.5, 0.3333333]], dtype=torch.float64)
            >>> print(Baseline(rows, "mine", settings=Signature({"model": "my/model", "limit": 512})).to_csv())
            LAYER,P,R,"F # {""model"": ""my/model"", ""limit"": ""512""}"
            0,0.250000,0.500000,0.333333
            <BLANKLINE>
        """
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        header = list(_HEADER)
        if self.settings:
            header[-1] += f" # {json.dumps(dict(self.settings))}"
        writer.writerow(header)
        for layer, row in enumerate(self.table.tolist()):
            writer.writerow([layer, *(f"{score:.6f}" for score in row)])
        return table.getvalue()

    def select(self, layers: range) -> Baseline:
        """Return the rows of some layers, which the table must have."""
        if len(self.table) < layers.stop:
            raise ValueError(
                f"the baseline table {self.name} ends at layer {len(self.table) - 1}, but the encoder's layer is "
                f"{layers.stop - 1}. Pass the table of the same model"
            )
        # A copy, because the caller may change the table later.
        table = self.table[layers.start : layers.stop].clone()  # (selected layers, 3)
        for layer, row in zip(layers, table.tolist(), strict=True):
            for score in row:
                if not -math.inf < score < 1:  # NaN fails too
                    raise ValueError(
                        f"the baseline table {self.name} has {score} at layer {layer}, but mean scores of unrelated "
                        f"texts must be numbers below 1. Compare another layer, or pass another table"
                    )
        return replace(self, table=table)

    def require_model(self, encoder: FrozenEncoder) -> None:
        """Raise an error if the table names another model, or other settings of its tokens, than the encoder's.

        :meth:`_choose_fields` says which settings are compared. A table without settings fits every encoder.
        """
        if not self.settings:
            return
        if _has_hash(self.settings):
            encoder_settings = encoder.signature()
        else:
            # Leave out the encoder's hashes, because hashing reads a whole model.
            encoder_settings = Signature({"model": encoder.place_name, **encoder.tokenizer.signature_fields()})
        fields = self._choose_fields(encoder, encoder_settings)
        differences = describe_differences(self.settings.select(*fields), encoder_settings.select(*fields))
        if differences:
            raise ValueError(
                f"the baseline table {self.name} was measured with other settings than the encoder's: {differences}. "
                f"Pass a table made with the encoder's model and options, or remove the comment from the table's first "
                f"line to use it"
            )

    def _choose_fields(self, encoder: FrozenEncoder, encoder_settings: Signature) -> list[str]:
        """Return the fields in which the settings of the table and of the encoder must be equal.

        If both have a hash, all hashes must be equal, and names do not matter. Else the names of the models must be
        equal, without folder or owner. Models of the hub have no content hash.
        """
        fields = list(_TOKEN_FIELDS)
        # If the encoder takes each measured text as a whole, these settings changed no measured score.
        if not self._fits_limit(encoder.tokenizer.max_length):
            fields += _LENGTH_FIELDS
        if _has_hash(self.settings) and _has_hash(encoder_settings):
            # A kind of hash that only one of them has counts as a difference. For example, a table measured with the
            # model's own tokenizer has no hash of a tokenizer.
            return [*fields, *_HASHES]
        # A copy of a listed model may use the table of the original.
        accepted_names = {Path(encoder_settings["model"]).name, Path(encoder.listed_name).name}
        name = Path(self.settings.get("model", "")).name
        if name not in accepted_names:
            # The whole names differ too, so that the error shows both.
            fields.append("model")
        return fields

    def _fits_limit(self, limit: int | None) -> bool:
        """Return whether the table states that no measured text is longer than a limit of tokens; None is no limit."""
        longest = self.settings.get(LONGEST, "")
        # Tables of other programs do not state the length.
        if not longest.isdecimal():
            return False
        return limit is None or int(longest) <= limit

    def __str__(self) -> str:
        if self.digest:
            return f"{self.name}#{self.digest}"
        return self.name


def _has_hash(settings: Signature) -> bool:
    """Return whether settings have a hash of the model's files, or of a tokenizer that the user passed."""
    return any(field in settings for field in _HASHES)


def _read_settings(comment: str, name: str) -> Signature:
    """Return the settings in a table's comment, or no settings if the comment is missing or not of this package."""
    if not comment.startswith("{"):
        return Signature({})
    try:
        return Signature(json.loads(comment))
    except ValueError as error:
        raise ValueError(f"baseline table {name}: the comment of its first line is not JSON: {error}") from error


# Whether to rescale by the published baseline of the encoder's language, or by this baseline or file.
Rescale = bool | Baseline | str | os.PathLike[str]


def find_baseline(encoder: FrozenEncoder, rescale: Rescale, layer: int | None = None) -> Baseline | None:
    """Return the rows of the compared layers, or of the compared one; ``None`` without rescaling.

    The encoder's language chooses among the published tables of its model.
    """
    if rescale is False:
        return None
    if rescale is True:
        baseline = _published_baseline(encoder)
    elif isinstance(rescale, Baseline):
        baseline = rescale
    elif isinstance(rescale, str | os.PathLike):
        baseline = Baseline.read(rescale)
    else:
        raise TypeError(f"rescale must be True, False, a Baseline or the path of a table, got {rescale!r}")
    baseline.require_model(encoder)
    if layer is not None:
        layers = range(layer, layer + 1)
    elif encoder.all_layers:
        layers = range(encoder.num_layers + 1)
    else:
        layers = range(encoder.num_layers, encoder.num_layers + 1)
    return baseline.select(layers)


def _published_baseline(encoder: FrozenEncoder) -> Baseline:
    if encoder.tokenizer.exclude_special_tokens:
        warn_user(
            f"the published baseline of {encoder.listed_name} includes matches with special tokens, which "
            f"exclude_special_tokens (--exclude-special-tokens) leaves out. Pass a table made with the same setting by "
            f"bertscore-tm baseline --exclude-special-tokens"
        )
    language = encoder.language
    if language is None:
        languages = catalog.baseline_languages(encoder.listed_name)
        if len(languages) > 1:
            raise ValueError(
                f"{encoder.listed_name} has baselines for several languages ({', '.join(languages)}). Name that of the "
                f"texts, as in FrozenEncoder.for_language('en', {encoder.name!r})"
            )
        # If the model has no table, the error names the most frequent language.
        language = "en"
        if languages:
            language = languages[0]
    return Baseline.published(language, encoder.listed_name)


def rescale_scores(scores: Tensor, baseline: Baseline | None) -> Tensor:
    """Return (x - b) / (1 - b) of precision, recall and F1, shape (3, layers, pairs); unchanged without a baseline."""
    if baseline is None:
        return scores
    # The table has a row per layer, and scores have the layers second.
    b = baseline.table.T.to(scores)[..., None]  # (3, layers, 1)
    return (scores - b) / (1 - b)
