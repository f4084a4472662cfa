"""Rescaling of scores by a baseline: the expected score of unrelated texts."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from bertscore_tm import catalog
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.encoder.frozen_encoder import join_signature
from bertscore_tm.utilities.option_names import name_option
from bertscore_tm.utilities.user_warnings import warn_user

_HEADER = ["LAYER", "P", "R", "F"]
# At the end of the header of a table that the package writes.
_COMMENT = re.compile(r"# model (?P<model>.*) layers 0-\d+(?: (?P<settings>\S+))?$")


@dataclass(frozen=True, eq=False)
class Baseline:
    """Expected precision, recall and F1 of unrelated texts at the layers of a model.

    Args:
        table: shape (layers, 3), float64; row 0 of a whole table is that of the embedding output.
        name: shown in the signature: a language code for a published table, else the name of a file.
        digest: first 8 hexadecimal digits of the file's SHA-256; empty for a published table.
        model: name of the model, with hashes of its contents, in the header's comment; empty without one.
        settings: settings that change the tokens of a text, in the comment; empty without any.

    Example:
        >>> Baseline.published("en", "roberta-large").table[17].tolist()
        [0.83150584, 0.8314941, 0.83122575]
    """

    table: Tensor
    name: str
    digest: str = ""
    model: str = ""
    settings: str = ""

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
                end of the header, as ``bertscore-tm baseline`` writes it, names the model.

        Returns:
            The baseline.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is malformed.
        """
        content, name = Path(path).read_bytes(), Path(path).name
        # Another encoding has no header of a table.
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
            if len(row) != 4 or row[0] != number:
                raise ValueError(f"baseline table {name}: line {number + 2} must be layer {number} with three values")
        table = torch.tensor(values, dtype=torch.float64, device="cpu").reshape(-1, 4)[:, 1:]
        comment = _COMMENT.search(header[-1])
        measured = {} if comment is None else comment.groupdict(default="")
        return cls(table, name, hashlib.sha256(content).hexdigest()[:8], **measured)

    def to_csv(self) -> str:
        r"""Return the table in the format that :meth:`read` reads.

        The header ends with a comment that names the model, the layers and the settings. ``bert-score`` and
        torchmetrics read the table too: they skip the header, but not a line of comments.

        Returns:
            Header ``LAYER,P,R,F`` and one line per layer from 0, six decimals.

        Example:
            >>> rows = torch.tensor([[0.25, 0.5, 0.3333333]], dtype=torch.float64)
            >>> Baseline(rows, "mine", model="my/model").to_csv()
            'LAYER,P,R,F # model my/model layers 0-0\n0,0.250000,0.500000,0.333333\n'
        """
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        comment = f"# model {self.model} layers 0-{len(self.table) - 1} {self.settings}".rstrip()
        writer.writerow([*_HEADER[:-1], f"{_HEADER[-1]} {comment}"])
        for layer, row in enumerate(self.table.tolist()):
            writer.writerow([layer, *(f"{score:.6f}" for score in row)])
        return table.getvalue()

    def select(self, layers: range) -> Baseline:
        """Return the rows of some layers, which the table must have."""
        if len(self.table) < layers.stop:
            raise ValueError(
                f"the baseline table {self.name} ends at layer {len(self.table) - 1}, but the encoder's layer is "
                f"{layers.stop - 1}: pass the table of the same model"
            )
        table = self.table[layers.start : layers.stop]
        for row, column in (~(table < 1) | table.isinf()).nonzero()[:1].tolist():
            raise ValueError(
                f"the baseline table {self.name} has {table[row, column]} at layer {layers[row]}: mean scores of "
                f"unrelated texts must be numbers below 1; compare another layer, or pass another table"
            )
        return replace(self, table=table)

    def require_model(self, encoder: FrozenEncoder) -> None:
        """Raise an error if the table names another model, or other settings of its tokens, than the encoder's.

        Contents are compared by their hashes. Models of the hub have none, and neither may the encoder's or the
        table's: names are compared then, without the folder or the owner.
        """
        if not self.model:
            return
        # Hashing reads a whole model.
        model = str(encoder.signature_fields(hashed="#" in self.model)["model"])
        (table_name, *table_hashes), (name, *hashes) = self.model.split("#"), model.split("#")
        names = {Path(name.partition("@")[0]).name, Path(encoder.listed_name).name}
        is_same = (
            table_hashes == hashes if table_hashes and hashes else Path(table_name.partition("@")[0]).name in names
        )
        if not is_same:
            raise ValueError(
                f"the baseline table {self.name} was measured on the model {self.model}, but the encoder's is {model}: "
                f"pass the table of the same model, or remove the comment from the table's first line to use it"
            )
        settings = join_signature(encoder.tokenizer.signature_fields()) if self.settings else ""
        if settings != self.settings:
            raise ValueError(
                f"the baseline table {self.name} was measured with {self.settings}, but the encoder has {settings}: "
                f"pass a table made with the encoder's options, or remove the comment from the table's first line"
            )

    def __str__(self) -> str:
        return f"{self.name}#{self.digest}" if self.digest else self.name


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
        return baseline.select(range(layer, layer + 1))
    return baseline.select(range(0 if encoder.all_layers else encoder.num_layers, encoder.num_layers + 1))


def _published_baseline(encoder: FrozenEncoder) -> Baseline:
    if encoder.tokenizer.exclude_special_tokens:
        warn_user(
            f"the published baseline of {encoder.listed_name} includes matches with special tokens, which "
            f"{name_option('exclude_special_tokens', True)} leaves out: pass a table made with the same setting, as by "
            f"bertscore-tm baseline --exclude-special-tokens"
        )
    language = encoder.language
    if language is None:
        languages = catalog.baseline_languages(encoder.listed_name)
        if len(languages) > 1:
            raise ValueError(
                f"{encoder.listed_name} has baselines for several languages ({', '.join(languages)}): name that of the "
                f"texts, as in FrozenEncoder.for_language('en', {encoder.name!r})"
            )
        language = languages[0] if languages else "en"
    return Baseline.published(language, encoder.listed_name)


def rescale_scores(scores: Tensor, baseline: Baseline | None) -> Tensor:
    """Return (x - b) / (1 - b) of precision, recall and F1, shape (3, layers, pairs); unchanged without a baseline."""
    if baseline is None:
        return scores
    b = baseline.table.T.to(scores)[..., None]  # (3, layers, 1)
    return (scores - b) / (1 - b)


def score_range(num_layers: int, baseline: Baseline | None) -> tuple[Tensor, Tensor]:
    """Return the least and the largest possible precision, recall and F1: -1 and 1, rescaled, (3, layers) each."""
    ends = torch.tensor([-1.0, 1.0], dtype=torch.float64, device="cpu").expand(3, num_layers, 2)
    least, largest = rescale_scores(ends, baseline).sort(-1).values.unbind(-1)
    return least, largest
