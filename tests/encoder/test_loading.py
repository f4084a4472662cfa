"""Models on the hub, read from its cache: which commit they are of."""

import os
import subprocess
import sys

from tests.support.models import randomised, tiny_model

PROGRAM = """
import sys
from pathlib import Path
from bertscore_tm import FrozenEncoder, bert_score

branch = Path(sys.argv[1])
texts = ["a cat sat"], ["the dog sat down"]
for first, second in (sys.argv[2:], sys.argv[:1:-1]):
    branch.write_text(first)
    encoder = FrozenEncoder("me/tiny", num_layers=2)
    branch.write_text(second)  # moved before the weights are loaded
    print(str(encoder.signature().select("model", "revision")), round(bert_score(*texts, encoder)["f1"].item(), 6))
"""


def test_a_branch_that_moves_gives_other_signatures_and_scores(tmp_path):
    commits = [digit * 40 for digit in "ab"]
    model, tokenizer = tiny_model("bert")
    hub = tmp_path / "hub" / "models--me--tiny"
    (hub / "refs").mkdir(parents=True)
    for commit, weights in zip(commits, (model, randomised(type(model)(model.config), seed=1)), strict=True):
        for part in (weights, tokenizer):
            part.save_pretrained(hub / "snapshots" / commit)
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-c", PROGRAM, str(hub / "refs" / "main"), *commits]
    output = subprocess.run(program, env=environment, check=True, capture_output=True, text=True).stdout
    (first, one), (second, other) = (line.split() for line in output.splitlines())

    assert [first, second] == [f"model:me/tiny@{commit}" for commit in commits]
    assert one != other
