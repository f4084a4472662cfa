"""Every block of the README runs, in order, as it stands there."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from jsonargparse import ArgumentError, ArgumentParser
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, BertConfig, EncoderDecoderConfig, EncoderDecoderModel

from tests.support import real_pairs

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_two_commands_come_first():
    body = (ROOT / "README.md").read_text(encoding="utf-8").split("\n", 1)[1].lstrip()
    assert body.startswith("```console\nmake demo\nmake test\n```")
    assert {language for language, _ in BLOCKS} == {"console", "python", "yaml"}


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
        inputs = tokenizer([documents[i] for i in rows], padding=True, return_tensors="pt")["input_ids"]
        labels = tokenizer([summaries[i] for i in rows], padding=True, return_tensors="pt")["input_ids"]
        return {"input_ids": inputs, "labels": labels, "summary": [summaries[i] for i in rows]}

    return model, tokenizer, DataLoader(range(12), batch_size=4, collate_fn=collate)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*many workers.*")
def test_python_blocks_run_in_order(minilm, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model, tokenizer, loader = tiny_generator(minilm)
    names = {"model": model, "tokenizer": tokenizer, "train_loader": loader, "val_loader": loader}
    for language, block in BLOCKS:
        if language == "python":
            exec(compile(block, "README.md", "exec"), names)
    metrics = names["trainer"].callback_metrics
    assert metrics["val_f1"] == pytest.approx(metrics["val_bertscore_f1"].item(), abs=1e-6)
    assert names["scores"]["f1"].shape == (2,)
    assert len(list(tmp_path.rglob("*.ckpt"))) == 2
    assert len(list(tmp_path.glob("outputs/**/samples/*.csv"))) == 2
    assert {"val_idf_f1", "val_rouge_rougeL_fmeasure", "bertscore_loss_temperature"} <= metrics.keys()
    assert "tensor(" in capsys.readouterr().out


def test_the_configuration_is_valid():
    (content,) = (block for language, block in BLOCKS if language == "yaml")
    config = yaml.safe_load(content)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--loss", type=nn.Module)
    parser.add_argument("--callbacks", type=list[Callback])
    # Not instantiated, since its models are on the hub.
    given = {"loss": config["model"]["loss"], "callbacks": config["trainer"]["callbacks"]}
    parsed = parser.parse_object(given)
    assert parsed.loss.init_args.model_name_or_path == "roberta-large"
    assert parsed.loss.init_args.matching == "softmax"  # a default, read from the signature
    assert [one.class_path for one in parsed.callbacks] == [one["class_path"] for one in given["callbacks"]]
    assert parsed.callbacks[0].init_args.generate.dict_kwargs == {"max_new_tokens": 60}
    given["callbacks"][1]["init_args"]["patienc"] = 3
    with pytest.raises(ArgumentError, match="patienc"):
        parser.parse_object(given)


COMMANDS = [line for kind, block in BLOCKS if kind == "console" for line in block.splitlines()]
IN_THE_SHELL = [line for line in COMMANDS if "bertscore-tm" in line or "bertscore_tm.cli" in line]


@pytest.mark.slow
@pytest.mark.distributed
def test_shell_commands_run_in_order(minilm, tmp_path):
    hyps, refs = real_pairs(6)
    for name, texts in {"hyps": hyps, "other": hyps[::-1], "refs": refs, "refs2": refs, "sentences": hyps}.items():
        (tmp_path / f"{name}.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    rows = [{"candidate": a, "reference": b, "human": len(a)} for a, b in zip(hyps, refs, strict=True)]
    (tmp_path / "judged.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    assert len(IN_THE_SHELL) == 7
    printed = []
    for command in IN_THE_SHELL:
        options = ["--model", minilm]
        if any(word in command for word in (" score ", " compare ", " show ")):
            options += ["--num-layers", "5"]
        if " baseline " in command:
            options += ["--pairs", "20"]
        arguments = [*shlex.split(command), *options]
        done = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        printed.append(done.stdout)
    assert printed[0] == printed[-1]
    for name in ("scores.tsv", "alignment.png", "baseline.csv"):
        assert (tmp_path / name).stat().st_size > 100


@pytest.mark.slow
@pytest.mark.parametrize("command", [line for line in COMMANDS if line not in IN_THE_SHELL])
def test_console_commands_run(command, tmp_path):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    if command == "make test":
        # This very run; tried on one small file so that it does not call itself.
        arguments = [*shlex.split(command), "TEST_ARGS=tests/test_statistics.py"]
    elif command == "make demo":
        small = "--train-pairs 16 --eval-pairs 4 --val-pairs 4 --warmup-steps 2 --steps 2 --batch-size 4"
        arguments = [*shlex.split(command), f"DEMO_ARGS={small} --output {tmp_path}"]
    else:
        # Resolved and built for real, but not put over the environment that the tests run in.
        assert command.startswith("python3 -m pip install ")
        arguments = [sys.executable, *shlex.split(command)[1:], "--dry-run"]
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if command == "make demo":
        assert "BERTScore of 4 held-out summaries" in done.stdout
        assert (tmp_path / "results.json").is_file()
        assert "Warning" not in done.stdout + done.stderr, done.stdout + done.stderr
