"""Every block of the page on many machines runs with the real engine, as a program, on two processors."""

import os
import re
import shutil
import sys
from importlib.util import find_spec

import pytest

from tests.support.markdown_blocks import ROOT, blocks, same_output
from tests.support.processes import run_process

ROWS, *BLOCKS = [block for block in blocks(ROOT / "examples" / "many_machines.md") if block.language == "python"]
ENGINES = ["pandas", "datasets", "ray", "pyspark", "pyspark", "dask", "concurrent"]
# Engines print a lot; these would be ours.
OURS = re.compile(r"bertscore|UserWarning|huggingface/tokenizers|pickled python objects|[Dd]eprecat|Traceback")

pytestmark = [pytest.mark.slow, pytest.mark.distributed]


def test_every_engine_has_a_block():
    imports = re.compile(rf"^(?:from|import) ({'|'.join(ENGINES)})\b", re.MULTILINE)
    # pandas reads the rows of a pool, too.
    assert [imports.findall(block.content)[0] for block in BLOCKS] == ENGINES


@pytest.mark.parametrize(
    ("engine", "block"), [*zip(ENGINES, BLOCKS, strict=True)], ids=lambda value: getattr(value, "line", value)
)
def test_blocks_run_with_the_real_engine(engine, block, tmp_path):
    if find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed: make engines")
    if engine == "pyspark" and shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java")
    for name, content in {"rows": ROWS.content, "block": block.content}.items():
        (tmp_path / f"{name}.py").write_text(content)
        done = run_process(
            *(sys.executable, f"{name}.py"),
            folder=tmp_path,
            # Engines start their workers with these.
            PYTHONPATH=str(ROOT),
            PYSPARK_PYTHON=sys.executable,
            RAY_USAGE_STATS_ENABLED="0",
            HF_HOME=str(tmp_path),
            OMP_NUM_THREADS=None,
            TOKENIZERS_PARALLELISM=None,
        )
    assert same_output(block.output, done.stdout), done.stdout
    assert not OURS.search(done.stderr), done.stderr
