"""Lightning callbacks: score generated texts, log samples, stop early.

The only folder that imports lightning. It may import any other folder except cli, and no folder imports it.
"""

from bertscore_tm.callbacks.early_stopping import BERTScoreEarlyStopping
from bertscore_tm.callbacks.generation import CausalGenerate, Seq2SeqGenerate
from bertscore_tm.callbacks.loaders import ScoredBatch, ScoredLoader
from bertscore_tm.callbacks.report import BERTScoreReport
from bertscore_tm.callbacks.sample_logger import SampleLogger
from bertscore_tm.callbacks.sample_table import SampleTable
from bertscore_tm.callbacks.scoring import BERTScoreCallback, TextListener
from bertscore_tm.callbacks.text_writer import ScoredTextWriter

__all__ = [
    "BERTScoreCallback",
    "BERTScoreEarlyStopping",
    "BERTScoreReport",
    "CausalGenerate",
    "SampleLogger",
    "SampleTable",
    "ScoredBatch",
    "ScoredLoader",
    "ScoredTextWriter",
    "Seq2SeqGenerate",
    "TextListener",
]
