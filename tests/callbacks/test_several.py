"""BERTScoreCallback with several metrics and with max_batches."""

from unittest.mock import Mock, patch

import pytest
import torch
from torchmetrics import MetricCollection
from torchmetrics.text import BLEUScore, CharErrorRate, CHRFScore, EditDistance, ROUGEScore

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback, TextListener
from bertscore_tm.functional import bert_score
from tests.support.lightning_runs import Returns, chooser, generate, trainer


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
    wanted = {}
    for name, options, model in (("bertscore", {}, encoder), ("idf", {"idf": True}, encoder), ("shallow", {}, shallow)):
        scores = bert_score(preds, target, model, **options)
        wanted |= {f"val_{name}_{key}": score.mean().item() for key, score in scores.items()} | {f"val_{name}_empty": 0}
    wanted["val_bleu"] = BLEUScore(n_gram=2)(preds, [[text] for text in target]).item()
    wanted["val_chrf"] = CHRFScore()(preds, [[text] for text in target]).item()
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
    assert (encode.call_count, batches) == (4, [3, 3, 3, 2])
    places = [(part.stage, part.dataloader_idx, part.suffix) for part in scored_loaders]
    assert places == [("test", 0, "_news"), ("test", 1, "_books")]
    # Pairs are kept where the metric keeps them.
    assert callback.pairs.keys() == {"test_pairs_f1_news", "test_pairs_f1_books"}
    for part in scored_loaders:
        seen = [batch for batch in module.seen if batch[0] == part.dataloader_idx][:2]
        preds, target = ([text for batch in seen for text in batch[side]] for side in (1, 2))
        for name in metrics:
            assert part.metrics[name].encoder is shallow
            for score, expected in bert_score(preds, target, shallow, idf=name == "idf").items():
                assert torch.allclose(part.scores[name][score], expected, rtol=0, atol=1e-6)
                logged = run.callback_metrics[f"test_{name}_{score}{part.suffix}"]
                assert logged.item() == pytest.approx(expected.mean().item(), abs=1e-6)
        assert torch.equal(callback.pairs[f"test_pairs_f1{part.suffix}"], part.scores["pairs"]["f1"])
