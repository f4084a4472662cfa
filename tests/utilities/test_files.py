"""Files are written completely or not at all."""

import os
import stat

import fsspec
import pytest

from bertscore_tm.utilities.files import is_special, write_atomically

needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="root makes devices")


def names(folder):
    return [path.name for path in folder.iterdir()]


@pytest.mark.parametrize(("content", "written"), [("first ü\r\n", "first ü\r\n".encode()), (b"\xff\n", b"\xff\n")])
def test_a_file_is_written_as_it_is(tmp_path, content, written):
    path = tmp_path / "scores.txt"
    write_atomically(str(path), content)
    assert path.read_bytes() == written
    assert names(tmp_path) == ["scores.txt"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~os.umask(os.umask(0o022))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OSError])
@pytest.mark.parametrize("old", ["old", None])
def test_an_error_keeps_the_old_content(tmp_path, monkeypatch, error, old):
    path = tmp_path / "scores.txt"
    if old is not None:
        path.write_text(old)
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(error))
    with pytest.raises(error):
        write_atomically(path, "new")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == ({"scores.txt": old} if old else {})


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
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.write_text("old")
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
    (tmp_path / "link").symlink_to(null)
    for path in (null, tmp_path / "link"):
        assert is_special(path)
        write_atomically(path, "new")
    with pytest.raises(OSError, match=r"full: No space left on device$"):
        write_atomically(full, "new")
    assert stat.S_ISCHR(null.stat().st_mode)
    assert stat.S_ISCHR(full.stat().st_mode)
    assert sorted(names(tmp_path)) == ["full", "link", "null"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_what_is_written_has_the_mode_of_the_old_file(tmp_path, monkeypatch, mode):
    path, modes = tmp_path / "scores.txt", []
    path.write_text("old")
    path.chmod(mode)
    monkeypatch.setattr("os.fsync", lambda descriptor: modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode)))
    write_atomically(path, "new")
    assert [*modes, stat.S_IMODE(path.stat().st_mode)] == [mode, mode]
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
def test_a_remote_file_system(monkeypatch, error):
    memory = fsspec.filesystem("memory")
    memory.makedirs("/atomic", exist_ok=True)
    path = "/atomic/table.csv"
    write_atomically(path, "a\r\n", filesystem=memory)
    assert memory.cat(path) == b"a\r\n"
    moved, move = [], memory.mv
    monkeypatch.setattr(memory, "mv", lambda source, target: (moved.append(source), move(source, target)))
    for _ in range(2):
        write_atomically(path, "a\r\n", filesystem=memory)
    assert len(set(moved)) == 2  # two trainings may write at once
    monkeypatch.setattr(memory, "mv", lambda *places: (_ for _ in ()).throw(error))
    message = None
    if isinstance(error, OSError):
        message = r"^/atomic/table\.csv: full; the file keeps its old content$"
    with pytest.raises(type(error), match=message):
        write_atomically(path, "new", filesystem=memory)
    assert memory.cat(path) == b"a\r\n"
    assert [entry.rpartition("/")[2] for entry in memory.ls("/atomic", detail=False)] == ["table.csv"]
    memory.rm("/atomic", recursive=True)
