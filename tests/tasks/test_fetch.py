"""Downloads from a local server that can do everything a bad day brings."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from longlens.tasks import DataError, files, load, prepare
from longlens.tasks.fetch import Remote, fetch
from longlens.tasks.registry import TASKS
from tests.tasks import layouts

DATA = bytes(np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8))


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves ``server.files``; cuts off after ``server.cut`` bytes; may not know ranges."""

    def do_GET(self):
        data = self.server.files.get(self.path.lstrip("/"))
        if data is None:
            self.send_error(404, "Not Found")
            return
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.ranges else 0
        if start >= len(data):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(data)}")
            self.end_headers()
            return
        body = data[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.server.cut is None else body[: self.server.cut])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.files, running.cut, running.ranges, running.asked = (
            {"big.bin": DATA},
            None,
            True,
            [],
        )
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        running.url = f"http://127.0.0.1:{running.server_port}"
        yield running
        running.shutdown()
        thread.join()


def remote(server, **changes):
    values = {"bytes": len(DATA), "sha256": hashlib.sha256(DATA).hexdigest()} | changes
    return Remote(f"{server.url}/big.bin", "big.bin", **values)


def names(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_two_processes_download_a_file_once(server, tmp_path):
    with ThreadPoolExecutor(2) as pool:  # they hold locks of their own, as processes do
        got = [pool.submit(fetch, remote(server), tmp_path, quiet=True) for _ in range(2)]
        assert {each.result(timeout=60) for each in got} == {tmp_path / "big.bin"}
    assert len(server.asked) == 1


def test_a_download_is_checked_and_kept(server, tmp_path):
    path = fetch(remote(server), tmp_path, quiet=True)
    assert path.read_bytes() == DATA and names(tmp_path) == ["big.bin"]
    fetch(remote(server), tmp_path, quiet=True)
    assert len(server.asked) == 1
    path.write_bytes(DATA[:-1] + b"?")
    with pytest.raises(DataError, match="sha256"):
        fetch(remote(server), tmp_path, quiet=True)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_that_breaks_off_goes_on(server, tmp_path, ranges):
    server.cut, server.ranges = 100_000, ranges
    with pytest.raises(DataError, match=r"broke off|could not be downloaded"):
        fetch(remote(server), tmp_path, quiet=True)
    assert names(tmp_path) == ["big.bin.part"]
    server.cut = None
    assert fetch(remote(server), tmp_path, quiet=True).read_bytes() == DATA
    assert names(tmp_path) == ["big.bin"]
    assert server.asked[1].startswith("bytes=") and server.asked[1] != "bytes=0-"


@pytest.mark.parametrize("have", [1, 65_536, 299_999, 300_000])
def test_any_part_that_a_kill_left_is_completed(server, tmp_path, have):
    (tmp_path / "big.bin.part").write_bytes(DATA[:have])
    assert fetch(remote(server), tmp_path, quiet=True).read_bytes() == DATA


@pytest.mark.parametrize("have", [b"wrong bytes", DATA + b"more"])
def test_a_wrong_checksum_deletes_the_download(server, tmp_path, have):
    (tmp_path / "big.bin.part").write_bytes(have)
    with pytest.raises(DataError, match=r"big.bin.*deleted"):
        fetch(remote(server), tmp_path, quiet=True)
    assert names(tmp_path) == []
    assert fetch(remote(server), tmp_path, quiet=True).read_bytes() == DATA


def test_a_complete_part_of_a_file_of_unknown_size(server, tmp_path):
    (tmp_path / "big.bin.part").write_bytes(DATA)
    unknown = remote(server, bytes=None, sha256=None)
    assert fetch(unknown, tmp_path, quiet=True).read_bytes() == DATA
    (tmp_path / "big.bin").rename(tmp_path / "big.bin.part")
    with (tmp_path / "big.bin.part").open("ab") as file:
        file.write(b"too long")
    with pytest.raises(DataError, match="416"):
        fetch(unknown, tmp_path, quiet=True)


def test_another_file_at_the_address(server, tmp_path):
    with pytest.raises(DataError, match="sha256"):
        fetch(remote(server, sha256="0" * 64), tmp_path, quiet=True)
    assert names(tmp_path) == []


def test_no_such_file_and_no_server(server, tmp_path):
    with pytest.raises(DataError, match=r"404.*--from"):
        fetch(Remote(f"{server.url}/none", "none", None, None), tmp_path, quiet=True)
    with pytest.raises(DataError, match=r"could not be downloaded.*again"):
        fetch(Remote("http://127.0.0.1:9/x", "x", None, None), tmp_path, quiet=True)


def test_space_is_checked_first(server, tmp_path, monkeypatch):
    usage = files.shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DataError, match="are free"):
        fetch(remote(server), tmp_path, quiet=True)
    assert server.asked == []


def test_a_task_through_a_mirror(server, tmp_path, monkeypatch):
    archive = layouts.write_zip(tmp_path / "enwik8.zip", {"enwik8": DATA}).read_bytes()
    server.files["enwik8.zip"] = archive
    entry = Remote(
        "http://example.invalid/x", "enwik8.zip", len(archive), hashlib.sha256(archive).hexdigest()
    )
    monkeypatch.setitem(TASKS, "enwik8", dataclasses.replace(TASKS["enwik8"], remotes=(entry,)))
    prepare("enwik8", tmp_path / "r", mirror=server.url, quiet=True, subset=True)
    task = load("enwik8", tmp_path / "r", subset=True)
    assert task["train"].stream.tobytes() == DATA[:270_000]


def test_every_published_file_has_an_address_and_a_checksum():
    for info in TASKS.values():
        for entry in info.remotes:
            assert entry.url.startswith("https://") and entry.filename
            known = entry.sha256 is not None and entry.bytes
            assert known or entry.filename == "lra_release.gz"  # nobody published one
