"""Samples of generators with log-probabilities, against plain loops over single rows."""

import pytest
import torch
from peft import LoraConfig, PrefixTuningConfig, get_peft_model
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoConfig, AutoModelForCausalLM, GPT2LMHeadModel

from bertscore_tm.losses import MinimumRiskLoss, sample_with_log_probs, sequence_log_probs
from tests.support.models import padded, randomised, tiny_generator, tiny_tokenizer

ROWS = [[5, 9, 7, 11], [8, 6], [10, 12, 13]]
END = 4


def make_model(family, **changes):
    model = tiny_generator(family)
    settings = {"eos_token_id": END, "pad_token_id": 0, "decoder_start_token_id": 3, "forced_eos_token_id": None}
    for name, value in (settings | {"forced_bos_token_id": None} | changes).items():
        setattr(model.generation_config, name, value)
    return model


def batch_of(side):
    """Return the rows as a padded batch."""
    ids = padded(ROWS, value=0, side=side)
    return {"input_ids": ids, "attention_mask": ids.ne(0).long()}


def looped(model, ids, mask, temperature=1.0):
    """Log-probabilities of each sequence alone, without padding."""
    log_probs = torch.zeros(ids.shape)
    for i, row in enumerate(ROWS):
        for j in range(ids.shape[1]):
            tokens = ids[i, j][: int(mask[i, j].nonzero().max()) + 1]
            if model.config.is_encoder_decoder:
                start = torch.tensor([[3, *tokens[:-1].tolist()]])
                logits = model(input_ids=torch.tensor([row]), decoder_input_ids=start).logits[0]
            else:
                logits = model(input_ids=torch.tensor([[*row, *tokens.tolist()]])).logits[0, len(row) - 1 : -1]
            log_probs[i, j, : len(tokens)] = (logits / temperature).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    return log_probs * mask


@pytest.mark.parametrize(
    ("family", "side", "temperature"),
    [("t5", "right", 0.6), ("bart", "right", 1), ("gpt2", "left", 1), ("gpt2", "right", 0.6), ("llama", "right", 1)],
)
def test_log_probs_and_gradients_equal_a_loop_over_rows(family, side, temperature):
    """Dropout is off, and the training mode is kept."""
    model = make_model(family).train()
    model.get_output_embeddings().eval()
    torch.manual_seed(0)
    sampled = sample_with_log_probs(model, batch_of(side), 4, max_new_tokens=6, temperature=temperature)
    stored = sequence_log_probs(model, batch_of(side), sampled.ids, sampled.mask, temperature=temperature)

    assert torch.equal(stored, sampled.log_probs)
    assert model.training
    assert not model.get_output_embeddings().training
    model.eval()
    assert sampled.ids.shape == (3, 4, sampled.ids.shape[2])
    assert len({tuple(row) for row in sampled.ids.flatten(0, 1).tolist()}) > 6
    expected = looped(model, sampled.ids, sampled.mask, temperature)
    assert torch.allclose(sampled.log_probs, expected, atol=1e-5)

    rewards = torch.rand(3, 4)
    parameters = [p for p in model.parameters() if p.requires_grad]
    ours, theirs = (
        torch.autograd.grad(MinimumRiskLoss(1.0)(log_probs, rewards, sampled.mask), parameters, materialize_grads=True)
        for log_probs in (sampled.log_probs, expected)
    )
    # Sums of a few hundred numbers, in another order.
    atol = 300 * torch.finfo(torch.float32).eps * max(gradient.abs().max().item() for gradient in theirs)
    torch.testing.assert_close(ours, theirs, atol=atol, rtol=0)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_each_input_is_encoded_once_for_all_of_its_candidates(family):
    model = make_model(family)
    rows = []
    model.get_encoder().register_forward_hook(lambda module, inputs, output: rows.append(len(output[0])))
    ids = torch.randint(5, 20, (3, 4, 6))
    sequence_log_probs(model, batch_of("right"), ids, torch.ones_like(ids, dtype=torch.bool)).sum().backward()

    assert rows == [3]


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_tokens_after_the_end_are_masked(family):
    ends = list(range(1, 60, 4))
    torch.manual_seed(0)
    model = make_model(family, eos_token_id=ends, pad_token_id=None)
    sampled = sample_with_log_probs(model, batch_of("right"), 16, max_new_tokens=9)
    lengths = sampled.mask.sum(-1)

    assert 1 < lengths.float().mean() < 9
    for ids, mask in zip(sampled.ids.flatten(0, 1).tolist(), sampled.mask.flatten(0, 1).tolist(), strict=True):
        length = next((i + 1 for i, token in enumerate(ids) if token in ends), len(ids))
        assert mask == [i < length for i in range(len(ids))]
    assert (sampled.log_probs[~sampled.mask] == 0).all()


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2])
def test_samples_ignore_the_generation_config(temperature):
    settings = {"top_k": 1, "temperature": 0.1, "repetition_penalty": 9.0, "num_beams": 3, "min_new_tokens": 5}
    model = make_model("gpt2", **settings).eval()
    inputs = {"input_ids": torch.tensor([ROWS[0]])}
    torch.manual_seed(0)
    sampled = sample_with_log_probs(model, inputs, 4000, max_new_tokens=1, temperature=temperature)
    share = torch.bincount(sampled.ids.flatten(), minlength=model.config.vocab_size) / 4000
    expected = (model(**inputs).logits[0, -1] / temperature).softmax(-1)
    error = (expected * (1 - expected) / 4000).sqrt()

    assert ((share - expected).abs() < 5 * error + 1e-3).all()
    torch.testing.assert_close(sampled.log_probs, expected.log()[sampled.ids])
    assert (model.generation_config.top_k, model.generation_config.num_beams) == (1, 3)


