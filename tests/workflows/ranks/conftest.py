"""The results of a module's table on ranks."""

import os
import pickle

import pytest
from filelock import FileLock


@pytest.fixture(scope="session")
def folder_of_workers(tmp_path_factory):
    """Folder that all workers of a parallel run share."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        return folder.parent
    return folder


@pytest.fixture
def ran(request, minilm, table, folder_of_workers):
    """Results of the module's ``TABLE`` on as many ranks as the parameter says.

    The first worker that needs them runs the ranks and writes the results to a file, because a parallel run gives the
    cases of a table to several workers.
    """
    from tests.support.rank_tables import Ran, Resources, run_table

    world_size = request.param
    name = request.module.__name__
    folder = folder_of_workers / f"{name}-{world_size}"
    resources = Resources(model=minilm, baseline=table, folder=folder)
    file = folder / "reports.pickle"
    with FileLock(f"{folder}.lock"):
        if not file.exists():
            folder.mkdir()
            file.write_bytes(pickle.dumps(run_table(name, world_size, resources)))
    return Ran(request.module.TABLE, world_size, resources, pickle.loads(file.read_bytes()))
