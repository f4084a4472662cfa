"""Training losses and rewards that raise a generator's BERTScore.

Takes a generator's logits, hidden states or sampled candidates, compares them through the shared frozen encoder, and
returns losses and rewards. Imports the encoder, scoring and the metric; callbacks import it.
"""

from bertscore_tm.losses.bridge.vocabulary import VocabularyBridge
from bertscore_tm.losses.distillation import (
    Candidates,
    DistilledTargets,
    choose_targets,
    make_candidates,
    read_candidates,
)
from bertscore_tm.losses.distilled_dataset import DistilledDataset
from bertscore_tm.losses.expected_embedding import expected_embedding, linear_expected_embedding
from bertscore_tm.losses.gradient_norm import match_gradient_norm
from bertscore_tm.losses.relaxation import (
    StraightThrough,
    entmax15_relaxation,
    gumbel_softmax_relaxation,
    softmax_relaxation,
    sparsemax_relaxation,
    straight_through,
)
from bertscore_tm.losses.rewards import BERTScoreReward
from bertscore_tm.losses.sampling import SampledSequences, sample_with_log_probs, sequence_log_probs
from bertscore_tm.losses.sequence_level import (
    MinimumRiskLoss,
    SelfCriticalLoss,
    minimum_risk_loss,
    self_critical_loss,
)
from bertscore_tm.losses.soft_bertscore import SoftBERTScoreLoss
from bertscore_tm.losses.soft_matching import TokenMass, soft_precision_recall_f1, transported_similarity

__all__ = [
    "BERTScoreReward",
    "Candidates",
    "DistilledDataset",
    "DistilledTargets",
    "MinimumRiskLoss",
    "SampledSequences",
    "SelfCriticalLoss",
    "SoftBERTScoreLoss",
    "StraightThrough",
    "TokenMass",
    "VocabularyBridge",
    "choose_targets",
    "entmax15_relaxation",
    "expected_embedding",
    "gumbel_softmax_relaxation",
    "linear_expected_embedding",
    "make_candidates",
    "match_gradient_norm",
    "minimum_risk_loss",
    "read_candidates",
    "sample_with_log_probs",
    "self_critical_loss",
    "sequence_log_probs",
    "soft_precision_recall_f1",
    "softmax_relaxation",
    "sparsemax_relaxation",
    "straight_through",
    "transported_similarity",
]
