"""BERTScoreCallback in real runs of the trainer, on one process."""

import csv
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import CombinedLoader

from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from bertscore_tm.callbacks import BERTScoreCallback, SampleLogger
from bertscore_tm.functional import SCORE_NAMES
from tests.support.lightning_runs import Chooser, Returns, chooser, generate, loader, logged, means, texts_of, trainer
from tests.support.texts import several_references


def expected(batches, encoder, number=None, **options):
    """The mean scores of the texts of one loader, or of all."""
    preds, references = texts_of(batches, number)
    return pytest.approx(means(preds, references, encoder, **options), abs=1e-6)


# What is scored


@pytest.mark.parametrize(
    ("source", "has_lists", "idf"), [("step", False, False), ("keys", True, True), ("generate", True, False)]
)
def test_scores_equal_functional(pairs, encoder, tmp_path, source, has_lists, idf):
    references = several_references(pairs[1][:9]) if has_lists else None
    names = ("said", "wanted") if source == "keys" else ("preds", "target")
    module = chooser(pairs, references=references, kind=Returns if source == "generate" else Chooser, keys=names)
    options = {"generate": generate} if source == "generate" else {"preds_key": names[0], "target_key": names[1]}
    data = pickle.dumps(BERTScoreCallback(BERTScore(encoder, idf=idf), **options))
    assert len(data) < 5_000_000  # the tokenizer; the weights alone are 70 MB
    run = trainer(tmp_path, [pickle.loads(data)])
    for stage, call in (("val", run.validate), ("test", run.test)):
        [result] = call(module, verbose=False)
        if source == "generate":
            module.seen = [(0, *generate(module.eval(), torch.arange(7)))]
        assert len(texts_of(module.seen)[0]) == 7
        assert logged(run.callback_metrics, stage=stage) == expected(module.seen, encoder, idf=idf)
        assert logged(result, stage=stage) == logged(run.callback_metrics, stage=stage)
        assert len(run.callback_metrics) == 4


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
        keys = {f"{stage}_bertscore_{score}{end}" for score in (*SCORE_NAMES, "empty") for end in ("", *ends)}
        assert set(run.callback_metrics) == keys
        shown = capsys.readouterr().out
        assert not names or all(re.search(rf"\b{key}\b", shown) for key in keys)
        parts = [logged(run.callback_metrics, stage=stage, suffix=end) for end in ends]
        for number, part in enumerate(parts):
            assert part == expected(module.seen, encoder, number)
            assert callback.pairs[f"{stage}_bertscore_f1{ends[number]}"].shape == ((9, 2)[number],)
        assert len(callback.pairs) == 2  # those of earlier runs are dropped
        assert logged(run.callback_metrics, stage=stage) == pytest.approx(np.mean(parts, axis=0), abs=1e-6)
        assert parts[0] != pytest.approx(parts[1], abs=1e-3)


class EmptyTexts(Chooser):
    """In epoch e writes ``counts[e]`` empty texts, and only empty texts in the sanity check."""

    counts = (0, 1, 1, 2, 3, 0, 4, 7)

    def choose(self, numbers):
        preds, target = super().choose(numbers)
        count = len(preds) if self.trainer.sanity_checking else self.counts[min(self.current_epoch, 7)]
        return ["" if number < count else pred for number, pred in zip(numbers.tolist(), preds, strict=True)], target


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
        shares = [float(row["val_bertscore_empty"]) for row in csv.DictReader(file) if row["val_bertscore_empty"]]
    assert shares == pytest.approx([count / 7 for count in EmptyTexts.counts])
    run.validate(module, verbose=False)
    assert counts() == ["7"]


class CombinedLoaders(Chooser):
    """Gets the batches of two loaders at once."""

    def validation_step(self, batch, batch_idx):
        return super().evaluation_step(torch.cat([batch["a"], batch["b"]]), batch_idx)


