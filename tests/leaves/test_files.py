import os
import stat
import threading

import fsspec
import pytest

from bertscore_tm.utilities.files import is_special, write_atomically

needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="root makes devices")


def write(path, content="new", **options):
    with write_atomically(path, **options) as file:
        file.write(content)


def write_partly(path, error, content="new", **options):
    with write_atomically(path, **options) as file:
        file.write(content)
        file.flush()
        raise error


def names(folder):
    return [path.name for path in folder.iterdir()]


def test_the_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "scores.txt"
    for content in ("first ü\n", "second"):
        with write_atomically(path) as file:
            file.write(content)
            file.flush()
            assert path.exists() == (content == "second")
            assert not path.exists() or path.read_text("utf-8") == "first ü\n"
        assert path.read_text("utf-8") == content
    assert names(tmp_path) == ["scores.txt"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~os.umask(os.umask(0o022))


def test_options_of_open(tmp_path):
    write(tmp_path / "bytes", b"\xff\n", mode="wb")
    write(str(tmp_path / "text"), "ü\n", encoding="latin-1", newline="\r\n")
    assert (tmp_path / "bytes").read_bytes() == b"\xff\n"
    assert (tmp_path / "text").read_bytes() == b"\xfc\r\n"
    with pytest.raises(ValueError, match="mode must be 'w' or 'wb', got 'a'"):
        write(tmp_path / "text", mode="a")


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OSError])
@pytest.mark.parametrize("old", ["old", None])
def test_an_error_keeps_the_old_content(tmp_path, error, old):
    path = tmp_path / "scores.txt"
    if old is not None:
        path.write_text(old)
    with pytest.raises(error):
        write_partly(path, error)
    assert {found.name: found.read_text() for found in tmp_path.iterdir()} == ({"scores.txt": old} if old else {})


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(OSError, match=r"nowhere/a\.txt: No such file or directory; no file was written"):
        write(tmp_path / "nowhere" / "a.txt")


def test_a_symbolic_link_stays(tmp_path):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write(link)
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert names(tmp_path / "folder") == ["target"]


def make_device(path, minor):
    """Make a node of the machine's null (3) or full (7) device, which tests may lose."""
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
    return path


@needs_root
@pytest.mark.parametrize("mode", ["w", "wb"])
def test_a_device_is_written_in_place(tmp_path, mode):
    null, full = make_device(tmp_path / "null", 3), make_device(tmp_path / "full", 7)
    (tmp_path / "link").symlink_to(null)
    for path in (null, tmp_path / "link"):
        assert is_special(path)
        write(path, "new" if mode == "w" else b"new", mode=mode)
    assert stat.S_ISCHR(null.stat().st_mode)
    with pytest.raises(OSError, match=r"full: No space left on device$"):
        write(full)
    assert stat.S_ISCHR(full.stat().st_mode)
    assert sorted(names(tmp_path)) == ["full", "link", "null"]


def test_a_named_pipe_is_written_in_place(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text(encoding="utf-8")), daemon=True)
    reader.start()
    write(pipe, "zwölf")
    reader.join(30)
    assert read == ["zwölf"]
    assert pipe.is_fifo()
    assert names(tmp_path) == ["pipe"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_what_is_written_has_the_mode_of_the_old_file(tmp_path, mode):
    path = tmp_path / "scores.txt"
    path.write_text("old")
    path.chmod(mode)
    with write_atomically(path) as file:
        file.write("new")
        (partial,) = set(tmp_path.iterdir()) - {path}
        assert stat.S_IMODE(partial.stat().st_mode) == mode
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_text() == "new"


def test_a_folder_is_not_replaced(tmp_path):
    with pytest.raises(OSError, match="Is a directory; the file keeps its old content"):
        write(tmp_path)
    assert names(tmp_path) == []


def test_a_remote_file_system():
    memory = fsspec.filesystem("memory")
    memory.makedirs("/atomic", exist_ok=True)
    path = "/atomic/table.csv"
    write(path, "a\r\n", filesystem=memory, newline="")
    assert memory.cat(path) == b"a\r\n"
    with pytest.raises(OSError, match=r"^/atomic/table\.csv: full; the file keeps its old content$"):
        write_partly(path, OSError("full"), filesystem=memory)
    with pytest.raises(KeyboardInterrupt):
        write_partly(path, KeyboardInterrupt, b"new", mode="wb", filesystem=memory)
    assert memory.cat(path) == b"a\r\n"
    assert [entry.rpartition("/")[2] for entry in memory.ls("/atomic", detail=False)] == ["table.csv"]
    memory.rm("/atomic", recursive=True)
