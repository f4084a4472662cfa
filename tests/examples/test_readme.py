"""Every block of the README runs unchanged and in order, and the README stays short."""

import os
import shlex
import subprocess
import sys

import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, BertConfig, EncoderDecoderConfig, EncoderDecoderModel

from tests.support.markdown_blocks import ROOT, blocks, same_output
from tests.support.texts import real_pairs

BLOCKS = blocks(ROOT / "README.md")
COMMANDS = [line for block in BLOCKS if block.language == "console" for line in block.content.splitlines()]


def test_installing_comes_first_then_the_two_commands():
    assert [block.language for block in BLOCKS] == ["console"] * 2 + ["python", "text"] + ["python"] * 4
    assert BLOCKS[0].content.startswith("python3 -m pip install ")
    assert BLOCKS[1].content.split("\n")[:2] == ["make demo", "make test"]


def test_it_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150


def tiny_generator(minilm):
    """A random encoder-decoder with the vocabulary of the encoder, and data in the README's form."""
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = EncoderDecoderConfig.from_encoder_decoder_configs(BertConfig(**size), BertConfig(**size))
    model = EncoderDecoderModel(config=config).train()
    for each in (model.config, model.generation_config):
        each.decoder_start_token_id = tokenizer.cls_token_id
        each.eos_token_id, each.pad_token_id = tokenizer.sep_token_id, tokenizer.pad_token_id
    summaries, documents = real_pairs(12)

    def collate(rows):
        inputs = tokenizer([documents[i] for i in rows], padding=True, return_tensors="pt")
        targets = tokenizer([summaries[i] for i in rows], padding=True, return_tensors="pt")
        labels = targets["input_ids"].masked_fill(targets["attention_mask"] == 0, -100)
        return {**inputs, "labels": labels, "summary": [summaries[i] for i in rows]}

    return model, tokenizer, DataLoader(range(12), batch_size=4, collate_fn=collate)


class Module(pl.LightningModule):
    """A module as the README's readers have it: a generator, and no metric."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        return self.model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"]).loss

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread", "padding_is_masked")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*many workers.*")
def test_python_blocks_run_in_order(minilm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model, tokenizer, loader = tiny_generator(minilm)
    names = {"model": model, "tokenizer": tokenizer, "train_loader": loader, "val_loader": loader}
    names["module"] = Module(model)
    for block in BLOCKS:
        if block.language == "python":
            printed = block.run(names)
            assert block.output is None or same_output(block.output, printed)
    metrics = names["trainer"].callback_metrics
    assert {"val_bertscore_precision", "val_bertscore_recall", "val_bertscore_f1"} <= metrics.keys()
    assert names["best"] == ["a cat sat down"]
    assert len(list(tmp_path.rglob("*.ckpt"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_console_commands_run(command):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    if command == "make test":
        # This very run; tried on one small file, so that it does not call itself, and without further processes.
        arguments = [*shlex.split(command), "TEST_ARGS=--numprocesses 0 tests/leaves/test_files.py"]
    elif command == "make demo":
        # test_demo.py runs it.
        arguments = [*shlex.split(command), "DEMO_ARGS=--help"]
    else:
        # Resolved and built for real, but not put over the environment that the tests run in.
        assert command.startswith("python3 -m pip install ")
        arguments = [sys.executable, *shlex.split(command)[1:], "--dry-run"]
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if command == "make demo":
        assert "usage: python -m examples.demo" in done.stdout
