"""Score a corpus as the arguments of a command describe, divided among the ranks."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

from bertscore_tm.cli import options, report
from bertscore_tm.cli.distributed import RankGroup, choose_device
from bertscore_tm.cli.errors import print_message
from bertscore_tm.cli.pair_files import PairFiles
from bertscore_tm.utilities.files import append_lines, is_special
from bertscore_tm.utilities.user_warnings import warn_user

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bertscore_tm.core.idf import DocumentFrequencies
    from bertscore_tm.encoder import FrozenEncoder
    from bertscore_tm.scoring.corpus import CorpusScores
    from bertscore_tm.scoring.rescaling import LayerBaseline
    from bertscore_tm.scoring.texts import TextPairs
    from bertscore_tm.scoring.token_weights import TokenWeights

__all__ = ["PAIRS_PER_PART", "ScoredCorpus", "score_across_ranks", "score_files_across_ranks"]

# Pairs that a rank scores before the unfinished output grows.
PAIRS_PER_PART = 1000


@dataclass(frozen=True)
class ScoredCorpus:
    """Scores of a corpus and the settings that they depend on.

    Args:
        scores: precision, recall and F1, rescaled if requested, shape (3, layers, candidates).
        best_reference: index of each candidate's best reference by F1, shape (layers, candidates).
        bounds: least and largest possible scores, shape (3, layers) each.
        encoder: the encoder.
        signature: all settings that change a score, in one line.
    """

    scores: Tensor
    best_reference: Tensor
    bounds: tuple[Tensor, Tensor]
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
    from bertscore_tm.scoring.token_weights import token_weights

    device, encoder, baseline = _prepare(ranks, arguments, all_layers, rescale)
    documents = list(chain.from_iterable(references))
    weights = ranks.run_on_all(lambda: token_weights(encoder, arguments.idf, idf_sents, documents, device))
    scored = ranks.score(texts, encoder, weights, device, progress=sys.stderr.isatty())
    return None if scored is None else _finish(scored, encoder, weights, baseline)


def score_files_across_ranks(
    ranks: RankGroup,
    arguments: argparse.Namespace,
    files: PairFiles,
    idf_sents: Sequence[str] | None,
    *,
    all_layers: bool,
) -> ScoredCorpus | None:
    """Score files part by part, and warn about empty and truncated texts.

    With an output file, finished parts are kept in a file next to it, from which the same command resumes.

    Args:
        ranks: the ranks of this run.
        arguments: the parsed arguments for the encoder, idf, the baseline and the output.
        files: the pairs.
        idf_sents: texts to compute the idf from instead of the references.
        all_layers: score all layers up to ``--num-layers``.

    Returns:
        The scores on rank 0, ``None`` on all other ranks.

    Raises:
        CommandError: a rank failed, or the unfinished file belongs to another run.
    """
    from bertscore_tm.cli.distributed import merge_parts
    from bertscore_tm.scoring.messages import progress_bar
    from bertscore_tm.scoring.signature import score_signature
    from bertscore_tm.scoring.token_weights import token_weights, weights_of_references

    device, encoder, baseline = _prepare(ranks, arguments, all_layers, True)
    if arguments.idf and idf_sents is None:
        frequencies = ranks.run_on_first(lambda: _count_documents(files, encoder))
        weights = weights_of_references(frequencies).to(device)
    else:
        weights = ranks.run_on_all(lambda: token_weights(encoder, False, idf_sents, device=device))
    parts: list[CorpusScores] = []
    unfinished: Path | None = None
    with ExitStack() as stack:
        output = arguments.output
        if output is not None and files.num_pairs > PAIRS_PER_PART and not is_special(output):
            unfinished = report.partial_path(output)
            settings = {"signature": score_signature(encoder, weights.source), "input": files.digest}
            parts += ranks.run_on_first(lambda: _resume(unfinished, settings, stack))
            arguments.resumes = True
        done = sum(len(part.rows) for part in parts)
        if done and ranks.rank == 0:
            print_message(f"resuming after pair {done} from {unfinished}")
        reader = files.read(PAIRS_PER_PART * ranks.size, done)
        progress = stack.enter_context(progress_bar(files.num_pairs, ranks.rank == 0 and sys.stderr.isatty()))
        progress(done)
        while texts := ranks.run_on_first(lambda: next(reader, None)):
            scored = ranks.score(texts, encoder, weights, device)
            if scored is not None:
                parts.append(scored)
                if unfinished is not None:
                    append_lines(unfinished, [_format_part(scored)])
            progress(len(texts))
    return _finish(merge_parts(parts), encoder, weights, baseline) if ranks.rank == 0 else None


def _prepare(
    ranks: RankGroup, arguments: argparse.Namespace, all_layers: bool, rescale: bool
) -> tuple[torch.device, FrozenEncoder, LayerBaseline | None]:
    device = ranks.run_on_all(lambda: choose_device(arguments.device))
    encoder = ranks.run_on_all(lambda: options.build_encoder(arguments, all_layers=all_layers))
    baseline = ranks.run_on_first(lambda: options.find_baseline(encoder, arguments)) if rescale else None
    return device, encoder, baseline


def _finish(
    scored: CorpusScores, encoder: FrozenEncoder, weights: TokenWeights, baseline: LayerBaseline | None
) -> ScoredCorpus:
    """Rescale the scores, and warn about empty and truncated texts."""
    from bertscore_tm.scoring.messages import count_zero, describe_truncation, list_warnings
    from bertscore_tm.scoring.rescaling import rescale_scores, score_range
    from bertscore_tm.scoring.signature import score_signature

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
        bounds=score_range(scored.scores.shape[1], baseline),
        encoder=encoder,
        signature=score_signature(encoder, weights.source, baseline),
    )


def _count_documents(files: PairFiles, encoder: FrozenEncoder) -> DocumentFrequencies:
    """Count the references in which each token occurs."""
    import torch

    from bertscore_tm.scoring.token_weights import reference_frequencies

    tokenizer = encoder.tokenizer
    counted = (
        reference_frequencies(
            tokenizer(list(chain.from_iterable(texts.references))), tokenizer.vocab_size, torch.device("cpu")
        )
        for texts in files.read(PAIRS_PER_PART)
    )
    return reduce(add, counted)


def _resume(unfinished: Path, settings: dict[str, str], stack: ExitStack) -> list[CorpusScores]:
    """Return the finished parts; start the file if it is new, and keep other runs off it until the stack closes."""
    import torch

    from bertscore_tm.scoring.corpus import CorpusScores

    stack.enter_context(report.start_partial(unfinished, settings))
    parts = []
    with unfinished.open(encoding="utf-8") as file:
        next(file)
        for line in file:
            part = json.loads(line)
            scores = torch.tensor(part["scores"], dtype=torch.float32, device="cpu")
            best = torch.tensor(part["best_reference"], dtype=torch.long, device="cpu")
            parts.append(CorpusScores(list(range(scores.shape[-1])), scores, best, part["num_truncated"]))
    return parts


def _format_part(part: CorpusScores) -> str:
    fields = {"scores": part.scores.tolist(), "best_reference": part.best_reference.tolist()}
    return json.dumps({**fields, "num_truncated": part.num_truncated}, allow_nan=False)
