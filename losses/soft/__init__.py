"""Soft losses: BERTScore of a generator's predictions, differentiable through the frozen encoder.

A prediction takes this way: logits or hidden states -> probabilities (relaxation) -> expected input embeddings -> soft
tokens, through the bridge where tokenizers differ -> encoder -> similarities -> matching -> loss.
"""
