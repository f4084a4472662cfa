"""Metrics of others in the callback on several ranks: the value of one process, also where a rank has no text."""

from functools import partial

import pytest
import torch
from torchmetrics.aggregation import MeanMetric
from torchmetrics.text import (
    BLEUScore,
    CHRFScore,
    EditDistance,
    ExtendedEditDistance,
    Perplexity,
    ROUGEScore,
    SacreBLEUScore,
    SQuAD,
    TranslationEditRate,
    WordErrorRate,
)
from torchmetrics.wrappers import MinMaxMetric

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback
from tests.support.lightning_runs import chooser, loader, logged, means, strategy_on_cpu, trainer
from tests.support.ranks import on_ranks, results

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

BATCH_SIZE = 2
COUNTS = range(1, 6)


class TextSQuAD(SQuAD):
    """SQuAD itself takes dictionaries instead of texts."""

    def update(self, preds, target):
        answers = [{"answers": {"answer_start": [0], "text": [text]}, "id": text} for text in target]
        predicted = [{"prediction_text": pred, "id": text} for pred, text in zip(preds, target, strict=True)]
        super().update(predicted, answers)


class BytePerplexity(Perplexity):
    """Perplexity itself takes logits instead of texts: here those that the bytes of a text define."""

    def update(self, preds, target):
        for pred, text in zip(preds, target, strict=True):
            ids = torch.tensor(list(text.encode()))[None]
            logits = torch.eye(256)[list(pred.encode())].mean(0).expand(1, ids.shape[1], -1)
            super().update(logits, ids)


class LengthRatio(MeanMetric):
    """A mean of the batches' means, which depends on how texts are batched, and on a state that may be missing."""

    def __init__(self):
        super().__init__()
        self.add_state("lengths", [], dist_reduce_fx=None)

    def update(self, preds, target):
        self.lengths.append(torch.tensor([len(text) for text in target]))
        super().update(sum(map(len, preds)) / sum(map(len, target)))


with_sentences = {"return_sentence_level_score": True}
METRICS = {
    "rouge": partial(ROUGEScore, rouge_keys=("rouge1", "rougeL")),
    "bleu": partial(BLEUScore, n_gram=1),
    "sacre": partial(SacreBLEUScore, n_gram=1),
    "wer": WordErrorRate,
    "chrf": CHRFScore,
    "chrf_each": partial(CHRFScore, **with_sentences),
    "ter": TranslationEditRate,
    "ter_each": partial(TranslationEditRate, **with_sentences),
    "eed": ExtendedEditDistance,
    "eed_each": partial(ExtendedEditDistance, **with_sentences),
    "edits_mean": EditDistance,
    "edits_sum": partial(EditDistance, reduction="sum"),
    "squad": TextSQuAD,
    "perplexity": BytePerplexity,
    "ratio": LengthRatio,
    "wrapped": lambda: MinMaxMetric(ExtendedEditDistance()),
}


def choose(pl_module, batch):
    return [[side[number] for number in batch.tolist()] for side in (pl_module.choices, pl_module.references)]


def scored(pairs, minilm, folder, world_size, count):
    """Return what a validation of the first texts logs."""
    metrics = {"bertscore": BERTScore(FrozenEncoder(minilm, num_layers=2))}
    metrics |= {name: make() for name, make in METRICS.items()}
    run = trainer(folder, [BERTScoreCallback(metrics, choose)], devices=world_size, strategy=strategy_on_cpu("ddp"))
    run.validate(chooser(pairs), loader(count, batch_size=BATCH_SIZE), verbose=False)
    return {key: value.item() for key, value in run.callback_metrics.items()}


def cases(rank, pairs, minilm, folder, world_size):
    for count in COUNTS:
        yield count, partial(scored, pairs, minilm, folder, world_size, count)


@pytest.fixture(scope="module", params=[2, 3])
def reports(request, pairs, minilm, tmp_path_factory):
    return on_ranks(cases, pairs, minilm, tmp_path_factory.mktemp("others"), request.param, world_size=request.param)


def expected_values(name, preds, target):
    """Return what a metric gives for all texts in one process, in batches of the loader."""
    metric = METRICS[name]()
    needs_lists = isinstance(metric, BLEUScore | CHRFScore | TranslationEditRate)
    for start in range(0, len(preds), BATCH_SIZE):
        texts = target[start : start + BATCH_SIZE]
        metric.update(preds[start : start + BATCH_SIZE], [[text] for text in texts] if needs_lists else texts)
    value = metric.compute()
    value = value[0] if isinstance(value, tuple) else value
    found = value if isinstance(value, dict) else {"": value}
    return {f"val_{name}_{key}".rstrip("_"): float(number) for key, number in found.items()}


@pytest.mark.parametrize("count", COUNTS)
def test_every_rank_logs_the_values_of_one_process(reports, pairs, shallow, count):
    logs = results(reports, count)
    preds, target = (side[:count] for side in pairs)
    wanted = {}
    for name in METRICS:
        wanted |= expected_values(name, preds, target)
    assert len(wanted) == 24
    for values in logs:
        assert logged(values) == pytest.approx(means(preds, target, shallow), abs=1e-6)
        assert {key: value for key, value in values.items() if "bertscore" not in key} == pytest.approx(
            wanted, rel=1e-6
        )
