"""The image of the page on encoders: its model is found in the cache of the hub, without a network."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from bertscore_tm import bert_score
from bertscore_tm.cli import main
from tests.support.markdown_blocks import ROOT, blocks
from tests.support.processes import run_process
from tests.support.shell import write_lines

CANDIDATES, REFERENCES = ["a cat sat on the mat", "it rains"], ["the cat sat on a mat", "it is raining"]
(DOCKERFILE,) = (
    block.content for block in blocks(ROOT / "examples" / "docs" / "encoders.md") if block.language == "dockerfile"
)
LINES = DOCKERFILE.splitlines()
VARIABLES = dict(re.findall(r"(\w+)=(\S+)", "\n".join(line for line in LINES if line.startswith("ENV "))))


def test_the_image_pins_a_commit_and_runs_offline():
    assert len(LINES) == 6
    assert re.fullmatch("[0-9a-f]{40}", VARIABLES["REVISION"])
    assert VARIABLES["HF_HUB_OFFLINE"] == "1"


def test_the_command_that_downloads_the_model_scores(minilm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The shell replaces the variables of the words and prints them.
    line = LINES[3].removeprefix("RUN ").replace("bertscore-tm ", "echo ")
    variables = VARIABLES | {"MODEL": minilm}

    words = run_process("sh", "-c", line, folder=tmp_path, **variables).stdout.split()

    assert words[-4:] == ["--model", minilm, "--revision", VARIABLES["REVISION"]]
    assert main([*words, "--num-layers", "5"]) == 0


@pytest.mark.slow
def test_the_image_scores_without_a_network(minilm, encoder, tmp_path):
    # What a download of the commit leaves, with the demo's model in its place.
    snapshot = tmp_path / "hub" / "models--me--demo" / "snapshots" / VARIABLES["REVISION"]
    snapshot.mkdir(parents=True)
    for file in Path(minilm).iterdir():
        (snapshot / file.name).symlink_to(file)
    variables = VARIABLES | {
        "HF_HOME": str(tmp_path),
        "MODEL": "me/demo",
        "https_proxy": "http://127.0.0.1:9",  # no proxy is there
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    write_lines(tmp_path / "hyps.txt", CANDIDATES)
    write_lines(tmp_path / "refs.txt", REFERENCES)
    entry = json.loads(LINES[5].removeprefix("ENTRYPOINT "))
    command = [*entry, "score", "hyps.txt", "refs.txt", "--num-layers", "5", "--json"]

    printed = json.loads(run_process(*command, folder=tmp_path, **variables).stdout)

    assert printed["f1"] == pytest.approx(bert_score(CANDIDATES, REFERENCES, encoder)["f1"].mean().item(), abs=1e-6)
    assert printed["signature"].startswith(f"model:me/demo@{VARIABLES['REVISION']}|")
