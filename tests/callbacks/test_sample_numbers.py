"""The callback on two ranks: each text counts once, also where a rank has fewer batches or none."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader
from torchmetrics.text import BLEUScore

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback
from tests.support.lightning_runs import (
    COUNT,
    LAYER,
    chooser,
    generate,
    loader,
    means,
    strategy_on_cpu,
    stream,
    trainer,
)
from tests.support.ranks import on_ranks, results

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


UNEVEN = {
    # Numbers of the examples of each loader, of the first and of the second rank.
    "none on the first": [([], range(7))],
    "each a loader": [(range(5), []), ([], [5, 6]), ([8, 2, 3, 4], [7])],
}
# If all lengths are known to be 0, Lightning skips the run of that rank without calling callbacks.
CALLS_OF = {
    "none on the first": [("fit", "step"), ("validate", "generate")],
    "each a loader": [("test", "step"), ("fit", "sized")],
}
METRICS = {"bertscore": {}, "idf_pairs": {"idf": True, "reduction": "none"}}


def uneven(few, minilm, folder, call, chosen, source):
    encoder = FrozenEncoder(minilm, num_layers=LAYER)
    metrics = {name: BERTScore(encoder, **options) for name, options in METRICS.items()} | {"bleu": BLEUScore(n_gram=1)}
    module = chooser(few, lr=0.0)
    module.allow_zero_length_dataloader_with_multiple_devices = True
    callback = BERTScoreCallback(metrics, generate if source == "generate" else None, index_key="index")
    run = trainer(
        folder, [callback], max_epochs=1, devices=2, strategy=strategy_on_cpu("ddp"), use_distributed_sampler=False
    )
    if source == "sized":
        loaders = [DataLoader(list(part), batch_size=3) for part in chosen]
    else:
        loaders = [stream(part) for part in chosen]
    if call == "fit":
        run.fit(module, loader(COUNT), loaders)
    else:
        getattr(run, call)(module, loaders, verbose=False)
    return {key: value.item() for key, value in run.callback_metrics.items() if "loss" not in key}


def fewer_texts(few, minilm, folder, make):
    callback = BERTScoreCallback(BERTScore(FrozenEncoder(minilm, num_layers=LAYER)), make)
    run = trainer(folder, [callback], devices=2, strategy=strategy_on_cpu("ddp"))
    run.validate(chooser(few), verbose=False)


FEWER = {2: lambda *args: [side[1:] for side in generate(*args)], 0: lambda *args: ([], [])}


def uneven_runs(rank, few, minilm, folder):
    for count, make in FEWER.items():
        yield count, lambda make=make: fewer_texts(few, minilm, folder, make)
    for name, numbers in UNEVEN.items():
        for call, source in CALLS_OF[name]:

            def run(call=call, numbers=numbers, source=source):
                chosen = [part[rank] for part in numbers]
                return uneven(few, minilm, folder, call, chosen, source)

            yield (name, call, source), run


@pytest.fixture(scope="module")
def uneven_reports(few, minilm, tmp_path_factory):
    return on_ranks(uneven_runs, few, minilm, tmp_path_factory.mktemp("uneven"))


@pytest.mark.parametrize(("name", "call", "source"), [(name, *case) for name in UNEVEN for case in CALLS_OF[name]])
def test_ranks_with_fewer_batches_or_none(uneven_reports, few, shallow, name, call, source):
    first, second = results(uneven_reports, (name, call, source))
    assert first == second
    module = chooser(few).eval()
    stage = "test" if call == "test" else "val"
    f1 = {name: [] for name in ("bertscore_f1", "idf_pairs_f1", "bleu")}
    for numbers in UNEVEN[name]:
        preds, target = generate(module, torch.tensor([*numbers[0], *numbers[1]]))
        f1["bertscore_f1"].append(means(preds, target, shallow)[-1])
        f1["idf_pairs_f1"].append(means(preds, target, shallow, idf=True)[-1])
        f1["bleu"].append(BLEUScore(n_gram=1)(preds, [[text] for text in target]).item())
    for key, values in f1.items():
        assert first[f"{stage}_{key}"] == pytest.approx(sum(values) / len(values), abs=1e-6)
        for i, value in enumerate(values if len(values) > 1 else ()):
            assert first[f"{stage}_{key}_dataloader_idx_{i}"] == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("count", FEWER)
def test_fewer_predictions_than_examples_are_an_error_on_all_ranks(uneven_reports, count):
    for rank in uneven_reports:
        assert f"MisconfigurationException: got {count} predictions for a batch of 3 examples" in rank[count]
        assert "return one prediction per example" in rank[count]
