"""Fixtures of trainings."""

from tests.support.training_fixtures import encoder, pairs, shallow

__all__ = ["encoder", "pairs", "shallow"]
