"""The loss computes nothing at positions without content, such as the prompt of a causal language model."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.soft_predictions import IGNORE, noise, tiny

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = 4
ANSWERS = torch.tensor([[50, 60, 70, 80, 90], [51, IGNORE, 61, 71, IGNORE]])
PROMPTED = F.pad(ANSWERS, (PROMPT, 0), value=IGNORE)
IDF = {token: 1.0 + token % 3 for token in range(800)}


CASES = {
    **{f"{source}, default": (source, {}) for source in ("logits", "hidden states")},
    **{f"{source}, eos": (source, {"idf": IDF, "length": "eos"}) for source in ("logits", "hidden states")},
    "logits, top k": ("logits", {"top_k": 7}),
    **{name: ("logits", {"relaxation": name}) for name in ("straight-through", "sparsemax", "entmax15")},
}


@pytest.mark.parametrize(("source", "options"), list(CASES.values()), ids=list(CASES))
def test_prompts_change_neither_value_nor_gradient(source, options):
    encoder = tiny()
    loss = SoftBERTScoreLoss(encoder, **options)
    vocabulary = len(encoder.embedding_table("cpu"))
    head = torch.nn.Linear(8, vocabulary).double()
    answers = torch.randn(*ANSWERS.shape, 8 if source == "hidden states" else vocabulary).double()
    # Whatever the model computes for the prompt.
    prompts = torch.full((len(answers), PROMPT, answers.shape[-1]), torch.nan)

    def value_and_gradient(given, labels):
        leaf = given.clone().requires_grad_()
        if source == "logits":
            value, components = loss(leaf, labels, return_components=True)
            total = value
        else:
            value, cross_entropy, components = loss.forward_hidden(
                leaf, head, labels, return_components=True, return_cross_entropy=True
            )
            total = value + cross_entropy
        return total.detach(), components, torch.autograd.grad(total, leaf)[0]

    value, components, gradient = value_and_gradient(answers, ANSWERS)
    with_prompt = value_and_gradient(torch.cat([prompts, answers], dim=1), PROMPTED)
    torch.testing.assert_close(with_prompt[:2], (value, components), atol=1e-12, rtol=0)
    torch.testing.assert_close(with_prompt[2], F.pad(gradient, (0, 0, PROMPT, 0)), atol=1e-12, rtol=0)
    assert gradient.abs().sum() > 0


def test_trains_after_a_validation_in_inference_mode():
    loss = SoftBERTScoreLoss(tiny(), idf=IDF)
    z = noise(loss.encoder, *ANSWERS.shape, dtype=torch.float64)
    with torch.inference_mode():
        value = loss(z, ANSWERS)
    leaf = z.clone().requires_grad_()
    again = loss(leaf, ANSWERS)
    again.backward()
    assert again.item() == pytest.approx(value.item(), abs=1e-12)
    assert leaf.grad.abs().sum() > 0
