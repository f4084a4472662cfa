"""The results of a module's table on ranks."""

import pytest


@pytest.fixture(scope="module")
def runs():
    """Results of the module's table by number of ranks: pytest mixes tests of different parameters."""
    return {}


@pytest.fixture
def ran(request, runs, minilm, table, tmp_path_factory):
    """Results of the module's ``TABLE`` on as many ranks as the parameter says."""
    from tests.support.rank_tables import Resources, run_table

    world_size = request.param
    if world_size not in runs:
        resources = Resources(model=minilm, baseline=table, folder=tmp_path_factory.mktemp("ranks"))
        runs[world_size] = run_table(request.module.__name__, world_size, resources)
    return runs[world_size]
