import json
import shutil

import pytest

from bertscore_tm.scoring.warnings import warn_unused
from tests.support.models import tiny_model
from tests.support.texts import real_pairs


@pytest.fixture(autouse=True)
def _every_warning_again():
    warn_unused.cache_clear()


@pytest.fixture(scope="package")
def pairs():
    """Short texts: most of these tests' time is that of the other packages' models."""
    return real_pairs(240, words=8)


@pytest.fixture(scope="package")
def corpus(pairs):
    """12 real candidates and references."""
    return pairs[0][:12], pairs[1][:12]


@pytest.fixture(scope="package")
def small(tmp_path_factory) -> str:
    """Folder of a tiny model with as many layers as the real one, because each test loads it several times."""
    folder = tmp_path_factory.mktemp("small") / "model"
    model, tokenizer = tiny_model("bert", layers=6)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def listed_folder(small, tmp_path) -> str:
    """A folder whose configuration names a model with a published layer and baseline as its origin."""
    shutil.copytree(small, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"_name_or_path": "distilbert-base-uncased"}))
    return str(tmp_path / "model")
