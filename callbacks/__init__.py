"""Lightning callbacks that score generated text during validation, show it, stop on the score, and steer the losses."""

from bertscore_tm.callbacks.early_stopping import BERTScoreEarlyStopping
from bertscore_tm.callbacks.generation import CausalGenerate, Seq2SeqGenerate
from bertscore_tm.callbacks.samples.logger import SampleLogger
from bertscore_tm.callbacks.schedules import LossWeightSchedule, TemperatureAnnealing
from bertscore_tm.callbacks.scoring import BERTScoreCallback, ScoredBatch, TextListener

__all__ = [
    "BERTScoreCallback",
    "BERTScoreEarlyStopping",
    "CausalGenerate",
    "LossWeightSchedule",
    "SampleLogger",
    "ScoredBatch",
    "Seq2SeqGenerate",
    "TemperatureAnnealing",
    "TextListener",
]
