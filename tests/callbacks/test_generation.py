"""Seq2SeqGenerate and CausalGenerate: inputs of the model, decoded texts and references."""

import pickle

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import TQDMProgressBar
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback, CausalGenerate, Seq2SeqGenerate
from bertscore_tm.functional import bert_score
from tests.support.models import EVERY_FAMILY, randomised, tiny_config, tiny_tokenizer
from tests.support.texts import real_pairs

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [" ".join(text.split()[:n]) for text, n in zip(real_pairs(40)[0], (3, 6, 2, 5), strict=False)]
REFERENCES = ["a cat sat", "it rains today", "hello", "returns a list of names"]


def tokenizer_of(family):
    return tiny_tokenizer(EVERY_FAMILY[family])


def model_of(family):
    auto = AutoModelForSeq2SeqLM if family in ("bart", "t5") else AutoModelForCausalLM
    model = randomised(auto.from_config(tiny_config(family)))
    model.generation_config.eos_token_id = None  # or random models end at once
    model.generation_config.forced_eos_token_id = None
    model.generation_config.decoder_start_token_id = 0
    return model


class Module(pl.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        return sum(p.sum() for p in self.model.parameters()) * 0.0

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.0)


def padded(rows, value, side="right"):
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value, padding_side=side)


def labels_of(tokenizer, texts=REFERENCES):
    return padded([tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts], -100)


@torch.no_grad()
def one_by_one(model, rows, **options):
    """Greedy continuation of each row alone, without padding, token by token for decoders."""
    return [model.generate(input_ids=torch.tensor([row]), do_sample=False, **options)[0].tolist() for row in rows]


# Encoder-decoders


@pytest.mark.parametrize("family", ["bart", "t5"])
@pytest.mark.parametrize("texts_as_target", [False, True])
def test_encoder_decoders(family, texts_as_target):
    tokenizer, model = tokenizer_of(family), model_of(family)
    rows = tokenizer(TEXTS)["input_ids"]
    ids = padded(rows, tokenizer.pad_token_id)
    batch = {"input_ids": ids, "attention_mask": (ids != tokenizer.pad_token_id).long(), "index": torch.arange(4)}
    batch |= {"labels": labels_of(tokenizer), "decoder_input_ids": torch.zeros(4, 3, dtype=torch.long)}
    batch["summary"] = [[text, "another"] for text in REFERENCES]
    options = {"target_key": "summary"} if texts_as_target else {}
    generate = Seq2SeqGenerate(tokenizer, max_new_tokens=6, num_beams=1, do_sample=False, **options)
    preds, target = generate(Module(model), batch)
    expected = one_by_one(model, rows, max_new_tokens=6, num_beams=1)
    assert preds == tokenizer.batch_decode(expected, skip_special_tokens=True)
    assert len(set(preds)) > 1
    assert generate.inputs(batch) == tokenizer.batch_decode(rows, skip_special_tokens=True)
    if texts_as_target:
        assert target == batch["summary"]
    else:
        said = labels_of(tokenizer)
        assert target == tokenizer.batch_decode([row[row != -100] for row in said], skip_special_tokens=True)


# Decoders


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2"])
@pytest.mark.parametrize("kind", ["texts", "ids", "left", "with answers"])
def test_decoders(family, kind):
    tokenizer, model = tokenizer_of(family), model_of(family)
    side = tokenizer.padding_side
    rows = tokenizer(TEXTS)["input_ids"]
    answers = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in REFERENCES]
    options = {"max_new_tokens": 5, "do_sample": False}
    if kind == "texts":
        batch, options = {"prompt": TEXTS, "labels": labels_of(tokenizer)}, options | {"prompt_key": "prompt"}
    elif kind == "with answers":
        whole = [prompt + answer for prompt, answer in zip(rows, answers, strict=True)]
        labels = [[-100] * len(prompt) + answer for prompt, answer in zip(rows, answers, strict=True)]
        batch = {
            "input_ids": padded(whole, 7),
            "attention_mask": padded([[1] * len(row) for row in whole], 0),
            "labels": padded(labels, -100),
        }
    else:
        where = "left" if kind == "left" else "right"
        batch = {
            "input_ids": padded(rows, 7, where),
            "attention_mask": padded([[1] * len(row) for row in rows], 0, where),
            "labels": labels_of(tokenizer),
        }
    generate = CausalGenerate(tokenizer, **options)
    preds, target = generate(Module(model), batch)
    prompts = TEXTS if kind == "texts" else tokenizer.batch_decode(rows, skip_special_tokens=True)
    assert generate.inputs(batch) == prompts
    expected = one_by_one(model, rows, max_new_tokens=5)
    continued = [whole[len(row) :] for whole, row in zip(expected, rows, strict=True)]
    assert preds == tokenizer.batch_decode(continued, skip_special_tokens=True)
    assert len(set(preds)) > 1
    assert target == tokenizer.batch_decode(answers, skip_special_tokens=True)
    assert tokenizer.padding_side == side