@pytest.mark.filterwarnings("error:The ``compute`` method")
def test_a_loader_without_batches_has_no_score(pairs, encoder, tmp_path):
    module = chooser(pairs)
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder))])
    run.validate(module, [loader(0), loader(6)], verbose=False)
    assert logged(run.callback_metrics) == expected(module.seen, encoder)
    assert logged(run.callback_metrics, suffix="_dataloader_idx_1") == logged(run.callback_metrics)
    assert "val_bertscore_f1_dataloader_idx_0" not in run.callback_metrics
    module = chooser(pairs, kind=CombinedLoaders)
    both = CombinedLoader({"a": loader(6), "b": loader(3, first=6)}, "max_size_cycle")
    run.validate(module, both, verbose=False)
    assert logged(run.callback_metrics) == expected(module.seen, encoder)
    assert len(run.callback_metrics) == 4


def test_progress_bar_shows_f1(pairs, encoder, tmp_path):
    bars = TQDMProgressBar()
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder)), bars], enable_progress_bar=True, max_epochs=1)
    run.fit(chooser(pairs))
    shown = bars.get_metrics(run, run.lightning_module)
    assert shown["val_bertscore_f1"] == pytest.approx(run.callback_metrics["val_bertscore_f1"].item(), abs=1e-6)
    assert "val_bertscore_precision" not in shown


# Errors and warnings


def test_run_after_an_error_starts_empty(pairs, encoder, tmp_path):
    def fail(pl_module, batch):
        return 1 / 0 if batch[0] else generate(pl_module, batch)

    callback = BERTScoreCallback(BERTScore(encoder), fail)
    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path, [callback]).validate(chooser(pairs), verbose=False)
    callback.generate = None
    module, run = chooser(pairs), trainer(tmp_path, [callback])
    run.validate(module, verbose=False)
    assert logged(run.callback_metrics) == expected(module.seen, encoder)


# Unrelated texts at the last layer: P = .015, R = -.015 and F1 = 1.000 by its formula, then .66.
UNRELATED = ["Construct a Ttk Panedwindow", "If y is not"]
OTHERS = ["Return all members of", "Handle request to open"]


def plain_selection_f1(pred, references, encoder, baseline, **options):
    """F1 of one prediction by plain arithmetic, reference by reference."""
    best = -1.0
    for reference in references:
        scores = bert_score([pred], [reference], encoder, **options)
        p, r = scores["precision"].item(), scores["recall"].item()
        best = max(best, 2 * p * r / (p + r) if p > 0 and r > 0 else min(p, r))
    return (best - baseline) / (1 - baseline)


@pytest.mark.parametrize("kind", ["two references", "idf", "rescaled"])
def test_logged_f1_and_samples_have_no_pole(minilm, tmp_path, kind):
    encoder = FrozenEncoder(minilm, num_layers=6)
    (tmp_path / "baseline.csv").write_text("LAYER,P,R,F\n" + "".join(f"{i},.25,.25,.25\n" for i in range(7)))
    options, baseline = ({"rescale": tmp_path / "baseline.csv"}, 0.25) if kind == "rescaled" else ({}, 0.0)
    references = [[text, "Read everything up to"] if kind == "two references" else [text] for text in OTHERS]
    assert bert_score(UNRELATED, references, encoder, **options)["f1"][0] == 1.0  # by the formula
    callback = BERTScoreCallback(BERTScore(encoder, reduction="none", idf=kind == "idf", **options))
    module = Returns(OTHERS, references, {"preds": UNRELATED, "target": references})
    tables = []
    run = trainer(tmp_path, [callback, SampleLogger(1, writer=lambda logger, table: tables.append(table))])
    run.validate(module, loader(2), verbose=False)
    idf = OTHERS if kind == "idf" else False
    wanted = [plain_selection_f1(UNRELATED[i], references[i], encoder, baseline, idf=idf) for i in range(2)]
    assert max(wanted) < 0.1
    assert callback.pairs["val_bertscore_f1"].tolist() == pytest.approx(wanted, abs=1e-6)
    assert run.callback_metrics["val_bertscore_f1"].item() == pytest.approx(sum(wanted) / 2, abs=1e-6)
    assert all(sample.f1 < 0.1 for sample in tables[0].samples)
