"""Sequence-level losses: rewards of whole texts, and the log-probabilities that carry the gradient."""
