"""Metric, losses, rewards and ranking on a second device, which computes on the CPU."""

import warnings
from functools import partial

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import rank_candidates
from bertscore_tm.losses import BERTScoreReward, SoftBERTScoreLoss
from examples.benchmarks.processes import run_fresh
from tests.support import stand_in_device
from tests.support.models import tiny_model, tiny_tokenizer

CANDIDATES = ["a cat sat on the mat", "hello there", "", "the dog ran to the park and back again to the park"]
REFERENCES = ["the cat is on a mat", "hello", "nothing", "a dog ran through the park, then it came back"]
RELAXATIONS = ("softmax", "gumbel", "straight-through", "straight-through-gumbel", "sparsemax", "entmax15")
MATCHINGS = ("softmax", "logsumexp", "max", "transport")
METRICS = {
    "plain": {},
    "idf": {"idf": True},
    "all layers": {"all_layers": True},
    "windows": {"max_length": 8, "long_text": "window"},
    "confidence": {"confidence": 0.95},
    "no cache": {"cache_bytes": 0},
    "states on the CPU": {"compute_on_cpu": True},
}


def scored(device, options):
    """Return the scores of a metric, and how often its update waited for new texts and for known ones."""
    encoder_options = {name: options[name] for name in ("all_layers", "max_length", "long_text") if name in options}
    others = {name: value for name, value in options.items() if name not in encoder_options}
    layers = {} if "all_layers" in options else {"num_layers": 2}
    metric = BERTScore(FrozenEncoder(*tiny_model("bert"), **layers, **encoder_options), **others).to(device)
    stand_in_device.waits.clear()
    metric.update(CANDIDATES, REFERENCES)
    new = stand_in_device.waits.copy()
    stand_in_device.waits.clear()
    metric.update(CANDIDATES, REFERENCES)
    known = stand_in_device.waits.copy()
    return {name: value.cpu() for name, value in metric.compute().items()}, (new, known)


def trained(device, relaxation="softmax", matching="softmax", from_hidden=False, bridged=False):
    """Return a loss and its gradient, and how often the second step waited."""
    model, tokenizer = tiny_model("bert")
    torch.manual_seed(0)
    encoder = FrozenEncoder(model, tokenizer, num_layers=2)
    bridge = {"generator_tokenizer": tiny_tokenizer("gpt2"), "allow_low_fidelity": True} if bridged else {}
    loss = SoftBERTScoreLoss(encoder, relaxation=relaxation, matching=matching, **bridge).to(device)
    tokenizer = bridge.get("generator_tokenizer", tokenizer)
    target = torch.tensor([tokenizer.encode(text)[:6] for text in (REFERENCES[0], REFERENCES[3])]).to(device)
    head = torch.randn(len(tokenizer), 8).to(device)
    inputs = torch.randn(2, 6, 8 if from_hidden else len(tokenizer)).to(device).requires_grad_()
    for _ in range(2):
        stand_in_device.waits.clear()
        inputs.grad = None
        torch.manual_seed(0)
        value = loss.forward_hidden(inputs, head, target) if from_hidden else loss(inputs, target)
        value.backward()
    waits = stand_in_device.waits.copy()
    return {"loss": value.detach().cpu(), "gradient": inputs.grad.cpu()}, waits


def ranked(device):
    encoder = FrozenEncoder(*tiny_model("bert"), num_layers=2)
    found = rank_candidates([CANDIDATES, REFERENCES], encoder=encoder, device=device)
    return {"scores": torch.cat([one.cpu() for one in found.scores])}, None


def rewarded(device):
    encoder = FrozenEncoder(*tiny_model("bert"), num_layers=2)
    return {"rewards": torch.tensor(BERTScoreReward(encoder, device=device)(CANDIDATES, REFERENCES))}, None


CHECKS = {
    **{f"metric, {name}": partial(scored, options=options) for name, options in METRICS.items()},
    **{f"loss, {name}": partial(trained, relaxation=name) for name in RELAXATIONS},
    **{f"loss, {name}": partial(trained, matching=name) for name in MATCHINGS},
    "loss from hidden states": partial(trained, from_hidden=True),
    "bridged loss": partial(trained, bridged=True),
    "ranking": ranked,
    "rewards": rewarded,
}


def compare_devices():
    """Return the largest difference of each check between the devices and its waits; and what two devices raise."""
    warnings.simplefilter("ignore")
    device = stand_in_device.register()
    found = {}
    for name, check in CHECKS.items():
        (expected, _), (values, waits) = check("cpu"), check(device)
        found[name] = max((values[key] - expected[key]).abs().max().item() for key in expected), waits
    try:
        torch.ones(2, device=device) + torch.ones(2)
    except RuntimeError as error:
        return found, str(error)


@pytest.fixture(scope="module")
def compared():
    # The device is registered for the rest of its process.
    return run_fresh(compare_devices)


@pytest.mark.slow
def test_results_equal_those_of_the_cpu(compared):
    found, error = compared
    assert error == "aten::add got tensors of standin and of cpu"
    assert {name: difference for name, (difference, _) in found.items() if difference > 1e-6} == {}


@pytest.mark.slow
def test_neither_a_step_of_the_loss_nor_an_update_of_known_texts_waits(compared):
    waits = {name: waited for name, (_, waited) in compared[0].items()}
    for name in waits:
        if name.startswith("metric"):
            assert waits[name][1].total() == 0
            assert waits[name][0].total() > 0  # the device counts: new texts are encoded and matched
        elif name.startswith("loss") and not name.endswith(("sparsemax", "entmax15")):
            assert not any(cause == "package" for cause, _ in waits[name])
