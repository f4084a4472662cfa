"""Atomic writes: a file is written completely or not at all."""

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any


def expand_home(path: str | os.PathLike[str]) -> str:
    """Return a path with the user's home folder in place of a leading ``~``."""
    # Path.expanduser would raise an error for unknown users, and Path would remove a leading "./".
    return os.path.expanduser(os.fspath(path))  # noqa: PTH111


def is_special(path: str | os.PathLike[str]) -> bool:
    """Return whether a path, or the target of a link, is a device, a pipe or a socket."""
    path = Path(path)
    return path.exists() and not (path.is_file() or path.is_dir())


def write_atomically(path: str | os.PathLike[str], content: str | bytes, *, filesystem: Any = None) -> None:
    """Write a temporary file in the folder of ``path``, and move it to ``path``.

    If that fails, or is interrupted, the temporary file is removed and ``path`` keeps its old content. The target of a
    symbolic link is replaced, not the link. A device or pipe is written in place.

    Args:
        path: the file to write. Its folder must exist.
        content: bytes, or a text, which is written in UTF-8. An unpaired surrogate becomes its escape in JSON.
        filesystem: remote file system of fsspec that holds ``path``. Default: the local one.

    Raises:
        OSError: the file cannot be written. The message names ``path`` and says whether it keeps its old content.
    """
    name = os.fspath(path)
    if filesystem is None:
        name = expand_home(path)
    if isinstance(content, str):
        data = content.encode(errors="backslashreplace")
    else:
        data = content
    # A device cannot be replaced by a file.
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
        outcome = "no file was written"
        if _exists(name, filesystem):
            outcome = "the file keeps its old content"
        raise OSError(f"{name}: {reason}; {outcome}") from error


def _replace_local(target: Path, data: bytes) -> None:
    # The temporary file is in the same folder, because a file cannot be renamed to another disk. Its name is random,
    # because several processes may write the same file.
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with partial.open("xb") as file:
            # Copy the permissions before the data is written, because not everybody may be allowed to read the data.
            if target.exists():
                shutil.copymode(target, partial)
            file.write(data)
            # Write to the disk before the file is renamed: a power failure could leave an empty file otherwise.
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
        if filesystem is None:
            return Path(path).exists()
        return bool(filesystem.exists(path))
    return False
