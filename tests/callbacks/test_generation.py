"""Seq2SeqGenerate and CausalGenerate: inputs of the model, decoded texts and references."""

import pickle
from copy import deepcopy
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import DeepSpeedStrategy
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LogitsProcessor

from bertscore_tm import strip_thoughts
from bertscore_tm.callbacks import CausalGenerate, Seq2SeqGenerate
from tests.support.lightning_runs import WithModel, generator
from tests.support.models import padded
from tests.support.texts import real_pairs

# Texts of different lengths.
TEXTS = [" ".join(text.split()[:count]) for text, count in zip(real_pairs(4)[0], (3, 6, 2, 5), strict=True)]
REFERENCES = ["a cat sat", "it rains today", "hello", "returns a list of names"]
PROMPTS_ALONE = {Seq2SeqGenerate: {}, CausalGenerate: {"prompt_key": "input_ids"}}


def inputs_of(rows, value=7, side="right"):
    """Padded ids and their mask."""
    return {"input_ids": padded(rows, value, side), "attention_mask": padded([[1] * len(row) for row in rows], 0, side)}


def labels_of(tokenizer, texts=REFERENCES):
    return padded([tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts])


@torch.no_grad()
def one_by_one(model, rows, **options):
    """Greedy continuation of each row alone, without padding, token by token for decoders."""
    return [model.generate(input_ids=torch.tensor([row]), do_sample=False, **options)[0].tolist() for row in rows]


# Encoder-decoders


@pytest.mark.parametrize("family", ["bart", "t5"])
@pytest.mark.parametrize("texts_as_target", [False, True])
def test_encoder_decoders(family, texts_as_target):
    model, tokenizer = generator(family)
    rows = tokenizer(TEXTS)["input_ids"]
    batch = {
        **inputs_of(rows, tokenizer.pad_token_id),
        "index": torch.arange(4),
        "labels": labels_of(tokenizer),
        "decoder_input_ids": torch.zeros(4, 3, dtype=torch.long),
        "summary": [[text, "another"] for text in REFERENCES],
    }
    options = {}
    if texts_as_target:
        options = {"target_key": "summary", "return_dict_in_generate": True}
    generate = Seq2SeqGenerate(tokenizer, max_new_tokens=6, num_beams=1, do_sample=False, **options)

    preds, target = generate(WithModel(model), batch)

    expected = one_by_one(model, rows, max_new_tokens=6, num_beams=1)
    assert preds == tokenizer.batch_decode(expected, skip_special_tokens=True)
    assert len(set(preds)) > 1
    assert generate.inputs(batch) == tokenizer.batch_decode(rows, skip_special_tokens=True)
    labels = [row[row != -100] for row in batch["labels"]]
    decoded = tokenizer.batch_decode(labels, skip_special_tokens=True)
    assert target == (batch["summary"] if texts_as_target else decoded)


# Decoders


