"""BERTScoreCallback in real runs of the trainer, on one process."""

import pickle
import re
from unittest.mock import Mock, patch

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import TQDMProgressBar
from torchmetrics import MetricCollection
from torchmetrics.text import BLEUScore, CharErrorRate, CHRFScore, EditDistance, ROUGEScore, WordErrorRate

from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from bertscore_tm.callbacks import BERTScoreCallback, SampleLogger, TextListener
from tests.support.lightning_runs import (
    Chooser,
    Returns,
    chooser,
    expected_means,
    generate,
    loader,
    logged,
    texts_of,
    trainer,
    weights,
)
from tests.support.texts import several_references


@pytest.mark.parametrize(
    ("source", "has_lists", "idf"), [("step", False, False), ("keys", True, True), ("generate", True, False)]
)
def test_scores_equal_functional(pairs, encoder, tmp_path, source, has_lists, idf):
    references = several_references(pairs[1][:9]) if has_lists else None
    names = ("said", "wanted") if source == "keys" else ("preds", "target")
    module = chooser(pairs, references=references, kind=Returns if source == "generate" else Chooser, keys=names)
    options = {"generate": generate} if source == "generate" else {"preds_key": names[0], "target_key": names[1]}
    callback = pickle.loads(pickle.dumps(BERTScoreCallback(BERTScore(encoder, idf=idf), **options)))
    run = trainer(tmp_path, [callback])

    for stage, call in (("val", run.validate), ("test", run.test)):
        [result] = call(module, verbose=False)
        if source == "generate":
            module.seen = [(0, *generate(module.eval(), torch.arange(7)))]
        assert len(texts_of(module.seen)[0]) == 7
        assert logged(run.callback_metrics, stage=stage) == expected_means(module.seen, encoder, idf=idf)
        assert logged(result, stage=stage) == logged(run.callback_metrics, stage=stage)
        assert len(run.callback_metrics) == 4


def test_a_pickled_callback_has_no_weights(shallow):
    shallow.backbone("cpu")

    data = pickle.dumps(BERTScoreCallback(BERTScore(shallow)))

    assert len(data) < 5_000_000  # the tokenizer; the weights alone are 70 MB


def test_progress_bar_shows_f1(pairs, encoder, tmp_path):
    bars = TQDMProgressBar()
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder)), bars], enable_progress_bar=True, max_epochs=1)

    run.fit(chooser(pairs))

    shown = bars.get_metrics(run, run.lightning_module)
    assert shown["val_bertscore_f1"] == pytest.approx(run.callback_metrics["val_bertscore_f1"].item(), abs=1e-6)
    assert "val_bertscore_precision" not in shown


def test_run_after_an_error_starts_empty(pairs, encoder, tmp_path):
    def fail(pl_module, batch):
        return 1 / 0 if batch[0] else generate(pl_module, batch)

    callback = BERTScoreCallback(BERTScore(encoder), fail)
    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path, [callback]).validate(chooser(pairs), verbose=False)
    callback.generate = None
    module = chooser(pairs)
    run = trainer(tmp_path, [callback])

    run.validate(module, verbose=False)

    assert logged(run.callback_metrics) == expected_means(module.seen, encoder)


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


LAYERS = "all layers"
# As torchmetrics' own, a metric of the same name.
OtherBERTScore = type("BERTScore", (BLEUScore,), {"__module__": "another_package.text"})


@pytest.mark.parametrize(
    ("metric", "error", "said"),
    [
        ("f1", TypeError, "metric is a str. Pass a bertscore_tm.BERTScore, or a dictionary of BERTScores and"),
        (OtherBERTScore(), TypeError, "metric is a another_package.text.BERTScore"),
        (LAYERS, ValueError, "logs the scores of one layer"),
        ({}, ValueError, "metric is an empty dictionary"),
    ],
)
def test_unsupported_metrics_are_an_error(minilm, metric, error, said):
    if metric is LAYERS:
        metric = {"a": BERTScore(FrozenEncoder(minilm, num_layers=2, all_layers=True))}
    with pytest.raises(error, match=re.escape(said)):
        BERTScoreCallback(metric)


@pytest.mark.parametrize("has_loader", [True, False])
def test_a_training_without_validation_is_an_error_before_it(pairs, encoder, tmp_path, has_loader):
    module, before = chooser(pairs), weights(chooser(pairs))
    if not has_loader:
        module.val_dataloader = super(Chooser, module).val_dataloader
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder))], limit_val_batches=0 if has_loader else 1.0)
    said = r"this run has no validation. Define validation_step.*limit_val_batches"

    with pytest.raises(MisconfigurationException, match=said):
        run.fit(module)
    assert torch.equal(weights(module), before)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "validation_step returned a NoneType. "),
        ({"loss": 1.0, "preds": []}, "validation_step returned a dict with the keys ['loss', 'preds']. "),
    ],
)
def test_a_step_without_texts_is_an_error(pairs, encoder, tmp_path, returned, said):
    module, before = chooser(pairs, returned=returned, kind=Returns), weights(chooser(pairs))
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder))], num_sanity_val_steps=1)
    remedy = "Return {'preds': [...], 'target': [...]}, set preds_key= and target_key="

    with pytest.raises(MisconfigurationException, match=re.escape(said + remedy)):
        run.fit(module)
    assert torch.equal(weights(module), before)

    with pytest.raises(MisconfigurationException, match=re.escape(said.replace("validation", "test") + remedy)):
        run.test(module)


