"""Numbers of examples, which count each example once. On several ranks: workflows/ranks/test_callbacks.py."""

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader, SequentialSampler
from torchmetrics.text import EditDistance

from bertscore_tm import BERTScore, bert_score
from bertscore_tm.callbacks import BERTScoreCallback
from bertscore_tm.callbacks.trainer import list_loaders
from tests.support.lightning_runs import Chooser, Returns, chooser, loader, trainer

COUNT = 11


class Indexed(Chooser):
    """Its prediction is the candidate with the number of the example."""

    def choose(self, numbers):
        numbers = numbers.tolist()
        return [self.choices[i] for i in numbers], [self.references[i] for i in numbers]


def test_indices_count_each_example_once_also_on_one_rank(pairs, shallow, tmp_path):
    """In a dataloader that draws some examples twice."""
    metrics = {"bertscore": BERTScore(shallow, reduction="none"), "edits": EditDistance(reduction="sum")}
    scorer = BERTScoreCallback(metrics, index_key="index")
    run = trainer(tmp_path, [scorer])
    drawn = [3, 1, 4, 1, 5, 9, 3, 6, 5, 3]
    module = chooser(pairs, count=COUNT, kind=Indexed)

    run.validate(module, DataLoader(range(COUNT), 4, sampler=drawn), verbose=False)

    distinct = sorted(set(drawn))
    preds = [pairs[0][i] for i in distinct]
    target = [pairs[1][i] for i in distinct]
    expected = bert_score(preds, target, shallow)["f1"]
    torch.testing.assert_close(scorer.pairs["val_bertscore_f1"], expected, atol=1e-6, rtol=0)
    assert run.callback_metrics["val_edits"].item() == EditDistance(reduction="sum")(preds, target).item()


def test_indices_that_nobody_returns_are_an_error(pairs, shallow, tmp_path):
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(shallow), index_key="number")])

    with pytest.raises(MisconfigurationException, match=r"neither the batch nor .* the key index_key='number'"):
        run.validate(chooser(pairs, count=COUNT, kind=Indexed), loader(6), verbose=False)


@pytest.mark.parametrize("value", [[0, 1], torch.tensor([0, 1])])
def test_another_number_of_indices_than_predictions_is_an_error(pairs, shallow, tmp_path, value):
    scorer = BERTScoreCallback({"edits": EditDistance()}, index_key="index")
    module = chooser(pairs, kind=Returns, returned={"preds": ["a"] * 3, "target": ["b"] * 3, "index": value})

    with pytest.raises(MisconfigurationException, match="got 2 indices under index_key='index' for 3 predictions"):
        trainer(tmp_path, [scorer]).validate(module, verbose=False)


class ListsLoaders(pl.Callback):
    """Asks for the examples' numbers, as on several ranks."""

    def on_validation_start(self, trainer, pl_module):
        list_loaders(trainer, with_numbers=True)


def test_combined_loaders_are_refused_by_their_mode(pairs, tmp_path):
    both = CombinedLoader([loader(3), loader(3)], "max_size")

    with pytest.raises(MisconfigurationException) as caught:
        trainer(tmp_path, [ListsLoaders()]).validate(chooser(pairs), both, verbose=False)

    assert "because a CombinedLoader with mode='max_size' mixes dataloaders" in str(caught.value)
    assert "BatchSampler" not in str(caught.value)


def test_a_sampler_of_an_equal_name_is_refused_with_its_module(pairs, tmp_path):
    class DistributedSampler(SequentialSampler):
        pass

    data = DataLoader(range(4), sampler=DistributedSampler(range(4)))

    with pytest.raises(MisconfigurationException, match=r"test_trainer.*DistributedSampler instead of torch's"):
        trainer(tmp_path, [ListsLoaders()]).validate(chooser(pairs), data, verbose=False)
