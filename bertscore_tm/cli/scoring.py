"""Score a corpus with what a command chooses, divided among the ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Self

import torch
from torch import Tensor

from bertscore_tm.cli.encoder import build_encoders, read_baseline, read_idf, take_hash
from bertscore_tm.cli.joined_files import Systems
from bertscore_tm.cli.options import ScoringChoice
from bertscore_tm.cli.resume import Numbers, Progress, Session, compute_items
from bertscore_tm.encoder import Signature
from bertscore_tm.encoder.tokenizer import TextTokenizer
from bertscore_tm.scoring.corpus import CorpusScores, score_corpus
from bertscore_tm.scoring.idf import TEXTS_PER_BLOCK, token_weights
from bertscore_tm.scoring.inputs import TextPairs, omit_blank, warn_of_stringified_lists
from bertscore_tm.scoring.rescaling import find_baseline, rescale_scores
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.scoring.warnings import UnknownText, warn_about_scores, warn_of_leftovers
from bertscore_tm.utilities.chats import strip_thoughts
from bertscore_tm.utilities.checks import SCORE_NAMES


@dataclass(frozen=True)
class ScoredSystems:
    """Scores of systems' texts and the settings that they depend on.

    Args:
        systems: the texts, without thoughts if so requested.
        scores: precision, recall and F1, rescaled if requested, shape (3, layers, texts, systems).
        best_reference: index of the best reference by F1, counting blank ones too, shape (layers, texts, systems).
            Commands score one layer.
        settings: encoder, weights and baseline.
        signature: the signature of the settings, which also says whether thoughts were removed.
    """

    systems: Systems
    scores: Tensor
    best_reference: Tensor
    settings: ScoreSettings
    signature: Signature

    @property
    def scores_of_first(self) -> Tensor:
        """Precision, recall and F1 of the first system, which may be the only one, shape (3, texts)."""
        return self.scores[:, 0, :, 0]

    @property
    def best_reference_of_first(self) -> Tensor:
        """Indices of the best references of the first system, shape (texts,)."""
        return self.best_reference[0, :, 0]

    def select(self, rows: Sequence[int]) -> Self:
        """Return the scores of some of the texts only. The rows are indices of texts, from 0."""
        return replace(
            self,
            systems=self.systems.select(rows),
            scores=self.scores[:, :, rows],
            best_reference=self.best_reference[:, rows],
        )

    def parts(self) -> dict[str, Self]:
        """Return the scores of each group of texts by its label. Empty if the texts have no groups."""
        # A dictionary keeps the groups in the order of their first texts.
        rows_of_groups: dict[str, list[int]] = {}
        for row, label in enumerate(self.systems.labels or []):
            rows_of_groups.setdefault(label, []).append(row)
        return {label: self.select(rows) for label, rows in rows_of_groups.items()}

    @property
    def num_references(self) -> int:
        """Number of references, without blank ones next to others."""
        return sum(len(omit_blank(references)) for references in self.systems.references)

    def worst(self, count: int) -> list[int]:
        """Return the indices of the texts with the lowest F1 of the first system, the lowest first."""
        f1 = self.scores_of_first[SCORE_NAMES.index("f1")]  # (texts,)
        # Equal scores keep the order of the texts, so that the output is the same in each run.
        lowest: list[int] = f1.argsort(stable=True)[:count].tolist()
        return lowest

    def describe_texts(self, row: int) -> dict[str, str]:
        """Return a candidate of the first system, its best reference and, if there are sources, its source."""
        candidates, *_ = self.systems.texts.values()
        best_reference = self.best_reference_of_first[row]
        texts = {
            "candidate_text": candidates[row],
            "reference_text": self.systems.references[row][best_reference],
        }
        if self.systems.sources is not None:
            texts["source_text"] = self.systems.sources[row]
        return texts


def score_systems(
    session: Session, choice: ScoringChoice, systems: Systems, *, verbose: bool = False
) -> ScoredSystems | None:
    """Score and rescale texts, and warn about empty and truncated ones. ``None`` on all ranks but the first.

    Document frequencies are counted in the file of ``--idf-from``, or in the references with ``--idf``. Blank
    references next to others are left out.
    """
    ranks = session.ranks
    choice = take_hash(choice)
    if choice.strip_thoughts:
        systems = _strip_thoughts(systems)
    # Read the table before the model, which takes longer, so that errors in it are reported soon.
    table = ranks.run_on_first(lambda: read_baseline(choice.rescale))
    encoder = build_encoders(ranks, choice.encoder)
    baseline = ranks.run_on_first(lambda: find_baseline(encoder, table))
    # bert-score counts each reference of a text as a document of its own.
    documents = list(chain.from_iterable(map(omit_blank, systems.references)))
    weights = ranks.run_on_first(lambda: token_weights(encoder, read_idf(choice.idf, choice.format), documents))
    settings = ScoreSettings(encoder, weights, baseline)
    pairs = _pairs_of_all_systems(systems)
    corpus = _score_pairs(session, pairs.omit_blank_references(), settings, verbose=verbose)
    if corpus is None:
        return None
    warn_of_leftovers(pairs.candidates, encoder.tokenizer)
    warn_of_stringified_lists(chain(pairs.candidates, chain.from_iterable(systems.references)))
    warn_about_scores(corpus.scores, corpus.num_truncated, settings)
    scores = rescale_scores(corpus.scores, baseline)  # (3, layers, texts * systems)
    # The scored pairs lack blank references, but the indices in the output count them.
    best_reference = pairs.restore_indices(corpus.best_reference)  # (layers, texts * systems)
    num_layers = scores.shape[1]
    shape = (num_layers, len(systems.references), len(systems.texts))
    return ScoredSystems(
        systems=systems,
        scores=scores.reshape(3, *shape),
        best_reference=best_reference.reshape(shape),
        settings=settings,
        signature=settings.signature() | choice.signature_fields(),
    )


def _strip_thoughts(systems: Systems) -> Systems:
    """Return the systems with their candidates, but without the thoughts of reasoning models."""
    texts = {}
    for name, texts_of_system in systems.texts.items():
        texts[name] = list(map(strip_thoughts, texts_of_system))
    return replace(systems, texts=texts)


def _pairs_of_all_systems(systems: Systems) -> TextPairs:
    """Return the pairs of all systems: those of the first text in each system, then those of the second, and so on.

    Pairs with the same references follow each other, so that each reference is encoded once.
    """
    candidates: list[str] = []
    references = []
    for texts, references_of_text in zip(zip(*systems.texts.values(), strict=True), systems.references, strict=True):
        candidates += texts
        references += [references_of_text] * len(texts)
    return TextPairs(candidates, references)


def _score_pairs(session: Session, texts: TextPairs, settings: ScoreSettings, *, verbose: bool) -> CorpusScores | None:
    """Score a corpus, of which each rank scores a part. ``None`` on all ranks but the first."""

    def work(part: Sequence[tuple[str, list[str]]], progress: Progress) -> list[Numbers]:
        candidates, references = zip(*part, strict=True)
        pairs = TextPairs(list(candidates), list(references))
        scored = score_corpus(pairs, settings, progress=progress)
        # Each pair has four numbers: P, R, F1 and the index of its best reference. An index is exact in float32 up to
        # 16 million references of a text.
        numbers = torch.cat([scored.scores[:, 0], scored.best_reference])  # (4, pairs)
        return numbers.T.tolist()

    # The partial file has the scores before rescaling, so its signature leaves out the baseline.
    signature = str(replace(settings, baseline=None).signature())
    pairs = list(zip(texts.candidates, texts.references, strict=True))
    numbers = compute_items(session, pairs, work, unit="pair", signature=signature, verbose=verbose)
    if numbers is None:
        return None
    computed = torch.tensor(numbers, dtype=torch.float32, device="cpu").T[:, None]  # (4, 1, pairs)
    num_truncated, unknown = count_tokens(texts.distinct(), settings.encoder.tokenizer)
    unknown.warn()
    scores = computed[:3]  # (3, 1, pairs)
    best_reference = computed[3].long()  # (1, pairs)
    return CorpusScores(scores, best_reference, num_truncated, unknown)


def count_tokens(texts: Sequence[str], tokenizer: TextTokenizer) -> tuple[int, UnknownText]:
    """Return the number of texts that the encoder truncates, and how much of the texts is unknown to it."""
    num_truncated = 0
    unknown = UnknownText()
    # Texts are tokenized in blocks, because the tokens of a large corpus would take more memory than its texts.
    for start in range(0, len(texts), TEXTS_PER_BLOCK):
        tokenized = tokenizer(texts[start : start + TEXTS_PER_BLOCK])
        num_truncated += tokenized.num_truncated
        unknown.count(tokenized, tokenizer)
    return num_truncated, unknown
