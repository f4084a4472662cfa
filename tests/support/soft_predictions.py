"""Predictions for tests of the loss: certain, random or nearly right."""

from functools import cache

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bertscore_tm import FrozenEncoder
from bertscore_tm.losses import softmax_relaxation
from tests.support.models import padded, tiny_model

CPU = torch.device("cpu")
COMPONENTS = ["precision", "recall", "f1"]
MATCHINGS = ["max", "softmax"]
IGNORE = -100
SHARP = {"matching_temperature": 1e-6, "reduction": "none"}
TEXTS = ["a black cat sat on the mat", "the weather is nice", "hello"]


@cache
def tiny(family="bert", dtype="float64"):
    """Return a random encoder of a family, layer 2 of 3."""
    model, tokenizer = tiny_model(family)
    return FrozenEncoder(model, tokenizer, num_layers=2, dtype=dtype)


def content_ids(encoder, texts):
    """Return the token ids of texts without the special tokens around them."""
    before, after = encoder.tokenizer.special_affixes
    return [ids[len(before) : len(ids) - len(after)] for ids in encoder.tokenizer(texts).rows()]


def vocab_size_of(encoder):
    """Return the number of tokens of an encoder, or of the generator of a bridge."""
    if isinstance(encoder, FrozenEncoder):
        return encoder.config.vocab_size
    return encoder.vocab_size


def certain(encoder, labels, scale=1000.0):
    """Return logits that put all probability on the labels."""
    # At scales near 100, probabilities are denormal numbers, which processors multiply slowly.
    logits = torch.zeros(*labels.shape, vocab_size_of(encoder))
    return logits.scatter_(-1, labels.clamp(min=0)[..., None], scale)


def normal(*shape, dtype=torch.float32, seed=0):
    """Return normally distributed numbers, the same in every dtype but for rounding."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def noise(encoder, *shape, scale=3.0, dtype=torch.float32, seed=0):
    """Return random logits over the vocabulary."""
    return (scale * normal(*shape, vocab_size_of(encoder), dtype=torch.float64, seed=seed)).to(dtype)


def relax(logits, temperature, excluded_ids):
    """Relax by a callable that is not one of the library's."""
    return softmax_relaxation(logits, temperature, excluded_ids)


def labels_of(encoder, texts=TEXTS):
    """Return the labels of texts, padded with -100."""
    return padded(content_ids(encoder, texts))


def near_labels(encoder, labels, seed=0):
    """Return logits that put about half of the probability on the labels, where gradients are large."""
    return certain(encoder, labels, 10.0) + noise(encoder, *labels.shape, scale=1.0, seed=seed)


def grad_of(loss, logits, *args, **kwargs):
    """Return the value of a loss and the gradient of the sum of its items."""
    logits = logits.detach().clone().requires_grad_()
    value = loss(logits, *args, **kwargs)
    value.sum().backward()
    return value.detach(), logits.grad


def equally_long(encoder, candidates, references):
    """Cut each pair after a word so that both texts have equally many tokens."""
    pairs = []
    for texts in zip(candidates, references, strict=True):
        by_length = []
        for text in texts:
            words = text.split()
            beginnings = [" ".join(words[: k + 1]) for k in range(len(words))]
            lengths = [len(ids) for ids in content_ids(encoder, beginnings)]
            by_length.append(dict(zip(lengths, beginnings, strict=True)))
        common = by_length[0].keys() & by_length[1].keys()
        if common:
            pairs.append([lengths[max(common)] for lengths in by_length])
    cut_candidates = [candidate for candidate, _ in pairs]
    cut_references = [reference for _, reference in pairs]
    return cut_candidates, cut_references


@torch.no_grad()
def scores_of_certain_predictions(loss, candidates, references):
    """Return all components for predictions that are certain of the candidates' tokens."""
    labels = labels_of(loss.encoder, candidates)
    value, components = loss(certain(loss.encoder, labels), references, labels != IGNORE, return_components=True)
    assert torch.equal(value, 1 - components[loss.component])
    return components


def assert_scores(scores, expected, atol=1e-5):
    """Check precision, recall and F1."""
    for name in COMPONENTS:
        deviation = (scores[name] - expected[name]).abs().max().item()
        assert deviation < atol, f"{name}: {deviation}"


class Largest(TorchDispatchMode):
    """Keeps how many numbers the largest storage had that an operation made or wrote to."""

    def __init__(self, *tensors):
        super().__init__()
        self.inputs = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            # Packed weights have no storage.
            is_plain = isinstance(tensor, torch.Tensor) and not tensor.is_mkldnn
            if is_plain and tensor.untyped_storage().data_ptr() not in self.inputs:
                storage = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.numbers = max(self.numbers, storage, tensor.numel())
        return out
