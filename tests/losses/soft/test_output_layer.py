"""Output layers of generators: the loss of hidden states equals that of their logits."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional as F  # noqa: N812
from transformers import AutoConfig, AutoModelForCausalLM

from bertscore_tm.losses import SoftBERTScoreLoss
from bertscore_tm.losses.soft.output_layer import OutputLayer
from tests.support.losses import TARGET, blank_ids, make_loss, relax_by_gumbel
from tests.support.models import randomised, tiny_generator
from tests.support.soft_predictions import (
    IGNORE,
    Largest,
    labels_of,
    normal,
    tiny,
    vocab_size_of,
)

IDF = {token: 1.0 + token % 3 for token in range(800)}

# Of decoders that scale logits, or the hidden states before.
_SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_SIZES |= {"num_key_value_heads": 4, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_SCALED = {"cohere": {"logit_scale": 0.25}, "granite": {"logits_scaling": 3.0}, "minicpm3": {"dim_model_base": 8}}
_RANKS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "head_dim")
_SCALED["minicpm3"] |= dict.fromkeys(_RANKS, 8)


def output_layer(size, features=24, bias=True, dtype=torch.float64):
    head = torch.nn.Linear(features, size, bias=bias, dtype=dtype)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(normal(*parameter.shape, dtype=torch.float64, seed=5))
    return head


# Output layers may be padded beyond the vocabulary of the generator's tokenizer.
@pytest.mark.parametrize("with_cross_entropy", [False, True])
@pytest.mark.parametrize(
    ("kind", "options", "added", "bias"),
    [
        ("bert", {}, 0, True),
        ("bert", {"temperature": 0.4}, 0, False),
        ("bert", {"idf": IDF}, 0, False),
        *((mode, {}, 200, True) for mode in ("identity", "mean", "expand")),
    ],
)
def test_hidden_states_give_what_logits_give(kind, options, added, bias, with_cross_entropy):
    """Whatever the model computes for prompts and padding."""
    loss = make_loss(kind, **options)
    head = output_layer(vocab_size_of(loss.bridge or loss.encoder) + added, bias=bias)
    if bias:
        with torch.no_grad():
            head.bias[blank_ids(loss)] -= 100
    end = (loss.bridge or loss.encoder.tokenizer).end_ids[0]
    labels = F.pad(F.pad(TARGET, (3, 0), value=IGNORE), (0, 1), value=end)
    hidden = normal(*labels.shape, 24, dtype=torch.float64, seed=1)
    ignored = (labels == IGNORE)[..., None]
    results = []

    for from_hidden in (False, True):
        leaf = hidden.masked_fill(ignored, torch.nan if from_hidden else 0.0).requires_grad_()
        head.zero_grad()
        if from_hidden:
            value, *cross_entropy, components = loss.forward_hidden(leaf, head, labels, None, True, with_cross_entropy)
        else:
            logits = head(leaf)
            value, components = loss(logits, labels, None, True)
            cross_entropy = [F.cross_entropy(logits.flatten(0, 1), labels.flatten())] * with_cross_entropy
        sum([value, *cross_entropy]).backward()
        results.append([value.detach(), *components.values(), leaf.grad, *(p.grad.clone() for p in head.parameters())])
        results[-1] += [loss.detach() for loss in cross_entropy]
        assert torch.equal(leaf.grad.any(-1), (labels != IGNORE) & (with_cross_entropy | (labels != end)))

    torch.testing.assert_close(results[0], results[1], atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hidden_states_with_the_weight_in_half_precision(encoder, dtype):
    head = output_layer(30522, 16, bias=False, dtype=dtype)
    hidden = normal(3, 7, 16, dtype=dtype, seed=1)
    loss = SoftBERTScoreLoss(encoder)
    labels = labels_of(encoder)
    expected = loss(F.linear(hidden.float(), head.weight.float()), labels, return_components=True)

    for lm_head in (head, head.weight):
        value, components = loss.forward_hidden(hidden, lm_head, labels, return_components=True)
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, expected[0], atol=1e-6 if dtype == torch.float32 else 1e-4, rtol=0)
        torch.testing.assert_close(components, expected[1], atol=1e-4, rtol=1e-4)


def test_hidden_states_that_cannot_be(encoder):
    hidden = torch.zeros(2, 3, 4)
    weight = torch.zeros(30522, 4)
    labels = torch.full((2, 3), 2000)

    with pytest.raises(ValueError, match="relaxation='softmax' only, got relaxation=<function relax_by_gumbel"):
        SoftBERTScoreLoss(encoder, relaxation=relax_by_gumbel).forward_hidden(hidden, weight, labels)
    loss = SoftBERTScoreLoss(encoder)
    with pytest.raises(TypeError, match="return_cross_entropy=True needs labels as the target, got a list"):
        loss.forward_hidden(hidden, weight, ["a", "b"], return_cross_entropy=True)
    with pytest.raises(ValueError, match=r"predictions must have shape .* got \(2, 4\)"):
        loss.forward_hidden(hidden[:, 0], weight, labels)
    with pytest.raises(TypeError, match=r"a generator, an output layer with a weight.*got a ReLU"):
        loss.forward_hidden(hidden, torch.nn.ReLU(), labels)
    with pytest.raises(ValueError, match=r"vocabulary of lm_head has 5 tokens, .*30522.*tokenizer="):
        loss.forward_hidden(hidden, weight[:5], labels)


def make_generator(family, **changes):
    """A tiny generator with the encoder's vocabulary, an output bias that is not 0, and dropout."""
    if family in _SCALED:
        config = AutoConfig.for_model(family, **_SIZES, **_SCALED[family], **changes)
        return randomised(AutoModelForCausalLM.from_config(config)).train()
    generator = tiny_generator(family, **changes)
    if family == "bart":
        generator.final_logits_bias.copy_(normal(*generator.final_logits_bias.shape, seed=3))
    return generator.train()


