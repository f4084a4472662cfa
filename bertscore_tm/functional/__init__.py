"""Functions that score, align and rank texts, without state between calls."""

from bertscore_tm.alignment.alignment import align
from bertscore_tm.functional.bert_score import bert_score
from bertscore_tm.functional.matrix import score_matrix
from bertscore_tm.functional.pair_scorer import PairScorer
from bertscore_tm.functional.ranking import RankedCandidates, rank_candidates
from bertscore_tm.scoring.idf import document_frequencies
from bertscore_tm.utilities.chats import strip_thoughts
from bertscore_tm.utilities.checks import SCORE_NAMES

__all__ = [
    "SCORE_NAMES",
    "PairScorer",
    "RankedCandidates",
    "align",
    "bert_score",
    "document_frequencies",
    "rank_candidates",
    "score_matrix",
    "strip_thoughts",
]
