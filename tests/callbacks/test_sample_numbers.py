"""The callbacks on two ranks: sharding strategies, ranks without batches, and the texts that each rank encodes."""

from __future__ import annotations

import os
import socket
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader
from torchmetrics.text import BLEUScore, EditDistance

from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from bertscore_tm.callbacks import BERTScoreCallback, CausalGenerate, Seq2SeqGenerate
from tests.support.callback_runs import (
    ANSWERS,
    Keep,
    ShardedChooser,
    Writer,
    batch_of,
    differences,
    logged,
    means,
    strategy_on_cpu,
    stream,
    texts_of,
    whole_weights,
    write_wildly,
)
from tests.support.lightning_modules import Chooser, Numbers, Record, SpawnedDDP, chooser, generate, loader, trainer
from tests.support.separate_ranks import run_separate_ranks

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.usefixtures("one_thread"),
    # Random models write random tokens.
    pytest.mark.filterwarnings("ignore:1 candidate scored 0"),
]

COUNT = 9
LAYER = 2


@pytest.fixture(scope="module")
def few(pairs):
    return tuple(side[:COUNT] for side in pairs)


@pytest.fixture(scope="module")
def shallow(minilm):
    return FrozenEncoder(minilm, num_layers=LAYER)


def on_two_ranks(function, *args):
    """The reports of both ranks; the error of a case is its report."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = run_separate_ranks(rank_main, 2, function, port, *args)
    codes = [rank.exit_code for rank in ranks]
    assert codes == [0, 0]
    return [rank.report for rank in ranks]


def rank_main(rank, report, function, port, *args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    for name, case in function(rank, *args):
        try:
            report[name] = case()
        except Exception as error:  # noqa: BLE001 - what it is, is the result
            report[name] = f"{type(error).__name__}: {error}"


def results(reports, name):
    found = [report[name] for report in reports]
    assert not [error for error in found if isinstance(error, str)]
    return found


# Strategies

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

    def on_fit_end(self):
        run = self.trainer
        found = {"rng": torch.get_rng_state(), "score": run.callback_metrics["val_bertscore_f1"].item()}
        torch.save(found, Path(run.default_root_dir) / f"rank{run.global_rank}.pt")


def test_spawned_processes_train_as_ranks_without_the_callback(fit_reports, few, shallow, tmp_path):
    """The run without the callback is that of ranks that were started by hand."""
    module = chooser(few, kind=Watched, count=COUNT)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # handed on to spawned processes
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
    torch.set_num_threads(threads)
    found = [torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1)]
    plain = results(fit_reports, ("ddp", "none"))
    assert torch.equal(whole_weights(module), plain[0]["kept"]["weights"])
    for rank, other in zip(found, plain, strict=True):
        assert torch.equal(rank["rng"], other["kept"]["torch"])
    assert found[0]["score"] == found[1]["score"] == run.callback_metrics["val_bertscore_f1"].item()
    assert found[0]["score"] == results(fit_reports, ("ddp", "generated"))[0]["metrics"]["val_bertscore_f1"]


# Generators of models that are sharded: all ranks must gather shards as often

FAMILIES = ["gpt2", "llama", "bart", "t5"]
SHARDINGS = {
    "blocks": {},
    "whole": {"by_blocks": False},
    "resharded": {"reshard_after_forward": True},
    "parts": {"whole": False},
    "fsdp": {"fully": False},
}
OPTIONS = {
    "greedy": {"do_sample": False},
    "beams": {"num_beams": 3, "do_sample": False},
    "sampled": {"do_sample": True},
}


# Every family in both kinds of FSDP, every sharding and every option for one family of each kind.
GENERATIONS = [(family, sharding, "greedy") for family in FAMILIES for sharding in ("blocks", "fsdp")]
GENERATIONS += [
    (family, sharding, "greedy")
    for family in ("gpt2", "bart")
    for sharding in SHARDINGS
    if sharding not in ("blocks", "fsdp")
]
GENERATIONS += [
    ("gpt2", "blocks", "beams"),
    ("bart", "fsdp", "beams"),
    ("gpt2", "fsdp", "sampled"),
    ("bart", "blocks", "sampled"),
]
TRAINERS = [("gpt2", "fsdp"), ("bart", "fully_shard"), ("bart", "fsdp")]


def ready_generate(tokenizer, family, rank, **options):
    """A generator of texts that end after 2 tokens on the first rank, and after 7 on the second."""
    kind = Seq2SeqGenerate if family in ("bart", "t5") else CausalGenerate
    return kind(tokenizer, max_new_tokens=2 + 5 * rank, **options)


def written_by(module, rank, family, options):
    torch.manual_seed(5 + rank)
    with torch.no_grad():
        return ready_generate(module.tokenizer, family, rank, **options)(
            module, batch_of(module.tokenizer, slice(2 * rank, 2 * rank + 2))
        )


def written(rank, family, sharding, option):
    module = Writer(family)
    plain = written_by(deepcopy(module), rank, family, OPTIONS[option])
    forwards = []
    module.model.register_forward_hook(lambda *args: forwards.append(rank))
    module.shard(**SHARDINGS[sharding])
    texts = [written_by(module, rank, family, OPTIONS[option]) for _ in range(2)]
    count = len(forwards)
    module.training_step(batch_of(module.tokenizer), 0).backward()
    gradient = [p.grad.full_tensor() if isinstance(p, DTensor) else p.grad for p in module.parameters()]
    return plain, texts, torch.cat([part.flatten() for part in gradient]), count


def trained_writer(minilm, folder, rank, family, strategy, scored):
    encoder = FrozenEncoder(minilm, num_layers=LAYER)

    def ready(*callbacks):
        torch.manual_seed(0)
        module = Writer(family)
        make = ready_generate(module.tokenizer, family, rank, do_sample=False)

        def remember(pl_module, batch):
            written.append(make(pl_module, batch))
            return written[-1]

        written = []
        chosen = strategy_on_cpu(strategy, {type(block) for block in module.blocks})
        scorer = [BERTScoreCallback(BERTScore(encoder), remember)] if scored else []
        options = {"devices": 2, "strategy": chosen, "max_epochs": 1, "num_sanity_val_steps": 1}
        return module, written, trainer(folder, [*callbacks, *scorer], **options)

    module, written, run = ready()
    run.validate(module, verbose=False)
    keep = Keep()
    other, _, fit = ready(keep)  # once sharded a module cannot be sharded by another trainer
    fit.fit(other)
    return [text for texts, _ in written for text in texts], dict(run.callback_metrics), keep.found


def generations(rank, minilm, folder):
    for case in GENERATIONS:
        yield case, lambda case=case: written(rank, *case)
    for family, strategy in TRAINERS:
        for scored in (False, True):
            case = (family, strategy, scored)
            yield case, lambda case=case: trained_writer(minilm, folder, rank, *case)


@pytest.fixture(scope="module")
def generated(minilm, tmp_path_factory):
    return on_two_ranks(generations, minilm, tmp_path_factory.mktemp("generations"))


@pytest.mark.parametrize(("family", "sharding", "option"), GENERATIONS)
def test_sharded_models_generate_the_texts_of_whole_ones(generated, family, sharding, option):
    ranks = results(generated, (family, sharding, option))
    for plain, sharded, _, _ in ranks:
        assert sharded == [plain] * 2
    assert len({text for plain, *_ in ranks for text in plain[0]}) > 1
    # Shards are gathered in each pass, so that a rank which makes fewer of them leaves the other waiting.
    counts = [count for *_, count in ranks]
    assert counts == [2 * 7] * 2


@pytest.mark.parametrize(("family", "sharding"), [case[:2] for case in GENERATIONS if case[2] == "greedy"])
def test_sharded_models_train_after_generation(generated, family, sharding):
    module = Writer(family)
    module.training_step(batch_of(module.tokenizer), 0).backward()
    expected = torch.cat([p.grad.flatten() for p in module.parameters()])
    found = [gradient for _, _, gradient, _ in results(generated, (family, sharding, "greedy"))]
    if sharding == "fsdp":  # each rank has one half, possibly padded at the end
        found = [torch.cat(found)[: len(expected)]] * 2
    for gradient in found:
        torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(("family", "strategy"), TRAINERS)
def test_the_trainer_shards_a_model_that_generates(generated, shallow, family, strategy):
    """Also before any other forward pass, as in ``trainer.validate``."""
    ranks = results(generated, (family, strategy, True))
    plain = Writer(family)
    tokenizer = plain.tokenizer
    # Examples 0 and 2 are the first rank's, and 1 and 3 the second's.
    expected = []
    for rank in (0, 1):
        make = ready_generate(tokenizer, family, rank, do_sample=False)
        with torch.no_grad():
            expected.append([make(plain, batch_of(tokenizer, slice(i, i + 1)))[0][0] for i in (rank, rank + 2)])
    assert [preds for preds, _, _ in ranks] == expected
    _, targets = ready_generate(tokenizer, family, 0)(plain, batch_of(tokenizer))
    preds = [expected[i % 2][i // 2] for i in range(4)]
    assert len(targets) == len(ANSWERS)
    for _, metrics, _ in ranks:
        assert logged(metrics) == pytest.approx(means(preds, targets, shallow), abs=1e-6)
    for without, scored in zip(results(generated, (family, strategy, False)), ranks, strict=True):
        assert differences(without[-1], scored[-1]) == []


# Ranks with fewer batches, or none

UNEVEN = {
    # Numbers of the examples of each loader, of the first and of the second rank.
    "none on the second": [(range(7), [])],
    "none on the first": [([], range(7))],
    "more on the first": [(range(6), [7])],
    "each a loader": [(range(5), []), ([], [5, 6]), ([8, 2, 3, 4], [7])],
}
# If all lengths are known to be 0, Lightning skips the run of that rank without calling callbacks.
CALLS_OF = {
    "none on the second": [("fit", "step")],
    "none on the first": [("fit", "step"), ("validate", "generate")],
    "more on the first": [("validate", "sized")],
    "each a loader": [("test", "step"), ("fit", "sized")],
}
METRICS = {
    "bertscore": {},
    "idf": {"idf": True},
    "pairs": {"reduction": "none"},
    "interval": {"confidence": 0.9},
    "idf_pairs": {"idf": True, "reduction": "none"},
}


class Sized(Chooser):
    """Has loaders of known lengths, of which some are 0."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.allow_zero_length_dataloader_with_multiple_devices = True


