"""What users are told beside the scores: warnings with counts, the signature, and how far the work is."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache

from torch import Tensor

from bertscore_tm.encoder import FrozenEncoder

__all__ = ["count_zero", "progress_bar", "score_signature", "warn_unused", "warning_texts"]


@cache
def warn_unused(name: str, reason: str) -> None:
    """Say, once in a process, that an argument of another package has no effect here.

    Args:
        name: the argument.
        reason: why it needs none.
    """
    warnings.warn(f"{name} has no effect: {reason}", stacklevel=4)


def count_zero(scores: Tensor) -> Tensor:
    """Count candidates whose F1 is 0 at all layers.

    Args:
        scores: precision, recall and F1 before rescaling, shape (3, layers, candidates).

    Returns:
        Shape (), int64.
    """
    return (scores[2] == 0).all(0).sum()


def warning_texts(num_zero: int, num_truncated: int, idf: bool, limit: int | None) -> list[str]:
    """Say, once each and with the count, what a reader of the scores should know about the texts.

    Args:
        num_zero: candidates with F1 0.
        num_truncated: texts that were cut.
        idf: whether tokens were weighted by idf.
        limit: the length limit in tokens.

    Returns:
        One sentence per thing to know; often none.
    """
    said = []
    # Real texts have positive similarities, so that an F1 of exactly 0 has one of these reasons.
    if num_zero:
        reason = "the candidate, or all its references, have no text"
        if idf:
            reason += ", or idf weights that are all 0, as of tokens that occur in every reference"
        what = "1 candidate scores" if num_zero == 1 else f"{num_zero} candidates score"
        said.append(f"{what} 0: {reason}")
    if num_truncated:
        what = "1 text is" if num_truncated == 1 else f"{num_truncated} texts are"
        said.append(f"{what} longer than {limit} tokens and cut there; long_text='window' scores texts whole")
    return said


def score_signature(encoder: FrozenEncoder, idf: str, rescaled: str, layer: int | None = None) -> str:
    """Return one line with everything that changes a number.

    Args:
        encoder: the encoder.
        idf: what the tokens' weights come from.
        rescaled: how scores are rescaled.
        layer: the one of all layers that is compared.

    Returns:
        The signature; equal signatures mean equal numbers.
    """
    import transformers

    from bertscore_tm import __version__

    return (
        f"{encoder.signature(layer)}|idf:{idf}|rescale:{rescaled}"
        f"|bertscore-tm:{__version__}|transformers:{transformers.__version__}"
    )


@contextmanager
def progress_bar(total: int, shown: bool) -> Generator[Callable[[int], None], None, None]:
    """Show how many candidates are scored.

    Args:
        total: number of candidates.
        shown: whether to show anything.

    Yields:
        A function to call with each number of further candidates.
    """
    if not shown:
        yield lambda done: None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit="pair") as bar:

        def advance(done: int) -> None:
            bar.update(done)

        yield advance
