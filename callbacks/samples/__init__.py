"""Logs examples of what a model writes: which ones, what is wrong with them, and how each logger shows them."""

from bertscore_tm.callbacks.samples.logger import SampleLogger

__all__ = ["SampleLogger"]
