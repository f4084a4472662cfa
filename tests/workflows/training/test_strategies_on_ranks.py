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

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

STRATEGIES = {"ddp": "bf16-mixed", "fully_shard": "bf16-true", "tensor_parallel": "32-true", "fsdp": "32-true"}
SOURCES = {"none": None, "step": {}, "generated": {"generate": runs.generate_wildly}}


def fitted(pairs, minilm, folder, strategy, source):
    module, keep, record = runs.chooser(pairs, kind=runs.ShardedChooser), runs.Keep(), runs.Record()
    first = runs.weights(module)
    checkpoint = ModelCheckpoint(folder / f"{strategy}-{source}", monitor="val_bertscore_f1", mode="max")
    callbacks = [keep]
    if SOURCES[source] is not None:
        encoder = FrozenEncoder(minilm, num_layers=runs.LAYER)
        metrics = {"bertscore": BERTScore(encoder), "idf": BERTScore(encoder, idf=True)}
        metrics["edits"] = EditDistance(reduction="sum")
        callbacks += [record, BERTScoreCallback(metrics, **SOURCES[source])]
        if strategy != "fsdp":  # torch cannot collect its state without an accelerator
            callbacks.append(checkpoint)
    ranks = {"devices": 2, "strategy": runs.strategy_on_cpu(strategy, {nn.Linear}), "precision": STRATEGIES[strategy]}
    run = runs.trainer(folder, callbacks, num_sanity_val_steps=1, **ranks)
    run.fit(module)
    last = keep.found["weights"]
    sharded = [part for part in run.strategy.model.modules() if isinstance(part, FSDPModule | FullyShardedDataParallel)]
    return {
        "state": keep.found,
        "trained": strategy == "fsdp" or not torch.equal(last.float(), first.to(last).float()),
        "sharded": len(sharded),
        "texts": (module.written if source == "generated" else module.seen).copy(),
        "metrics": {key: value.item() for key, value in run.callback_metrics.items() if key.startswith("val_")},
        "scores": record.scores,
        "best": checkpoint.best_model_score,
        "saved": len(checkpoint.best_k_models),
    }


def fits(rank, pairs, minilm, folder):
    for case in product(STRATEGIES, SOURCES):
        yield case, partial(fitted, pairs, minilm, folder, *case)


@pytest.fixture(scope="module")
def fit_reports(pairs, minilm, tmp_path_factory):
    return on_ranks(fits, pairs, minilm, tmp_path_factory.mktemp("fits"))


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_scores_of_all_ranks_checkpoints_and_unchanged_training(fit_reports, pairs, shallow, strategy):
    without = results(fit_reports, (strategy, "none"))
    for source in ("step", "generated"):
        ranks = results(fit_reports, (strategy, source))
        assert ranks[0]["metrics"] == ranks[1]["metrics"]
        texts = [pair for rank in ranks for pair in zip(*runs.texts_of(rank["texts"]), strict=True)]
        assert len(texts) == (14 if strategy == "tensor_parallel" else 8)
        # An example that was dealt out twice counts once.
        written, target = {target: pred for pred, target in reversed(texts)}, pairs[1][:7]
        assert set(written) == set(target)
        preds = [written[text] for text in target]
        for name in ("bertscore", "idf"):
            expected = runs.means(preds, target, shallow, idf=name == "idf")
            assert runs.logged(ranks[0]["metrics"], name) == pytest.approx(expected, abs=1e-6)
        assert ranks[0]["metrics"]["val_edits"] == EditDistance(reduction="sum")(preds, target)
        assert ranks[0]["sharded"] == {"ddp": 0, "fully_shard": 1, "tensor_parallel": 1, "fsdp": 3}[strategy]
        for plain, rank in zip(without, ranks, strict=True):
            assert plain["trained"]
            # Training is bitwise equal to that without the callback.
            assert runs.differences(plain["state"], rank["state"]) == []
            assert rank["scores"] == ranks[0]["scores"]
            assert len(rank["scores"]) == 2
            if strategy != "fsdp":
                assert rank["best"] == max(rank["scores"])
                assert rank["saved"] == 1
