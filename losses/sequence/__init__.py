"""Sequence-level losses: rewards of whole texts, and the log-probabilities that carry the gradient."""

from bertscore_tm.losses.sequence.gradient_norm import match_gradient_norm
from bertscore_tm.losses.sequence.rewards import BERTScoreReward
from bertscore_tm.losses.sequence.risk import BERTScoreRisk
from bertscore_tm.losses.sequence.sampling import SampledSequences, sample_with_log_probs, sequence_log_probs
from bertscore_tm.losses.sequence.sequence_level import MinimumRiskLoss, SelfCriticalLoss

__all__ = [
    "BERTScoreReward",
    "BERTScoreRisk",
    "MinimumRiskLoss",
    "SampledSequences",
    "SelfCriticalLoss",
    "match_gradient_norm",
    "sample_with_log_probs",
    "sequence_log_probs",
]
