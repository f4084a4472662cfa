"""BERTScore as a torchmetrics metric: states, ranks and results. The only subclass of ``torchmetrics.Metric``.

``bertscore`` holds the metric; ``states`` its states, the combination of ranks and the results.
"""

from bertscore_tm.metric.bertscore import BERTScore

__all__ = ["BERTScore"]
