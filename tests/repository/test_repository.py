"""The workflows call make targets only, and the version and its date are the same everywhere."""

import re
import shlex

import pytest
import yaml

import bertscore_tm
from tests.support.markdown_blocks import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_make_with_few_rights(path):
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))

    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        for step in job.get("steps", ()):
            if "run" not in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@[\w./]+", step["uses"])
                continue
            command, target, *options = shlex.split(re.sub(r"\$\{\{ matrix\.(\w+) \}\}", r"matrix.\1", step["run"]))
            _, _, variable = target.partition("matrix.")
            targets = set(job["strategy"]["matrix"][variable]) if variable else {target}
            assert command == "make"
            assert targets <= TARGETS
            assert all(re.match(r"[A-Z]+=", option) for option in options)


def read_jobs(name):
    return yaml.safe_load((ROOT / ".github/workflows" / name).read_text(encoding="utf-8"))["jobs"]


def test_all_checks_run_in_a_workflow():
    ci = read_jobs("ci.yml")
    nightly = read_jobs("nightly.yml")
    (check,) = re.findall(r"^check: (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)

    assert set(check.split()) <= {*ci["checks"]["strategy"]["matrix"]["target"], "test"}
    # One pair of system and Python for each push, the others at night.
    assert "strategy" not in ci["tests"]
    assert set(nightly["tests"]["strategy"]["matrix"]["python"]) == {"3.11", "3.12", "3.13", "3.14"}
    assert {"os": "ubuntu-latest", "python": "3.11"} in nightly["tests"]["strategy"]["matrix"]["exclude"]


def test_the_makefile_names_files_that_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    names = re.findall(r"\btests/[\w/.]+", makefile)

    assert len(names) > 30
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_all_that_runs_before_a_change_lands_is_one_target():
    assert (ROOT / ".ci/run").read_text().splitlines()[1:] == ['exec make --directory "$(dirname "$0")/.." ci']
    assert {"ci", "avx2", "browser"} <= TARGETS


def test_the_changelog_and_the_citation_name_one_release():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, date = re.findall(r"^## \[([\d.]+)\] - (unreleased|\d{4}-\d\d-\d\d)$", changelog, re.MULTILINE)[0]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))

    assert (version, version) == (bertscore_tm.__version__, citation["version"])
    assert date == str(citation.get("date-released", "unreleased"))
    assert len(changelog.splitlines()) <= 60
