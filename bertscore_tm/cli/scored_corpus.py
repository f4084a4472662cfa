"""Score a corpus as the arguments of a command describe, divided among the ranks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from bertscore_tm.cli import options
from bertscore_tm.cli.distributed import RankGroup, choose_device
from bertscore_tm.utilities.user_warnings import warn_user

if TYPE_CHECKING:
    from torch import Tensor

    from bertscore_tm.encoder import FrozenEncoder
    from bertscore_tm.scoring.texts import TextPairs

__all__ = ["ScoredCorpus", "score_across_ranks"]


@dataclass(frozen=True)
class ScoredCorpus:
    """Scores of a corpus and the settings that they depend on.

    Args:
        scores: precision, recall and F1, rescaled if requested, shape (3, layers, candidates).
        best_reference: index of each candidate's best reference by F1, shape (layers, candidates).
        encoder: the encoder.
        signature: all settings that change a score, in one line.
    """

    scores: Tensor
    best_reference: Tensor
    encoder: FrozenEncoder
    signature: str


def score_across_ranks(
    ranks: RankGroup,
    arguments: argparse.Namespace,
    texts: TextPairs,
    references: Sequence[Sequence[str]],
    idf_sents: Sequence[str] | None,
    *,
    all_layers: bool = False,
    rescale: bool = True,
) -> ScoredCorpus | None:
    """Score and rescale a corpus, and warn about empty and truncated texts.

    Args:
        ranks: the ranks of this run.
        arguments: the parsed arguments for the encoder, idf and, if ``rescale``, the baseline.
        texts: the corpus.
        references: the reference sets that idf counts; a set that several candidates share is given once.
        idf_sents: texts to compute the idf from instead of ``references``.
        all_layers: score all layers up to ``--num-layers``.
        rescale: whether the command has arguments for rescaling.

    Returns:
        The scores on rank 0, ``None`` on all other ranks.

    Raises:
        CommandError: a rank failed.
    """
    from bertscore_tm.scoring.messages import count_zero, describe_truncation, list_warnings
    from bertscore_tm.scoring.rescaling import rescale_scores
    from bertscore_tm.scoring.signature import score_signature
    from bertscore_tm.scoring.token_weights import token_weights

    device = ranks.run_on_all(lambda: choose_device(arguments.device))
    encoder = ranks.run_on_all(lambda: options.build_encoder(arguments, all_layers=all_layers))
    baseline = None
    if rescale:
        baseline = ranks.run_on_first(lambda: options.find_baseline(encoder, arguments))
    documents = list(chain.from_iterable(references))
    weights = ranks.run_on_all(lambda: token_weights(encoder, arguments.idf, idf_sents, documents, device))
    scored = ranks.score(texts, encoder, weights, device, progress=sys.stderr.isatty())
    if scored is None:
        return None
    max_length = encoder.tokenizer.max_length
    num_zero = int(count_zero(scored.scores))
    messages = list_warnings(num_zero, scored.num_truncated, not weights.is_uniform, max_length)
    if weights.num_truncated:
        messages.append(describe_truncation(weights.num_truncated, max_length, source="--idf-file"))
    for message in messages:
        warn_user(message)
    return ScoredCorpus(
        scores=rescale_scores(scored.scores, baseline),
        best_reference=scored.best_reference,
        encoder=encoder,
        signature=score_signature(encoder, weights.source, baseline),
    )
