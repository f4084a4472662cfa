"""The notebook runs, and holds the outputs that a code host shows."""

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.markdown_blocks import ROOT, same_output

PATH = ROOT / "examples" / "docs" / "tour.ipynb"
# Few pairs and steps, because the outputs of the training are not compared.
SHORTER = {
    "import warnings\n": "import warnings\nfrom examples.programs import docstrings\n"
    "from tests.support.texts import stdlib_pairs\n"
    "docstrings.collect_pairs = lambda packages: stdlib_pairs()[::10]\n",
    "max_steps=50": "max_steps=2",
    "val_check_interval=10": "val_check_interval=1",
    "corpus.validation[:48]": "corpus.validation[:4]",
    "corpus.test[:48]": "corpus.test[:6]",
}


def read_notebook():
    return nbformat.read(PATH, as_version=4)


def shorten(notebook):
    """Replace the sizes of the training and its data."""
    found = set()
    for cell in notebook.cells:
        for long, short in SHORTER.items():
            if cell.cell_type == "code" and long in cell.source:
                cell.source = cell.source.replace(long, short, 1)
                found.add(long)
    assert found == set(SHORTER)


def outputs_of(notebook):
    return [cell.get("outputs", ()) for cell in notebook.cells]


def count_pictures(notebook):
    outputs = [output for outputs in outputs_of(notebook) for output in outputs]
    return sum("image/png" in output.get("data", {}) for output in outputs)


def printed_by(notebook, stream="stdout"):
    """Return what each cell printed, whose parts may arrive one by one."""
    texts = []
    for outputs in outputs_of(notebook):
        parts = [output["text"] for output in outputs if output.get("name") == stream]
        if parts:
            texts.append("".join(parts))
    return texts


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_tour_runs_and_shows_what_it_stored():
    stored = read_notebook()
    run = read_notebook()
    shorten(run)

    NotebookClient(run, timeout=None, resources={"metadata": {"path": str(ROOT)}}).execute()

    assert count_pictures(run) == count_pictures(stored) == 3
    # Scores, matches and gradients are the same everywhere, training is not.
    for before, now in zip(printed_by(stored)[:3], printed_by(run)[:3], strict=True):
        assert same_output(before, now)
    assert len(printed_by(run)) == len(printed_by(stored))
    assert not printed_by(stored, "stderr")
