"""Encoders and kinds of metrics."""

from tests.support.metric_fixtures import encoder, every, workshop

__all__ = ["encoder", "every", "workshop"]