def test_log_probs_of_half_precision_are_computed_in_float32():
    model = make_model("gpt2").bfloat16().eval()
    inputs = {"input_ids": torch.tensor([ROWS[0]])}
    sampled = sample_with_log_probs(model, inputs, 4, max_new_tokens=1)
    expected = model(**inputs).logits[0, -1].float().log_softmax(-1)[sampled.ids]

    torch.testing.assert_close(sampled.log_probs, expected)


@pytest.mark.parametrize(("of_config", "bos", "start"), [(9, 6, 9), (None, 6, 6)])
def test_sampling_and_scoring_start_from_the_same_token(of_config, bos, start):
    model = make_model("bart", decoder_start_token_id=None, bos_token_id=bos).eval()
    model.config.decoder_start_token_id = of_config
    read = []
    model.get_decoder().register_forward_pre_hook(
        lambda module, args, options: read.append(options["input_ids"][0, 0].item()), with_kwargs=True
    )
    sample_with_log_probs(model, batch_of("right"), 2, max_new_tokens=1)

    assert read == [start, start]


def test_labels_and_decoder_inputs_are_not_continued():
    model = make_model("bart", eos_token_id=None)
    inputs = batch_of("right")
    torch.manual_seed(0)
    expected = sample_with_log_probs(model, inputs, 2, max_new_tokens=3)
    torch.manual_seed(0)
    answers = {"labels": torch.full((3, 3), 11), "decoder_input_ids": torch.full((3, 3), 11)}
    sampled = sample_with_log_probs(model, inputs | answers, 2, max_new_tokens=3)

    assert torch.equal(sampled.ids, expected.ids)
    assert torch.equal(sampled.log_probs, expected.log_probs)


def test_a_forced_first_token_is_not_counted():
    """An encoder-decoder has one; a decoder would get it after a prompt of one token."""
    sampled = sample_with_log_probs(make_model("bart", forced_bos_token_id=7), batch_of("right"), 2, max_new_tokens=4)

    assert (sampled.ids[..., 0] == 7).all()
    assert not sampled.mask[..., 0].any()
    assert (sampled.log_probs[..., 0] == 0).all()
    decoder = make_model("gpt2", forced_bos_token_id=7)
    sampled = sample_with_log_probs(decoder, {"input_ids": torch.tensor([[5]])}, 8, max_new_tokens=1)
    assert len(sampled.ids.unique()) > 1


@pytest.mark.parametrize(
    ("inputs", "options", "said"),
    [
        ({"attention_mask": torch.tensor([[1, 1, 1, 1], [0] * 4, [1] * 4])}, {}, "a row of input_ids has no token"),
        ({"pixel_values": torch.rand(3, 3, 8, 8)}, {}, "a generator of texts gets token ids, not pixel_values"),
        ({"input_ids": torch.ones(0, 4).long(), "attention_mask": torch.ones(0, 4)}, {}, "inputs has no rows"),
        ({}, {"num_samples": 0}, "num_samples must be a whole number of at least 1, got 0"),
        ({}, {"max_new_tokens": 0}, "max_new_tokens must be a whole number of at least 1, got 0"),
        ({}, {"temperature": 0.0}, "temperature must be above 0, got 0"),
    ],
)
def test_errors_name_the_argument(inputs, options, said):
    batch = batch_of("right") | inputs
    with pytest.raises(ValueError, match=said):
        sample_with_log_probs(make_model("gpt2"), batch, **{"num_samples": 2, "max_new_tokens": 2, **options})


