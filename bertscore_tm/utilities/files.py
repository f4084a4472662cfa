"""Files that are written completely or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

__all__ = ["is_special", "write_atomically"]


def is_special(path: str | os.PathLike[str]) -> bool:
    """Check whether a path, or the target of a link, is a device, a pipe or a socket, which is written in place."""
    path = Path(path)
    return path.exists() and not (path.is_file() or path.is_dir())


@contextmanager
def write_atomically(
    path: str | os.PathLike[str], mode: str = "w", *, filesystem: Any = None, **open_options: Any
) -> Generator[IO[Any], None, None]:
    """Open a temporary file in the folder of ``path``, and move it to ``path`` when the block ends.

    If the block raises, also on an interrupt, the temporary file is removed and ``path`` keeps its old content. A
    symbolic link stays, and its target is replaced; a device or pipe is written in place. Only write in the block.

    Args:
        path: the file to write; its folder must exist.
        mode: ``"w"`` for text, in UTF-8 unless ``encoding`` is given, or ``"wb"`` for bytes.
        filesystem: fsspec file system that holds ``path``. Default: the local one.
        open_options: further arguments of ``open``, such as ``newline``.

    Yields:
        The open temporary file.

    Raises:
        ValueError: ``mode`` is neither ``"w"`` nor ``"wb"``.
        OSError: the file cannot be written. The message names ``path`` and whether it keeps its old content.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "scores.txt")
        >>> with write_atomically(path) as file:
        ...     _ = file.write("0.9651")
        >>> path.read_text()
        '0.9651'
    """
    if mode not in ("w", "wb"):
        raise ValueError(f"mode must be 'w' or 'wb', got {mode!r}")
    if mode == "w":
        open_options.setdefault("encoding", "utf-8")
    name = os.fspath(path)
    in_place = filesystem is None and is_special(name)
    try:
        target: AbstractContextManager[IO[Any]]
        if in_place:
            target = Path(name).open(mode, **open_options)  # noqa: SIM115 - closed below
        elif filesystem is None:
            target = _replace_local(Path(name).resolve(), mode, open_options)
        else:
            target = _replace_remote(name, mode, open_options, filesystem)
        with target as file:
            yield file
    except OSError as error:
        reason = error.strerror or error
        if in_place:
            raise OSError(f"{name}: {reason}") from error
        outcome = "the file keeps its old content" if _exists(name, filesystem) else "no file was written"
        raise OSError(f"{name}: {reason}; {outcome}") from error


@contextmanager
def _replace_local(target: Path, mode: str, options: dict[str, Any]) -> Generator[IO[Any], None, None]:
    # The random part keeps processes that write the same file apart, and the name from being known before.
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with partial.open(mode.replace("w", "x"), **options) as file:
            # Nobody may read what is being written who may not read the file.
            if target.exists():
                shutil.copymode(target, partial)
            yield file
            # Otherwise a power failure could leave an empty file under the final name.
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@contextmanager
def _replace_remote(path: str, mode: str, options: dict[str, Any], filesystem: Any) -> Generator[IO[Any], None, None]:
    partial = f"{path}.part"
    try:
        with filesystem.open(partial, mode, **options) as file:
            yield file
        filesystem.mv(partial, path)
    finally:
        with suppress(OSError):
            if filesystem.exists(partial):
                filesystem.rm(partial)


def _exists(path: str, filesystem: Any) -> bool:
    with suppress(OSError):
        return Path(path).exists() if filesystem is None else bool(filesystem.exists(path))
    return False
