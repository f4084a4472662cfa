"""Training losses and rewards that raise a generator's BERTScore.

Two halves share the frozen encoder alone: :mod:`bertscore_tm.losses.soft` differentiates through the encoder, from a
generator's logits or hidden states; :mod:`bertscore_tm.losses.sequence` scores whole texts, samples of a generator.
"""

from bertscore_tm.losses.sequence import (
    BERTScoreReward,
    BERTScoreRisk,
    MinimumRiskLoss,
    SampledSequences,
    sample_with_log_probs,
    sequence_log_probs,
)
from bertscore_tm.losses.soft import (
    SoftBERTScoreLoss,
    TokenMass,
    VocabularyBridge,
    expected_embedding,
    linear_expected_embedding,
    soft_precision_recall_f1,
    softmax_relaxation,
)

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
