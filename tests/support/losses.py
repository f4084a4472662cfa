"""Losses of each vocabulary, and logits for their tests."""

import torch

from bertscore_tm.losses import SoftBERTScoreLoss, VocabularyBridge, softmax_relaxation
from tests.support.models import tiny_tokenizer
from tests.support.soft_predictions import IGNORE, noise, tiny

TARGET = torch.tensor([[50, 60, 70, 80, 90], [51, IGNORE, 61, 71, 81]])


def make_loss(kind, **options):
    """A loss in float64, with the vocabulary of an encoder's family or a bridge of a mode."""
    encoder = tiny(kind if kind == "roberta" else "bert")
    if kind in ("identity", "mean", "expand"):
        tokenizer = encoder.tokenizer.tokenizer if kind == "identity" else tiny_tokenizer("bytes")
        options["tokenizer"] = VocabularyBridge(tokenizer, encoder, kind, min_fidelity=0)
    return SoftBERTScoreLoss(encoder, **options)


def blank_ids(loss):
    """Tokens of a bridge without a letter, which have no position where they are likeliest."""
    if loss.bridge is None:
        return []
    return loss.bridge.pieces.empty.nonzero().squeeze(1).tolist()


def relax_by_gumbel(logits, temperature, excluded_ids):
    """Relaxed samples, the same ones after the same seed."""
    return softmax_relaxation(logits - torch.empty_like(logits).exponential_().log(), temperature, excluded_ids)


def spread(encoder, z, labels, places, width, filler=IGNORE):
    """Move positions apart, with random logits and fillers in between."""
    wide = noise(encoder, len(labels), width, scale=5.0, seed=7)
    wide_labels = torch.full((len(labels), width), filler)
    wide[:, places], wide_labels[:, places] = z, labels
    return wide, wide_labels
