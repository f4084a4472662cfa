"""BERTScore as a torchmetrics metric: states, ranks and results. The only room that imports torchmetrics.

``bertscore`` holds the metric, ``list_states`` its base class, ``states`` the layout of states, ``rank_sync`` the
combination of ranks, ``shared_batch`` the batch that metrics share, ``results`` and ``score_plot`` its output.
"""

from bertscore_tm.metric.bertscore import BERTScore

__all__ = ["BERTScore"]
