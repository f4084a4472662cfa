"""The import names in every kind of installation, the built files and the declared dependencies."""

import importlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
from functools import partial
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from tempfile import gettempdir

import matplotlib
import pytest
from filelock import FileLock
from packaging.requirements import Requirement
from packaging.version import Version

import bertscore_tm
from tests.support.markdown_blocks import ROOT
from tests.support.processes import run_process
from tests.support.public_surface import CALLED, package_modules
from tests.support.shell import write_lines

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Finds the folders without the seconds that importing lightning takes.
SEARCH = """
from importlib.util import find_spec
packages = [find_spec(name) for name in ("bertscore_tm", "bertscore_tm.losses", "bertscore_tm.callbacks")]
assert all(packages), packages
print(packages[0].origin)
"""


# A checkout on the path with the metadata of a build would pass for an installed package.
run_outside = partial(run_process, PYTHONPATH=None)


def run(python, code, folder):
    return Path(run_outside(python, "-c", code, folder=folder).stdout.strip().splitlines()[-1])


def test_from_the_checkouts_root_and_from_elsewhere(tmp_path):
    assert run(sys.executable, SEARCH, ROOT) == ROOT / "bertscore_tm/__init__.py"
    run(sys.executable, SEARCH, tmp_path)


def build(source: Path, folder: Path, *options: str) -> dict[str, Path]:
    """Build the sdist of a folder, and the wheel from it, or what options say, into another folder."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, *options, source]
    # The workers of a parallel run would write the same files next to the sources.
    with FileLock(Path(gettempdir(), "bertscore_tm_build.lock")):
        run_process(*command, SOURCE_DATE_EPOCH="1000000000")
    return {path.suffix: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(ROOT, tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def unpacked(built, tmp_path_factory):
    """Return the unpacked sdist, with times unlike the checkout's."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(built[".gz"]) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    for path in source.rglob("*"):
        os.utime(path, (9e8, 9e8))
    return source


@pytest.mark.slow
def test_built_again_the_wheel_has_the_same_bytes(built, unpacked, tmp_path):
    again = build(unpacked, tmp_path, "--wheel")[".whl"]

    first = built[".whl"]

    assert built.keys() == {".gz", ".whl"}
    assert again.name == first.name
    assert sha256(again.read_bytes()).digest() == sha256(first.read_bytes()).digest()


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git lists the files")
def test_the_sdist_holds_the_tracked_files(built):
    names = run_process("git", "ls-files", "-z").stdout.split("\0")
    tracked = {name for name in names if name and (ROOT / name).is_file()}

    with tarfile.open(built[".gz"]) as archive:
        files = [member.name for member in archive if member.isfile()]

    packed = {name.partition("/")[2] for name in files}
    made = {name for name in packed if name in ("PKG-INFO", "setup.cfg") or ".egg-info/" in name}

    assert packed - made == tracked


def install(environment: Path, *options: str | Path) -> tuple[Path, Path]:
    """Install the package in a fresh environment, and return its Python and site-packages."""
    venv.create(environment, with_pip=False)
    python = environment / "bin/python"
    (site_packages,) = environment.glob("lib/*/site-packages")
    # A folder named in a .pth file brings its modules (the dependencies) but not its own .pth files (the editable
    # install), so that the package comes from this environment.
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    (site_packages / "dependencies.pth").write_text("\n".join(dependencies))
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install"]
    run_outside(*command, "--quiet", "--no-deps", "--no-compile", *options)
    return python, site_packages


def files_in(folder: Path) -> set[str]:
    paths = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(folder)) for path in paths}


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """Python and site-packages of an environment with the wheel."""
    return install(tmp_path_factory.mktemp("wheel") / "environment", built[".whl"])


@pytest.mark.slow
def test_wheel_in_a_fresh_environment(installed, tmp_path):
    python, site_packages = installed
    # No top-level `losses`, `tests` or `examples` that could collide with a user's own.
    information = f"bertscore_tm-{bertscore_tm.__version__}.dist-info"

    assert {path.name for path in site_packages.iterdir()} == {"bertscore_tm", "dependencies.pth", information}
    assert run(python, SEARCH, tmp_path) == site_packages / "bertscore_tm/__init__.py"
    assert run(python, SEARCH, ROOT) == ROOT / "bertscore_tm/__init__.py"
    sources = {"bertscore_tm": "", "losses": "losses/", "callbacks": "callbacks/"}
    expected = {place + name for folder, place in sources.items() for name in files_in(ROOT / folder)}
    assert files_in(site_packages / "bertscore_tm") == expected
    assert {"py.typed", "data/SOURCE.md", "losses/__init__.py"} < expected


