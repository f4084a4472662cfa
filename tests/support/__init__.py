"""Shared parts of the tests: texts, tiny models, ranks, trainers and doubles."""
