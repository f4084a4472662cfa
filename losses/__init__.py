"""Training losses and rewards that pull a generator towards BERTScore."""

from bertscore_tm.losses.expected_embedding import expected_embedding, linear_expected_embedding
from bertscore_tm.losses.rewards import BERTScoreReward
from bertscore_tm.losses.sequence_level import (
    MinimumRiskLoss,
    SelfCriticalLoss,
    minimum_risk_loss,
    self_critical_loss,
)
from bertscore_tm.losses.soft_bertscore import SoftBERTScoreLoss, soft_bertscore_loss

__all__ = [
    "BERTScoreReward",
    "MinimumRiskLoss",
    "SelfCriticalLoss",
    "SoftBERTScoreLoss",
    "expected_embedding",
    "linear_expected_embedding",
    "minimum_risk_loss",
    "self_critical_loss",
    "soft_bertscore_loss",
]
