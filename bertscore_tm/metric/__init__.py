"""BERTScore as a torchmetrics metric: states, ranks and results. The only room that subclasses ``torchmetrics.Metric``.

``bertscore`` holds the metric, ``states`` its states and the combination of ranks, ``shared_batch`` the batch that
metrics share, ``results`` and ``score_plot`` its output.
"""

from bertscore_tm.metric.bertscore import BERTScore

__all__ = ["BERTScore"]
