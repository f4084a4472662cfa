"""Results of the commands in a table: files, arguments and printed lines.

The scores are those of bert-score 0.3.13 for layer 5 of all-MiniLM-L6-v2, and the intervals those of scipy's
Student distribution, cut at 1.
"""

import pytest

from tests.support.shell_cases import MODEL, ShellCase, check_case

FILES = {
    "a.txt": ["a cat sat on the mat", "it rains", "the dog ran home"],
    "b.txt": ["a mat", "it is sunny", "the dog slept"],
    "r.txt": ["the cat sat on a mat", "rain falls", "a dog came home"],
    "empty.txt": ["", " ", ""],
    "samples.jsonl": [{"candidates": ["a mat", "a cat sat on the mat"], "reference": "the cat sat on a mat"}],
}
PAIRS = "3 candidates, 3 references, paired by order"
SIGNATURE = "signature: model:...|layer:5|..."
SCORES = "P 0.8306  R 0.8340  F1 0.8323"
TRUNCATED = "4 texts are longer than 4 tokens and were truncated. Set the encoder's long_text (--long-text) to 'window'"
CASES = {
    "scores": ShellCase(f"score a.txt r.txt {MODEL}", FILES, [SCORES, PAIRS, SIGNATURE]),
    "files by option": ShellCase(f"score -r r.txt -c a.txt {MODEL}", FILES, [SCORES, PAIRS, SIGNATURE]),
    "equal texts": ShellCase(f"score a.txt a.txt {MODEL}", FILES, ["P 1.0000  R 1.0000  F1 1.0000", PAIRS, SIGNATURE]),
    "weights": ShellCase(
        f"score a.txt r.txt --idf {MODEL}",
        FILES,
        ["P 0.8097  R 0.8306  F1 0.8198", PAIRS, "signature: model:...|idf:3|..."],
    ),
    "two references": ShellCase(
        f"score b.txt -r r.txt a.txt {MODEL}",
        FILES,
        ["P 0.7583  R 0.6419  F1 0.6907", "3 candidates, 6 references, paired by order", SIGNATURE],
    ),
    "empty references": ShellCase(
        f"score a.txt empty.txt {MODEL}",
        FILES,
        ["P 0.0000  R 0.0000  F1 0.0000", PAIRS, SIGNATURE],
        ["warning: 3 candidates scored 0 because the text or each of its references is empty"],
    ),
    "intervals": ShellCase(
        f"score a.txt r.txt --confidence 0.9 {MODEL}",
        FILES,
        [
            "P 0.8306 [0.6120, 1.0000]  R 0.8340 [0.6244, 1.0000]  F1 0.8323 [0.6182, 1.0000]",
            "90% intervals of the means",
            PAIRS,
            SIGNATURE,
        ],
    ),
    "scores of pairs": ShellCase(
        f"score a.txt r.txt -s {MODEL}",
        FILES,
        [
            f"# {SCORES}",
            f"# {PAIRS}",
            f"# {SIGNATURE}",
            "segment\tlayer\tprecision\trecall\tf1",
            "1\t5\t0.965121\t0.965121\t0.965121",
            "2\t5\t0.706433\t0.717868\t0.712105",
            "3\t5\t0.820298\t0.818878\t0.819587",
        ],
    ),
    "the worst pair": ShellCase(
        f"score a.txt r.txt --worst 1 {MODEL}",
        FILES,
        [SCORES, PAIRS, SIGNATURE, "", "row 2, F1 0.7121", "candidate: it rains", "reference: rain falls"],
    ),
    "truncated texts": ShellCase(
        f"score a.txt r.txt --max-length 4 {MODEL}",
        FILES,
        ["P ...", PAIRS, "signature: model:...|limit:4|..."],
        [f"warning: {TRUNCATED} to score whole texts"],
    ),
    "two systems": ShellCase(
        f"compare a.txt b.txt -r r.txt {MODEL}",
        FILES,
        [
            "system         P       R      F1    95% interval of F1",
            "a.txt     0.8306  0.8340  0.8323      [0.5168, 1.0000]",
            "b.txt     0.7083  0.5432  0.6121      [0.2771, 0.9472]",
            "",
            "difference in F1       mean        95% interval    p    wins    ties    losses",
            "b.txt - a.txt       -0.2201  [-0.4637, +0.0234]    -       0       0         3",
            "",
            "3 texts, 3 references, paired by order; Student's t intervals",
            "no p-values: they need at least 6 texts",
            SIGNATURE,
        ],
    ),
    "the best sample": ShellCase(
        f"rank samples.jsonl --reference-column reference -o best.jsonl {MODEL}",
        FILES,
        ["f1 of the best candidates: 0.9651 (mean)", "1 line, 2 candidates, paired by order", SIGNATURE],
        ["wrote best.jsonl"],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_command_prints_known_results(tmp_path, capsys, minilm, case):
    check_case(case, tmp_path, capsys, minilm)
