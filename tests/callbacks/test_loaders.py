"""Several loaders: the keys of each, and names for them."""

import re

import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import CombinedLoader

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback
from bertscore_tm.functional import SCORE_NAMES
from tests.support.lightning_runs import Chooser, chooser, expected_means, loader, logged, trainer


def test_too_few_or_many_loader_names_are_an_error(pairs, encoder, tmp_path):
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder), loader_names=["news", "books"])])

    with pytest.raises(MisconfigurationException, match=r"2 loader_names .* for 3 dataloaders. Pass one name per"):
        run.validate(chooser(pairs, val_sizes=(2, 2, 2)), verbose=False)


@pytest.mark.parametrize("names", [(), ("news", "books")])
def test_each_loader_has_keys_and_the_plain_key_is_the_mean(pairs, encoder, tmp_path, monkeypatch, capsys, names):
    """And Lightning's table shows the names uncut in a narrow terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    module = chooser(pairs, val_sizes=(9, 2))
    callback = BERTScoreCallback(BERTScore(encoder, reduction="none"), loader_names=names)
    run = trainer(tmp_path, [callback])

    for stage, call in (("val", run.validate), ("test", run.test)):
        call(module)

        ends = [f"_{name}" for name in names] or ["_dataloader_idx_0", "_dataloader_idx_1"]
        keys = set()
        for score in (*SCORE_NAMES, "empty"):
            keys.update(f"{stage}_bertscore_{score}{end}" for end in ("", *ends))
        assert set(run.callback_metrics) == keys
        shown = capsys.readouterr().out
        if names:
            assert [key for key in keys if not re.search(rf"\b{key}\b", shown)] == []
        parts = [logged(run.callback_metrics, stage=stage, suffix=end) for end in ends]
        for number, part in enumerate(parts):
            assert part == expected_means(module.seen, encoder, number)
            assert callback.pairs[f"{stage}_bertscore_f1{ends[number]}"].shape == ((9, 2)[number],)
        assert len(callback.pairs) == 2  # those of earlier runs are dropped
        assert logged(run.callback_metrics, stage=stage) == pytest.approx(np.mean(parts, axis=0), abs=1e-6)
        assert parts[0] != pytest.approx(parts[1], abs=1e-3)


class CombinedLoaders(Chooser):
    """Gets the batches of two loaders at once."""

    def validation_step(self, batch, batch_idx):
        return super().evaluation_step(torch.cat([batch["a"], batch["b"]]), batch_idx)


@pytest.mark.filterwarnings("error:The ``compute`` method", "ignore:Total length of `DataLoader` across ranks is zero")
def test_a_loader_without_batches_has_no_score(pairs, encoder, tmp_path):
    module = chooser(pairs)
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder))])

    run.validate(module, [loader(0), loader(6)], verbose=False)

    assert logged(run.callback_metrics) == expected_means(module.seen, encoder)
    assert logged(run.callback_metrics, suffix="_dataloader_idx_1") == logged(run.callback_metrics)
    assert "val_bertscore_f1_dataloader_idx_0" not in run.callback_metrics


def test_combined_loaders_have_one_score(pairs, encoder, tmp_path):
    module = chooser(pairs, kind=CombinedLoaders)
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder))])
    both = CombinedLoader({"a": loader(6), "b": loader(3, first=6)}, "max_size_cycle")

    run.validate(module, both, verbose=False)

    assert logged(run.callback_metrics) == expected_means(module.seen, encoder)
    assert len(run.callback_metrics) == 4
