"""Score a corpus as the arguments of a command describe, divided among the ranks."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli import options
from bertscore_tm.cli.distributed import RankGroup, choose_device
from bertscore_tm.cli.shards import Shards, input_digest, open_shards
from bertscore_tm.utilities.user_warnings import warn_user

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bertscore_tm.encoder import FrozenEncoder
    from bertscore_tm.scoring.alignment import Alignment
    from bertscore_tm.scoring.corpus import CorpusScores
    from bertscore_tm.scoring.texts import TextPairs
    from bertscore_tm.scoring.token_weights import TokenWeights

# Texts whose token ids are in memory at a time, and whose document frequencies are one part.
TEXTS_PER_BLOCK = 10_000


@dataclass(frozen=True)
class ScoredCorpus:
    """Scores of a corpus and the settings that they depend on.

    ``scores`` are precision, recall and F1, rescaled if requested, shape (3, layers, candidates), ``bounds`` the least
    and largest possible ones, shape (3, layers), and ``best_reference`` is by F1, shape (layers, candidates).
    ``align`` matches the tokens of a pair.
    """

    scores: Tensor
    best_reference: Tensor
    bounds: tuple[Tensor, Tensor]
    encoder: FrozenEncoder
    signature: str
    align: Callable[[str, str], Alignment]


def score_across_ranks(
    ranks: RankGroup,
    arguments: argparse.Namespace,
    texts: TextPairs,
    idf_texts: Sequence[str] | None,
    references: Sequence[Sequence[str]] | None = None,
    *,
    all_layers: bool = False,
) -> ScoredCorpus | None:
    """Score and rescale a corpus, and warn about empty and truncated texts; ``None`` on all ranks but the first.

    The idf counts ``idf_texts``, else the ``references``, by default those of the corpus.
    """
    from bertscore_tm.scoring.alignment import compute_alignment
    from bertscore_tm.scoring.messages import warn_about_scores
    from bertscore_tm.scoring.rescaling import rescale_scores, score_range
    from bertscore_tm.scoring.signature import score_signature

    device = ranks.run_on_all(lambda: choose_device(arguments.device))
    encoder = ranks.run_on_all(lambda: options.build_encoder(arguments, all_layers=all_layers))
    baseline = ranks.run_on_first(lambda: options.find_baseline(encoder, arguments)) if "rescale" in arguments else None
    documents = idf_texts
    if arguments.idf is True:
        documents = list(chain.from_iterable(texts.references if references is None else references))
    digest = input_digest(chain(zip(texts.candidates, texts.references, strict=True), [idf_texts, arguments.idf]))
    with open_shards(ranks, arguments, len(texts), encoder, {"input": digest}) as shards:
        weights = count_weights(shards, encoder, documents, of_corpus=arguments.idf is not True)
        scored = score_shards(shards, texts, encoder, weights, device, shown=getattr(arguments, "verbose", False))
    if scored is None:
        return None
    max_length = encoder.tokenizer.max_length
    warn_about_scores(scored.scores, scored.num_truncated, not weights.is_uniform, max_length)
    return ScoredCorpus(
        scores=rescale_scores(scored.scores, baseline),
        best_reference=scored.best_reference,
        bounds=score_range(scored.scores.shape[1], baseline),
        encoder=encoder,
        signature=score_signature(encoder, weights.source, baseline),
        align=partial(compute_alignment, encoder=encoder, weights=weights, device=device, baseline=baseline),
    )


def count_weights(
    shards: Shards, encoder: FrozenEncoder, documents: Sequence[str] | None, *, of_corpus: bool = True
) -> TokenWeights:
    """Return the idf weights of references, or of a corpus of other texts, counted part by part; else uniform ones."""
    import torch

    from bertscore_tm.core.scores import DocumentFrequencies
    from bertscore_tm.scoring import token_weights
    from bertscore_tm.scoring.messages import describe_truncation

    if documents is None:
        return token_weights.token_weights(encoder)
    tokenizer = encoder.tokenizer

    def work(rows: range, progress: Callable[[int], None]) -> dict[str, Tensor]:
        tokenized = tokenizer(documents[rows.start : rows.stop])
        found = token_weights.reference_frequencies(tokenized, tokenizer.vocab_size, torch.device("cpu"))
        progress(len(rows))
        num_truncated = torch.tensor(tokenized.num_truncated, device="cpu")
        return {"counts": found.counts, "num_documents": found.num_documents, "num_truncated": num_truncated}

    parts = shards.compute("text" if of_corpus else "reference", len(documents), work, TEXTS_PER_BLOCK)

    def join() -> TokenWeights:
        assert parts is not None
        num_truncated = sum(int(part.pop("num_truncated")) for part in parts)
        if num_truncated and of_corpus:
            warn_user(describe_truncation(num_truncated, tokenizer.max_length, source="idf"))
        frequencies = reduce(DocumentFrequencies.__add__, (DocumentFrequencies(**part) for part in parts))
        as_weights = token_weights.weights_of_corpus if of_corpus else token_weights.weights_of_references
        return as_weights(frequencies)

    return shards.ranks.run_on_first(join)


def score_shards(
    shards: Shards,
    texts: TextPairs,
    encoder: FrozenEncoder,
    weights: TokenWeights,
    device: torch.device,
    *,
    shown: bool = False,
) -> CorpusScores | None:
    """Score a corpus part by part; the scores on rank 0, ``None`` on all other ranks."""
    import torch

    from bertscore_tm.scoring.corpus import CorpusScores, score_corpus
    from bertscore_tm.scoring.texts import TextPairs

    def work(rows: range, progress: Callable[[int], None]) -> dict[str, Any]:
        part = slice(rows.start, rows.stop)
        own = TextPairs(texts.candidates[part], texts.references[part])
        scored = score_corpus(own, encoder, weights, device, progress=progress)
        num_truncated = torch.tensor(scored.num_truncated, device="cpu")
        return {"scores": scored.scores, "best": scored.best_reference, "num_truncated": num_truncated}

    parts = shards.compute("pair", len(texts), work, shown=shown)
    if parts is None:
        return None
    num_truncated = sum(int(part["num_truncated"]) for part in parts)
    if num_truncated and len(parts) > 1:
        # Parts may share texts, of which each counts once.
        distinct = texts.distinct()
        blocks = (distinct[i : i + TEXTS_PER_BLOCK] for i in range(0, len(distinct), TEXTS_PER_BLOCK))
        num_truncated = sum(encoder.tokenizer(block).num_truncated for block in blocks)
    return CorpusScores(
        scores=torch.cat([part["scores"] for part in parts], dim=-1),
        best_reference=torch.cat([part["best"] for part in parts], dim=-1),
        num_truncated=num_truncated,
    )
