"""Texts in, unit token vectors out: loads a frozen encoder once and shares it."""

from bertscore_tm.encoder.factory import default_device, make_encoder
from bertscore_tm.encoder.frozen_encoder import FrozenEncoder

__all__ = ["FrozenEncoder", "default_device", "make_encoder"]
