"""Command that scores files of human judgements and prints the agreement of the scores with the judgements."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples.meta_evaluation import paraphrases, run, scoring
from examples.meta_evaluation.readers import read
from examples.meta_evaluation.run import Sampling


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; exit status 1 if figures differ from those of the reference package."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["paraphrases"]:
        return paraphrases.main(arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m examples.meta_evaluation", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON lines, plain or .gz; see the README")
    parser.add_argument("--model", default=None, help="encoder: hub name or folder; default: the packaged MiniLM")
    parser.add_argument("--layers", type=scoring.parse_layers, help="such as 1-6 or 0,5; default: 1 to the last")
    parser.add_argument("--idf", action="store_true", help="also score with idf weights from each file's references")
    parser.add_argument("--references", type=int, default=None, help="number of references per row to keep")
    parser.add_argument(
        "--protocol", choices=run.PROTOCOLS, nargs="+", default=list(run.PROTOCOLS), help="default: all"
    )
    parser.add_argument("--hybrids", type=int, default=Sampling.hybrids, help="hybrid systems in a draw")
    parser.add_argument("--repeats", type=int, default=Sampling.repeats, help="choices of the best hybrid in a draw")
    parser.add_argument("--draws", type=int, default=Sampling.draws, help="draws of hybrids to average over")
    parser.add_argument("--seed", type=int, default=Sampling.seed)
    parser.add_argument("--compare-with-reference", action="store_true", help="score with bert-score too; slow")
    parser.add_argument("--json", type=Path, default=None, metavar="OUT", help="write all figures to this file")
    options = parser.parse_args(arguments)
    if options.references is not None and options.references < 1:
        parser.error(f"--references must be at least 1, got {options.references}")
    try:
        sampling = Sampling(options.hybrids, options.repeats, options.draws, options.seed)
        files = [read(path, options.references) for path in options.files]
        for path, supported in zip(options.files, map(run.possible, files), strict=True):
            if not set(supported) & set(options.protocol):
                names, chosen = ", ".join(supported), ", ".join(options.protocol)
                raise ValueError(f"{path} supports the protocols {names}, not {chosen}: pass another --protocol")
        model = options.model or scoring.packaged_model()
        encoder = scoring.load_encoder(model, options.layers)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    layers = options.layers or list(range(1, encoder.num_layers + 1))
    settings = [run.Setting(layer, idf) for idf in ((False, True) if options.idf else (False,)) for layer in layers]
    # Raises an error before minutes of scoring if bert-score is missing.
    reference = scoring.reference_score(model, layers) if options.compare_with_reference else None
    found: list[dict[str, Any]] = []
    distances: list[float] = []
    for path, judged in zip(options.files, files, strict=True):
        _log(f"{path.name}: scoring {len(judged.candidates)} candidates")
        scores = scoring.score_file(judged, scoring.our_score(encoder, layers), options.idf)
        results = run.evaluate(judged, scores, options.protocol, sampling)
        others: Sequence[Any] = [None] * len(results)
        if reference is not None:
            _log(f"{path.name}: scoring with bert-score")
            theirs = scoring.score_file(judged, reference, options.idf)
            _log(f"{path.name}: F1 differs from bert-score's by at most {abs(scores - theirs).max():.1e}")
            others = run.evaluate(judged, theirs, options.protocol, sampling)
            distances += [gap for pair in zip(results, others, strict=True) for gap in run.differences(*pair)]
        for result, other in zip(results, others, strict=True):
            print(run.table(path.name, settings, result, other), end="\n\n", flush=True)
            found += run.records(path.name, settings, result, other)
    if options.json is not None:
        options.json.write_text(json.dumps({"encoder": encoder.signature(), "figures": found}, indent=1) + "\n")
    if not distances:
        return 0
    differ = sum(gap >= run.TOLERANCE for gap in distances)
    print(f"{len(distances)} figures; the largest difference from bert-score is {max(distances):.1e}; {differ} differ")
    return 1 if differ else 0


def _log(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
