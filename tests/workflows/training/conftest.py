"""Fixtures of trainings."""

from tests.support.training_fixtures import pairs, shallow

__all__ = ["pairs", "shallow"]
