"""Lightning callbacks that score generated text during validation and stop training on the score."""

from bertscore_tm.callbacks.early_stopping import BERTScoreEarlyStopping
from bertscore_tm.callbacks.schedules import LossWeightSchedule, TemperatureAnnealing
from bertscore_tm.callbacks.scoring import BERTScoreCallback

__all__ = ["BERTScoreCallback", "BERTScoreEarlyStopping", "LossWeightSchedule", "TemperatureAnnealing"]
