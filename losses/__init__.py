"""Training losses that pull a generator towards BERTScore."""

from bertscore_tm.losses.soft_bertscore import SoftBERTScoreLoss

__all__ = ["SoftBERTScoreLoss"]
