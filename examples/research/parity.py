"""Score the same texts with bert-score and with this package on one model, and print the largest difference.

python -m examples.research.parity roberta-large
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor

from bertscore_tm import FrozenEncoder, bert_score, catalog
from examples.programs.docstrings import load_corpus, positive, quieten

ALLOWED = 1e-6  # difference of scores that are not rescaled


def peer_scores(model: str, candidates: list[str], target: list[Any], **settings: Any) -> Tensor:
    """Return bert-score's precision, recall and F1, shape (3, pairs), without two errors of that package."""
    from bert_score import BERTScorer

    scorer = BERTScorer(model, lang="en", **settings)
    # bert-score requests a space before the texts of these families, which transformers 5 leaves out.
    if scorer._model.config.model_type in ("gpt2", "opt", "roberta"):
        scorer._tokenizer.backend_tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=True)
    if scorer.idf:
        scorer.compute_idf(target)
    # One pair at a time: where all similarities of a token are negative, padding changes the score.
    return torch.stack(scorer.score(candidates, target, batch_size=1))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comparison.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        The exit status: 0 if all scores agree to 1e-6, else 1.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="hub name or folder")
    parser.add_argument("--num-layers", type=int, default=None, help="layer; default: the tuned layer, else the last")
    parser.add_argument("--pairs", type=positive, default=100, help="number of pairs")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)

    quieten()
    pairs = [pair for _, pair in load_corpus().test[: options.pairs]]
    candidates = [pair.summary for pair in pairs]
    references = [" ".join(pair.document.split()[:40]) for pair in pairs]
    two_references = [list(pair) for pair in zip(references, references[::-1], strict=True)]
    listed = catalog.listed_as(options.model)
    layer = -1 if listed is None and options.num_layers is None else options.num_layers
    encoder = FrozenEncoder.for_language("en", options.model, num_layers=layer, device=options.device)
    rows: list[tuple[str, list[Any], dict[str, Any], dict[str, Any], float]] = [
        ("one reference", references, {}, {}, ALLOWED),
        ("two references", two_references, {}, {}, ALLOWED),
        ("idf weights", references, {"idf": references}, {"idf": True}, ALLOWED),
    ]
    if listed is not None and "en" in catalog.baseline_languages(listed):
        # Rescaling multiplies differences as it does scores.
        allowed = ALLOWED / (1 - catalog.baseline("en", listed)[encoder.num_layers].max().item())
        rows.append(("rescaled", references, {"rescale": True}, {"rescale_with_baseline": True}, allowed))

    print(f"{options.model}, layer {encoder.num_layers}, {len(pairs)} pairs, {options.device}, float32\n")
    print(f"{'':14}{'mean F1':>12}{'of bert-score':>15}{'largest difference':>20}")
    agrees = True
    for name, target, ours, theirs, allowed in rows:
        scores = torch.stack(list(bert_score(candidates, target, encoder, **ours).values())).double().cpu()
        settings = {"num_layers": encoder.num_layers, "device": options.device, **theirs}
        expected = peer_scores(options.model, candidates, target, **settings).double().cpu()
        difference = (scores - expected).abs().max().item()
        agrees &= difference <= allowed
        print(f"{name:14}{scores[2].mean():>12.6f}{expected[2].mean():>15.6f}{difference:>20.1e}")
    print("\nAll scores agree to 1e-6." if agrees else "\nThe scores differ by more than 1e-6.")
    return 0 if agrees else 1


if __name__ == "__main__":
    raise SystemExit(main())
