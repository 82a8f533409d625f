"""The helpers that everything is written with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from longlens import files


def names(folder):
    return [path.name for path in folder.iterdir()]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a"
    files.replace_file(path, b"old")

    def breaks(file):
        file.write(b"ne")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.replace_file(path, breaks)
    assert path.read_bytes() == b"old" and names(tmp_path) == ["a"]
    assert files.replace_file(path, b"new") == (3, files.sha256_file(path))


def test_outputs_go_through_links_and_into_pipes(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "target").write_bytes(b"old")
    files.write_output(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_bytes() == b"new"
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=files.write_output, args=(tmp_path / "pipe", b"text"))
    writer.start()
    assert (tmp_path / "pipe").read_bytes() == b"text"
    writer.join()
    files.write_output(tmp_path / "new" / "folder" / "a", b"text")


def test_a_folder_is_in_place_or_not_there(tmp_path):
    with pytest.raises(ZeroDivisionError), files.folder_in_place(tmp_path / "a"):
        1 / 0  # noqa: B018
    assert names(tmp_path) == []
    with files.folder_in_place(tmp_path / "a") as folder:
        files.write_file(folder / "b", b"")
        assert not (tmp_path / "a").exists()
    assert names(tmp_path / "a") == ["b"]
    for _ in range(2):
        files.remove_folder(tmp_path / "a")
    assert names(tmp_path) == []


def test_a_lock_that_is_held_is_waited_for_or_refused(tmp_path, capsys):
    with files.locked(tmp_path / "new" / ".lock", "this"):
        with pytest.raises(files.BusyError, match="another process is working on this"):
            files.locked(tmp_path / "new" / ".lock", "this").__enter__()
        got = []

        def wait():
            with files.locked(tmp_path / "new" / ".lock", "this", wait=True):
                got.append(1)

        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.2)
        assert not got
    waiting.join()
    assert got and "this: another process is working on it, waiting" in capsys.readouterr().err


def test_a_lock_goes_with_a_process_that_is_killed(tmp_path):
    code = f"""if True:
        import time
        from pathlib import Path
        from longlens.files import locked
        with locked(Path({str(tmp_path / ".lock")!r}), "this"):
            print("mine", flush=True)
            time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"mine\n"
        with pytest.raises(files.BusyError), files.locked(tmp_path / ".lock", "this"):
            pass
        process.send_signal(signal.SIGKILL)
    with files.locked(tmp_path / ".lock", "this"):
        pass


@pytest.mark.parametrize("text", ["[]", "null", "{}", '{"checksum": 1}', "{", '{"a": NaN}'])
def test_what_was_not_sealed_is_refused(text):
    with pytest.raises(ValueError):
        files.unseal(text.encode())