def uneven(few, minilm, folder, rank, call, numbers, source):
    encoder = FrozenEncoder(minilm, num_layers=LAYER)
    metrics = {name: BERTScore(encoder, **options) for name, options in METRICS.items()} | {"bleu": BLEUScore(n_gram=1)}
    module = chooser(few, kind=Sized, count=COUNT, lr=0.0)
    callback = BERTScoreCallback(metrics, generate if source == "generate" else None)
    run = trainer(
        folder, [callback], max_epochs=1, devices=2, strategy=strategy_on_cpu("ddp"), use_distributed_sampler=False
    )
    chosen = [part[rank] for part in numbers]
    if source == "sized":
        loaders = [DataLoader([Numbers(COUNT)[i] for i in part], batch_size=3) for part in chosen]
    else:
        loaders = [stream(part) for part in chosen]
    if call == "fit":
        run.fit(module, loader(COUNT), loaders)
    else:
        getattr(run, call)(module, loaders, verbose=False)
    return {key: value.item() for key, value in run.callback_metrics.items() if "loss" not in key}


def uneven_runs(rank, few, minilm, folder):
    for name, numbers in UNEVEN.items():
        for call, source in CALLS_OF[name]:
            case = (call, numbers, source)
            yield (name, call, source), lambda case=case: uneven(few, minilm, folder, rank, *case)


