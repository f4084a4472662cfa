"""The callback on two ranks under each strategy: the score of all texts, and training unchanged."""

from functools import partial
from itertools import product

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torchmetrics.text import EditDistance

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback
from tests.support import lightning_runs as runs
from tests.support.ranks import on_ranks, results
from tests.support.texts import real_pairs

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

STRATEGIES = {"ddp": "bf16-mixed", "fully_shard": "bf16-true", "tensor_parallel": "32-true", "fsdp": "32-true"}
SOURCES = {"none": None, "step": {}, "generated": {"generate": runs.generate_wildly}}


def fitted(pairs, minilm, folder, strategy, source):
    """Train under a strategy, without scoring or with texts from a source, and return all that it leaves."""
    module = runs.chooser(pairs, kind=runs.ShardedChooser)
    keep, record = runs.Keep(), runs.Record()
    first = runs.weights(module)
    checkpoint = ModelCheckpoint(folder / f"{strategy}-{source}", monitor="val_bertscore_f1", mode="max")
    callbacks = [keep]
    if SOURCES[source] is not None:
        encoder = FrozenEncoder(minilm, num_layers=runs.LAYER)
        metrics = {
            "bertscore": BERTScore(encoder),
            "idf": BERTScore(encoder, idf=True),
            "edits": EditDistance(reduction="sum"),
        }
        callbacks += [record, BERTScoreCallback(metrics, **SOURCES[source])]
        if strategy != "fsdp":  # torch cannot collect its state without an accelerator
            callbacks.append(checkpoint)
    ranks = {"devices": 2, "strategy": runs.strategy_on_cpu(strategy, {nn.Linear}), "precision": STRATEGIES[strategy]}
    run = runs.trainer(folder, callbacks, num_sanity_val_steps=1, **ranks)
    run.fit(module)
    last = keep.found["weights"]
    is_trained = strategy == "fsdp" or not torch.equal(last.float(), first.to(last).float())
    parts = run.strategy.model.modules()
    texts = module.written if source == "generated" else module.seen
    return {
        "state": keep.found,
        "trained": is_trained,
        "sharded": sum(isinstance(part, FSDPModule | FullyShardedDataParallel) for part in parts),
        "texts": texts.copy(),
        "metrics": {key: value.item() for key, value in run.callback_metrics.items() if key.startswith("val_")},
        "scores": record.scores,
        "best": checkpoint.best_model_score,
        "saved": len(checkpoint.best_k_models),
    }


def fits(rank, pairs, minilm, folder):
    for case in product(STRATEGIES, SOURCES):
        yield case, partial(fitted, pairs, minilm, folder, *case)


@pytest.fixture(scope="module")
def pairs():
    """Shorter texts than in other trainings, because edit distances take a quarter of the time."""
    return real_pairs(runs.COUNT, words=4)


@pytest.fixture(scope="module")
def fit_reports(pairs, minilm, tmp_path_factory):
    return on_ranks(fits, pairs, minilm, tmp_path_factory.mktemp("fits"))


NUM_SHARDED = {"ddp": 0, "fully_shard": 1, "tensor_parallel": 1, "fsdp": 3}


def texts_of_ranks(ranks):
    """Return the prediction of each reference; an example that was dealt out twice counts once."""
    written = {}
    for rank in ranks:
        for pred, text in zip(*runs.texts_of(rank["texts"]), strict=True):
            written.setdefault(text, pred)
    return written


@pytest.mark.parametrize("source", ["step", "generated"])
@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_all_ranks_have_the_scores_of_all_texts(fit_reports, pairs, shallow, strategy, source):
    ranks = results(fit_reports, (strategy, source))

    num_texts = sum(len(runs.texts_of(rank["texts"])[0]) for rank in ranks)
    assert num_texts == (14 if strategy == "tensor_parallel" else 8)
    written = texts_of_ranks(ranks)
    target = pairs[1][:7]
    assert set(written) == set(target)
    preds = [written[text] for text in target]
    metrics = ranks[0]["metrics"]
    assert metrics == ranks[1]["metrics"]
    for name in ("bertscore", "idf"):
        expected = runs.means(preds, target, shallow, idf=name == "idf")
        assert runs.logged(metrics, name) == pytest.approx(expected, abs=1e-6)
    assert metrics["val_edits"] == EditDistance(reduction="sum")(preds, target)


@pytest.mark.parametrize("source", ["step", "generated"])
@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_training_on_ranks_is_bitwise_unchanged(fit_reports, strategy, source):
    without = results(fit_reports, (strategy, "none"))
    ranks = results(fit_reports, (strategy, source))

    for plain, rank in zip(without, ranks, strict=True):
        assert plain["trained"]
        assert rank["sharded"] == NUM_SHARDED[strategy]
        assert runs.differences(plain["state"], rank["state"]) == []


@pytest.mark.parametrize("source", ["step", "generated"])
@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_checkpoints_follow_the_common_score(fit_reports, strategy, source):
    ranks = results(fit_reports, (strategy, source))

    for rank in ranks:
        assert rank["scores"] == ranks[0]["scores"]
        assert len(rank["scores"]) == 2
        if strategy != "fsdp":
            assert rank["best"] == max(rank["scores"])
            assert rank["saved"] == 1