def hidden_and_logits(generator, labels):
    """Last hidden states and logits of one pass."""
    ids = labels.clamp(min=0)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "output_hidden_states": True}
    if generator.config.is_encoder_decoder:
        output = generator(**inputs, decoder_input_ids=ids)
        return output.decoder_hidden_states[-1], output.logits
    output = generator(**inputs)
    return output.hidden_states[-1], output.logits


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        *((family, {}) for family in ("t5", "mt5", "umt5", "bart", "gpt2", "llama", *_SCALED)),
        ("t5", {"tie_word_embeddings": False}),
    ],
)
@pytest.mark.parametrize("adapts", [False, True])
def test_hidden_states_give_the_loss_of_their_logits(family, changes, adapts):
    encoder = tiny("bert", "float32")
    generator = make_generator(family, vocab_size=800, **changes)
    if adapts:
        generator = get_peft_model(generator, LoraConfig(target_modules=r".*\.(q|q_proj|q_a_proj|c_attn)$"))
    loss = SoftBERTScoreLoss(encoder)
    hidden, logits = hidden_and_logits(generator, TARGET)
    parameters = [parameter for parameter in generator.parameters() if parameter.requires_grad]
    expected = loss(logits, TARGET)
    expected_cross_entropy = F.cross_entropy(logits.flatten(0, 1), TARGET.flatten())
    expected_gradients = torch.autograd.grad(expected, parameters, retain_graph=True, allow_unused=True)
    state = torch.get_rng_state()

    for with_components in (False, True):
        value, cross_entropy, *_ = loss.forward_hidden(
            hidden, generator, TARGET, return_components=with_components, return_cross_entropy=True
        )
        torch.testing.assert_close(value, expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(cross_entropy, expected_cross_entropy)
        gradients = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
        torch.testing.assert_close(gradients, expected_gradients, atol=1e-5, rtol=1e-3)

    # The comparison of the first call changes neither the generator's mode nor what dropout draws next.
    assert generator.training
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_generators_whose_logits_are_not_linear_are_refused(dtype):
    """Each one, also a cap of 30 that changes logits of at most 1 by 0.04% in a loss that has seen another model."""
    loss = SoftBERTScoreLoss(tiny("bert", "float32"))
    labels = TARGET
    loss.forward_hidden(torch.zeros(*labels.shape, 32, dtype=dtype), make_generator("llama", vocab_size=800), labels)
    capped = make_generator("gemma2", vocab_size=800).to(dtype)
    with torch.no_grad():
        capped.lm_head.weight.mul_(0.1)
    hidden, logits = hidden_and_logits(capped.eval(), labels)

    assert logits.abs().max() < 1
    with pytest.raises(ValueError, match=r"lm_head computes other logits .*\. Pass its logits to forward"):
        loss.forward_hidden(hidden, capped, labels)


def test_adapters_of_the_output_layer():
    """Trained ones are refused also before their first step, which changes their logits; whole copies are trained."""
    loss = SoftBERTScoreLoss(tiny("bert", "float32"))
    labels = TARGET
    hidden = normal(*TARGET.shape, 32)
    adapted, changed = (
        get_peft_model(
            make_generator("llama", vocab_size=800),
            LoraConfig(target_modules=["lm_head"], init_lora_weights=unchanged, use_dora=unchanged),
        )
        for unchanged in (True, False)
    )
    for lm_head in (adapted, adapted.lm_head):
        with pytest.raises(ValueError, match=r"trains more than a weight and a bias, .*\. Pass its logits"):
            loss.forward_hidden(hidden, lm_head, labels)
    changed.requires_grad_(False)

    for lm_head, advice in (
        (changed, "Pass its"),
        (changed.lm_head, "Pass the generator as lm_head, or"),
    ):
        with pytest.raises(ValueError, match=rf"lm_head computes other logits .*\. {advice} logits to forward"):
            loss.forward_hidden(hidden, lm_head, labels)
    copied = get_peft_model(
        make_generator("llama", vocab_size=800), LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"])
    )
    [copy] = [part for name, part in copied.named_modules() if name.endswith("lm_head.modules_to_save.default")]
    with torch.no_grad():
        copy.weight.mul_(2)
    value = loss.forward_hidden(hidden, copied, labels)

    torch.testing.assert_close(value, loss(F.linear(hidden, copy.weight), labels), atol=1e-6, rtol=0)
    assert torch.autograd.grad(value, copy.weight)[0].any()


def test_no_logits_exist_on_the_path_without_them(encoder):
    """Not one tensor of positions times vocabulary is made."""
    positions = 640
    features = 8
    head = output_layer(30522, features, dtype=torch.float32)
    hidden = torch.randn(positions // 8, 8, features).requires_grad_()
    labels = torch.randint(2000, 20000, (positions // 8, 8))
    # The cache of the labels reserves its memory in slabs.
    loss = SoftBERTScoreLoss(encoder.__class__(encoder.name, num_layers=1), cache_bytes=0)
    loss.forward_hidden(hidden[:1], head, labels[:1])  # loads the encoder
    with Largest() as largest:
        sum(loss.forward_hidden(hidden, head, labels, return_cross_entropy=True)).backward()

    assert largest.numbers < positions * 30522 / 1.5  # the encoder's table alone has 30522 x 384


@pytest.mark.parametrize("bias", [None, normal(9, seed=3)], ids=["no bias", "bias"])
@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize(("size", "count"), [(None, 9), (5, 5)])
@pytest.mark.parametrize(
    ("dtype", "expected_dtype"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_its_logits_have_scale_and_bias(bias, scale, size, count, dtype, expected_dtype):
    """Powers of two keep the product of scale and state exact in bfloat16."""
    hidden = (torch.arange(12).reshape(3, 4) / 8).to(dtype).requires_grad_()
    weight = normal(9, 4, seed=2).requires_grad_()
    layer = OutputLayer(weight, bias, scale)

    logits = layer.logits(hidden, size)

    expected = torch.zeros(3, count, dtype=torch.float64)
    for row in range(3):
        for output in range(count):
            for feature in range(4):
                expected[row, output] += scale * hidden[row, feature].item() * weight[output, feature].item()
            if bias is not None:
                expected[row, output] += bias[output].item()
    assert logits.dtype == expected_dtype
    assert not logits.requires_grad
    torch.testing.assert_close(logits.double(), expected, atol=1e-6, rtol=0)
