"""Metrics on 2 and 3 ranks: each rank computes the score of all texts, which bert-score computes in one process."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics import MetricCollection

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.compat import torchmetrics as drop_in
from bertscore_tm.functional import SCORE_NAMES
from tests.support.lightning_runs import strategy_on_cpu, trainer
from tests.support.logged_metrics import LOGGED, VALIDATED, Logging, key_at_end_of_epoch
from tests.support.metrics import LAYERS, Kind, Workshop
from tests.support.models import last_hidden_state
from tests.support.oracle import oracle_scores
from tests.support.rank_tables import Case, Job, Resources, deal_in_turn, deal_none_to_the_last, every_case

pytestmark = pytest.mark.distributed

# Numbers of the examples in each batch. Batches differ in size, and so do the ranks.
BATCHES = [[0, 1, 2], [3], [5, 4], [6]]
# A distributed sampler repeats the first examples until all ranks have as many.
REPEATED = [[0, 6], [1, 5], [2, 4], [3, 0], [1, 6], [0, 2]]


@cache
def make_workshop(resources: Resources) -> Workshop:
    """Return the texts, and the encoders that this process has loaded."""
    return Workshop(resources.model, resources.baseline)


def compute_scores(job: Job, kind: Kind) -> Any:
    """Compute a metric of a kind from the batches of a rank."""
    workshop = make_workshop(job.resources)
    metric = workshop.metric(kind)
    return update_and_compute(metric, workshop, kind, job.batches)


def update_and_compute(metric: Any, workshop: Workshop, kind: Kind, batches: Sequence[Any]) -> Any:
    """Update a metric with batches of a kind, and compute it."""
    for numbers in batches:
        metric.update(*workshop.batch(kind, numbers))
    return metric.compute()


def expect_scores(job: Job, kind: Kind) -> Any:
    """Return what bert-score makes of the examples of all ranks."""
    numbers = kind.counted(flat_numbers(job.all_batches))
    scores = score_by_bert_score(job.resources, kind, numbers)
    if kind.options.get("reduction") != "none":
        scores = scores.double().mean(dim=-1).float()
    by_name = dict(zip(SCORE_NAMES, scores, strict=True))
    component = kind.options.get("component")
    if component is not None:
        return by_name[component]
    return by_name


def flat_numbers(batches: Sequence[Sequence[int]]) -> list[int]:
    """Return the numbers of the examples in some batches."""
    numbers: list[int] = []
    for batch in batches:
        numbers.extend(batch)
    return numbers


def score_by_bert_score(resources: Resources, kind: Kind, numbers: Sequence[int]) -> Tensor:
    """Return precision, recall and F1 of examples, shape (3, [layers,] pairs)."""
    workshop = make_workshop(resources)
    preds, target = workshop.texts(kind, numbers)
    options = workshop.options(kind)
    score = partial(oracle_scores, resources.model, idf=options.get("idf", False), table=options.get("rescale"))
    if not kind.all_layers:
        return score(preds, target, kind.layer)
    if not kind.many_references:
        return score(preds, target, kind.layer, all_layers=True)[:, : kind.layer + 1]
    # With all layers bert-score does not take several references, so that each pair is scored alone.
    best = []
    for pred, references in zip(preds, target, strict=True):
        scores = score([pred] * len(references), references, kind.layer, all_layers=True)
        best.append(scores.amax(dim=-1))
    return torch.stack(best, dim=-1)[:, : kind.layer + 1]


def kind_case(kind: Kind, batches: Sequence[Sequence[int]] = BATCHES, deal: Any = deal_in_turn) -> Case:
    """Return the case of a BERTScore of a kind."""
    compute = partial(compute_scores, kind=kind)
    return Case(compute=compute, deal=partial(deal, batches), expect=partial(expect_scores, kind=kind))


def compute_collection(job: Job) -> Any:
    """Compute metrics that share the states of one encoder."""
    workshop = make_workshop(job.resources)
    collection = MetricCollection({"plain": workshop.metric(Kind()), "idf": workshop.metric(Kind(idf=True))})
    return update_and_compute(collection, workshop, Kind(), job.batches)


def expect_collection(job: Job) -> Any:
    """Return the scores of each metric under the names of a collection."""
    scores = {}
    for name, kind in {"plain": Kind(), "idf": Kind(idf=True)}.items():
        for key, value in expect_scores(job, kind).items():
            scores[f"{name}_{key}"] = value
    return scores


def compute_drop_in(job: Job) -> Any:
    """Compute the metric with the interface of torchmetrics, which returns a score per pair."""
    metric = drop_in.BERTScore(job.resources.model, num_layers=LAYERS, idf=True, truncation=True)
    return update_and_compute(metric, make_workshop(job.resources), Kind(), job.batches)


def compute_with_function(job: Job) -> Any:
    """Compute a metric of a ready model with a forward function, which each rank loads for itself."""
    workshop = make_workshop(job.resources)
    loaded = FrozenEncoder(job.resources.model, num_layers=LAYERS)
    model = loaded.backbone("cpu")
    encoder = FrozenEncoder(model, loaded.tokenizer.tokenizer, forward_fn=last_hidden_state)
    return update_and_compute(BERTScore(encoder), workshop, Kind(), job.batches)


def compute_weights(job: Job) -> Any:
    """Return the token weights that a metric with idf gives to a loss, and the origin of the weights."""
    workshop = make_workshop(job.resources)
    kind = Kind(idf=True, indexed=True)
    metric = workshop.metric(kind)
    update_and_compute(metric, workshop, kind, job.batches)
    weights = metric.token_weights()
    return weights.table[content_ids(workshop)], str(weights.source)


def expect_weights(job: Job) -> Any:
    """Return log((M + 1) / (m + 1)) of tokens in m of M references, and the origin of a corpus of these references."""
    workshop = make_workshop(job.resources)
    numbers = sorted(set(flat_numbers(job.all_batches)))
    _, target = workshop.texts(Kind(), numbers)
    num_references = Counter()
    for row in workshop.encoder(LAYERS, all_layers=False).tokenizer(target).rows():
        num_references.update(set(row))
    weights = [math.log((len(target) + 1) / (num_references[token] + 1)) for token in content_ids(workshop)]
    of_corpus = BERTScore(workshop.encoder(LAYERS, all_layers=False), idf=target)
    return torch.tensor(weights, dtype=torch.float64), str(of_corpus.token_weights().source)


def content_ids(workshop: Workshop) -> list[int]:
    """Return the ids of the tokens in all references, without [CLS] and [SEP]."""
    ids: set[int] = set()
    for row in workshop.encoder(LAYERS, all_layers=False).tokenizer(workshop.target).rows():
        ids.update(row[1:-1])
    return sorted(ids)


def log_metrics(job: Job) -> dict[str, float]:
    """Return what Lightning computes of logged metric objects; its sampler deals out the examples."""
    run = trainer(job.resources.folder, devices=job.world_size, strategy=strategy_on_cpu("ddp"))
    run.validate(Logging(make_workshop(job.resources)), verbose=False)
    return {name: run.callback_metrics[key_at_end_of_epoch(name)].item() for name in LOGGED}


def expect_logged(job: Job) -> dict[str, float]:
    """Return the means of all examples."""
    means = {}
    for name, kind in LOGGED.items():
        scores = score_by_bert_score(job.resources, kind, range(VALIDATED))
        component = SCORE_NAMES.index(kind.options["component"])
        means[name] = scores[component].double().mean().item()
    return means


def deal_nothing(world_size: int) -> list[list[int]]:
    """Deal out no batches, because the trainer does."""
    return [[] for _ in range(world_size)]


ALONE = partial(deal_none_to_the_last, BATCHES)
IN_TURN = partial(deal_in_turn, BATCHES)
LISTS, PAIRS = {"many_references": True}, {"reduction": "none"}
TABLE = {
    # Reductions.
    "means": kind_case(Kind()),
    "pairs": kind_case(Kind(**PAIRS)),
    "F1 of pairs": kind_case(Kind(component="f1", **PAIRS)),
    "precision": kind_case(Kind(component="precision")),
    # Ranks that have nothing, and examples that several ranks have.
    "pairs, nothing on the last rank": kind_case(Kind(**PAIRS), deal=deal_none_to_the_last),
    "idf, nothing on the last rank": kind_case(Kind(idf=True), deal=deal_none_to_the_last),
    "one pair on the first rank": kind_case(Kind(**PAIRS), batches=[[4]]),
    "repeated pairs count": kind_case(Kind(idf=True), batches=REPEATED),
    "repeated pairs with indices do not": kind_case(Kind(indexed=True, **PAIRS), batches=REPEATED),
    "repeated pairs with indices, idf": kind_case(Kind(indexed=True, idf=True), batches=REPEATED),
    "indices, nothing on the last rank": kind_case(Kind(indexed=True, **PAIRS), deal=deal_none_to_the_last),
    # Token weights.
    "idf": kind_case(Kind(idf=True)),
    "idf of a corpus, indices": kind_case(Kind(idf=..., indexed=True, **PAIRS), batches=REPEATED),
    # Every two of idf, several references and all layers.
    "several references": kind_case(Kind(**LISTS)),
    "several references, idf": kind_case(Kind(idf=True, **LISTS, **PAIRS)),
    "several references, idf, indices": kind_case(Kind(idf=True, indexed=True, **LISTS), batches=REPEATED),
    "all layers": kind_case(Kind(all_layers=True, component="recall")),
    "all layers, idf": kind_case(Kind(all_layers=True, idf=True, **PAIRS)),
    # Without idf, because bert-score computes it from the references of one call.
    "all layers, several references": kind_case(Kind(all_layers=True, indexed=True, **LISTS), batches=REPEATED),
    "one of all layers, idf": kind_case(Kind(layer=1, picked_from=LAYERS, idf=True)),
    # Rescaling.
    "rescaled": kind_case(Kind(rescale=..., **LISTS, **PAIRS)),
    "rescaled, all layers": kind_case(Kind(rescale=..., all_layers=True, component="f1")),
    # Other classes and models. They synchronize like the metrics above, so that 2 ranks are enough.
    "collection": Case(compute=compute_collection, deal=IN_TURN, expect=expect_collection, world_sizes=(2,)),
    "interface of torchmetrics": Case(
        compute=compute_drop_in,
        deal=IN_TURN,
        expect=partial(expect_scores, kind=Kind(idf=True, **PAIRS)),
        world_sizes=(2,),
    ),
    "forward function": Case(
        compute=compute_with_function, deal=ALONE, expect=partial(expect_scores, kind=Kind()), world_sizes=(2,)
    ),
    "logged by Lightning": Case(compute=log_metrics, deal=deal_nothing, expect=expect_logged, world_sizes=(2,)),
    "weights for a loss": Case(compute=compute_weights, deal=partial(deal_in_turn, REPEATED), expect=expect_weights),
}


@every_case(TABLE)
def test_each_rank_has_the_scores_of_bert_score(ran, name):
    ran.check(name)
