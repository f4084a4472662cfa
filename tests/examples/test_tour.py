"""The notebook runs, and holds the outputs that a code host shows."""

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.markdown_blocks import ROOT, same_output

PATH = ROOT / "examples" / "docs" / "tour.ipynb"


def outputs_of(notebook):
    return [cell.get("outputs", ()) for cell in notebook.cells]


def count_pictures(notebook):
    return sum("image/png" in output.get("data", {}) for outputs in outputs_of(notebook) for output in outputs)


def printed_by(notebook, stream="stdout"):
    # What a cell prints may arrive in parts.
    parts = ([output["text"] for output in each if output.get("name") == stream] for each in outputs_of(notebook))
    return ["".join(texts) for texts in parts if texts]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_tour_runs_and_shows_what_it_stored():
    stored = nbformat.read(PATH, as_version=4)
    run = nbformat.read(PATH, as_version=4)
    NotebookClient(run, timeout=None, resources={"metadata": {"path": str(ROOT)}}).execute()
    assert count_pictures(run) == count_pictures(stored) == 3
    # Scores, matches and gradients are the same everywhere, training is not.
    for before, now in zip(printed_by(stored)[:3], printed_by(run)[:3], strict=True):
        assert same_output(before, now)
    assert not printed_by(stored, "stderr")
