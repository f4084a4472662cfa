"""Choose the rows of a report that open to their alignment, and align them."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bertscore_tm.alignment import align_references
from bertscore_tm.alignment.alignment import compute_alignment
from bertscore_tm.alignment.page_data import describe_alignments
from bertscore_tm.scoring.settings import ScoreSettings


def choose_rows(f1: Tensor, systems: Sequence[int], pair: tuple[int, int], count: int) -> list[int]:
    """Return the rows with extreme scores or differences, and random ones.

    There are several orders of the rows: by the difference of the pair of systems in both directions, by each system's
    score from the worst and from the best one, and a random one. The first rows of all orders come first, then the
    second ones, and so on. Rows of equal value are in the order of the data.

    Args:
        f1: F1 of all pairs, finite, shape (systems, pairs).
        systems: numbers of the systems whose scores count.
        pair: the two systems whose difference counts. It is ignored if there is one system.
        count: largest number of rows.

    Example:
        >>> choose_rows(torch.tensor([[0.1, 0.5, 0.9, 0.4]]), systems=[0], pair=(0, 0), count=2)
        [0, 2]
    """
    # The last system comes first: of a training it is the newest validation.
    scores = f1[[*reversed(systems)]]  # (systems, pairs)
    # Sorted by rising values, the worst rows of each system come first for scores, and the best ones for -scores.
    values = [scores, -scores]
    if len(systems) > 1:
        a, b = pair
        gain = f1[[b]] - f1[[a]]  # (1, pairs)
        # The rows in which b is worse than a come first, then those in which it is better.
        values = [gain, -gain, *values]
    sorted_orders = torch.cat(values).argsort(stable=True)  # (orders, pairs)
    # The seed is fixed, so that the same texts have the same page.
    seeded = torch.Generator("cpu").manual_seed(0)
    random_order = torch.randperm(f1.shape[1], generator=seeded, device="cpu")  # (pairs,)
    orders = torch.cat([sorted_orders, random_order[None]])
    # First row of each order, then the second of each.
    in_turn = orders.T.flatten().tolist()
    distinct = list(dict.fromkeys(in_turn))
    return distinct[:count]


def align_rows(
    rows: Iterable[int],
    systems: Sequence[int],
    candidates: Sequence[Sequence[str] | None],
    references: Sequence[Sequence[str]],
    settings: ScoreSettings,
) -> dict[int, dict[int, Any]]:
    """Return the alignments of rows for a page, by the row and the number of the system.

    Args:
        rows: the rows.
        systems: numbers of the systems to align.
        candidates: texts of all systems; ``None`` for a system whose texts are not kept.
        references: references of each row.
        settings: the settings of the scores.
    """
    align = partial(compute_alignment, settings=settings)
    alignments: dict[int, dict[int, Any]] = {}
    for row in rows:
        by_system: dict[int, Any] = {}
        for system in systems:
            texts = candidates[system]
            if texts is None:
                continue
            aligned = align_references(align, texts[row], references[row])
            # Empty texts have no alignment.
            if aligned:
                by_system[system] = describe_alignments(aligned, len(references[row]))
        if by_system:
            alignments[row] = by_system
    return alignments
