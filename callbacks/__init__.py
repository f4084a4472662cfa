"""Lightning callbacks: score generated texts, log samples, stop early, schedule settings, train on the best candidates.

The only room that imports lightning. It may import any other room except cli, and no room imports it.
"""

from bertscore_tm.callbacks.distillation import BestOfNDistillation
from bertscore_tm.callbacks.early_stopping import BERTScoreEarlyStopping
from bertscore_tm.callbacks.generation import CausalGenerate, Seq2SeqGenerate
from bertscore_tm.callbacks.samples.logger import SampleLogger
from bertscore_tm.callbacks.schedules import LossWeightSchedule, TemperatureAnnealing
from bertscore_tm.callbacks.scoring import BERTScoreCallback, ScoredBatch, TextListener
from bertscore_tm.callbacks.text_writer import ScoredTextWriter

__all__ = [
    "BERTScoreCallback",
    "BERTScoreEarlyStopping",
    "BestOfNDistillation",
    "CausalGenerate",
    "LossWeightSchedule",
    "SampleLogger",
    "ScoredBatch",
    "ScoredTextWriter",
    "Seq2SeqGenerate",
    "TemperatureAnnealing",
    "TextListener",
]
