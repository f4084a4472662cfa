"""Progress bars: shown on request, and without a trace otherwise."""

import pytest
from tqdm import tqdm

from bertscore_tm import bert_score, rank_candidates, score_matrix
from bertscore_tm.utilities.progress import progress_bar

CALLS = {
    "bert_score": lambda encoder: bert_score(["a cat"], ["the cat"], encoder),
    "rank_candidates": lambda encoder: rank_candidates([["a cat", "a dog"]], ["the cat"], encoder),
    "score_matrix": lambda encoder: score_matrix(["a cat"], ["the cat"], encoder=encoder),
}


def test_a_bar_counts_from_the_items_finished_before(capsys):
    with progress_bar(4, "pair", is_shown=True, initial=1) as advance:
        advance(3)

    assert "4/4" in capsys.readouterr().err


def test_nothing_is_printed_without_a_bar(capsys):
    with progress_bar(4, "pair", is_shown=False) as advance:
        advance(3)

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", CALLS)
def test_no_thread_is_started_without_a_bar(encoder, monkeypatch, name):
    CALLS[name](encoder)  # loading the model shows a bar of transformers
    monkeypatch.setattr(tqdm, "monitor", None)

    CALLS[name](encoder)

    assert tqdm.monitor is None
