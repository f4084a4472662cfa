"""Samples of generators with PEFT's adapters, against plain loops over single rows."""

import pytest
import torch
from peft import LoraConfig, PrefixTuningConfig, PromptTuningConfig, get_peft_model

from bertscore_tm.losses import sample_with_log_probs, sequence_log_probs
from tests.losses.test_sampling import ROWS, batch_of, looped, make_model

pytestmark = pytest.mark.usefixtures("one_thread")

TASKS = {False: "CAUSAL_LM", True: "SEQ_2_SEQ_LM"}
LAYERS = {"gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"], "t5": ["q", "v"]}


def add_adapter(family, kind, **options):
    """Return a tiny model with an adapter of random weights."""
    model = make_model(family)
    torch.manual_seed(1)
    config = kind(task_type=TASKS[model.config.is_encoder_decoder], **options)
    return get_peft_model(model, config).eval()


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")
@pytest.mark.parametrize("family", [*LAYERS])
def test_padding_changes_nothing_with_lora(family):
    model = add_adapter(family, LoraConfig, target_modules=LAYERS[family], init_lora_weights=False)
    torch.manual_seed(0)
    sampled = sample_with_log_probs(model, batch_of("right"), 3, max_new_tokens=6)
    assert torch.allclose(sampled.log_probs, looped(model, sampled.ids, sampled.mask), atol=1e-5)
    with model.disable_adapter():
        plain = sequence_log_probs(model, batch_of("right"), sampled.ids, sampled.mask)
    assert not torch.allclose(sampled.log_probs, plain, atol=1e-2)
    sampled.log_probs.sum().backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert trained
    assert all("lora_" in name for name in trained)


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")
@pytest.mark.parametrize("fails", [False, True])
def test_generation_configs_in_wrappers_are_restored(monkeypatch, fails):
    wrapped = add_adapter("gpt2", LoraConfig, target_modules=LAYERS["gpt2"])
    model, before = wrapped.get_base_model(), wrapped.generation_config
    before.num_beams = 3
    inputs = batch_of("left")
    torch.manual_seed(0)
    expected = sample_with_log_probs(model, inputs, 2, max_new_tokens=3)
    torch.manual_seed(0)
    if fails:
        # An error in the middle of generation.
        monkeypatch.setattr(model, "forward", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sample_with_log_probs(wrapped, inputs, 2, max_new_tokens=3)
    else:
        assert torch.equal(sample_with_log_probs(wrapped, inputs, 2, max_new_tokens=3).ids, expected.ids)
    assert wrapped.generation_config is model.generation_config is before


@pytest.mark.filterwarnings("ignore:Position ids are not supported")
@pytest.mark.parametrize("kind", [PromptTuningConfig, PrefixTuningConfig])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_virtual_tokens_come_before_the_prompt(family, kind):
    model = add_adapter(family, kind, num_virtual_tokens=3)
    row = max(ROWS, key=len)
    torch.manual_seed(0)
    sampled = sample_with_log_probs(model, {"input_ids": torch.tensor([row, row[::-1]])}, 3, max_new_tokens=6)
    for i, prompt in enumerate((row, row[::-1])):
        for tokens, mask, found in zip(sampled.ids[i], sampled.mask[i], sampled.log_probs[i], strict=True):
            count, expected = int(mask.sum()), []
            for t in range(count):
                ids = torch.tensor([[*prompt, *tokens[:t].tolist()]])
                logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, -1]
                expected.append(logits.log_softmax(-1)[tokens[t]])
            assert torch.allclose(found[:count], torch.stack(expected), atol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_virtual_tokens_before_padded_prompts_or_in_an_encoder_decoder_are_refused(family):
    model = add_adapter(family, PromptTuningConfig, num_virtual_tokens=3)
    ids = torch.ones(3, 1, 2, dtype=torch.long)
    with pytest.raises(ValueError, match=r"PromptTuningConfig adds virtual tokens, .* pass prompts of equal length"):
        sequence_log_probs(model, batch_of("right"), ids, ids.bool())
