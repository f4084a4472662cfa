"""Models on the hub, read from its cache: which commit they are of."""

from huggingface_hub import constants

from bertscore_tm import FrozenEncoder, bert_score
from tests.support.models import randomised, tiny_model


def test_a_branch_that_moves_gives_other_signatures_and_scores(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    commits = [digit * 40 for digit in "ab"]
    model, tokenizer = tiny_model("bert")
    hub = tmp_path / "models--me--tiny"
    (hub / "refs").mkdir(parents=True)
    for commit, weights in zip(commits, (model, randomised(type(model)(model.config), seed=1)), strict=True):
        for part in (weights, tokenizer):
            part.save_pretrained(hub / "snapshots" / commit)
    branch = hub / "refs" / "main"
    signatures = []
    scores = []

    for first, second in (commits, commits[::-1]):
        branch.write_text(first)
        encoder = FrozenEncoder("me/tiny", num_layers=2)
        branch.write_text(second)  # moved before the weights are loaded
        signatures.append(str(encoder.signature().select("model", "revision")))
        scores.append(bert_score(["a cat sat"], ["the dog sat down"], encoder)["f1"].item())

    assert signatures == [f"model:me/tiny@{commit}" for commit in commits]
    assert abs(scores[0] - scores[1]) > 1e-6
