"""Sequence-level losses: rewards of whole texts, and the log-probabilities that carry the gradient."""

from bertscore_tm.losses.sequence.rewards import BERTScoreReward
from bertscore_tm.losses.sequence.risk import BERTScoreRisk
from bertscore_tm.losses.sequence.sampling import SampledSequences, sample_with_log_probs, sequence_log_probs
from bertscore_tm.losses.sequence.sequence_level import MinimumRiskLoss

__all__ = [
    "BERTScoreReward",
    "BERTScoreRisk",
    "MinimumRiskLoss",
    "SampledSequences",
    "sample_with_log_probs",
    "sequence_log_probs",
]
