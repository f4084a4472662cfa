"""Metric, callback, losses, rewards and ranking on a second device, which computes on the CPU."""

import warnings
from functools import partial
from itertools import product

import pytest
import torch
from transformers import AutoModel

from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from bertscore_tm.functional import rank_candidates
from bertscore_tm.losses import BERTScoreReward, SoftBERTScoreLoss, VocabularyBridge
from bertscore_tm.scoring import corpus
from bertscore_tm.scoring.inputs import TextPairs
from examples.research.benchmarks.processes import run_fresh
from tests.support import stand_in_device
from tests.support.models import randomised, tiny_config, tiny_model, tiny_tokenizer
from tests.support.texts import real_pairs

# They start a process, for which the worker of such tests has imported all already.
pytestmark = [pytest.mark.slow, pytest.mark.distributed]
CANDIDATES = ["a cat sat on the mat", "hello there", "", "the dog ran to the park and back again to the park"]
REFERENCES = ["the cat is on a mat", "hello", "nothing", "a dog ran through the park, then it came back"]
# Options of the encoder and of the metric.
METRICS = {
    "plain": ({}, {}),
    "idf": ({}, {"idf": True}),
    "all layers": ({"num_layers": None, "all_layers": True}, {}),
    "windows": ({"max_length": 8, "long_text": "window"}, {}),
    "no cache": ({}, {"cache_bytes": 0}),
    "states on the CPU": ({}, {"compute_on_cpu": True}),
}


def counted(call):
    """Return the number of kernels of a call, and what it waited for."""
    stand_in_device.launches.clear()
    stand_in_device.waits.clear()
    call()
    return stand_in_device.launches.total(), stand_in_device.waits.copy()


def tiny(device="cpu", **options):
    return FrozenEncoder(*tiny_model("bert"), device=device, **{"num_layers": 2} | options)


def scored(device, encoder_options, options):
    """Return the scores of a metric, and for what its updates waited: with new texts, and with the same again."""
    metric = BERTScore(tiny(None, **encoder_options), **options).to(device)
    metric.encoder.backbone(device)
    waits = [counted(lambda: metric.update(CANDIDATES, REFERENCES))[1] for _ in range(2)]
    return {name: value.cpu() for name, value in metric.compute().items()}, waits


def selected(device):
    metric = BERTScore(tiny(None)).to(device).for_selection()
    metric.update(CANDIDATES, REFERENCES)
    return {name: value.cpu() for name, value in metric.compute().items()}, None


def trained(device, matching="softmax", from_hidden=False, bridged=False):
    """Return a loss and its gradient, and for what the second step waited."""
    encoder = tiny(None)
    tokenizer = tiny_tokenizer("gpt2") if bridged else tiny_model("bert")[1]
    bridge = VocabularyBridge(tokenizer, encoder, min_fidelity=0) if bridged else None
    loss = SoftBERTScoreLoss(encoder, bridge, matching=matching).to(device)
    torch.manual_seed(0)
    target = torch.tensor([tokenizer.encode(text)[:6] for text in (REFERENCES[0], REFERENCES[3])]).to(device)
    head = torch.randn(len(tokenizer), 8).to(device)
    target = torch.nn.functional.pad(target, (2, 0), value=-100)
    inputs = torch.randn(2, 8, 8 if from_hidden else len(tokenizer))
    inputs[:, :2] = torch.nan  # Ignored, as a prompt is.
    inputs = inputs.to(device).requires_grad_()
    values = []

    def step():
        inputs.grad = None
        torch.manual_seed(0)
        values.append(loss.forward_hidden(inputs, head, target) if from_hidden else loss(inputs, target))
        values[-1].backward()

    step()
    _, waits = counted(step)
    return {"loss": values[-1].detach().cpu(), "gradient": inputs.grad.cpu()}, waits


def ranked(device):
    scores = rank_candidates([CANDIDATES, REFERENCES], encoder=tiny(device)).scores
    return {"scores": torch.cat([row.cpu() for row in scores])}, None


def rewarded(device):
    return {"rewards": torch.tensor(BERTScoreReward(tiny(device))(CANDIDATES, REFERENCES))}, None


