"""The path of a text through the package stays short enough to be read."""

from __future__ import annotations

import pytest

from bertscore_tm import BERTScore, rank_candidates
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.files_crossed import files_crossed
from tests.support.soft_predictions import labels_of, near_labels


@pytest.mark.parametrize(("kind", "limit"), [("metric", 14), ("ranking", 14)])
def test_a_pair_crosses_few_files(encoder, kind, limit):
    metric = BERTScore(encoder, cache_bytes=0)

    def score() -> None:
        if kind == "metric":
            metric.update(["a small cat"], ["the kitten"])
            metric.compute()
        else:
            rank_candidates([["a small cat", "a dog"]], ["the kitten"], encoder)

    # The first call loads the model.
    score()
    metric.reset()
    crossed = files_crossed(score)
    print(f"{kind}: {len(crossed)} files: {', '.join(sorted(crossed))}")
    assert len(crossed) <= limit


@pytest.mark.usefixtures("one_thread")
def test_a_loss_step_crosses_few_files(encoder):
    loss, labels = SoftBERTScoreLoss(encoder), labels_of(encoder)
    logits = near_labels(encoder, labels).requires_grad_()
    loss(logits, labels)  # loads the encoder, and caches the targets
    crossed = files_crossed(lambda: loss(logits, labels).backward())
    assert len(crossed) <= 14, sorted(crossed)
    assert len([name for name in crossed if name.startswith("soft/")]) <= 5
