"""Lightning callbacks that score generated text during validation and stop training on the score."""
