"""Runs with a SampleLogger, and the tables that it writes."""

import csv
from pathlib import Path

import pytest
from lightning.pytorch.loggers import CSVLogger

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback, SampleLogger
from bertscore_tm.functional import bert_score
from tests.support.lightning_runs import Chooser, chooser, trainer

COUNT = 9


def inputs_of(batch):
    return [f"input {number}" for number in batch.tolist()]


class Mixed(Chooser):
    """Some of its predictions are right, some are empty, and the others belong to another example."""

    def choose(self, numbers):
        references = [self.references[i] for i in numbers.tolist()]
        first = [texts if isinstance(texts, str) else texts[0] for texts in self.references]
        preds = ["" if i % 4 == 3 else first[i] if i % 3 == 0 else first[(i + 4) % COUNT] for i in numbers.tolist()]
        return preds, references


def mixed(pairs, **kwargs):
    return chooser(pairs, kind=Mixed, val_sizes=kwargs.pop("val_sizes", (COUNT,)), **kwargs)


def run_with(folder, module, encoder, samples=None, call="validate", metric=None, **arguments):
    samples = samples or SampleLogger(2, inputs=inputs_of)
    callbacks = [samples, BERTScoreCallback(metric or BERTScore(encoder))]
    arguments = {"logger": CSVLogger(folder, "csv")} | arguments
    run = trainer(folder, callbacks, **arguments)
    getattr(run, call)(module, **({} if call == "fit" else {"verbose": False}))
    return run


def table(folder, name="val_samples_step_0"):
    with (Path(folder) / "csv" / "version_0" / "samples" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def files(folder):
    return sorted(path.name for path in (Path(folder) / "csv" / "version_0" / "samples").iterdir())


def expected_rows(preds, target, encoder, count, **options):
    """Chosen by sorting whole rows, with the scores of one call; equal texts score the same to five decimals."""
    scores = bert_score(preds, target, encoder, **options)
    ranked = sorted(range(len(preds)), key=lambda i: (round(scores["f1"][i].item(), 5), i))
    middle = ranked[count : len(ranked) - count]
    start = (len(middle) - count) // 2
    chosen = [("worst", i) for i in ranked[:count]]
    chosen += [("median", i) for i in middle[start : start + count]]
    chosen += [("best", i) for i in ranked[::-1][:count]]
    return [
        (kind, str(i + 1), *(round(scores[name][i].item(), 4) for name in ("precision", "recall", "f1")))
        for kind, i in chosen
    ]


def shown(rows):
    return [(row["kind"], row["example"], float(row["P"]), float(row["R"]), float(row["F1"])) for row in rows]


def approximately(rows):
    return [(kind, number, *(pytest.approx(score, abs=1.1e-4) for score in scores)) for kind, number, *scores in rows]
