"""Commands in processes of their own."""

import os
import subprocess
from pathlib import Path
from typing import Any

from tests.support.markdown_blocks import ROOT


def run_process(*command: Any, folder: Path = ROOT, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """Run a command that must succeed, with environment variables changed or, where they are None, removed."""
    environment = {name: value for name, value in (os.environ | variables).items() if value is not None}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done
