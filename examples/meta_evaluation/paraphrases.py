"""Generate labelled paraphrases and similar texts from a file with several references.

    python -m examples.meta_evaluation.paraphrases FILE OUT

Two references of the same row are paraphrases, label 1. For label 0, the first text of such a pair is paired with the
reference of another row that shares most words with it, so that counting shared words does not separate the labels.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from examples.meta_evaluation.readers import read


def labelled_pairs(references: Sequence[Sequence[str]]) -> list[tuple[str, str, int]]:
    """Return candidate, reference and label of pairs made from the references of each row.

    Rows with equal references count once. Every two consecutive, different references of a row give one pair with label
    1 and one with label 0.
    """
    distinct = list(dict.fromkeys(tuple(several) for several in references))
    words = {text: frozenset(text.lower().split()) for several in distinct for text in several}
    pairs = []
    for several in distinct:
        others = [text for text in words if text not in several]
        for text, paraphrase in pairwise(several):
            if words[text] == words[paraphrase] or not others:
                continue
            closest = max(others, key=lambda other: _overlap(words[text], words[other]))
            pairs += [(text, paraphrase, 1), (text, closest, 0)]
    return pairs


def _overlap(a: frozenset[str], b: frozenset[str]) -> float:
    """Return the Jaccard similarity of two sets of words; -1 for equal sets, which are not used."""
    return -1.0 if a == b else len(a & b) / len(a | b)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m examples.meta_evaluation.paraphrases", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="a file whose rows have several references")
    parser.add_argument("out", type=Path, metavar="OUT", help="file to write, plain or .gz")
    options = parser.parse_args(arguments)
    try:
        pairs = labelled_pairs(read(options.file).references)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if not pairs:
        parser.error(f"{options.file}: at least one row must have two different references")
    rows = [{"candidate": text, "reference": other, "label": label} for text, other, label in pairs]
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8")
    options.out.write_bytes(gzip.compress(content, mtime=0) if options.out.suffix == ".gz" else content)


if __name__ == "__main__":
    main()
