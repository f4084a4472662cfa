"""The loss computes nothing at positions without content, such as the prompt of a causal language model."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from bertscore_tm.losses import SoftBERTScoreLoss, softmax_relaxation
from tests.support.soft_predictions import IGNORE, tiny

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = 4
ANSWERS = torch.tensor([[50, 60, 70, 80, 90], [51, IGNORE, 61, 71, IGNORE]])
PROMPTED = F.pad(ANSWERS, (PROMPT, 0), value=IGNORE)
IDF = {token: 1.0 + token % 3 for token in range(800)}


CASES = {
    **{f"{source}, default": (source, {}) for source in ("logits", "hidden states")},
    **{f"{source}, idf": (source, {"idf": IDF}) for source in ("logits", "hidden states")},
    "logits, a callable": ("logits", {"relaxation": lambda *args: softmax_relaxation(*args)}),
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