def chat_batch(tokenizer):
    """Prompt, answer and a token of a next turn in a row, labels of the answers; prompts alone, answers as texts."""
    rows = tokenizer(TEXTS)["input_ids"]
    answers = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in REFERENCES]
    whole = [prompt + answer + prompt[:1] for prompt, answer in zip(rows, answers, strict=True)]
    labels = [[-100] * len(prompt) + answer + [-100] for prompt, answer in zip(rows, answers, strict=True)]
    prompts = {f"prompt_{name}": values for name, values in inputs_of(rows).items()}
    return {**inputs_of(whole), **prompts, "labels": padded(labels), "answer": REFERENCES}


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("kind", ["right", "left", "with answers", "answers as texts", "prompts next to answers"])
def test_decoders(family, kind):
    model, tokenizer = generator(family)
    side = tokenizer.padding_side
    rows = tokenizer(TEXTS)["input_ids"]
    options = {"max_new_tokens": 5, "do_sample": False}
    if "answers" in kind:
        batch = chat_batch(tokenizer)
        options["target_key"] = "answer" if kind == "answers as texts" else "labels"
        options["prompt_key"] = "prompt_input_ids" if kind == "prompts next to answers" else None
    else:
        batch = {**inputs_of(rows, side=kind), "labels": labels_of(tokenizer)}
        options |= {"prompt_key": "input_ids", "return_dict_in_generate": kind == "left"}
    generate = CausalGenerate(tokenizer, **options)

    preds, target = generate(WithModel(model), batch)

    assert generate.inputs(batch) == tokenizer.batch_decode(rows, skip_special_tokens=True)
    expected = one_by_one(model, rows, max_new_tokens=5)
    continued = [whole[len(row) :] for whole, row in zip(expected, rows, strict=True)]
    assert preds == tokenizer.batch_decode(continued, skip_special_tokens=True)
    assert len(set(preds)) > 1
    answers = tokenizer(REFERENCES, add_special_tokens=False)["input_ids"]
    decoded = tokenizer.batch_decode(answers, skip_special_tokens=True)
    assert target == (REFERENCES if kind == "answers as texts" else decoded)
    assert tokenizer.padding_side == side


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("as_text", [False, True])
def test_the_last_answer_of_a_chat_is_scored_given_all_before_it(side, as_text):
    model, tokenizer = generator("gpt2")
    turns = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in REFERENCES]
    # The turns of a user, of whom the last one has one in the second chat, and of an assistant; a token that ends both.
    chats = [
        [(turns[0], 0), (turns[1], 1), ([5], 0), (turns[2], 0), (turns[3], 1), ([5], 0)],
        [(turns[0], 0), (turns[2], 1)],
    ]
    rows, labels = [], []
    for chat in chats:
        row, label_row = [], []
        for turn, is_answer in chat:
            row += turn
            label_row += turn if is_answer else [-100] * len(turn)
        rows.append(row)
        labels.append(label_row)
    batch = inputs_of(rows, side=side)
    batch |= {"labels": padded(labels, -100, side), "answer": [REFERENCES[3], REFERENCES[2]]}
    prompts = [turns[0] + turns[1] + [5] + turns[2], turns[0]]
    generate = CausalGenerate(tokenizer, target_key="answer" if as_text else "labels", max_new_tokens=5)

    preds, target = generate(model, batch)

    whole = one_by_one(model, prompts, max_new_tokens=5)
    continued = [row[len(prompt) :] for row, prompt in zip(whole, prompts, strict=True)]
    assert generate.inputs(batch) == tokenizer.batch_decode(prompts, skip_special_tokens=True)
    assert preds == tokenizer.batch_decode(continued, skip_special_tokens=True)
    assert target == (batch["answer"] if as_text else tokenizer.batch_decode([turns[3], turns[2]]))


def without(key):
    return lambda batch: {name: value for name, value in batch.items() if name != key}


