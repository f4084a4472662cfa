"""Training losses and rewards that raise a generator's BERTScore.

:mod:`bertscore_tm.losses.soft` differentiates through the frozen encoder, from a generator's logits or hidden states.
:mod:`bertscore_tm.losses.sequence` scores whole texts, such as samples of a generator.
"""

from bertscore_tm.losses.sequence.minimum_risk import MinimumRiskLoss
from bertscore_tm.losses.sequence.rewards import BERTScoreReward
from bertscore_tm.losses.sequence.risk import BERTScoreRisk
from bertscore_tm.losses.sequence.sampling import SampledSequences, sample_with_log_probs, sequence_log_probs
from bertscore_tm.losses.soft.bridge import VocabularyBridge
from bertscore_tm.losses.soft.expectations import expected_embedding, linear_expected_embedding
from bertscore_tm.losses.soft.loss import SoftBERTScoreLoss
from bertscore_tm.losses.soft.relaxation import softmax_relaxation
from bertscore_tm.losses.soft.softmax_matching import soft_precision_recall_f1
from bertscore_tm.matching.greedy import TokenMass

__all__ = [
    "BERTScoreReward",
    "BERTScoreRisk",
    "MinimumRiskLoss",
    "SampledSequences",
    "SoftBERTScoreLoss",
    "TokenMass",
    "VocabularyBridge",
    "expected_embedding",
    "linear_expected_embedding",
    "sample_with_log_probs",
    "sequence_log_probs",
    "soft_precision_recall_f1",
    "softmax_relaxation",
]
