"""Texts in, unit token vectors out: loads a frozen encoder once and shares it."""

from bertscore_tm.encoder.encoder import Encoder, EncoderOptions, FrozenEncoder, as_encoder, default_device
from bertscore_tm.encoder.signature import Signature

__all__ = ["Encoder", "EncoderOptions", "FrozenEncoder", "Signature", "as_encoder", "default_device"]
