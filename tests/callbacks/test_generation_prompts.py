"""Prompts and candidates of the ready generators that settings of tokenizers and models must not change."""

import copy

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from tokenizers.processors import TemplateProcessing

from bertscore_tm.callbacks import CausalGenerate, Seq2SeqGenerate
from tests.callbacks.test_generation import REFERENCES, TEXTS, Module, labels_of, model_of, padded, tokenizer_of

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS = {"max_new_tokens": 5, "do_sample": False}


def test_text_prompts_begin_with_one_first_token_and_have_no_end_token():
    plain, model = tokenizer_of("llama"), model_of("llama")
    batch = {"prompt": TEXTS, "labels": REFERENCES}
    expected = CausalGenerate(plain, prompt_key="prompt", **OPTIONS)(Module(model), batch)
    with_first = batch | {"prompt": ["<s>" + text for text in TEXTS]}
    assert plain(with_first["prompt"])["input_ids"][0][:2] == [plain.bos_token_id] * 2
    assert CausalGenerate(plain, prompt_key="prompt", **OPTIONS)(Module(model), with_first) == expected

    ending = copy.deepcopy(plain)
    specials = [(token, plain.convert_tokens_to_ids(token)) for token in ("<s>", "</s>")]
    ending.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=specials)
    assert ending(TEXTS)["input_ids"][0][-1] == ending.eos_token_id
    assert CausalGenerate(ending, prompt_key="prompt", **OPTIONS)(Module(model), batch) == expected


def test_end_tokens_that_the_text_has_stay_in_the_prompt():
    tokenizer = tokenizer_of("gpt2")
    (row,) = CausalGenerate(tokenizer)._tokenize(["a cat<|endoftext|>"], model_of("gpt2"))
    assert row[-1] == tokenizer.eos_token_id


class ReadsPixels(torch.nn.Module):
    """A decoder whose forward takes pixels too."""

    def forward(self, input_ids, attention_mask=None, pixel_values=None):
        raise NotImplementedError

    def generate(self, **kwargs):
        raise NotImplementedError


def test_inputs_that_would_be_left_out_are_an_error():
    batch = {"input_ids": torch.ones(1, 2, dtype=torch.long), "labels": ["a"], "pixel_values": torch.rand(1, 3, 8, 8)}
    generate = CausalGenerate(tokenizer_of("gpt2"), **OPTIONS)
    with pytest.raises(MisconfigurationException, match="passes the prompts' tokens alone to the model, not pixel_val"):
        generate(Module(ReadsPixels()), batch)


def prompts_next_to_inputs(tokenizer):
    prompts = tokenizer(TEXTS)["input_ids"]
    whole = [row + [9] * 2 for row in prompts]
    return {
        "input_ids": padded(whole, 7),
        "attention_mask": padded([[1] * len(row) for row in whole], 0),
        "prompt_input_ids": padded(prompts, 7),
        "prompt_attention_mask": padded([[1] * len(row) for row in prompts], 0),
        "labels": labels_of(tokenizer),
    }


def test_prompts_have_their_own_mask():
    tokenizer, model = tokenizer_of("gpt2"), model_of("gpt2")
    batch = prompts_next_to_inputs(tokenizer)
    generate = CausalGenerate(tokenizer, prompt_key="prompt_input_ids", **OPTIONS)
    alone = {"input_ids": batch["prompt_input_ids"], "attention_mask": batch["prompt_attention_mask"]}
    expected = CausalGenerate(tokenizer, prompt_key="input_ids", **OPTIONS)(
        Module(model), alone | {"labels": batch["labels"]}
    )
    assert generate(Module(model), batch) == expected
    assert generate.inputs(batch) == TEXTS


@pytest.mark.parametrize("width", ["same", "other"])
def test_the_mask_of_other_ids_is_an_error(width):
    batch = prompts_next_to_inputs(tokenizer_of("gpt2"))
    del batch["prompt_attention_mask"]
    if width == "same":
        batch["attention_mask"] = torch.ones_like(batch["prompt_input_ids"])
    else:
        del batch["input_ids"]
    generate = CausalGenerate(tokenizer_of("gpt2"), prompt_key="prompt_input_ids", **OPTIONS)
    with pytest.raises(MisconfigurationException, match=r"cannot use 'attention_mask', of shape .* as the mask of"):
        generate(Module(model_of("gpt2")), batch)


@pytest.mark.parametrize("candidates", [3, 6])
def test_candidates_are_samples_where_the_model_is_set_to_beams(candidates, encoder):
    tokenizer, model = tokenizer_of("bart"), model_of("bart")
    ids = torch.tensor(tokenizer(TEXTS[:1])["input_ids"])
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": REFERENCES[:1]}
    generate = Seq2SeqGenerate(tokenizer, candidates=candidates, encoder=encoder, max_new_tokens=5)
    torch.manual_seed(0)
    expected = generate(Module(model), batch)
    model.generation_config.num_beams = 4
    torch.manual_seed(0)
    assert generate(Module(model), batch) == expected
