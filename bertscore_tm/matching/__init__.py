"""Tensors in, tensors out: token vectors, matching, scores and idf; knows no text, no model and no torchmetrics."""
