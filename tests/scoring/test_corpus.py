"""A corpus is divided into steps of bounded memory."""

import pytest

from bertscore_tm.scoring import corpus
from bertscore_tm.scoring.corpus import plan_steps
from bertscore_tm.scoring.texts import TextPairs

CANDIDATES = ["aaaa", "bbbb", "cccc", "dddd"]


@pytest.mark.parametrize(
    ("references", "sizes"), [(["eeee", "ffff", "gggg", "hhhh"], [2, 2]), (["eeee", "eeee", "eeee", "eeee"], [3, 1])]
)
def test_steps_are_full(encoder, monkeypatch, references, sizes):
    # A text counts as two tokens for its characters and two special ones, and equal references as one text.
    monkeypatch.setattr(corpus, "_ELEMENTS_PER_STEP", 4 * 4 * encoder.config.hidden_size)
    steps = plan_steps(TextPairs(CANDIDATES, [[reference] for reference in references]), encoder)
    assert [len(step) for step in steps] == sizes
