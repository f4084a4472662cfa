"""Metrics: small batches and kinds of metrics, with the scores of the function."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import SCORE_NAMES, bert_score
from tests.support.texts import real_pairs, several_references

TOLERANCE = 1e-6
LAYERS = 2
VOCABULARY = 30522
COUNT = 10
FIRST = (["a cat sat on the mat", "good morning"], ["the cat sat on a mat", "hello there"])
SECOND = (["it rains in Paris"], ["rain falls on the capital of France"])
THIRD = (["the train was late", "nobody came"], [["the train came late", "a delayed train"], ["no one showed up"]])
# Weights that no corpus gives, of frequent tokens and special ones. Other tokens have the default, because a mapping of
# all ids takes a quarter of a second to read.
MAPPING = defaultdict(partial(float, 2.5), {token: (token * 37 % 11) / 4 for token in range(4000)})
# What a metric holds when it is handed over, and its batches after that; some of it comes twice.
HELD = [0, 1]
BATCHES = [[2, 3, 4], [5], [7, 6], [9, 8, 4]]


class Kind:
    """A kind of metric: its encoder, its arguments, and the form of its data."""

    def __init__(
        self,
        *,
        layer: int = LAYERS,
        # The layers of an encoder of all layers from which one is picked.
        picked_from: int | None = None,
        all_layers: bool = False,
        many_references: bool = False,
        indexed: bool = False,
        **options: Any,
    ) -> None:
        self.layer = layer
        self.picked_from = picked_from
        self.all_layers = all_layers
        self.many_references = many_references
        self.indexed = indexed
        self.options = options

    def counted(self, numbers: Iterable[int]) -> list[int]:
        """The pairs that count, in the order of the result."""
        if self.indexed:
            return sorted(set(numbers))
        return list(numbers)


# The corpus and the baseline's table, ``...``, are the workshop's.
KINDS = {
    "plain": Kind(),
    "idf": Kind(idf=True),
    "several references, idf, per pair": Kind(many_references=True, idf=True, reduction="none"),
    "all layers, per pair, idf": Kind(all_layers=True, reduction="none", idf=True),
    "recall, all layers": Kind(component="recall", all_layers=True),
    "precision per pair, given weights": Kind(component="precision", reduction="none", idf=MAPPING),
    "idf, indices": Kind(idf=True, indexed=True),
    "rescaled, per pair, several": Kind(rescale=..., reduction="none", many_references=True),
    "rescaled, all layers, f1": Kind(rescale=..., all_layers=True, component="f1"),
    "indices": Kind(indexed=True),
    "indices, per pair, idf of a corpus": Kind(indexed=True, reduction="none", idf=...),
    "picked layer, idf, f1": Kind(layer=3, picked_from=4, idf=True, component="f1"),
    "picked layer, rescaled": Kind(layer=3, picked_from=4, rescale=...),
}
every_kind = pytest.mark.parametrize("name", KINDS)


class Workshop:
    """Makes metrics of every kind, with the expected results."""

    def __init__(self, model: str, table: str) -> None:
        self.model, self.table = model, table
        # Real texts, cut short, as they are encoded many times.
        self.preds, self.target = real_pairs(COUNT, words=9)
        self.corpus = [*self.target[3:], *self.target[5:8], *self.preds[:4]]
        self._encoders: dict[Any, FrozenEncoder] = {}

    def texts(self, kind: Kind, numbers: Sequence[int]) -> tuple[list[str], list[Any]]:
        """Candidates and references."""
        target: list[Any] = self.target
        if kind.many_references:
            target = several_references(self.target)
        return [self.preds[i] for i in numbers], [target[i] for i in numbers]

    def batch(self, kind: Kind, numbers: Sequence[int]) -> tuple[Any, ...]:
        """The arguments of update."""
        preds, target = self.texts(kind, numbers)
        if kind.indexed:
            return preds, target, torch.tensor(numbers)
        return preds, target

    def encoder(self, layers: int, all_layers: bool) -> FrozenEncoder:
        """An encoder of some layers, which is made once."""
        if (layers, all_layers) not in self._encoders:
            self._encoders[layers, all_layers] = FrozenEncoder(self.model, num_layers=layers, all_layers=all_layers)
        return self._encoders[layers, all_layers]

    def options(self, kind: Kind) -> dict[str, Any]:
        """The arguments of the metric."""
        options = dict(kind.options)
        for name, own in (("rescale", self.table), ("idf", self.corpus)):
            if options.get(name) is ...:
                options[name] = own
        return options

    def metric(self, kind: Kind, **kwargs: Any) -> BERTScore:
        """A metric that has seen nothing."""
        encoder = self.encoder(kind.layer, kind.all_layers)
        if kind.picked_from is not None:
            kwargs["layer"] = kind.layer
            encoder = self.encoder(kind.picked_from, all_layers=True)
        return BERTScore(encoder, **self.options(kind), **kwargs)

    def scores(self, kind: Kind, numbers: Sequence[int]) -> Tensor:
        """Scores of pairs by the function: shape (3, [layers,] pairs)."""
        options = {name: value for name, value in self.options(kind).items() if name in ("idf", "rescale")}
        result = bert_score(*self.texts(kind, numbers), self.encoder(kind.layer, kind.all_layers), **options)
        return torch.stack([result[name] for name in SCORE_NAMES])

    def check(self, result: Any, kind: Kind, numbers: Iterable[int]) -> None:
        """Make sure that a result of the metric is what the function makes of these pairs."""
        scores = self.scores(kind, kind.counted(numbers))
        if kind.options.get("reduction") != "none":
            scores = scores.double().mean(-1).float()
        wanted = dict(zip(SCORE_NAMES, scores, strict=True))
        if "component" in kind.options:
            assert_close(result, wanted[kind.options["component"]])
            return
        assert list(result) == [*SCORE_NAMES]
        for name in SCORE_NAMES:
            assert_close(result[name], wanted[name])


def assert_close(score: Tensor, wanted: Tensor) -> None:
    """Compare a score of a metric, which is in float32 and without a gradient."""
    assert score.dtype == torch.float32
    assert score.shape == wanted.shape
    assert score.requires_grad == BERTScore.is_differentiable
    torch.testing.assert_close(score, wanted.float(), rtol=0, atol=TOLERANCE)


def assert_equal(results: Any, expected: Any, tolerance: float = TOLERANCE) -> None:
    """Compare scores by their names, or lists of them."""
    torch.testing.assert_close(results, expected, rtol=0, atol=tolerance)


def mean(scores: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the means of scores of pairs."""
    return {name: value.double().mean(-1).float() for name, value in scores.items()}


def updated(metric: BERTScore, *batches: tuple) -> BERTScore:
    """Return a metric after updates with batches."""
    for batch in batches:
        metric.update(*batch)
    return metric


def per_pair(encoder: FrozenEncoder, *batches: tuple, **settings) -> dict[str, Tensor]:
    """The function's scores of all batches together."""
    preds = list(chain.from_iterable(batch[0] for batch in batches))
    target = []
    for texts in chain.from_iterable(batch[1] for batch in batches):
        target.append([texts] if isinstance(texts, str) else texts)
    return bert_score(preds, target, encoder, **settings)