@pytest.fixture(scope="module")
def uneven_reports(few, minilm, tmp_path_factory):
    return on_two_ranks(uneven_runs, few, minilm, tmp_path_factory.mktemp("uneven"))


@pytest.mark.parametrize(("name", "call", "source"), [(name, *case) for name in UNEVEN for case in CALLS_OF[name]])
def test_ranks_with_fewer_batches_or_none(uneven_reports, few, shallow, name, call, source):
    first, second = results(uneven_reports, (name, call, source))
    assert first == second
    module = chooser(few, count=COUNT).eval()
    stage = "test" if call == "test" else "val"
    parts = {key: [] for key in (*METRICS, "bleu")}
    for numbers in UNEVEN[name]:
        preds, target = generate(module, torch.tensor([*numbers[0], *numbers[1]]))
        scores = {idf: means(preds, target, shallow, idf=idf) for idf in (False, True)}
        for key, options in METRICS.items():
            parts[key].append(scores[options.get("idf", False)])
        parts["bleu"].append([BLEUScore(n_gram=1)(preds, [[text] for text in target]).item()])
    for key, values in parts.items():
        found = [[first[f"{stage}_bleu"]] if key == "bleu" else logged(first, key, stage)]
        if len(values) > 1:
            for i in range(len(values)):
                suffix = f"_dataloader_idx_{i}"
                one = [first[f"{stage}_bleu{suffix}"]] if key == "bleu" else logged(first, key, stage, suffix)
                assert one == pytest.approx(values[i], abs=1e-6)
        assert found[0] == pytest.approx(torch.tensor(values).mean(0).tolist(), abs=1e-6)


# Ranks that share a model in parts all see the same texts


