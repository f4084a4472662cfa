"""The import names hold in every way of installing."""

import os
import re
import subprocess
import sys
import tomllib
import venv
from importlib import metadata
from pathlib import Path

import pytest
import torch

import bertscore_tm

ROOT = Path(__file__).resolve().parent.parent
IMPORTS = """
import bertscore_tm, bertscore_tm.losses, bertscore_tm.callbacks
from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from bertscore_tm.losses import SoftBERTScoreLoss
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreEarlyStopping
from bertscore_tm.catalog import baseline, tuned_layer
assert tuned_layer("roberta-large") == 17 and len(baseline("en", "roberta-large")) == 25
assert SoftBERTScoreLoss.__module__ == "bertscore_tm.losses.soft_bertscore"
print(bertscore_tm.__file__)
"""


def run(python, code, folder):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip().splitlines()[-1])


def test_from_the_checkouts_root_and_from_elsewhere(tmp_path):
    assert run(sys.executable, IMPORTS, ROOT) == ROOT / "bertscore_tm/__init__.py"
    elsewhere = "import bertscore_tm, bertscore_tm.losses, bertscore_tm.callbacks; print(bertscore_tm.__file__)"
    assert run(sys.executable, elsewhere, tmp_path).name == "__init__.py"


@pytest.mark.slow
def test_wheel_in_a_fresh_environment(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", wheel], check=True)
    # The dependencies are borrowed; a folder named in a .pth file brings its modules but not its own .pth files, so
    # this environment knows the package from the wheel alone.
    (site_packages,) = environment.glob("lib/*/site-packages")
    (site_packages / "dependencies.pth").write_text(str(Path(torch.__file__).parent.parent))

    installed = site_packages / "bertscore_tm"
    assert run(python, IMPORTS, tmp_path) == installed / "__init__.py"
    assert run(python, IMPORTS, ROOT) == ROOT / "bertscore_tm/__init__.py"
    assert (installed / "py.typed").is_file()
    assert (installed / "data/SOURCE.md").is_file()
    assert len(list((installed / "data/baselines").rglob("*.csv"))) == 72
    # Nothing but the package: no `losses`, `tests` or `examples` that could collide with a user's own.
    ours = {path.name for path in site_packages.iterdir() if "pip" not in path.name and path.suffix != ".pth"}
    assert ours - {"_distutils_hack", "setuptools", "pkg_resources"} - {
        path.name for path in site_packages.glob("setuptools-*")
    } == {"bertscore_tm", f"bertscore_tm-{bertscore_tm.__version__}.dist-info"}


def test_dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=!~]", requirement)[0] for requirement in project["dependencies"]}
    assert names == {"torch", "transformers", "torchmetrics", "lightning"}
    assert {"plot", "cli", "demo", "dev"} <= set(project["optional-dependencies"])
    (lightning,) = (requirement for requirement in project["dependencies"] if requirement.startswith("lightning"))
    assert "!=2.6.2" in lightning
    assert "!=2.6.3" in lightning
    constraints = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert set(constraints) == names


def test_import_is_light_and_silent():
    code = (
        "import sys, warnings; warnings.simplefilter('error'); import bertscore_tm; "
        "heavy = {'lightning', 'pytorch_lightning', 'matplotlib'} & set(sys.modules); assert not heavy, heavy; "
        "print(bertscore_tm.__file__)"
    )
    run(sys.executable, code, ROOT)


def test_version_is_stated_once():
    assert metadata.version("bertscore-tm") == bertscore_tm.__version__
