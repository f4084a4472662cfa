"""Files are written completely or not at all."""

import os
import stat
from unittest.mock import Mock

import fsspec
import pytest

from bertscore_tm.utilities.files import is_special, write_atomically

needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="root makes devices")


def names(folder):
    """Return the names of the files of a folder."""
    return [path.name for path in folder.iterdir()]


@pytest.mark.parametrize(("content", "written"), [("first ü\r\n", "first ü\r\n".encode()), (b"\xff\n", b"\xff\n")])
def test_a_file_is_written_as_it_is(tmp_path, content, written):
    path = tmp_path / "scores.txt"

    write_atomically(str(path), content)

    assert path.read_bytes() == written
    assert names(tmp_path) == ["scores.txt"]


def test_a_new_file_has_the_mode_of_the_umask(tmp_path):
    path = tmp_path / "scores.txt"
    umask = os.umask(0o022)
    os.umask(umask)

    write_atomically(path, "new")

    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OSError])
@pytest.mark.parametrize("old", ["old", None])
def test_an_error_keeps_the_old_content(tmp_path, monkeypatch, error, old):
    path = tmp_path / "scores.txt"
    expected = {}
    if old is not None:
        path.write_text(old)
        expected = {"scores.txt": old}
    monkeypatch.setattr("os.fsync", Mock(side_effect=error))

    with pytest.raises(error):
        write_atomically(path, "new")

    contents = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert contents == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere/a.txt", r"nowhere/a\.txt: No such file or directory; no file was written"),
        ("", "Is a directory; the file keeps its old content"),
    ],
)
def test_neither_a_folder_is_made_nor_replaced(tmp_path, name, message):
    with pytest.raises(OSError, match=message):
        write_atomically(tmp_path / name, "new")

    assert names(tmp_path) == []


def test_a_symbolic_link_stays(tmp_path):
    (tmp_path / "folder").mkdir()
    target = tmp_path / "folder" / "target"
    target.write_text("old")
    link = tmp_path / "link"
    link.symlink_to(target)

    write_atomically(link, "new")

    assert link.is_symlink()
    assert target.read_text() == "new"
    assert names(tmp_path / "folder") == ["target"]


@needs_root
def test_a_device_is_written_in_place(tmp_path):
    null, full = tmp_path / "null", tmp_path / "full"
    # Nodes of the machine's devices, which tests may lose.
    os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod(full, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
    link = tmp_path / "link"
    link.symlink_to(null)

    for path in (null, link):
        assert is_special(path)
        write_atomically(path, "new")
    with pytest.raises(OSError, match=r"full: No space left on device$"):
        write_atomically(full, "new")

    assert stat.S_ISCHR(null.stat().st_mode)
    assert stat.S_ISCHR(full.stat().st_mode)
    assert sorted(names(tmp_path)) == ["full", "link", "null"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_what_is_written_has_the_mode_of_the_old_file(tmp_path, monkeypatch, mode):
    path = tmp_path / "scores.txt"
    path.write_text("old")
    path.chmod(mode)
    modes = []

    def record(descriptor):
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))

    monkeypatch.setattr("os.fsync", record)

    write_atomically(path, "new")

    # It never has another one, not even while it is written.
    assert modes == [mode]
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_text() == "new"


REMOTE = "/atomic/table.csv"


@pytest.fixture
def memory():
    """A remote file system with a written table."""
    filesystem = fsspec.filesystem("memory")
    filesystem.makedirs("/atomic", exist_ok=True)
    write_atomically(REMOTE, "a\r\n", filesystem=filesystem)
    yield filesystem
    filesystem.rm("/atomic", recursive=True)


def test_a_remote_file_is_written_as_it_is(memory):
    assert memory.cat(REMOTE) == b"a\r\n"


def test_two_trainings_may_write_a_remote_file_at_once(memory, monkeypatch):
    move = memory.mv
    sources = []

    def record(source, target):
        sources.append(source)
        move(source, target)

    monkeypatch.setattr(memory, "mv", record)

    write_atomically(REMOTE, "b", filesystem=memory)
    write_atomically(REMOTE, "b", filesystem=memory)

    assert len(set(sources)) == 2


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError("full"), r"^/atomic/table\.csv: full; the file keeps its old content$"),
        (KeyboardInterrupt(), None),
    ],
)
def test_an_error_keeps_the_old_content_of_a_remote_file(memory, monkeypatch, error, message):
    monkeypatch.setattr(memory, "mv", Mock(side_effect=error))

    with pytest.raises(type(error), match=message):
        write_atomically(REMOTE, "new", filesystem=memory)

    assert memory.cat(REMOTE) == b"a\r\n"
    (name,) = memory.ls("/atomic", detail=False)
    assert name.endswith("table.csv")
