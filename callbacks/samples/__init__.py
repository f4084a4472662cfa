"""Logging of generated texts: selects examples and writes them to loggers."""

from bertscore_tm.callbacks.samples.logger import SampleLogger

__all__ = ["SampleLogger"]
