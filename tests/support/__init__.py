"""What several test files need: texts, tiny models, ranks, trainers and doubles."""
