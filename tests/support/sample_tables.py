"""Runs with a SampleLogger, and the tables that it writes."""

import csv
from pathlib import Path

from lightning.pytorch.loggers import CSVLogger

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback, SampleLogger
from tests.support.lightning_runs import COUNT, Chooser, chooser, trainer


def inputs_of(batch):
    """Return an input text for each example of a batch."""
    return [f"input {number}" for number in batch.tolist()]


class Mixed(Chooser):
    """Some of its predictions are right, some are empty, and the others belong to another example."""

    def choose(self, numbers):
        references = [self.references[i] for i in numbers.tolist()]
        first = [texts if isinstance(texts, str) else texts[0] for texts in self.references]
        preds = ["" if i % 4 == 3 else first[i] if i % 3 == 0 else first[(i + 4) % COUNT] for i in numbers.tolist()]
        return preds, references


def mixed(pairs, **kwargs):
    """Return a module whose predictions are right, empty, or those of another example."""
    return chooser(pairs, kind=Mixed, val_sizes=kwargs.pop("val_sizes", (COUNT,)), **kwargs)


def run_with(folder, module, encoder, samples=None, call="validate", metric=None, **arguments):
    """Run a trainer with a logger of samples and a metric, and return the trainer."""
    samples = samples or SampleLogger(2, inputs=inputs_of)
    callbacks = [samples, BERTScoreCallback(metric or BERTScore(encoder))]
    arguments = {"logger": CSVLogger(folder, "csv")} | arguments
    run = trainer(folder, callbacks, **arguments)
    getattr(run, call)(module, **({} if call == "fit" else {"verbose": False}))
    return run


def table(folder, name="validate_samples_step_0"):
    """Return the rows of a table of samples."""
    with (Path(folder) / "csv" / "version_0" / "samples" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def files(folder):
    """Return the names of the files of samples."""
    return sorted(path.name for path in (Path(folder) / "csv" / "version_0" / "samples").iterdir())
