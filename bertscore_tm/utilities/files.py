"""Files that are written completely or not at all."""

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any


def expand_home(path: str | os.PathLike[str]) -> str:
    """Return a path whose ``~`` at the start is replaced by the user's home folder."""
    # Path.expanduser raises an error for unknown users, and Path removes "./".
    return os.path.expanduser(os.fspath(path))  # noqa: PTH111


def is_special(path: str | os.PathLike[str]) -> bool:
    """Check whether a path, or the target of a link, is a device, a pipe or a socket, which is written in place."""
    path = Path(path)
    return path.exists() and not (path.is_file() or path.is_dir())


def write_atomically(path: str | os.PathLike[str], content: str | bytes, *, filesystem: Any = None) -> None:
    """Write a temporary file in the folder of ``path``, and move it to ``path``.

    If that fails, also on an interrupt, the temporary file is removed and ``path`` keeps its old content. A symbolic
    link stays, and its target is replaced; a device or pipe is written in place.

    Args:
        path: the file to write; its folder must exist.
        content: bytes, or a text, which is written in UTF-8; an unpaired surrogate as its escape in JSON.
        filesystem: remote file system of fsspec that holds ``path``. Default: the local one.

    Raises:
        OSError: the file cannot be written. The message names ``path`` and whether it keeps its old content.
    """
    name = expand_home(path) if filesystem is None else os.fspath(path)
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    in_place = filesystem is None and is_special(name)
    try:
        if in_place:
            Path(name).write_bytes(data)
        elif filesystem is None:
            _replace_local(Path(name).resolve(), data)
        else:
            _replace_remote(name, data, filesystem)
    except OSError as error:
        reason = error.strerror or error
        if in_place:
            raise OSError(f"{name}: {reason}") from error
        outcome = "the file keeps its old content" if _exists(name, filesystem) else "no file was written"
        raise OSError(f"{name}: {reason}; {outcome}") from error


def _replace_local(target: Path, data: bytes) -> None:
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with partial.open("xb") as file:
            # Nobody may read what is being written who may not read the file.
            if target.exists():
                shutil.copymode(target, partial)
            file.write(data)
            # Otherwise a power failure could leave an empty file under the final name.
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _replace_remote(path: str, data: bytes, filesystem: Any) -> None:
    partial = f"{path}.{secrets.token_hex(4)}.part"
    try:
        filesystem.pipe_file(partial, data)
        filesystem.mv(partial, path)
    finally:
        with suppress(OSError):
            if filesystem.exists(partial):
                filesystem.rm(partial)


def _exists(path: str, filesystem: Any) -> bool:
    with suppress(OSError):
        return Path(path).exists() if filesystem is None else bool(filesystem.exists(path))
    return False