def shared(few, minilm, folder, call, data):
    encoder = FrozenEncoder(minilm, num_layers=LAYER)
    metrics = {
        "bertscore": BERTScore(encoder, reduction="none"),
        "idf": BERTScore(encoder, idf=True),
        "edits": EditDistance(reduction="sum"),
    }
    module = chooser(few, kind=ShardedChooser, count=COUNT, lr=0.0)
    callback = BERTScoreCallback(metrics, generate)
    run = trainer(folder, [callback], max_epochs=1, devices=2, strategy=strategy_on_cpu("tensor_parallel"))
    loaders = loader(7) if data == "sized" else stream(range(7))
    if call == "fit":
        run.fit(module, loader(COUNT), loaders)
    else:
        getattr(run, call)(module, loaders, verbose=False)
    return {key: value.item() for key, value in run.callback_metrics.items()}, callback.pairs


SHARED = [("fit", "stream"), ("test", "sized")]


def shared_runs(rank, few, minilm, folder):
    for call, data in SHARED:
        yield (call, data), lambda call=call, data=data: shared(few, minilm, folder, call, data)


@pytest.fixture(scope="module")
def shared_reports(few, minilm, tmp_path_factory):
    return on_two_ranks(shared_runs, few, minilm, tmp_path_factory.mktemp("shared"))


@pytest.mark.parametrize(("call", "data"), SHARED)
def test_texts_that_both_ranks_have_count_once(shared_reports, few, shallow, call, data):
    preds, target = generate(chooser(few, count=COUNT).eval(), torch.arange(7))
    stage = "test" if call == "test" else "val"
    expected = bert_score(preds, target, shallow)["f1"]
    for metrics, pairs in results(shared_reports, (call, data)):
        assert logged(metrics, stage=stage) == pytest.approx(means(preds, target, shallow), abs=1e-6)
        assert logged(metrics, "idf", stage) == pytest.approx(means(preds, target, shallow, idf=True), abs=1e-6)
        assert metrics[f"{stage}_edits"] == EditDistance(reduction="sum")(preds, target).item()
        torch.testing.assert_close(pairs[f"{stage}_bertscore_f1"], expected, atol=1e-6, rtol=0)


# Who encodes what


def watched_run(few, minilm, folder, call, max_batches):
    """What a rank scored, and what it had encoded."""
    encoder = FrozenEncoder(minilm, num_layers=LAYER)
    rows = []

    def keep(model, args, inputs):
        for row, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True):
            rows.append(tuple(row[mask.bool()].tolist()))

    # A module counts the texts by itself in no other way than by what the encoder's network is given.
    hook = encoder.backbone(torch.device("cpu")).register_forward_pre_hook(keep, with_kwargs=True)
    module = chooser(few, count=COUNT)
    callback = BERTScoreCallback(BERTScore(encoder, cache_bytes=0), max_batches=max_batches)
    run = trainer(folder, [callback], max_epochs=1, devices=2, strategy=strategy_on_cpu("ddp"))
    data = loader(COUNT, batch_size=2)
    if call == "fit":
        run.fit(module, loader(COUNT), data)
    else:
        getattr(run, call)(module, data, verbose=False)
    hook.remove()
    preds, target = texts_of(module.seen[:max_batches])
    return preds, target, [tuple(row) for row in encoder.tokenizer([*preds, *target]).ids], rows, run.callback_metrics


WATCHED = [("fit", None), ("validate", 2), ("test", None)]


def watched_runs(rank, few, minilm, folder):
    for call, limit in WATCHED:
        yield (call, limit), lambda call=call, limit=limit: watched_run(few, minilm, folder, call, limit)


@pytest.fixture(scope="module")
def watched(few, minilm, tmp_path_factory):
    return on_two_ranks(watched_runs, few, minilm, tmp_path_factory.mktemp("watched"))


@pytest.mark.parametrize(("call", "limit"), WATCHED)
def test_each_rank_encodes_its_own_texts(watched, few, shallow, call, limit):
    ranks = results(watched, (call, limit))
    for preds, target, own, rows, _ in ranks:
        assert len(preds) == len(target) == (5 if limit is None else 4)
        assert set(rows) <= set(own)
        assert len(rows) <= len(own)
    # Only copies that the sampler adds may be left out.
    assert {row for rank in ranks for row in rank[3]} == {row for rank in ranks for row in rank[2]}
    targets = [rank[1] for rank in ranks]
    # The sampler has dealt out the first example a tenth time.
    assert set(targets[0]) & set(targets[1]) == ({few[1][0]} if limit is None else set())
    once = {t: p for preds, target, *_ in reversed(ranks) for p, t in zip(preds, target, strict=True)}
    assert len(once) == (COUNT if limit is None else 8)
    stage = "test" if call == "test" else "val"
    for rank in ranks:
        assert logged(rank[-1], stage=stage) == pytest.approx(means(list(once.values()), list(once), shallow), abs=1e-6)
