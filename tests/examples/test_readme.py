"""Every block of the README runs unchanged and in order, and the README stays short."""

import json
import re
import shlex
import warnings

import bert_score as oracle
import lightning.pytorch as pl
import pytest
import torch
import transformers
from torch.utils.data import DataLoader
from torchmetrics.functional.text import bert_score as torchmetrics_score
from transformers import AutoTokenizer, BertConfig, EncoderDecoderConfig, EncoderDecoderModel

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.cli import main
from tests.support.markdown_blocks import ROOT, blocks
from tests.support.models import EVERY_FAMILY, save_tiny_model
from tests.support.texts import real_pairs

BLOCKS = blocks(ROOT / "README.md")
EXPECTED = {"precision": 0.883, "recall": 0.793, "f1": 0.832}
COMMANDS = [line for block in BLOCKS if block.language == "console" for line in block.content.splitlines()]


def test_installing_comes_first():
    assert [block.language for block in BLOCKS] == ["console", "python", "console"] + ["python"] * 4
    (drop_in,) = re.findall(r"`(from bertscore_tm.compat[^`]+)`", (ROOT / "README.md").read_text(encoding="utf-8"))
    exec(drop_in, {})
    assert COMMANDS == ["python3 -m pip install bertscore-tm", "bertscore-tm score hyps.txt refs.txt --language en"]


def test_it_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_number_of_families_is_that_of_the_tested_ones():
    (number,) = re.findall(r"\[(\d+)\s+model\s+families\]", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert int(number) == len(EVERY_FAMILY)


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
    names["summaries"], names["references"] = real_pairs(4)
    names["leads"] = [" ".join(text.split()[:8]) for text in names["references"]]
    # Stands for the model on the hub.
    monkeypatch.setattr(FrozenEncoder, "for_language", lambda language: FrozenEncoder(minilm, num_layers=5))
    for block in BLOCKS:
        if block.language == "python":
            block.run(names)
    assert {name: round(score.item(), 3) for name, score in names["scores"].items()} == EXPECTED
    metrics = names["trainer"].callback_metrics
    assert {"val_bertscore_precision", "val_bertscore_recall", "val_bertscore_f1"} <= metrics.keys()
    assert names["best"] == ["a cat sat down"]
    assert len(list(tmp_path.rglob("*.ckpt"))) == 1
    assert "<td>summary</td>" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("one_thread")
def test_the_shell_scores_files(minilm, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("hyps.txt", "refs.txt"):
        (tmp_path / name).write_text("it rains\n", encoding="utf-8")
    assert main([*shlex.split(COMMANDS[1])[1:], "--model", minilm, "--num-layers", "5"]) == 0
    assert "F1 1.0000" in capsys.readouterr().out


# What the table says of other packages.


def test_special_tokens_and_long_texts_in_other_packages(minilm):
    pair = ["a cat sat"], ["the cat sat down"]
    excluded = bert_score(*pair, FrozenEncoder(minilm, num_layers=5, exclude_special_tokens=True))["f1"].item()
    assert torchmetrics_score(*pair, minilm, num_layers=5)["f1"].item() == pytest.approx(excluded, abs=1e-6)
    assert excluded != pytest.approx(bert_score(*pair, FrozenEncoder(minilm, num_layers=5))["f1"].item(), abs=1e-3)
    with warnings.catch_warnings(action="error"):
        whole, cut = (oracle.score(["word " * n], ["a cat"], model_type=minilm, num_layers=5)[2] for n in (600, 510))
    assert torch.equal(whole, cut)


@pytest.mark.skipif(transformers.__version__ < "5", reason="transformers 4 gives texts the space")
def test_empty_texts_and_spaces_in_other_packages(minilm, tmp_path):
    assert torchmetrics_score(["", "a"], ["a cat", "a"], minilm, num_layers=5)["precision"][0].isnan()
    folder = save_tiny_model("roberta", tmp_path / "model")
    settings = tmp_path / "model/tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"tokenizer_class": "RobertaTokenizer"}))
    pair = ["cats sat on mats"], ["a cat sat on mats"]
    theirs = oracle.score(*pair, model_type=str(folder), num_layers=2)[2].item()
    spaced, plain = (
        bert_score(*pair, FrozenEncoder(folder, num_layers=2, prefix_space=space))["f1"].item()
        for space in (None, False)
    )
    assert theirs == pytest.approx(plain, abs=1e-6) != pytest.approx(spaced, abs=1e-3)
