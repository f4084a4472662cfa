"""Warnings on the texts of a validation."""

import csv
from pathlib import Path

import pytest
from lightning.pytorch.loggers import CSVLogger

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback, SampleLogger
from tests.support.lightning_runs import Chooser, chooser, trainer


class EmptyTexts(Chooser):
    """In epoch e writes ``counts[e]`` empty texts, and only empty texts in the sanity check."""

    counts = (0, 1, 1, 2, 3, 0, 4, 7)

    def choose(self, numbers):
        preds, target = super().choose(numbers)
        count = self.counts[min(self.current_epoch, 7)]
        if self.trainer.sanity_checking:
            count = len(preds)
        for place, number in enumerate(numbers.tolist()):
            if number < count:
                preds[place] = ""
        return preds, target


def test_the_share_of_empty_texts_is_logged(pairs, encoder, tmp_path, recwarn):
    callbacks = [BERTScoreCallback(BERTScore(encoder)), SampleLogger(1)]

    def counts():
        messages = [str(warning.message) for warning in recwarn if "scored 0 because" in str(warning.message)]
        recwarn.clear()
        return [message.split(" ", 1)[0] for message in messages]

    module = chooser(pairs, kind=EmptyTexts)
    run = trainer(tmp_path, callbacks, logger=CSVLogger(tmp_path), num_sanity_val_steps=1, max_epochs=8)

    run.fit(module)

    assert counts() == ["1", "2", "4"]
    with Path(run.log_dir, "metrics.csv").open() as file:
        shares = [row["val_bertscore_empty"] for row in csv.DictReader(file)]
    logged = [float(share) for share in shares if share]
    assert logged == pytest.approx([count / 7 for count in EmptyTexts.counts])
    run.validate(module, verbose=False)
    assert counts() == ["7"]
