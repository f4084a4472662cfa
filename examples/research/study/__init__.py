"""Which training signal helps after cross-entropy? Arms compared over seeds and texts on held-out layers."""
