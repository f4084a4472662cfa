"""Score a corpus as the arguments of a command describe, divided among the ranks."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Self

import torch
from torch import Tensor

from bertscore_tm.cli.distributed import RankGroup
from bertscore_tm.cli.encoders import build_encoders, read_baseline, read_idf, take_hash
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.joined_files import Systems
from bertscore_tm.cli.shards import Part, Progress, compute_parts
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.scoring.alignment import AlignmentData, compute_alignment
from bertscore_tm.scoring.corpus import CorpusScores, score_corpus
from bertscore_tm.scoring.messages import UnknownTokens, count_skipped, warn_about_scores, warn_of_leftovers
from bertscore_tm.scoring.rescaling import find_baseline, rescale_scores, score_range
from bertscore_tm.scoring.signature import score_signature
from bertscore_tm.scoring.texts import IDENTICAL, TextPairs, count_identical, strip_thoughts
from bertscore_tm.scoring.token_weights import TEXTS_PER_BLOCK, TokenWeights, token_weights
from bertscore_tm.utilities.score_names import SCORE_NAMES
from bertscore_tm.utilities.user_warnings import warn_user


@dataclass(frozen=True)
class ScoredCorpus:
    """Scores of a corpus and the settings that they depend on.

    ``texts`` have no thoughts if so requested, ``scores`` are precision, recall and F1, rescaled if requested, shape
    (3, layers, candidates), ``bounds`` the least and largest possible ones of the first layer, and ``best_reference``
    is by F1, shape (layers, candidates). ``align`` matches the tokens of a pair. ``num_skipped`` counts references of
    which all texts are skipped, with NaN as scores; ``None`` where none is.
    """

    texts: TextPairs
    scores: Tensor
    best_reference: Tensor
    bounds: tuple[Tensor, Tensor]
    encoder: FrozenEncoder
    signature: str
    align: Callable[[str, str], AlignmentData]
    num_skipped: int | None

    def worst(self, count: int, component: str = "f1") -> list[int]:
        """Return the indices of the pairs with the lowest scores, the lowest first, without those that are skipped."""
        scores = self.scores[SCORE_NAMES.index(component), 0]
        # NaN is sorted last.
        return [i for i in scores.argsort(stable=True)[:count].tolist() if not scores[i].isnan()]

    def describe_texts(self, i: int, sources: Sequence[str] | None) -> dict[str, str]:
        """Return the candidate of a pair, its best reference and, if sources are given, its source."""
        reference = self.texts.references[i][self.best_reference[0, i]]
        texts = {"candidate_text": self.texts.candidates[i], "reference_text": reference}
        return texts if sources is None else {**texts, "source_text": sources[i]}


@dataclass(frozen=True)
class SystemScores:
    """Scores of systems' texts, shape (3, texts, systems), and their best references, shape (texts, systems).

    Texts that are skipped are left out. Fields of ``corpus`` have all texts, those of the systems for a reference next
    to each other.
    """

    systems: Systems
    corpus: ScoredCorpus
    scores: Tensor
    best_reference: Tensor

    def parts(self) -> dict[str, Self]:
        """Return the scores of each group of texts."""
        labels, parts = self.systems.labels or [], {}
        for label in dict.fromkeys(labels):
            rows = [i for i, other in enumerate(labels) if other == label]
            scores, best = self.scores[:, rows], self.best_reference[rows]
            parts[label] = replace(self, systems=self.systems.select(rows), scores=scores, best_reference=best)
        return parts


def score_systems(ranks: RankGroup, arguments: argparse.Namespace, systems: Systems) -> SystemScores | None:
    """Score the texts of systems with the same references; ``None`` on all ranks but the first."""
    # All systems' texts for a reference follow each other, so that a reference is encoded once.
    candidates = list(chain.from_iterable(zip(*systems.texts.values(), strict=True)))
    pairs = TextPairs(candidates, [references for references in systems.references for _ in systems.texts])
    corpus = score_across_ranks(ranks, arguments, pairs, systems.references)
    if corpus is None:
        return None
    count = len(systems.texts)
    scores = corpus.scores[:, 0].reshape(3, -1, count)
    rows = [i for i, is_skipped in enumerate(scores[2, :, 0].isnan().tolist()) if not is_skipped]
    if not rows:
        raise CommandError("all texts are skipped, as all of their references are empty")
    texts = {name: corpus.texts.candidates[k::count] for k, name in enumerate(systems.texts)}
    kept = systems._replace(texts=texts).select(rows)
    for name, counts in count_identical(kept.texts, kept.references, kept.sources).items():
        for key, number in counts.items():
            if 2 * number >= len(rows):
                remedy = f"check that the file has candidates and not {IDENTICAL[key].split()[-1]}s"
                warn_user(f"{name}: {number} of {len(rows)} texts are equal to {IDENTICAL[key]}: {remedy}")
    return SystemScores(
        systems=kept,
        corpus=corpus,
        scores=scores[:, rows],
        best_reference=corpus.best_reference[0].reshape(-1, count)[rows],
    )


def score_across_ranks(
    ranks: RankGroup,
    arguments: argparse.Namespace,
    texts: TextPairs,
    references: Sequence[Sequence[str]] | None = None,
    *,
    all_layers: bool = False,
) -> ScoredCorpus | None:
    """Score and rescale a corpus, and warn about empty and truncated texts; ``None`` on all ranks but the first.

    The idf counts the texts of the file of ``--idf``, else the ``references``, by default those of the corpus.
    """
    if arguments.strip_thoughts:
        texts = replace(texts, candidates=list(map(strip_thoughts, texts.candidates)))
    if "hash" in arguments:
        take_hash(arguments)
    # Read before the model, which takes longer.
    table = ranks.run_on_first(lambda: read_baseline(arguments))
    encoder = build_encoders(ranks, arguments, all_layers=all_layers)
    baseline = ranks.run_on_first(lambda: find_baseline(encoder, table))
    references = texts.references if references is None else references
    counted = list(chain.from_iterable(references))
    weights = ranks.run_on_first(lambda: token_weights(encoder, read_idf(arguments), counted))
    scored = score_in_parts(ranks, arguments, texts, encoder, weights)
    if scored is None:
        return None
    facts = scored.num_truncated, not weights.is_uniform, encoder.tokenizer.max_length, baseline is not None
    warn_of_leftovers(texts.candidates, encoder.tokenizer)
    is_zero = getattr(arguments, "empty_references", "zero") == "zero"
    warn_about_scores(scored.scores if is_zero else scored.scores.nan_to_num(1.0), *facts)
    num_skipped = None if is_zero else int(count_skipped(scored.scores)) * len(references) // len(texts)
    settings = {"strip_thoughts": arguments.strip_thoughts, "num_skipped": num_skipped}
    least, largest = score_range(scored.scores.shape[1], baseline)
    return ScoredCorpus(
        texts=texts,
        scores=rescale_scores(scored.scores.nan_to_num(0.0) if is_zero else scored.scores, baseline),
        best_reference=scored.best_reference,
        bounds=(least[:, 0], largest[:, 0]),
        encoder=encoder,
        signature=score_signature(encoder, weights.source, baseline, **settings),
        align=partial(compute_alignment, encoder=encoder, weights=weights, baseline=baseline),
        num_skipped=num_skipped,
    )


def score_in_parts(
    ranks: RankGroup,
    arguments: argparse.Namespace,
    texts: TextPairs,
    encoder: FrozenEncoder,
    weights: TokenWeights,
) -> CorpusScores | None:
    """Score a corpus part by part; the scores on rank 0, ``None`` on all other ranks."""
    unknown = UnknownTokens()

    def work(part: Sequence[tuple[str, list[str]]], progress: Progress) -> Part:
        pairs = TextPairs([candidate for candidate, _ in part], [references for _, references in part])
        scored = score_corpus(pairs, encoder, weights, progress=progress, unknown=unknown)
        num_truncated = torch.tensor([scored.num_truncated], device="cpu")
        return {"scores": scored.scores, "best": scored.best_reference, "num_truncated": num_truncated}

    signature = score_signature(encoder, weights.source)
    pairs = list(zip(texts.candidates, texts.references, strict=True))
    scored = compute_parts(ranks, arguments, pairs, work, unit="pair", signature=signature)
    if scored is None:
        return None
    unknown.warn()
    num_truncated = int(scored["num_truncated"].sum())
    if num_truncated and len(scored["num_truncated"]) > 1:
        # Parts may share texts, of which each counts once.
        distinct = texts.distinct()
        blocks = (distinct[i : i + TEXTS_PER_BLOCK] for i in range(0, len(distinct), TEXTS_PER_BLOCK))
        num_truncated = sum(encoder.tokenizer(block).num_truncated for block in blocks)
    return CorpusScores(scored["scores"], scored["best"], num_truncated)