OTHER_LABELS = "found labels {} for 'input_ids'.*prompt_key='input_ids' if these are prompts alone"
NO_MASK = "needs token ids '{}' and their mask"
# The end of a prompt and its mask are never guessed: (key of the prompts, change of a batch, error).
REFUSED = {
    "no ids": (None, without("input_ids"), NO_MASK.format("input_ids")),
    "no labels": (
        None,
        without("labels"),
        "found no labels for 'input_ids'.*prompt_key='input_ids' if these are prompts alone",
    ),
    "short labels": (
        None,
        lambda batch: batch | {"labels": batch["labels"][:, 1:]},
        OTHER_LABELS.format("of another shape"),
    ),
    "shifted labels": (
        None,
        lambda batch: batch | {"labels": nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)},
        OTHER_LABELS.format("with other ids"),
    ),
    "labels of prompts": (
        None,
        lambda batch: batch | {"labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)},
        r"no prompt in rows \[0, 1, 2, 3\].*Set labels to -100 at prompts, or pass prompt_key='input_ids'",
    ),
    "no mask": ("prompt_input_ids", without("prompt_attention_mask"), NO_MASK.format("prompt_input_ids")),
    "mask of other ids": (
        "prompt_input_ids",
        lambda batch: batch | {"prompt_attention_mask": batch["attention_mask"]},
        NO_MASK.format("prompt_input_ids"),
    ),
    "the ids as mask": ("question", lambda batch: batch | {"question": batch["input_ids"]}, NO_MASK.format("question")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_batches_whose_prompts_are_unknown_are_an_error(name):
    model, tokenizer = generator("gpt2")
    prompt_key, change, said = REFUSED[name]
    generate = CausalGenerate(tokenizer, target_key="answer", prompt_key=prompt_key)

    with pytest.raises(MisconfigurationException, match=said):
        generate(WithModel(model), change(chat_batch(tokenizer)))


@pytest.mark.parametrize("kind", [Seq2SeqGenerate, CausalGenerate])
def test_batches_without_an_example_are_an_error(kind):
    nothing = torch.zeros(0, 4, dtype=torch.long)
    batch = {"input_ids": nothing, "attention_mask": nothing, "labels": nothing}

    with pytest.raises(MisconfigurationException, match="the batch has no example: 'labels' is empty"):
        kind(generator("bart")[1])(WithModel(generator("bart")[0]), batch)


@pytest.mark.parametrize("kind", [Seq2SeqGenerate, CausalGenerate])
def test_batches_without_references_are_an_error(kind):
    batch = {"input_ids": torch.ones(1, 4, dtype=torch.long), "summary": REFERENCES[:1]}
    said = r"no references under target_key='labels', only the keys \['input_ids', 'summary'\]. Set target_key="

    with pytest.raises(MisconfigurationException, match=said):
        kind(generator("bart")[1])(WithModel(generator("bart")[0]), batch)


@pytest.mark.parametrize("kind", [Seq2SeqGenerate, CausalGenerate])
def test_batches_that_are_not_a_mapping_are_an_error(kind):
    model, tokenizer = generator("bart")
    batch = (torch.ones(1, 4, dtype=torch.long), REFERENCES[:1])
    said = rf"{kind.__name__} got a tuple as the batch. .*dictionary.*'labels'.*generate="

    with pytest.raises(MisconfigurationException, match=said):
        kind(tokenizer)(WithModel(model), batch)


# Models around the model


@pytest.mark.parametrize(("kind", "family"), [(Seq2SeqGenerate, "bart"), (CausalGenerate, "gpt2")])
def test_models_outside_lightning(kind, family):
    """The model itself, also compiled or with an adapter, and a plain module that has it."""
    model, tokenizer = generator(family)
    batch = {**inputs_of(tokenizer(TEXTS)["input_ids"]), "labels": REFERENCES}
    holder = nn.Module()
    holder.model = model
    adapted = get_peft_model(deepcopy(model), LoraConfig(target_modules=["q_proj" if family == "bart" else "c_attn"]))
    modules = [WithModel(model), model, torch.compile(model, backend="eager"), adapted.eval(), holder]

    for options in ({"do_sample": False}, {"do_sample": True, "num_return_sequences": 3}):
        generate = kind(tokenizer, max_new_tokens=4, **PROMPTS_ALONE[kind], **options)
        texts = []
        for module in modules:
            torch.manual_seed(0)
            texts.append(generate(module, batch))
        assert texts == [texts[0]] * len(modules)


class Delegate(nn.Module):
    """A model without a Hugging Face model among its parts, which returns its inputs."""

    def forward(self, **kwargs):
        raise NotImplementedError

    def generate(self, input_ids, attention_mask, extra, max_new_tokens):
        return input_ids * attention_mask + extra[:, None]


def test_models_are_found_by_path_and_unwrapped():
    model, tokenizer = generator("bart")
    batch = {**inputs_of(tokenizer(TEXTS[:1])["input_ids"]), "index": torch.tensor([0]), "labels": ["a"]}
    expected = Seq2SeqGenerate(tokenizer, max_new_tokens=3)(WithModel(model), batch)
    compiled = torch.compile(model, backend="eager")
    # Its forward takes any arguments.
    adapted = get_peft_model(deepcopy(model), LoraConfig(target_modules=["q_proj"]))
    derived = deepcopy(model)
    forward = {"forward": lambda self, *args, **kwargs: model(*args, **kwargs)}
    derived.__class__ = type("Derived", (type(model),), forward)

    for wrapped in (compiled, adapted, derived):
        assert Seq2SeqGenerate(tokenizer, max_new_tokens=3)(WithModel(wrapped), batch) == expected
    holder = pl.LightningModule()
    holder.parts = nn.ModuleDict({"writer": model})
    assert Seq2SeqGenerate(tokenizer, model="parts.writer", max_new_tokens=3)(holder, batch) == expected


def test_models_without_named_inputs_get_all_but_the_target():
    tokenizer = generator("bart")[1]
    ids = torch.tensor([[9, 8, 7]])
    batch = {"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 0]]), "extra": torch.tensor([3]), "name": ["a"]}
    generate = Seq2SeqGenerate(tokenizer, target_key="answer_ids", max_new_tokens=6)

    preds, _ = generate(WithModel(Delegate()), batch | {"answer_ids": ids, "labels": ids})

    assert preds == tokenizer.batch_decode([[12, 11, 3]], skip_special_tokens=True)


# In the callback


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_stage_3_is_refused_and_stage_2_is_not(stage):
    """A strategy without its constructor, which needs DeepSpeed."""
    strategy = object.__new__(DeepSpeedStrategy)
    strategy.config = {"zero_optimization": {"stage": stage}}
    strategy._lightning_module = strategy._model = None
    model, tokenizer = generator("bart")
    module = WithModel(model)
    module._trainer = SimpleNamespace(strategy=strategy)
    batch = {"input_ids": torch.tensor([[0, 9, 8, 2]]), "labels": torch.tensor([[5, 6, -100]])}
    generate = Seq2SeqGenerate(tokenizer, max_new_tokens=3)

    if stage == 2:
        assert len(generate(module, batch)[0]) == 1
    else:
        with pytest.raises(MisconfigurationException, match=r"stage 3.*Use stage 2.*synced_gpus=True as generate="):
            generate(module, batch)


class Say(LogitsProcessor):
    """Forces the generated ids, after prompts of a length."""

    def __init__(self, ids, start):
        self.ids, self.start = ids, start

    def __call__(self, input_ids, scores):
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self.ids[input_ids.shape[1] - self.start]] = 0
        return forced


@pytest.mark.parametrize("end", [" </think> ", " "])
def test_generated_texts_are_postprocessed(end):
    model, tokenizer = generator("gpt2")
    tokenizer.add_tokens(["<think>", "</think>"])
    model.resize_token_embeddings(len(tokenizer))
    said = tokenizer(f"<think> a dog ran{end}a cat sat", add_special_tokens=False)["input_ids"]
    batch = {**inputs_of([[5, 6]]), "labels": labels_of(tokenizer, ["<think> so </think> a cat sat"])}
    results = []

    for postprocess in (None, strip_thoughts):
        options = {"max_new_tokens": len(said), "logits_processor": [Say(said, 2)], "postprocess": postprocess}
        generate = CausalGenerate(tokenizer, prompt_key="input_ids", **options)
        results.append(pickle.loads(pickle.dumps(generate))(WithModel(model), batch))

    (whole, references), (stripped, same_references) = results
    assert whole[0].startswith("<think>")
    assert stripped[0].split() == (["a", "cat", "sat"] if "/" in end else [])
    # References are returned as they are.
    assert references == same_references
    assert references[0].startswith("<think>")