def test_wrong_models_and_shapes_are_refused():
    ids = torch.ones(2, 3, 4, dtype=torch.long)
    wrapped = DistributedDataParallel.__new__(DistributedDataParallel)

    with pytest.raises(TypeError, match="model is wrapped in DDP, which averages gradients only of what runs"):
        sample_with_log_probs(wrapped, batch_of("left"), 2, max_new_tokens=2)
    with pytest.raises(ValueError, match=r"one shape, \(3, sequences, tokens\) .*, got \(2, 3, 4\)"):
        sequence_log_probs(make_model("gpt2"), batch_of("left"), ids, ids.bool())
    with pytest.raises(ValueError, match=r"at least one sequence, got \(3, 0, 4\)"):
        sequence_log_probs(make_model("gpt2"), batch_of("left"), ids[:1, :0].expand(3, 0, 4), torch.ones(3, 0, 4))


def test_an_ordinary_token_that_pads_is_not_decoded():
    tokenizer = tiny_tokenizer("gpt2")
    padding = tokenizer("!", add_special_tokens=False)["input_ids"][0]
    model = make_model("gpt2", eos_token_id=[tokenizer.eos_token_id, *range(1, 60, 4)], pad_token_id=padding)
    torch.manual_seed(0)
    sampled = sample_with_log_probs(model, batch_of("right"), 16, max_new_tokens=9)

    assert (sampled.ids[~sampled.mask] == padding).all()
    lengths = sampled.mask.sum(-1).flatten().tolist()
    assert min(lengths) < 9
    rows = [row[:length] for row, length in zip(sampled.ids.flatten(0, 1).tolist(), lengths, strict=True)]
    assert sampled.decode(tokenizer) == [tokenizer.decode(row, skip_special_tokens=True) for row in rows]


_RECURRENT = {"rwkv": {"attention_hidden_size": 32}, "xlstm": {"embedding_dim": 32, "num_blocks": 2, "num_heads": 4}}
_RECURRENT |= {"recurrent_gemma": {"num_attention_heads": 4, "lru_width": 32}, "mamba": {"state_size": 8}}


@pytest.mark.parametrize("family", [*_RECURRENT])
def test_padding_of_recurrent_models_is_ignored_or_refused(family):
    sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
    config = AutoConfig.for_model(family, **sizes, bos_token_id=1, eos_token_id=2, pad_token_id=0, **_RECURRENT[family])
    model = randomised(AutoModelForCausalLM.from_config(config))
    ids = torch.tensor([[[12, 13, 14]]])
    alone = sequence_log_probs(model, {"input_ids": torch.tensor([ROWS[1]])}, ids, ids.bool())
    ids = ids.expand(3, 1, 3)

    if family == "mamba":
        torch.testing.assert_close(sequence_log_probs(model, batch_of("left"), ids, ids.bool())[1], alone[0])
    else:
        with pytest.raises(ValueError, match=rf"{family} models read padding .*\. Pass prompts of one length"):
            sequence_log_probs(model, batch_of("left"), ids, ids.bool())


class Unnamed(GPT2LMHeadModel):
    """A decoder that takes positions without naming them."""

    def forward(self, **inputs):
        return super().forward(**inputs)


def test_a_forward_may_pass_inputs_on_without_naming_them():
    model = make_model("gpt2")
    ids = torch.ones(3, 1, 2, dtype=torch.long)
    expected = sequence_log_probs(model, batch_of("right"), ids, ids.bool())
    model.__class__ = Unnamed

    assert torch.equal(sequence_log_probs(model, batch_of("right"), ids, ids.bool()), expected)


LAYERS = {"gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"], "t5": ["q", "v"]}


def add_adapter(family, kind, **options):
    """Return a tiny model with an adapter of random weights."""
    model = make_model(family)
    torch.manual_seed(1)
    task_type = "SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "CAUSAL_LM"
    return get_peft_model(model, kind(task_type=task_type, **options)).eval()


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
    model = wrapped.get_base_model()
    before = wrapped.generation_config
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


def test_virtual_tokens_are_refused():
    model = add_adapter("gpt2", PrefixTuningConfig, num_virtual_tokens=3)
    ids = torch.ones(3, 1, 2, dtype=torch.long)

    with pytest.raises(ValueError, match=r"PrefixTuningConfig adds virtual tokens, .* such as LoRA"):
        sequence_log_probs(model, batch_of("right"), ids, ids.bool())
