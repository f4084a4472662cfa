"""The notebook runs, and holds the outputs that a code host shows."""

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.markdown_blocks import ROOT, same_output

PATH = ROOT / "examples" / "tour.ipynb"


def outputs_of(notebook, mime):
    return [
        output["data"].get(mime)
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if mime in output.get("data", {})
    ]


def printed_by(notebook):
    # What a cell prints may arrive in parts.
    printed = [
        "".join(output["text"] for output in cell.get("outputs", ()) if output.get("name") == "stdout")
        for cell in notebook.cells
    ]
    return [text for text in printed if text]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_tour_runs_and_shows_what_it_stored():
    stored = nbformat.read(PATH, as_version=4)
    run = nbformat.read(PATH, as_version=4)
    NotebookClient(run, timeout=None, resources={"metadata": {"path": str(ROOT)}}).execute()
    assert len(outputs_of(run, "image/png")) == len(outputs_of(stored, "image/png")) == 3
    # Scores, matches and gradients are the same everywhere, training is not.
    for before, now in zip(printed_by(stored)[:3], printed_by(run)[:3], strict=True):
        assert same_output(before, now)
    assert not [output for cell in stored.cells for output in cell.get("outputs", ()) if output.get("name") == "stderr"]
