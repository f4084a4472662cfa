import json
import shutil

import pytest

from bertscore_tm.scoring.warnings import warn_unused


@pytest.fixture(autouse=True)
def _every_warning_again():
    warn_unused.cache_clear()


@pytest.fixture
def listed_folder(minilm, tmp_path) -> str:
    """A folder whose configuration names a model with a published layer and baseline as its origin."""
    shutil.copytree(minilm, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"_name_or_path": "distilbert-base-uncased"}))
    return str(tmp_path / "model")