CHECKS = {
    **{f"metric, {name}": partial(scored, encoder_options=of, options=to) for name, (of, to) in METRICS.items()},
    "selection": selected,
    **{f"loss, {name}": partial(trained, matching=name) for name in ("softmax", "max")},
    "loss from hidden states": partial(trained, from_hidden=True),
    "bridged loss": partial(trained, bridged=True),
    "ranking": ranked,
    "rewards": rewarded,
}


def compare_devices():
    """Return the largest difference of each check between the devices and its waits; and what two devices raise."""
    device = stand_in_device.register()
    outcomes = {}
    for name, check in CHECKS.items():
        expected, _ = check("cpu")
        values, waits = check(device)
        differences = [(values[key] - expected[key]).abs().max().item() for key in expected]
        outcomes[name] = max(differences), waits
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2, device=device) + torch.ones(2)
    return outcomes, str(caught.value)


def measure():
    """Return the results of the programs of this file."""
    warnings.simplefilter("ignore")
    # The last one changes what the others depend on: the steps of a corpus.
    programs = (compare_devices, count_calls, count_loss_steps, count_steps)
    return {program: program() for program in programs}


@pytest.fixture(scope="module")
def measured():
    """Results by program, of one new process: the device is registered for the rest of it."""
    return run_fresh(measure)


def test_results_equal_those_of_the_cpu(measured):
    outcomes, error = measured[compare_devices]

    assert error == "aten::add got tensors of standin and of cpu"
    for name, (difference, _) in outcomes.items():
        assert difference < 1e-6, name


def by_package(waits):
    return sorted(name for cause, name in waits.elements() if cause == "package")


def test_updates_and_losses_synchronize_once(measured):
    outcomes, _ = measured[compare_devices]

    for name, (_, waits) in outcomes.items():
        if name.startswith("loss"):
            assert by_package(waits) == ["aten::nonzero"]
        if name.startswith("metric"):
            first, repeated = waits
            # torchmetrics moves what an update adds to such states.
            moved = ["aten::_to_copy"] if name == "metric, states on the CPU" else []
            # Reads whether the vectors are finite.
            assert by_package(first) == sorted(["aten::_local_scalar_dense", *moved])
            assert by_package(repeated) == moved


def count_calls():
    """Return kernels and waits of calls in bfloat16 with 4 layers: 16 pairs, 8 rows of logits or states."""
    device = stand_in_device.register()
    tokenizer = tiny_tokenizer("wordpiece")
    encoder = FrozenEncoder(*tiny_model("bert", 4), num_layers=4, dtype="bfloat16", device=device)
    texts, targets = real_pairs(32, words=12)
    metric = BERTScore(encoder).to(device)
    encoder.backbone(device)
    counts = {"loading": counted(lambda: encoder.encode(texts[:2], device))}
    counts["update, new texts"] = counted(lambda: metric.update(texts[:16], targets[:16]))
    counts["update, next texts"] = counted(lambda: metric.update(texts[16:], targets[16:]))
    counts["update, next epoch"] = counted(lambda: metric.update(texts[:16], targets[:16]))
    counts["bert_score"] = counted(lambda: bert_score(texts[:16], targets[:16], encoder))
    items = [texts[i : i + 8] for i in range(0, 32, 8)]
    counts["rank_candidates"] = counted(lambda: rank_candidates(items, encoder=encoder))
    batch = tokenizer(targets[:8], padding=True, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100).to(device)
    head = torch.randn(len(tokenizer), 32).bfloat16().to(device).requires_grad_()
    loss = SoftBERTScoreLoss(encoder).to(device)
    states = torch.randn(*labels.shape, 32).bfloat16().to(device).requires_grad_()
    logits = torch.randn(*labels.shape, len(tokenizer)).bfloat16().to(device).requires_grad_()
    values = []
    calls = {
        "loss": lambda: values.append(loss(logits, labels)),
        "loss from hidden states": lambda: values.append(loss.forward_hidden(states, head, labels)),
    }
    for name, call in calls.items():
        call()  # loads the encoder
        counts[name] = counted(call)
        counts[f"{name}, backward"] = counted(lambda: values[-1].backward())
    return counts


# Kernels and waits at most. Ranking has a batch of pairs per item.
MOST = {
    "update, new texts": (145, 1),
    "update, next texts": (145, 1),
    "update, next epoch": (145, 1),
    "bert_score": (148, 4),
    "rank_candidates": (250, 6),
    "loss": (285, 2),
    "loss, backward": (205, 0),
    "loss from hidden states": (285, 2),
    "loss from hidden states, backward": (210, 0),
}


