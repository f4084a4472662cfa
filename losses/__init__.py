"""Training losses that pull a generator towards BERTScore."""
