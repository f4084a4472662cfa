"""Maps soft predictions over a generator's vocabulary to soft tokens of an encoder with another vocabulary.

Builds the table of the encoder's pieces of each of the generator's tokens, and measures how closely scores through it
follow the metric. Knows tokenizers and tables, no loss.
"""
