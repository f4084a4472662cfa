"""Logging of generated texts: selects examples, finds their unmatched words and writes them to loggers."""

from bertscore_tm.callbacks.samples.logger import SampleLogger

__all__ = ["SampleLogger"]
