"""Compare scores of paraphrases and of similar texts: area under the ROC curve (Zhang et al., ICLR 2020, table 6)."""

from __future__ import annotations

import argparse
import csv
import random
import re
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path

import numpy as np

from examples.meta_evaluation.protocols import area_under_curve
from examples.meta_evaluation.readers import Judged, read
from examples.meta_evaluation.scoring import load_encoder, our_score, packaged_model, parse_layers, score_file

# Columns of reference, candidate and label in PAWS, which is also the format of made pairs, and in QQP.
_HEADERS = (("sentence1", "sentence2", "label"), ("question1", "question2", "is_duplicate"))


def exchange(text: str, generator: random.Random) -> str | None:
    """Exchange two numbers, two capitalized words, or two long words that end alike; ``None`` if there are none.

    The first word stays, and at least three words are between the two: "a and b" would still mean the same.
    """
    words = list(re.finditer(r"\w(?:[\w.,-]*\w)?", text))[1:]
    kinds = [_kind(word[0]) for word in words]
    places = [(i, k) for i, k in combinations(range(len(words)), 2) if k - i > 3 and kinds[i] and kinds[i] == kinds[k]]
    found = [(words[i], words[k]) for i, k in places if words[i][0].lower() != words[k][0].lower()]
    if not found:
        return None
    a, b = generator.choice(found)
    return text[: a.start()] + b[0] + text[a.end() : b.start()] + a[0] + text[b.end() :]


def _kind(word: str) -> str:
    return "number" if word[0].isdigit() else "name" if word[0].isupper() else word[-3:] if len(word) > 7 else ""


def make_pairs(ranked: Judged, seed: int) -> list[tuple[str, str, int]]:
    """Pair references with a good translation, label 1, and with themselves after an exchange of words, label 0.

    A good translation was preferred at least three times, and no other to it. The one preferred most often is taken.
    """
    if ranked.kind != "ranked":
        raise ValueError("--make requires a file of ranked pairs")
    judged = [(several[0], text) for several, text in zip(ranked.references, ranked.candidates, strict=True)]
    half, generator = len(judged) // 2, random.Random(seed)
    wins, losses = Counter(judged[:half]), set(judged[half:])
    pairs: dict[str, list[tuple[str, str, int]]] = {}
    for (reference, text), count in wins.most_common():
        if reference not in pairs and count >= 3 and (reference, text) not in losses and text != reference:
            other = exchange(reference, generator)
            pairs[reference] = [(reference, text, 1), (reference, other, 0)] if other else []
    return [pair for of_reference in pairs.values() for pair in of_reference]


def read_pairs(path: Path) -> Judged:
    """Read pairs in the format of QQP or PAWS, without rows that lack a text or a label."""
    with path.open(encoding="utf-8", newline="") as lines:
        table = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        header = next((names for names in _HEADERS if set(names) <= set(table.fieldnames or ())), None)
        if header is None:
            raise ValueError(f"{path}: the first line must name the columns {' or '.join(map(', '.join, _HEADERS))}")
        rows = [[row[name] for name in header] for row in table]
    rows = [row for row in rows if row[0] and row[1] and row[2] in ("0", "1")]
    references, candidates, labels = [row[0] for row in rows], [row[1] for row in rows], [float(row[2]) for row in rows]
    if len(set(labels)) < 2:
        raise ValueError(f"{path}: requires rows with label 1 and rows with label 0")
    return Judged("labelled", candidates, [[text] for text in references], references, {"label": labels})


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m examples.meta_evaluation paraphrases", description=__doc__)
    parser.add_argument("--pairs", type=Path, required=True, metavar="TSV", help="labelled pairs, as in QQP or PAWS")
    parser.add_argument("--make", type=Path, metavar="FILE", help="first make the pairs, from a file of ranked pairs")
    parser.add_argument("--model", default=None, help="encoder: hub name or folder; default: the packaged MiniLM")
    parser.add_argument("--layers", type=parse_layers, default=None, help="such as 1-6 or 0,5; default: 1 to the last")
    parser.add_argument("--seed", type=int, default=0, help="of made pairs and intervals")
    options = parser.parse_args(arguments)
    try:
        if options.make is not None:
            rows = [_HEADERS[0], *make_pairs(read(options.make), options.seed)]
            lines = ("\t".join(map(str, [i or "id", *row])) for i, row in enumerate(rows))
            options.pairs.write_text("\n".join(lines) + "\n", encoding="utf-8")
        judged = read_pairs(options.pairs)
        encoder = load_encoder(options.model or packaged_model(), options.layers)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    layers = options.layers or list(range(1, encoder.num_layers + 1))
    scores = score_file(judged, our_score(encoder, layers, ("precision", "recall", "f1")), with_idf=True)
    names = [f"{part}, layer {k}{idf}" for idf in ("", ", idf") for part in ("P", "R", "F1") for k in layers]
    if find_spec("sacrebleu") is not None:
        from sacrebleu import sentence_bleu, sentence_chrf

        texts = list(zip(judged.candidates, judged.references, strict=True))
        overlaps = [[score(*pair).score for pair in texts] for score in (sentence_bleu, sentence_chrf)]
        scores, names = np.vstack([scores, overlaps]), [*names, "BLEU", "chrF"]
    labels = judged.ratings["label"]
    print(f"{labels.count(1)} paraphrases and {labels.count(0)} others", end="\n\n")
    print("| score | area | 95% interval |", "| --- | --- | --- |", sep="\n")
    for name, area, low, high in zip(names, *area_under_curve(scores, labels, options.seed), strict=True):
        print(f"| {name} | {area:.4f} | {low:.4f} to {high:.4f} |")
    return 0
