"""Training losses and rewards that pull a generator towards BERTScore."""

from bertscore_tm.losses.bridge.vocabulary import VocabularyBridge
from bertscore_tm.losses.expected_embedding import expected_embedding, linear_expected_embedding
from bertscore_tm.losses.relaxation import (
    Entmax15,
    GumbelSoftmax,
    Softmax,
    Sparsemax,
    StraightThrough,
    TopK,
    entmax15_relaxation,
    gumbel_softmax_relaxation,
    softmax_relaxation,
    sparsemax_relaxation,
    straight_through,
    top_k_relaxation,
)
from bertscore_tm.losses.rewards import BERTScoreReward
from bertscore_tm.losses.sequence_level import (
    MinimumRiskLoss,
    SelfCriticalLoss,
    minimum_risk_loss,
    self_critical_loss,
)
from bertscore_tm.losses.soft_bertscore import SoftBERTScoreLoss, soft_bertscore_loss
from bertscore_tm.losses.transport import transported_similarity

__all__ = [
    "BERTScoreReward",
    "Entmax15",
    "GumbelSoftmax",
    "MinimumRiskLoss",
    "SelfCriticalLoss",
    "SoftBERTScoreLoss",
    "Softmax",
    "Sparsemax",
    "StraightThrough",
    "TopK",
    "VocabularyBridge",
    "entmax15_relaxation",
    "expected_embedding",
    "gumbel_softmax_relaxation",
    "linear_expected_embedding",
    "minimum_risk_loss",
    "self_critical_loss",
    "soft_bertscore_loss",
    "softmax_relaxation",
    "sparsemax_relaxation",
    "straight_through",
    "top_k_relaxation",
    "transported_similarity",
]
