"""Soft losses: BERTScore of a generator's predictions, differentiable through the frozen encoder.

The steps are: logits or hidden states -> probabilities (relaxation) -> expected input embeddings -> soft tokens ->
encoder -> similarities -> matching -> loss. A bridge makes the soft tokens if the tokenizers differ.
"""
