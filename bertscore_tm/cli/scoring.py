"""Scoring a corpus as a command's arguments ask, each process its share."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from bertscore_tm.cli import options, ranks

if TYPE_CHECKING:
    from torch import Tensor

    from bertscore_tm.encoder import FrozenEncoder
    from bertscore_tm.texts import TextPairs

__all__ = ["Scored", "score_texts"]


@dataclass(frozen=True)
class Scored:
    """A scored corpus.

    Args:
        scores: precision, recall and F1, rescaled where that is asked for, shape (3, layers, candidates).
        best_reference: number of each candidate's best reference by F1, shape (layers, candidates).
        encoder: the encoder.
        signature: everything that changes a number, in one line.
    """

    scores: Tensor
    best_reference: Tensor
    encoder: FrozenEncoder
    signature: str


def score_texts(
    team: ranks.Team,
    arguments: argparse.Namespace,
    texts: TextPairs,
    references: Sequence[Sequence[str]],
    idf_sents: Sequence[str] | None,
    *,
    all_layers: bool = False,
    rescale: bool = True,
) -> Scored | None:
    """Score a corpus, say what there is to warn about, and rescale.

    Args:
        team: the processes.
        arguments: parsed arguments for the encoder, idf and, with ``rescale``, the baseline.
        texts: the corpus.
        references: the references that idf counts, each set once, where several candidates share it.
        idf_sents: texts to take the idf from instead.
        all_layers: score all layers up to ``--num-layers``.
        rescale: whether the arguments say how to rescale.

    Returns:
        The scores in the first process, ``None`` in all others.

    Raises:
        CommandError: a process failed.
    """
    from bertscore_tm.scoring.messages import count_zero, describe_truncation, list_warnings
    from bertscore_tm.scoring.rescaling import rescale_scores
    from bertscore_tm.scoring.signature import score_signature
    from bertscore_tm.scoring.token_weights import token_weights

    device = team.together(lambda: ranks.choose_device(arguments.device))
    encoder = team.together(lambda: options.build_encoder(arguments, all_layers=all_layers))
    baseline = None
    if rescale:
        baseline = team.from_first(lambda: options.find_baseline(encoder, arguments))
    documents = list(chain.from_iterable(references))
    weights = team.together(lambda: token_weights(encoder, arguments.idf, idf_sents, documents, device))
    scored = team.score(texts, encoder, weights, device, progress=sys.stderr.isatty())
    if scored is None:
        return None
    said = list_warnings(
        int(count_zero(scored.scores)),
        scored.num_truncated,
        not weights.is_uniform,
        encoder.tokenizer.max_length,
    )
    if weights.num_truncated:
        said.append(describe_truncation(weights.num_truncated, encoder.tokenizer.max_length, source="--idf-file"))
    for sentence in said:
        warnings.warn(sentence, stacklevel=1)
    return Scored(
        scores=rescale_scores(scored.scores, baseline),
        best_reference=scored.best_reference,
        encoder=encoder,
        signature=score_signature(encoder, weights.source, baseline),
    )
