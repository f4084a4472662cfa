"""The path of a text through the package stays short enough to be read."""

from __future__ import annotations

import pytest

from bertscore_tm import BERTScore, rank_candidates
from tests.support.files_crossed import files_crossed


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
