"""The callback on two ranks under each strategy: the score of all texts, and training unchanged."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback
from tests.support.callback_ranks import on_two_ranks, results
from tests.support.callback_runs import (
    COUNT,
    LAYER,
    Keep,
    ShardedChooser,
    differences,
    logged,
    means,
    strategy_on_cpu,
    texts_of,
    whole_weights,
    write_wildly,
)
from tests.support.lightning_modules import Record, SpawnedDDP, chooser, trainer

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

STRATEGIES = {
    "ddp": "bf16-mixed",
    "fully_shard": "bf16-true",
    "tensor_parallel": "32-true",
    "fsdp": "32-true",
}
SOURCES = {"none": None, "step": {}, "generated": {"generate": write_wildly}}


def fitted(few, minilm, folder, strategy, precision, source):
    module, keep, record = chooser(few, kind=ShardedChooser, count=COUNT), Keep(), Record()
    first = whole_weights(module)
    checkpoint = ModelCheckpoint(folder / f"{strategy}-{source}", monitor="val_bertscore_f1", mode="max")
    callbacks = [keep]
    if SOURCES[source] is not None:
        encoder = FrozenEncoder(minilm, num_layers=LAYER)
        callbacks += [record, BERTScoreCallback(BERTScore(encoder), **SOURCES[source])]
        if strategy != "fsdp":  # torch cannot collect its state without an accelerator
            callbacks.append(checkpoint)
    run = trainer(
        folder,
        callbacks,
        max_epochs=2,
        num_sanity_val_steps=1,
        devices=2,
        strategy=strategy_on_cpu(strategy, {nn.Linear}),
        precision=precision,
    )
    run.fit(module)
    kept = keep.found
    sharded = [part for part in run.strategy.model.modules() if isinstance(part, FSDPModule | FullyShardedDataParallel)]
    return {
        "kept": kept,
        "trained": strategy == "fsdp" or not torch.equal(kept["weights"].float(), first.to(kept["weights"]).float()),
        "sharded": len(sharded),
        "texts": (module.written if source == "generated" else module.seen).copy(),
        "metrics": {key: value.item() for key, value in run.callback_metrics.items() if key.startswith("val_")},
        "scores": record.scores,
        "best": checkpoint.best_model_score,
        "saved": len(checkpoint.best_k_models),
    }


def fits(rank, few, minilm, folder):
    for strategy, precision in STRATEGIES.items():
        for source in SOURCES:
            yield (strategy, source), lambda s=strategy, p=precision, o=source: fitted(few, minilm, folder, s, p, o)


@pytest.fixture(scope="module")
def fit_reports(few, minilm, tmp_path_factory):
    return on_two_ranks(fits, few, minilm, tmp_path_factory.mktemp("fits"))


def in_order(few, ranks):
    """Texts of all examples in the order of the data, each once, though a sampler may have dealt out some twice."""
    written = {}
    for rank in ranks:
        for pred, target in zip(*texts_of(rank["texts"]), strict=True):
            written.setdefault(target, pred)
    assert set(written) == set(few[1][:7])
    return [written[target] for target in few[1][:7]], few[1][:7]


@pytest.mark.parametrize("source", ["step", "generated"])
@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_the_score_is_that_of_the_texts_of_all_ranks(fit_reports, few, shallow, strategy, source):
    ranks = results(fit_reports, (strategy, source))
    assert ranks[0]["metrics"] == ranks[1]["metrics"]
    assert logged(ranks[0]["metrics"]) == pytest.approx(means(*in_order(few, ranks), shallow), abs=1e-6)
    dealt = sum(len(texts_of(rank["texts"])[0]) for rank in ranks)
    assert dealt == (14 if strategy == "tensor_parallel" else 8)
    assert ranks[0]["sharded"] == {"ddp": 0, "fully_shard": 1, "tensor_parallel": 1, "fsdp": 3}[strategy]


@pytest.mark.parametrize("source", ["step", "generated"])
@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_training_is_bitwise_equal_to_a_run_without_the_callback(fit_reports, strategy, source):
    without, scored = (results(fit_reports, (strategy, name)) for name in ("none", source))
    for plain, rank in zip(without, scored, strict=True):
        assert plain["trained"]
        assert differences(plain["kept"], rank["kept"]) == []


@pytest.mark.parametrize("strategy", ["ddp", "fully_shard", "tensor_parallel"])
def test_checkpoints_of_the_best_scores_on_all_ranks(fit_reports, strategy):
    ranks = results(fit_reports, (strategy, "step"))
    for rank in ranks:
        assert rank["scores"] == ranks[0]["scores"]
        assert len(rank["scores"]) == 2
        assert rank["best"] == max(rank["scores"])
        assert rank["saved"] == 1


class Watched(ShardedChooser):
    """Writes from each rank what training ended with."""

    def setup(self, stage):
        # As Lightning does with the seed of `chooser` in the other ranks.
        pl.seed_everything(7, verbose=False)
        torch.set_num_threads(1)

    def on_fit_end(self):
        run = self.trainer
        found = {"rng": torch.get_rng_state(), "score": run.callback_metrics["val_bertscore_f1"].item()}
        torch.save(found, Path(run.default_root_dir) / f"rank{run.global_rank}.pt")


def test_spawned_processes_train_as_ranks_without_the_callback(fit_reports, few, shallow, tmp_path):
    """The run without the callback is that of ranks that were started by hand."""
    module = chooser(few, kind=Watched, count=COUNT)
    run = trainer(
        tmp_path,
        [BERTScoreCallback(BERTScore(shallow), write_wildly)],
        max_epochs=2,
        num_sanity_val_steps=1,
        devices=2,
        strategy=SpawnedDDP(),
        precision=STRATEGIES["ddp"],
    )
    run.fit(module)
    found = [torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1)]
    plain = results(fit_reports, ("ddp", "none"))
    assert torch.equal(whole_weights(module), plain[0]["kept"]["weights"])
    for rank, other in zip(found, plain, strict=True):
        assert torch.equal(rank["rng"], other["kept"]["torch"])
    assert found[0]["score"] == found[1]["score"] == run.callback_metrics["val_bertscore_f1"].item()
    assert found[0]["score"] == results(fit_reports, ("ddp", "generated"))[0]["metrics"]["val_bertscore_f1"]
