"""The image of the page on encoders: its model is found in the cache of the hub, without a network."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from bertscore_tm import bert_score
from tests.support.markdown_blocks import ROOT, blocks
from tests.support.processes import run_process
from tests.support.shell import write_lines

CANDIDATES, REFERENCES = ["a cat sat on the mat", "it rains"], ["the cat sat on a mat", "it is raining"]


@pytest.mark.slow
def test_the_image_scores_without_a_network(minilm, encoder, tmp_path):
    (dockerfile,) = (
        block.content for block in blocks(ROOT / "examples" / "docs" / "encoders.md") if block.language == "dockerfile"
    )
    lines = dockerfile.splitlines()

    assert len(lines) == 6
    variables = dict(re.findall(r"(\w+)=(\S+)", "\n".join(line for line in lines if line.startswith("ENV "))))
    assert re.fullmatch("[0-9a-f]{40}", variables["REVISION"])
    # What a download of the commit leaves, with the demo's model in its place.
    snapshot = tmp_path / "hub" / "models--me--demo" / "snapshots" / variables["REVISION"]
    snapshot.mkdir(parents=True)
    for file in Path(minilm).iterdir():
        (snapshot / file.name).symlink_to(file)
    assert variables["HF_HUB_OFFLINE"] == "1"
    variables |= {
        "HF_HOME": str(tmp_path),
        "MODEL": "me/demo",
        "https_proxy": "http://127.0.0.1:9",
    }  # no proxy is there
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run_process("sh", "-c", f"{lines[3].removeprefix('RUN ')} --num-layers 5", folder=tmp_path, **variables)
    write_lines(tmp_path / "hyps.txt", CANDIDATES)
    write_lines(tmp_path / "refs.txt", REFERENCES)
    entry = json.loads(lines[5].removeprefix("ENTRYPOINT "))
    command = [*entry, "score", "hyps.txt", "refs.txt", "--num-layers", "5", "--json"]
    printed = json.loads(run_process(*command, folder=tmp_path, **variables).stdout)
    assert printed["f1"] == pytest.approx(bert_score(CANDIDATES, REFERENCES, encoder)["f1"].mean().item(), abs=1e-6)
    assert printed["signature"].startswith(f"model:me/demo@{variables['REVISION']}|")
