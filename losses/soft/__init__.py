"""Soft losses: BERTScore of a generator's predictions, differentiable through the frozen encoder.

A prediction takes this way: logits or hidden states -> probabilities (relaxation) -> expected input embeddings -> soft
tokens, through the bridge where tokenizers differ -> encoder -> similarities -> matching -> loss.
"""

from bertscore_tm.core.matching import TokenMass
from bertscore_tm.losses.soft.bridge import VocabularyBridge
from bertscore_tm.losses.soft.expectations import expected_embedding, linear_expected_embedding
from bertscore_tm.losses.soft.matching import soft_precision_recall_f1
from bertscore_tm.losses.soft.relaxation import softmax_relaxation
from bertscore_tm.losses.soft.soft_bertscore import SoftBERTScoreLoss

__all__ = [
    "SoftBERTScoreLoss",
    "TokenMass",
    "VocabularyBridge",
    "expected_embedding",
    "linear_expected_embedding",
    "soft_precision_recall_f1",
    "softmax_relaxation",
]
