import os
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

from bertscore_tm.utilities.files import append_lines, resume_lines, write_atomically


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


def test_a_full_disk(tmp_path):
    path = tmp_path / "scores.txt"
    with pytest.raises(OSError, match=r"^/.*/scores\.txt: No space left on device; no file was written$"):
        write_partly(path, OSError(28, "No space left on device"))
    path.write_text("old")
    with pytest.raises(OSError, match=r"^/.*/scores\.txt: No space left on device; the file keeps its old content$"):
        write_partly(path, OSError(28, "No space left on device"))
    assert path.read_text() == "old"


def test_a_rename_that_fails(tmp_path, monkeypatch):
    path = tmp_path / "scores.txt"
    path.write_text("old")

    def fail(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match=r"scores\.txt: Permission denied; the file keeps its old content"):
        write(path)
    assert names(tmp_path) == ["scores.txt"]


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


def test_lines_of_an_interrupted_run_are_kept_without_the_unfinished_one(tmp_path):
    path = tmp_path / "unfinished"
    with resume_lines(path, "settings") as done:
        assert done == 0
        append_lines(path, ["one", "zwölf"])
    with path.open("ab") as file:
        file.write(b"cut o")
    with resume_lines(path, "settings") as done:
        assert done == 2
        append_lines(path, ["three"])
    assert path.read_text(encoding="utf-8") == "settings\none\nzwölf\nthree\n"
    with resume_lines(path, "settings") as done:
        assert done == 3


def test_a_first_line_that_was_cut_off_is_written_again(tmp_path):
    path = tmp_path / "unfinished"
    path.write_text("sett")
    with resume_lines(path, "settings") as done:
        assert done == 0
        append_lines(path, ["one"])
    assert path.read_text() == "settings\none\n"


def test_a_file_that_another_process_writes_is_refused_until_the_process_ends(tmp_path):
    path = tmp_path / "unfinished"
    program = """
import sys, time
from pathlib import Path
from bertscore_tm.utilities.files import append_lines, resume_lines

with resume_lines(Path(sys.argv[1]), "settings"):
    append_lines(Path(sys.argv[1]), ["one"])
    print("started", flush=True)
    time.sleep(600)
"""
    other = subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "started\n"
    with pytest.raises(OSError, match=r"another run is writing .*unfinished: wait until it ends, or stop it"):
        resume_lines(path, "settings").__enter__()
    other.kill()
    other.communicate()
    with resume_lines(path, "settings") as done:
        assert done == 1


@pytest.mark.parametrize("other", ["settings ", "setting", ""])
def test_lines_of_another_header_are_left_alone(tmp_path, other):
    path = tmp_path / "unfinished"
    with resume_lines(path, "settings"):
        append_lines(path, ["one"])
    before = path.read_bytes()
    with resume_lines(path, other) as done:
        assert done is None
    assert path.read_bytes() == before
