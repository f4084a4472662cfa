"""Texts in, unit token vectors out: loads a frozen encoder once and shares it."""

from bertscore_tm.encoder.as_encoder import Encoder, as_encoder
from bertscore_tm.encoder.device import default_device
from bertscore_tm.encoder.frozen_encoder import FrozenEncoder

__all__ = ["Encoder", "FrozenEncoder", "as_encoder", "default_device"]
