"""Files that are whole or not there, so that a study that was stopped goes on where it was."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, content: str) -> None:
    """Write a file under another name, then give it its own.

    Args:
        path: the file.
        content: its text.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".tmp", delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            temporary.unlink()
            raise
    temporary.replace(path)
