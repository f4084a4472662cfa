"""BERTScore as a torchmetrics metric: states, ranks and results. Only this folder subclasses ``torchmetrics.Metric``.

``bertscore`` holds the metric; ``states`` its states, the combination of ranks and the results.
"""

from bertscore_tm.metric.bertscore import BERTScore

__all__ = ["BERTScore"]
