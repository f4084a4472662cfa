"""Metric, callback, losses, rewards and ranking on a second device, which computes on the CPU."""

import warnings
from functools import partial

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import rank_candidates
from bertscore_tm.losses import BERTScoreReward, SoftBERTScoreLoss, VocabularyBridge
from examples.benchmarks.processes import run_fresh
from tests.support import stand_in_device
from tests.support.models import tiny_model, tiny_tokenizer

CANDIDATES = ["a cat sat on the mat", "hello there", "", "the dog ran to the park and back again to the park"]
REFERENCES = ["the cat is on a mat", "hello", "nothing", "a dog ran through the park, then it came back"]
MATCHINGS = ("softmax", "max")
METRICS = {
    "plain": {},
    "idf": {"idf": True},
    "all layers": {"all_layers": True},
    "windows": {"max_length": 8, "long_text": "window"},
    "no cache": {"cache_bytes": 0},
    "states on the CPU": {"compute_on_cpu": True},
}


def scored(device, options):
    """Return the scores of a metric, and how often its updates waited: for new texts, and for the same again."""
    encoder_options = {name: options[name] for name in ("all_layers", "max_length", "long_text") if name in options}
    others = {name: value for name, value in options.items() if name not in encoder_options}
    layers = {} if "all_layers" in options else {"num_layers": 2}
    metric = BERTScore(FrozenEncoder(*tiny_model("bert"), **layers, **encoder_options), **others).to(device)
    metric.encoder.backbone(device)
    stand_in_device.waits.clear()
    metric.update(CANDIDATES, REFERENCES)
    new = stand_in_device.waits.copy()
    stand_in_device.waits.clear()
    metric.update(CANDIDATES, REFERENCES)
    again = stand_in_device.waits.copy()
    return {name: value.cpu() for name, value in metric.compute().items()}, (new, again)


def trained(device, matching="softmax", from_hidden=False, bridged=False):
    """Return a loss and its gradient, and how often the second step waited."""
    model, tokenizer = tiny_model("bert")
    torch.manual_seed(0)
    encoder = FrozenEncoder(model, tokenizer, num_layers=2)
    tokenizer = tiny_tokenizer("gpt2") if bridged else tokenizer
    bridge = VocabularyBridge(tokenizer, encoder, min_fidelity=0) if bridged else None
    loss = SoftBERTScoreLoss(encoder, bridge, matching=matching).to(device)
    target = torch.tensor([tokenizer.encode(text)[:6] for text in (REFERENCES[0], REFERENCES[3])]).to(device)
    head = torch.randn(len(tokenizer), 8).to(device)
    target = torch.nn.functional.pad(target, (2, 0), value=-100)
    inputs = torch.randn(2, 8, 8 if from_hidden else len(tokenizer))
    inputs[:, :2] = torch.nan  # Ignored, as a prompt is.
    inputs = inputs.to(device).requires_grad_()
    for _ in range(2):
        stand_in_device.waits.clear()
        inputs.grad = None
        torch.manual_seed(0)
        value = loss.forward_hidden(inputs, head, target) if from_hidden else loss(inputs, target)
        value.backward()
    waits = stand_in_device.waits.copy()
    return {"loss": value.detach().cpu(), "gradient": inputs.grad.cpu()}, waits


def ranked(device):
    encoder = FrozenEncoder(*tiny_model("bert"), num_layers=2, device=device)
    scores = rank_candidates([CANDIDATES, REFERENCES], encoder=encoder).scores
    return {"scores": torch.cat([row.cpu() for row in scores])}, None


def rewarded(device):
    encoder = FrozenEncoder(*tiny_model("bert"), num_layers=2, device=device)
    return {"rewards": torch.tensor(BERTScoreReward(encoder)(CANDIDATES, REFERENCES))}, None


CHECKS = {
    **{f"metric, {name}": partial(scored, options=options) for name, options in METRICS.items()},
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
    outcomes = {}
    for name, check in CHECKS.items():
        (expected, _), (values, waits) = check("cpu"), check(device)
        outcomes[name] = max((values[key] - expected[key]).abs().max().item() for key in expected), waits
    try:
        torch.ones(2, device=device) + torch.ones(2)
    except RuntimeError as error:
        return outcomes, str(error)


@pytest.fixture(scope="module")
def compared():
    # The device is registered for the rest of its process.
    return run_fresh(compare_devices)


@pytest.mark.slow
def test_results_equal_those_of_the_cpu(compared):
    outcomes, error = compared
    assert error == "aten::add got tensors of standin and of cpu"
    # NaN is not below it.
    assert {name: difference for name, (difference, _) in outcomes.items() if not difference < 1e-6} == {}


def by_package(waits):
    return sorted(name for cause, name in waits.elements() if cause == "package")


@pytest.mark.slow
def test_an_update_waits_to_check_new_texts(compared):
    for name, (_, waits) in compared[0].items():
        if not name.startswith("metric"):
            continue
        new, again = map(by_package, waits)
        # To see that the vectors are finite; references that are cached are encoded apart from the candidates.
        num_checks = 1 if name == "metric, no cache" else 2
        checks = ["aten::_local_scalar_dense"] * num_checks
        # torchmetrics moves what an update adds to such states.
        moved = ["aten::_to_copy"] if name == "metric, states on the CPU" else []
        assert new == sorted(checks + moved)
        assert again == moved


@pytest.mark.slow
def test_a_step_of_the_loss_does_not_wait(compared):
    for name, (_, waits) in compared[0].items():
        if name.startswith("loss"):
            assert by_package(waits) == []