@pytest.fixture(scope="module")
def first_use(installed, minilm, tmp_path_factory):
    """Report of the first use of the wheel, with its messages and the files that it wrote."""
    python, _ = installed
    folder = tmp_path_factory.mktemp("first use")
    work, home = folder / "work", folder / "home"
    work.mkdir()
    home.mkdir()
    write_lines(work / "texts", ["a list of names", "open the file", "it rains", "the dog ran home"])
    names = {"PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH"}
    environment = {name: value for name, value in os.environ.items() if name in names}
    environment |= {"HOME": str(home), "TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    # torchmetrics imports matplotlib, which would look for fonts anew.
    environment["MPLCONFIGDIR"] = matplotlib.get_cachedir()
    command = [python, "-P", ROOT / "tests/support/first_use.py", minilm, *package_modules()]

    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return json.loads(done.stdout.splitlines()[-1]) | {"messages": done.stderr, "files": files}


@pytest.mark.slow
def test_import_is_light_and_silent(installed, first_use):
    _, site_packages = installed

    assert first_use["package"] == str(site_packages / "bertscore_tm/__init__.py")
    assert first_use["loss"] == "bertscore_tm.losses.soft.loss"
    assert first_use["heavy"] == {"scoring": [], "metric": []}
    assert first_use["messages"].startswith("imported\n")


@pytest.mark.slow
def test_nothing_is_downloaded_or_written_without_request(first_use):
    assert first_use["unrequested"] == []
    # The network of a model that is not there is seen.
    assert first_use["requested"], first_use["error"]
    assert first_use["files"] == {f"work/{name}" for name in ("texts", "scores.json", "page.html", "table.csv")}


@pytest.mark.slow
def test_an_editable_install_adds_one_name(tmp_path):
    python, _ = install(tmp_path / "environment", "--no-build-isolation", "--editable", ROOT)
    others = ("losses", "callbacks", "tests", "examples")
    code = f"{SEARCH}\nprint([name for name in {others} if find_spec(name)])"

    printed = run_outside(python, "-c", code, folder=tmp_path).stdout

    assert printed.splitlines() == [str(ROOT / "bertscore_tm/__init__.py"), "[]"]


def pinned(path: Path) -> dict[str, Version]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return {name: Version(version) for name, version in (line.split("==") for line in lines if "==" in line)}


def test_the_lowest_versions_are_those_declared():
    extras = (each for extra in ("plot", "cli", "report") for each in PROJECT["optional-dependencies"][extra])
    declared = {
        requirement.name: min(Version(limit.version) for limit in requirement.specifier if limit.operator == ">=")
        for requirement in map(Requirement, [*PROJECT["dependencies"], *extras])
    }
    lowest = pinned(ROOT / "tests/lowest.txt")

    assert lowest.pop("pytorch-lightning") == lowest["lightning"]
    assert lowest == declared


def test_dependencies():
    requirements = {each.name: each.specifier for each in map(Requirement, PROJECT["dependencies"])}

    assert requirements.keys() == {"torch", "transformers", "torchmetrics", "lightning"}
    # Malicious releases.
    assert not any(requirements["lightning"].contains(version) for version in ("2.6.2", "2.6.3"))
    # The wheel's metadata holds the build tool's version.
    assert set(pinned(ROOT / "constraints.txt")) == requirements.keys() | {"setuptools"}


@pytest.mark.parametrize(
    ("requiring", "required"),
    [("transformers", "numpy"), ("transformers", "tokenizers"), ("transformers", "tqdm"), ("lightning", "fsspec")],
)
def test_dependencies_bring_what_is_imported_with_them(requiring, required):
    requirements = [Requirement(text) for text in metadata.requires(requiring)]
    always = {each.name for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})}

    assert required in always


def test_the_reference_has_every_public_name():
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "examples/docs/site/api").glob("*.md"))
    modules = re.findall(r"automodule:: bertscore_tm(\S+)", pages)
    classes = re.findall(r"autoclass:: bertscore_tm\.(\w+)", pages)

    assert set(modules) == set(CALLED) - {""}
    shown = {name for module in modules for name in importlib.import_module(f"bertscore_tm{module}").__all__}
    assert set(bertscore_tm.__all__) - {"__version__"} <= shown | set(classes)


def test_the_installed_version_is_the_sources():
    assert metadata.version("bertscore-tm") == bertscore_tm.__version__
