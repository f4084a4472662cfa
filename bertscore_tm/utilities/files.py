"""Files that an interruption leaves usable: written atomically, or line by line so that a later run goes on."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

__all__ = ["append_lines", "resume_lines", "write_atomically"]


@contextmanager
def write_atomically(
    path: str | os.PathLike[str], mode: str = "w", *, filesystem: Any = None, **open_options: Any
) -> Generator[IO[Any], None, None]:
    """Open a temporary file in the folder of ``path``, and move it to ``path`` when the block ends.

    If the block raises, also on an interrupt, the temporary file is removed and ``path`` keeps its old content. A
    symbolic link stays, and its target is replaced. Do nothing in the block but write.

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
    if filesystem is None:
        replace = _replace_local(name, mode, open_options)
    else:
        replace = _replace_remote(name, mode, open_options, filesystem)
    try:
        with replace as file:
            yield file
    except OSError as error:
        outcome = "the file keeps its old content" if _exists(name, filesystem) else "no file was written"
        raise OSError(f"{name}: {error.strerror or error}; {outcome}") from error


@contextmanager
def _replace_local(path: str, mode: str, options: dict[str, Any]) -> Generator[IO[Any], None, None]:
    target = Path(path).resolve()
    # The process id keeps processes that write the same file apart.
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with partial.open(mode, **options) as file:
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


@contextmanager
def resume_lines(path: Path, header: str) -> Generator[int | None, None, None]:
    """Prepare a file of lines for :func:`append_lines`: start it, or keep the lines of an interrupted run.

    A last line that the interruption cut off is removed. During the block other processes are refused, such as ranks
    that outlive a killed ``torchrun``, where the system has advisory locks.

    Args:
        path: the file; its folder must exist.
        header: first line, which tells what the other lines belong to; without a line end.

    Yields:
        Number of complete lines after the header; ``None`` if the file has another header, and is left as it is.

    Raises:
        OSError: the file cannot be written, or another process writes it.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "unfinished")
        >>> with resume_lines(path, "settings") as done:
        ...     append_lines(path, ["one", "two"])
        >>> with resume_lines(path, "settings") as again, resume_lines(Path(f"{path}2"), "settings") as new:
        ...     done, again, new
        (0, 2, 0)
    """
    first = f"{header}\n".encode()
    with path.open("a+b") as file:
        _lock(file, path)
        file.seek(0)
        found = file.readline()
        if not first.startswith(found):
            yield None
            return
        if found != first:
            # A new file, or one whose first line was cut off.
            file.truncate(0)
            file.write(first)
            file.flush()
            os.fsync(file.fileno())
        count, end = 0, len(first)
        file.seek(end)
        for line in file:
            if not line.endswith(b"\n"):
                break
            count, end = count + 1, end + len(line)
        file.truncate(end)
        yield count


def _lock(file: IO[Any], path: Path) -> None:
    """Lock a file until it is closed, also by the end of the process."""
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:
        return
    try:
        flock(file, LOCK_EX | LOCK_NB)
    except BlockingIOError as error:
        raise OSError(f"another run is writing {path}: wait until it ends, or stop it") from error
    except OSError:
        # A file system without locks.
        return


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append lines to a file, and return when they are on the disk.

    Args:
        path: the file.
        lines: the lines, without line ends.
    """
    with path.open("a", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