@pytest.mark.parametrize("call", MOST)
def test_calls_launch_few_kernels_and_wait_rarely(measured, call):
    kernels, waits = measured[count_calls][call]
    most_kernels, most_waits = MOST[call]

    assert 0 < kernels <= most_kernels
    assert waits.total() <= most_waits


def count_steps():
    """Return for what a corpus waits by its number of steps, with idf too, and what vectors of NaN raise."""
    encoder = tiny(stand_in_device.register(), batch_size=8)
    pairs = real_pairs(24, words=12)
    encoder.encode(["a"], encoder.device)
    waits = {}
    for elements in (2**30, 4_000, 1_000):
        corpus._ELEMENTS_PER_STEP = elements
        steps = len(corpus.plan_steps(TextPairs(pairs[0], [[text] for text in pairs[1]]), encoder, encoder.device))
        for idf in (False, True):
            waits[steps, idf] = counted(lambda idf=idf: bert_score(*pairs, encoder, idf=idf))[1].total()
    with torch.no_grad():
        next(encoder.backbone(encoder.device).parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="NaN") as caught:
        bert_score(*pairs, encoder)
    return waits, str(caught.value)


def test_waits_do_not_grow_with_the_steps_of_a_corpus(measured):
    waits, error = measured[count_steps]
    steps = sorted({steps for steps, _ in waits})

    assert steps[0] == 1
    assert steps[-1] > 2 * steps[1] > 2
    for idf in (False, True):
        assert len({waits[number, idf] for number in steps}) == 1
    assert "the token vectors of BertModel contain NaN or infinite values in torch.float32. Set dtype" in error


def watch(model):
    """Return lists of the kernels within each forward pass of a model and, in parts, within its backward pass."""
    forward, backward = [], []

    def enter(module, args, inputs):
        forward.append(-stand_in_device.launches.total())
        if "inputs_embeds" in inputs and inputs["inputs_embeds"].requires_grad:
            inputs["inputs_embeds"].register_hook(lambda grad: backward.append(stand_in_device.launches.total()))

    def leave(module, args, output):
        forward[-1] += stand_in_device.launches.total()
        if output.last_hidden_state.requires_grad:
            output.last_hidden_state.register_hook(lambda grad: backward.append(-stand_in_device.launches.total()))

    model.register_forward_pre_hook(enter, with_kwargs=True)
    model.register_forward_hook(leave)
    return forward, backward


def run_step(call, inputs, labels):
    call(inputs, target=labels).backward()


def count_loss_steps():
    """Return kernels of steps of 8 x 64 positions: around the encoder, to encode the labels, and to encode a row."""
    device, tokenizer = stand_in_device.register(), tiny_tokenizer("wordpiece")
    counts = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = randomised(AutoModel.from_config(tiny_config("bert", max_position_embeddings=100)))
        encoder = FrozenEncoder(model, tokenizer, num_layers=3, dtype=dtype, device=device, max_length=90)
        loss, forward, backward = SoftBERTScoreLoss(encoder).to(device), *watch(encoder.backbone(device))
        encoder.encode(real_pairs(8, words=12)[0], device)
        row = forward[-1]
        full = torch.randint(10, len(tokenizer), (8, 64))
        ragged = full.masked_fill(torch.arange(64) >= 64 - 7 * torch.arange(8)[:, None], -100)
        for width, labels in product((len(tokenizer), 32), (full, ragged)):
            labels = labels.to(device)
            inputs, head = (torch.randn(*shape, width).to(device, dtype) for shape in ((8, 64), (len(tokenizer),)))
            call = loss if width != 32 else partial(loss.forward_hidden, lm_head=head.requires_grad_())
            call(inputs, target=labels)  # the first step reads the output layer
            forward.clear()
            backward.clear()
            total, _ = counted(partial(run_step, call, inputs.requires_grad_(), labels))
            counts[dtype, width, bool((labels.cpu() < 0).any())] = total - sum(forward) - sum(backward), forward[0], row
    return counts


def test_a_loss_step_launches_few_kernels_around_the_encoder(measured):
    for step, (around, labels, row) in measured[count_loss_steps].items():
        assert 60 < around <= 195, step
        # Only the labels' pass is compared, because attention with a gradient is not one kernel on this device.
        assert 0 < labels <= row, step
