"""How many files of the package a loss step passes through."""

import pytest

from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.files_crossed import files_crossed
from tests.support.soft_predictions import labels_of, near_labels

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_loss_step_crosses_few_files(encoder):
    loss, labels = SoftBERTScoreLoss(encoder), labels_of(encoder)
    logits = near_labels(encoder, labels).requires_grad_()
    loss(logits, labels)  # loads the encoder, and caches the targets
    crossed = files_crossed(lambda: loss(logits, labels).backward())
    assert len(crossed) <= 14, sorted(crossed)
    assert len([name for name in crossed if name.startswith("soft/")]) <= 5
