"""The torchmetrics contract: states and ranks. The only room that imports torchmetrics."""

from bertscore_tm.metric.bertscore import BERTScore

__all__ = ["BERTScore"]
