"""Functions of texts: scores of candidates, of all pairs, and ranked candidates; keeps no state between calls."""

from bertscore_tm.functional.corpus_scores import bert_score, score_and_warn
from bertscore_tm.functional.matrix import score_matrix
from bertscore_tm.functional.ranking import RankedCandidates, rank_candidates
from bertscore_tm.scoring.corpus import SCORES

__all__ = ["SCORES", "RankedCandidates", "bert_score", "rank_candidates", "score_and_warn", "score_matrix"]
