"""Every public function, class and command that takes texts, as a function that returns the F1 of pairs.

Each takes an encoder that was made from a model's name, candidates, and a reference or references per candidate.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bertscore_tm import BERTScore, FrozenEncoder, PairScorer, bert_score, rank_candidates, score_matrix
from bertscore_tm.cli import main
from bertscore_tm.compat import bert_score as bert_score_drop_in
from bertscore_tm.compat import evaluate as evaluate_drop_in
from bertscore_tm.compat import torchmetrics as torchmetrics_drop_in
from bertscore_tm.functional import document_frequencies
from bertscore_tm.losses import BERTScoreReward
from bertscore_tm.report import Report

EntryPoint = Callable[[FrozenEncoder, Any, Any], list[float]]

PREDS = ["a cat sat", "the dog ran home", "rain fell"]
TARGET = ["the cat sat there", "a dog came home", "it rained"]


def make_metric(encoder, **options):
    """Return a metric of pairs on the CPU: torchmetrics creates metrics on the default device."""
    with torch.device("cpu"):
        return BERTScore(encoder, reduction="none", **options)


def score(encoder, preds, target):
    """F1 of ``bert_score``."""
    return bert_score(preds, target, encoder)["f1"].tolist()


def update(encoder, preds, target):
    """F1 of ``BERTScore.update`` and ``compute``."""
    metric = make_metric(encoder)
    metric.update(preds, target)
    return metric.compute()["f1"].tolist()


def forward(encoder, preds, target):
    """F1 of ``BERTScore.forward``, the values of one batch."""
    metric = make_metric(encoder)
    return metric(preds, target)["f1"].tolist()


def rank(encoder, preds, target):
    """Scores of ``rank_candidates``, with one candidate per item."""
    # The elements of an Arrow array are not strings.
    if hasattr(preds, "to_pylist"):
        preds = preds.to_pylist()
    items = ([text] for text in preds)
    ranked = rank_candidates(items, target, encoder)
    return [scores.item() for scores in ranked.scores]


def rank_item(encoder, preds, target):
    """Scores of ``rank_candidates`` with all candidates in one item: means over all references."""
    ranked = rank_candidates([preds], [target], encoder)
    return ranked.scores[0].tolist()


def fill_matrix(encoder, preds, target):
    """F1 of ``score_matrix``, the diagonal."""
    return score_matrix(preds, target, encoder)["f1"].diagonal().tolist()


def reward(encoder, preds, target):
    """Rewards of ``BERTScoreReward``."""
    return BERTScoreReward(encoder)(preds, target)


def score_batch(encoder, preds, target):
    """F1 of a batch of ``PairScorer``."""
    scorer = PairScorer(encoder.name, num_layers=encoder.num_layers)
    batch = scorer({"candidate": preds, "reference": target})
    return batch["f1"].tolist()


def report(encoder, preds, target):
    """F1 of ``Report.from_texts``."""
    scores = Report.from_texts(preds, target, encoder).scores["candidates"]  # (3, pairs)
    return scores[2].tolist()


def score_with_drop_in(encoder, preds, target):
    """F1 of ``score`` in the drop-in of bert-score."""
    _, _, f1 = bert_score_drop_in.score(preds, target, encoder.name, encoder.num_layers)
    return f1.tolist()


def score_with_scorer(encoder, preds, target):
    """F1 of ``BERTScorer`` in the drop-in of bert-score."""
    scorer = bert_score_drop_in.BERTScorer(encoder.name, encoder.num_layers)
    _, _, f1 = scorer.score(preds, target)
    return f1.tolist()


def evaluate(encoder, preds, target):
    """F1 of ``compute`` in the drop-in of evaluate."""
    options = {"model_type": encoder.name, "num_layers": encoder.num_layers}
    return evaluate_drop_in.load("bertscore").compute(predictions=preds, references=target, **options)["f1"]


def evaluate_batch(encoder, preds, target):
    """F1 of ``add_batch`` and ``compute`` in the drop-in of evaluate."""
    metric = evaluate_drop_in.load("bertscore")
    metric.add_batch(predictions=preds, references=target)
    return metric.compute(model_type=encoder.name, num_layers=encoder.num_layers)["f1"]


def score_with_torchmetrics(encoder, preds, target):
    """F1 of ``bert_score`` in the drop-in of torchmetrics."""
    scores = torchmetrics_drop_in.bert_score(preds, target, encoder.name, encoder.num_layers)
    return scores["f1"].tolist()


def update_with_torchmetrics(encoder, preds, target):
    """F1 of ``BERTScore`` in the drop-in of torchmetrics."""
    with torch.device("cpu"):
        metric = torchmetrics_drop_in.BERTScore(encoder.name, encoder.num_layers)
    metric.update(preds, target)
    return metric.compute()["f1"].tolist()


def score_with_weights(encoder, preds, target):
    """F1 of ``PREDS`` and ``TARGET`` by ``bert_score``, whose ``idf`` is the corpus ``target``."""
    return bert_score(PREDS, TARGET, encoder, idf=target)["f1"].tolist()


def score_with_frequencies(encoder, preds, target):
    """F1 of ``PREDS`` and ``TARGET`` by ``bert_score``, with ``document_frequencies`` of ``target``."""
    frequencies = document_frequencies(target, encoder)
    return bert_score(PREDS, TARGET, encoder, idf=frequencies)["f1"].tolist()


def update_with_weights(encoder, preds, target):
    """F1 of ``PREDS`` and ``TARGET`` by ``BERTScore``, whose ``idf`` is the corpus ``target``."""
    metric = make_metric(encoder, idf=target)
    return metric(PREDS, TARGET)["f1"].tolist()


# Functions whose result is the F1 of each pair.
PAIRS: dict[str, EntryPoint] = {
    "bert_score": score,
    "BERTScore.update": update,
    "BERTScore.forward": forward,
    "rank_candidates": rank,
    "score_matrix": fill_matrix,
    "BERTScoreReward": reward,
    "PairScorer": score_batch,
    "Report": report,
    "compat.bert_score.score": score_with_drop_in,
    "compat.bert_score.BERTScorer": score_with_scorer,
    "compat.evaluate.compute": evaluate,
    "compat.evaluate.add_batch": evaluate_batch,
    "compat.torchmetrics.bert_score": score_with_torchmetrics,
    "compat.torchmetrics.BERTScore": update_with_torchmetrics,
}
# Functions that weight tokens by a corpus.
CORPORA: dict[str, EntryPoint] = {
    "idf of bert_score": score_with_weights,
    "document_frequencies": score_with_frequencies,
    "idf of BERTScore": update_with_weights,
}
ENTRY_POINTS: dict[str, EntryPoint] = PAIRS | CORPORA | {"item of rank_candidates": rank_item}


def run_score(encoder, *files):
    """F1 of ``bertscore-tm score``, run in this process on files of pairs, or of candidates and references."""
    return _run_command(encoder, ["score", *files, "--per-segment"])["segments"]["f1"]


def run_score_on_pairs(encoder, preds, target):
    """F1 of ``bertscore-tm score``, run in this process on a file of JSON lines."""
    rows = [{"candidate": text, "reference": other} for text, other in zip(preds, target, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return run_score(encoder, path)


def _run_command(encoder, words):
    """Run a command in this process, and return the JSON document that it writes."""
    model = ["--model", encoder.name, "--num-layers", encoder.num_layers, "--device", "cpu"]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "scores.json"
        exit_code = main([str(word) for word in [*words, *model, "--output", output]])
        assert exit_code == 0
        return json.loads(output.read_text(encoding="utf-8"))