# In the callback


def test_the_callback_scores_what_they_generate(encoder):
    tokenizer, model = tokenizer_of("bart"), model_of("bart")
    ids = padded(tokenizer(TEXTS)["input_ids"], tokenizer.pad_token_id)
    data = [
        {"input_ids": row, "attention_mask": (row != tokenizer.pad_token_id).long(), "summary": text}
        for row, text in zip(ids, REFERENCES, strict=True)
    ]
    generate = Seq2SeqGenerate(tokenizer, target_key="summary", max_new_tokens=5, do_sample=True, num_beams=1)
    callback = BERTScoreCallback(BERTScore(encoder), pickle.loads(pickle.dumps(generate)))
    trainer = pl.Trainer(
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    torch.manual_seed(0)
    trainer.validate(Module(model), DataLoader(data, batch_size=4), verbose=False)
    torch.manual_seed(0)
    preds, target = generate(Module(model), next(iter(DataLoader(data, batch_size=4))))
    expected = bert_score(preds, target, encoder)["f1"].mean().item()
    assert trainer.callback_metrics["val_bertscore_f1"].item() == pytest.approx(expected, abs=1e-6)


class GeneratesInSteps(Module):
    """Calls a ready generator in each step of fit, validate, test and predict."""

    def __init__(self, model, generate):
        super().__init__(model)
        self.generate, self.preds = generate, {}

    def training_step(self, batch, batch_idx):
        self.preds["train"] = self.generate(self, batch)[0]
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.preds["validate"] = self.generate(self, batch)[0]

    def test_step(self, batch, batch_idx):
        self.preds["test"] = self.generate(self, batch)[0]

    def predict_step(self, batch, batch_idx):
        return self.generate(self, batch)[0]


@pytest.mark.parametrize(("kind", "family"), [(Seq2SeqGenerate, "bart"), (CausalGenerate, "gpt2")])
def test_generators_run_in_every_step_with_a_progress_bar(tmp_path, kind, family):
    tokenizer = tokenizer_of(family)
    rows = tokenizer(TEXTS)["input_ids"]
    columns = zip(padded(rows, 7), padded([[1] * len(row) for row in rows], 0), REFERENCES, strict=True)
    examples = [{"input_ids": ids, "attention_mask": mask, "labels": text} for ids, mask, text in columns]
    data = DataLoader(examples, batch_size=4)
    module = GeneratesInSteps(model_of(family), kind(tokenizer, max_new_tokens=3, do_sample=False))
    module.model.eval()
    expected = module.generate(module, next(iter(data)))[0]
    run = pl.Trainer(
        callbacks=[TQDMProgressBar()],
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        default_root_dir=tmp_path,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    assert run.predict(module, data) == [expected]
    run.test(module, data, verbose=False)
    run.fit(module, data, data)
    assert module.preds == {"train": expected, "validate": expected, "test": expected}


def test_models_are_found_by_path_and_unwrapped():
    tokenizer, model = tokenizer_of("bart"), model_of("bart")
    batch = {"input_ids": torch.tensor([[0, 9, 8, 2]]), "labels": torch.tensor([[5, 6, -100]])}
    expected = Seq2SeqGenerate(tokenizer, max_new_tokens=3)(Module(model), batch)
    compiled = Module(torch.compile(model, backend="eager"))
    assert Seq2SeqGenerate(tokenizer, max_new_tokens=3)(compiled, batch) == expected
    holder = pl.LightningModule()
    holder.parts = nn.ModuleDict({"writer": model})
    assert Seq2SeqGenerate(tokenizer, model="parts.writer", max_new_tokens=3)(holder, batch) == expected


@pytest.mark.parametrize(
    ("generate", "batch", "said"),
    [
        (
            Seq2SeqGenerate,
            {"input_ids": torch.zeros(1, 2)},
            r"no 'labels' in the batch, which has \['input_ids'\]: pass another target_key=",
        ),
        (CausalGenerate, {"labels": ["a"], "text": ["b"]}, r"no 'input_ids' in the batch.*another prompt_key="),
        (Seq2SeqGenerate, (torch.zeros(1, 2), torch.zeros(1)), "needs a batch that is a mapping.*got a tuple"),
    ],
)
def test_unusable_batches_are_an_error(generate, batch, said):
    with pytest.raises(MisconfigurationException, match=said):
        generate(tokenizer_of("bart"))(Module(model_of("bart")), batch)


def test_modules_without_a_model_are_an_error():
    batch = {"input_ids": torch.tensor([[0, 2]]), "labels": ["a"]}
    for module in (pl.LightningModule(), Module(nn.Linear(1, 1))):
        with pytest.raises(MisconfigurationException, match=r"pl_module\.model, which is not a Hugging Face model"):
            Seq2SeqGenerate(tokenizer_of("bart"))(module, batch)