@pytest.mark.parametrize(
    ("texts", "error", "said"),
    [
        ((["a"], "one text"), TypeError, "target is a single string: pass a list of texts"),
        (("a", ["b"]), TypeError, "preds is a single string: pass a list of texts"),
        (([""] * 3, ["b", [None], "c"]), TypeError, "target[1][0] must be a string, got None"),
        ((["a", "b"], ["a"]), ValueError, "preds and target must have equal lengths, got 2 and 1"),
        ((torch.tensor([1]), ["a"]), TypeError, "preds must be texts, got a tensor of shape (1,)"),
    ],
)
def test_unusable_texts_are_an_error(pairs, encoder, tmp_path, texts, error, said):
    callback = BERTScoreCallback(BERTScore(encoder), lambda pl_module, batch: texts)

    with pytest.raises(error, match=re.escape(said)):
        trainer(tmp_path, [callback]).validate(chooser(pairs), verbose=False)


class Halves(WordErrorRate):
    """Two numbers for all texts."""

    def compute(self):
        return super().compute(), super().compute()


@pytest.mark.parametrize(
    ("metric", "said"),
    [(EditDistance(reduction="none"), "EditDistance) returned tensor(["), (Halves(), "Halves) returned (tensor(")],
)
def test_a_metric_of_several_values_is_an_error(encoder, pairs, tmp_path, metric, said):
    metrics = {"bertscore": BERTScore(encoder), "other": metric}

    with pytest.raises(MisconfigurationException, match=f"the metric 'other' .*{re.escape(said)}.*Choose options"):
        trainer(tmp_path, [BERTScoreCallback(metrics)]).validate(chooser(pairs), loader(3), verbose=False)


def test_every_metric_scores_the_same_texts(pairs, encoder, shallow, tmp_path):
    counted = Mock(side_effect=generate)
    metrics = {
        "bertscore": BERTScore(encoder),
        "idf": BERTScore(encoder, idf=True),
        "shallow": BERTScore(shallow),
        "bleu": BLEUScore(n_gram=2),
        "rouge": ROUGEScore(rouge_keys=("rouge1", "rougeL")),
        "chrf": CHRFScore(return_sentence_level_score=True),
        "errors": MetricCollection({"cer": CharErrorRate(), "distance": EditDistance()}),
    }
    module = chooser(pairs, kind=Returns)
    run = trainer(tmp_path, [BERTScoreCallback(metrics, counted)])

    run.validate(module, verbose=False)

    assert sum(len(call.args[1]) for call in counted.call_args_list) == 7
    logged = {key: value.item() for key, value in run.callback_metrics.items()}
    preds, target = generate(module.eval(), torch.arange(7))
    lists = [[text] for text in target]
    wanted = {}
    for name, options, model in (("bertscore", {}, encoder), ("idf", {"idf": True}, encoder), ("shallow", {}, shallow)):
        wanted[f"val_{name}_empty"] = 0
        for key, score in bert_score(preds, target, model, **options).items():
            wanted[f"val_{name}_{key}"] = score.mean().item()
    wanted["val_bleu"] = BLEUScore(n_gram=2)(preds, lists).item()
    wanted["val_chrf"] = CHRFScore()(preds, lists).item()
    rouge = ROUGEScore(rouge_keys=("rouge1", "rougeL"))(preds, target)
    wanted |= {f"val_rouge_{key}": value.item() for key, value in rouge.items()}
    wanted["val_errors_cer"] = CharErrorRate()(preds, target).item()
    wanted["val_errors_distance"] = EditDistance()(preds, target).item()
    assert logged == pytest.approx(wanted, abs=1e-6)
    # The caller's own metrics were left alone.
    assert metrics["bleu"].update_count == metrics["bertscore"].update_count == 0


def test_metrics_of_one_encoder_encode_each_batch_once(pairs, shallow, tmp_path):
    batches, scored_loaders = [], []

    class CountsBatches(CharErrorRate):
        def update(self, preds, target):
            batches.append(len(preds))
            super().update(preds, target)

    class KeepsScores(TextListener):
        def on_run_scored(self, trainer, pl_module, scorer, loaders):
            scored_loaders.extend(loaders)

    settings = {"plain": {}, "idf": {"idf": True}, "pairs": {"reduction": "none"}}
    metrics = {name: BERTScore(shallow, cache_bytes=0, **options) for name, options in settings.items()}
    module = chooser(pairs, val_sizes=(9, 5))
    callback = BERTScoreCallback(metrics | {"cer": CountsBatches()}, max_batches=2, loader_names=["news", "books"])
    run = trainer(tmp_path, [KeepsScores(), callback])

    with patch.object(FrozenEncoder, "encode", autospec=True, side_effect=FrozenEncoder.encode) as encode:
        run.test(module, verbose=False)

    assert encode.call_count == 4
    assert batches == [3, 3, 3, 2]
    places = [(part.stage, part.dataloader_idx, part.suffix) for part in scored_loaders]
    assert places == [("test", 0, "_news"), ("test", 1, "_books")]
    # Pairs are kept where the metric keeps them.
    assert callback.pairs.keys() == {"test_pairs_f1_news", "test_pairs_f1_books"}
    for part in scored_loaders:
        of_loader = [batch for batch in module.seen if batch[0] == part.dataloader_idx]
        preds, target = texts_of(of_loader[:2])
        for name in metrics:
            assert part.metrics[name].encoder is shallow
            for score, expected in bert_score(preds, target, shallow, idf=name == "idf").items():
                assert torch.allclose(part.scores[name][score], expected, rtol=0, atol=1e-6)
                logged = run.callback_metrics[f"test_{name}_{score}{part.suffix}"]
                assert logged.item() == pytest.approx(expected.mean().item(), abs=1e-6)
        assert torch.equal(callback.pairs[f"test_pairs_f1{part.suffix}"], part.scores["pairs"]["f1"])
