"""Sequence-level losses: rewards of whole texts, and the log-probabilities through which the gradient flows."""
