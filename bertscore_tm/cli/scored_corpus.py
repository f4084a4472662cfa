"""Score a corpus as the arguments of a command describe, divided among the ranks."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

# Pairs that a rank scores before the unfinished output grows, and how many all ranks score before it first grows.
PAIRS_PER_PART = 1000
_PAIRS_OF_FIRST_PART = 32
# Pairs whose references are counted before the unfinished output grows.
_PAIRS_PER_COUNT = 10_000


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
    from bertscore_tm.scoring.messages import progress_bar
    from bertscore_tm.scoring.token_weights import token_weights

    device, encoder, baseline = _prepare(ranks, arguments, all_layers, rescale)
    documents = list(chain.from_iterable(references))
    weights = ranks.run_on_all(lambda: token_weights(encoder, arguments.idf, idf_sents, documents, device))
    with progress_bar(len(texts), ranks.rank == 0 and sys.stderr.isatty()) as progress:
        scored = ranks.score(texts, encoder, weights, device, progress=progress)
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

    With an output file, counted references and finished parts are kept in a file next to it, from which the same
    command resumes.

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
    from bertscore_tm.scoring.token_weights import WeightSource, token_weights, weights_of_references

    device, encoder, baseline = _prepare(ranks, arguments, all_layers, True)
    counts_references = arguments.idf and idf_sents is None
    weights, source = None, WeightSource("references", files.num_references)
    if not counts_references:
        weights = ranks.run_on_all(lambda: token_weights(encoder, False, idf_sents, device=device))
        source = weights.source
    kept = _Kept()
    output = arguments.output
    with ExitStack() as stack:
        if output is not None and files.num_pairs > PAIRS_PER_PART and not is_special(output):
            settings = {"signature": score_signature(encoder, source), "input": files.digest}
            kept = ranks.run_on_first(lambda: _resume(report.partial_path(output), settings, stack))
            arguments.resumes = True
        if weights is None:
            frequencies = ranks.run_on_first(lambda: _count_documents(files, encoder, kept))
            weights = weights_of_references(frequencies).to(device)
        parts = list(kept.parts)
        done = sum(len(part.rows) for part in parts)
        if done and ranks.rank == 0:
            print_message(f"resuming after pair {done} from {kept.path}")
        reader = _read_parts(files, done, ranks.size)
        shows = ranks.rank == 0 and (arguments.verbose or sys.stderr.isatty())
        progress = stack.enter_context(progress_bar(files.num_pairs, shows))
        progress(done)
        while texts := ranks.run_on_first(lambda: next(reader, None)):
            scored = ranks.score(texts, encoder, weights, device, progress=progress)
            if scored is not None:
                parts.append(scored)
                kept.append(
                    {"scores": scored.scores.tolist(), "best_reference": scored.best_reference.tolist()}
                    | {"num_truncated": scored.num_truncated}
                )
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


@dataclass(frozen=True)
class _Kept:
    """What an interrupted run has computed, and the file to keep more in.

    Args:
        path: the file, ``None`` where nothing is kept.
        counted: document frequencies of the first pairs.
        parts: scores of the first pairs.
    """

    path: Path | None = None
    counted: Sequence[dict[str, Any]] = ()
    parts: Sequence[CorpusScores] = ()

    def append(self, record: dict[str, Any]) -> None:
        """Keep a line."""
        if self.path is not None:
            append_lines(self.path, [json.dumps(record, allow_nan=False)])


def _resume(unfinished: Path, settings: dict[str, str], stack: ExitStack) -> _Kept:
    """Read the unfinished file, or start it, and keep other runs off it until the stack closes."""
    import torch

    from bertscore_tm.scoring.corpus import CorpusScores

    stack.enter_context(report.start_partial(unfinished, settings))
    counted, parts = [], []
    with unfinished.open(encoding="utf-8") as file:
        next(file)
        for line in file:
            record = json.loads(line)
            if "scores" not in record:
                counted.append(record)
                continue
            scores = torch.tensor(record["scores"], dtype=torch.float32, device="cpu")
            best = torch.tensor(record["best_reference"], dtype=torch.long, device="cpu")
            parts.append(CorpusScores(list(range(scores.shape[-1])), scores, best, record["num_truncated"]))
    return _Kept(unfinished, counted, parts)


def _count_documents(files: PairFiles, encoder: FrozenEncoder, kept: _Kept) -> DocumentFrequencies:
    """Count the references in which each token occurs, after those that an interrupted run has counted."""
    import torch

    from bertscore_tm.core.idf import DocumentFrequencies
    from bertscore_tm.scoring.token_weights import reference_frequencies

    tokenizer = encoder.tokenizer
    counts = torch.zeros(tokenizer.vocab_size, dtype=torch.long, device="cpu")
    num_documents = num_pairs = 0
    for record in kept.counted:
        counts[record["ids"]] += torch.tensor(record["counts"], dtype=torch.long, device="cpu")
        num_documents, num_pairs = num_documents + record["num_documents"], num_pairs + record["num_pairs"]
    for texts in files.read(_PAIRS_PER_COUNT, num_pairs):
        references = list(chain.from_iterable(texts.references))
        found = reference_frequencies(tokenizer(references), tokenizer.vocab_size, torch.device("cpu")).counts
        ids = found.nonzero()[:, 0]
        kept.append(
            {"ids": ids.tolist(), "counts": found[ids].tolist()}
            | {"num_documents": len(references), "num_pairs": len(texts)}
        )
        counts, num_documents = counts + found, num_documents + len(references)
    return DocumentFrequencies(counts, torch.tensor(num_documents, device="cpu"))


def _read_parts(files: PairFiles, done: int, num_ranks: int) -> Iterator[TextPairs]:
    """Read the pairs after the first ones, in parts with as many pairs as all before, up to a limit.

    A part ends at the same pair in a run that resumes as in one that was not interrupted.
    """
    from bertscore_tm.scoring.texts import TextPairs

    size = min(_PAIRS_OF_FIRST_PART, PAIRS_PER_PART)
    pieces = files.read(size, done)
    for first in pieces:
        several = [first, *islice(pieces, max(min(done, PAIRS_PER_PART * num_ranks) // size - 1, 0))]
        done += sum(map(len, several))
        candidates = chain.from_iterable(texts.candidates for texts in several)
        references = chain.from_iterable(texts.references for texts in several)
        yield TextPairs(list(candidates), list(references))
