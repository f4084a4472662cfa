"""Which training signal helps after cross-entropy? Six arms, compared over seeds and texts on held-out layers."""
