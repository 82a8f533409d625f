"""Reading what the user has: a folder, a file, or an archive that is never unpacked to the disk.

Archives are read as streams. No member is ever written anywhere. An archive is refused as a whole
where it holds a path outside itself, a link or, twice, a file that is wanted, where it ends early
or goes on after its end, and where it expands to far more than official ones do.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from longlens.files import sha256_file, sha256_of
from longlens.tasks.errors import DataError
from longlens.tasks.fetch import Remote, check_file
from longlens.tasks.files import human_bytes

_OPENERS: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".xz": lzma.LZMAFile,
    ".bz2": bz2.BZ2File,
}
_DAMAGE = (
    EOFError,
    tarfile.TarError,
    zipfile.BadZipFile,
    lzma.LZMAError,
    zlib.error,
    gzip.BadGzipFile,
    # zipfile's, for damage that looks like an encrypted or an unknown kind of archive
    NotImplementedError,
    RuntimeError,
    struct.error,
    OverflowError,
    UnicodeDecodeError,
)
Wanted = Callable[[str], bool]
# How far files may expand: texts shrink to a fifth, pictures of a few lines to a thirtieth.
MOST_TIMES = 100
ALWAYS_ALLOWED = 1 << 28  # bytes


def plain_name(name: str) -> str:
    """Name without the suffix of a compression that is undone while reading.

    >>> plain_name("imdb/train.jsonl.xz")
    'imdb/train.jsonl'
    """
    return name[: -len(suffix)] if (suffix := PurePosixPath(name).suffix) in _OPENERS else name


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turn what the decompressors raise for damaged files into one error that names ``path``."""
    try:
        yield
    except _DAMAGE as error:
        words = str(error) or type(error).__name__
        raise DataError(f"{path} is truncated or damaged ({words})") from None
    except OSError as error:
        if error.errno in (None, errno.EINVAL):  # bz2's and a seek to where nothing can be
            raise DataError(f"{path} is truncated or damaged ({error})") from None
        raise


def _check_once(archive: Path, name: str, before: set[str]) -> None:
    """Refuse a member that has the name of one ``before`` it."""
    path = str(PurePosixPath(name))
    if path in before:
        raise DataError(f"{archive} is refused: it holds {name!r} twice")
    before.add(path)


def _check_member(archive: Path, name: str) -> None:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or (path.parts and ":" in path.parts[0]):
        raise DataError(f"{archive} is refused: its member {name!r} points outside the archive")


def _is_tar(path: Path) -> bool:
    try:
        return tarfile.is_tarfile(path)
    except Exception:  # a damaged archive may still begin like one; reading it says what is wrong
        return ".tar" in path.name or path.suffix == ".tgz"


class _Checked(io.RawIOBase):
    """A stream of decompressed bytes that names its file in every error and expands only so far.

    Attributes:
        count: bytes read so far.
        content_end: bytes up to the last one that is not zero.
    """

    def __init__(self, file: IO[bytes], path: Path, limit: int) -> None:
        self.file, self.path, self.limit = file, path, limit
        self.count = self.content_end = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with damage_named(self.path):
            data = self.file.read(len(buffer))
        if stripped := len(data.rstrip(b"\0")):
            self.content_end = self.count + stripped
        self.count += len(data)
        if self.count > self.limit:
            raise DataError(
                f"{self.path} is refused: it expands to more than {human_bytes(self.limit)}"
            )
        buffer[: len(data)] = data
        return len(data)


def _buffered(file: IO[bytes], path: Path) -> tuple[_Checked, io.BufferedReader]:
    """Check what is read from ``file``, which decompresses (a part of) ``path``."""
    limit = max(ALWAYS_ALLOWED, MOST_TIMES * path.stat().st_size)
    checked = _Checked(file, path, limit)
    return checked, io.BufferedReader(checked, 1 << 18)


def _read_to_end(file: IO[bytes]) -> None:
    """Read what nobody wanted, up to the end, where formats keep their checksums."""
    while file.read(1 << 20):
        pass


class Source:
    """Files by name, from a folder, one file, or an archive (tar, zip; gz, xz, bz2 inside).

    Args:
        path: what the user gave with ``--from``, or a downloaded file.
        official: the task's official archives. One found under its own name (as ``path`` or inside
            the folder ``path``) is checked against its published checksum before it is read.
        check: whether to check official checksums (off for deliberate subsets).
    """

    def __init__(self, path: Path, official: tuple[Remote, ...] = (), check: bool = True) -> None:
        if not path.exists():
            raise DataError(f"--from {path}: there is no such file or folder")
        self.roots = [path]
        if path.is_dir():
            archives = [path / remote.filename for remote in official]
            if archives and all(archive.is_file() for archive in archives):
                self.roots = archives
        self.path = path
        self._used: dict[Path, dict[str, Any]] = {}
        known = {remote.filename: remote for remote in official}
        for root in self.roots:
            if check and root.is_file() and root.name in known:
                check_file(root, known[root.name])

    def stream(self, wanted: Wanted) -> Iterator[tuple[str, IO[bytes]]]:
        """Yield (name, file) for every file whose plain name is wanted, decompressed.

        Names are relative, with ``/``, without a compression's suffix. A file is valid until the
        next one is asked for. The order is the archive's, or by name in a folder.
        """
        for root in self.roots:
            with damage_named(root):
                if root.is_dir():
                    yield from self._stream_folder(root, wanted)
                elif zipfile.is_zipfile(root):
                    yield from self._stream_zip(root, wanted)
                elif _is_tar(root):
                    yield from self._stream_tar(root, wanted)
                elif root.suffix == ".zip":
                    raise DataError(f"{root} is truncated or damaged (it is no whole zip file)")
                elif wanted(plain_name(root.name)):
                    self._note(root)
                    with _open_plain(root) as file:
                        yield plain_name(root.name), file
                        _read_to_end(file)

    def _note(self, path: Path) -> None:
        self._used.setdefault(path, {"name": path.name, "bytes": path.stat().st_size})

    def _stream_folder(self, folder: Path, wanted: Wanted) -> Iterator[tuple[str, IO[bytes]]]:
        for path in sorted(folder.rglob("*")):
            name = plain_name(path.relative_to(folder).as_posix())
            if path.is_file() and wanted(name):
                self._note(path)
                with damage_named(path), _open_plain(path) as file:
                    yield name, file
                    _read_to_end(file)

    def _stream_zip(self, path: Path, wanted: Wanted) -> Iterator[tuple[str, IO[bytes]]]:
        self._note(path)
        with zipfile.ZipFile(path) as archive:
            names: set[str] = set()
            for info in archive.infolist():
                _check_member(path, info.filename)
                if stat.S_ISLNK(info.external_attr >> 16):
                    raise DataError(f"{path} is refused: its member {info.filename!r} is a link")
            for info in archive.infolist():
                # Also those that nobody wants: opening compares the two places that hold the name,
                # and a file whose name is damaged in one of them would just be missed.
                with archive.open(info) as raw:
                    if not info.is_dir() and wanted(plain_name(info.filename)):
                        _check_once(path, info.filename, names)
                        _, file = _buffered(_decompressed(info.filename, raw), path)
                        yield plain_name(info.filename), file
                        _read_to_end(file)
                        _read_to_end(raw)

    def _stream_tar(self, path: Path, wanted: Wanted) -> Iterator[tuple[str, IO[bytes]]]:
        self._note(path)
        with _open_plain(path, by_content=True) as opened:
            checked, raw = _buffered(opened, path)
            names: set[str] = set()
            end = 0
            with tarfile.open(fileobj=raw, mode="r|") as archive:
                for member in archive:
                    _check_member(path, member.name)
                    end = member.offset_data + -(-member.size // 512) * 512
                    if member.isdir():
                        continue
                    if not member.isfile() or member.issparse():
                        raise DataError(
                            f"{path} is refused: its member {member.name!r} is a link or a device"
                        )
                    if wanted(plain_name(member.name)):
                        _check_once(path, member.name, names)
                        content = cast(IO[bytes], archive.extractfile(member))
                        _, file = _buffered(_decompressed(member.name, content), path)
                        yield plain_name(member.name), file
                        _read_to_end(file)
            _read_to_end(raw)
            # Python takes the end of a tar file, and any damaged header, for the end of the
            # archive. The real one is a block of zeros with nothing behind it.
            if checked.count < end + 512 or checked.content_end > end:
                raise DataError(f"{path} is truncated or damaged (after byte {end} of the archive)")

    def collect(self, *filenames: str) -> dict[str, bytes]:
        """Return the content of those of ``filenames`` that exist, in whatever folder."""
        contents: dict[str, bytes] = {}
        for path, file in self.stream(lambda name: PurePosixPath(name).name in filenames):
            name, content = PurePosixPath(path).name, file.read()
            if contents.setdefault(name, content) != content:
                raise DataError(f"{self.path} holds two different files {name}; give one of them")
        return contents

    def records(self) -> list[dict[str, Any]]:
        """Return what was read, for the manifest: name, size, sha256 (many files: together)."""
        files = [dict(record, sha256=sha256_file(path)) for path, record in self._used.items()]
        if len(files) <= 16:
            return files
        together = sha256_of(repr([(f["name"], f["sha256"]) for f in files]))
        return [{"files": len(files), "bytes": sum(f["bytes"] for f in files), "sha256": together}]


def _decompressed(name: str, file: IO[bytes]) -> IO[bytes]:
    opener = _OPENERS.get(PurePosixPath(name).suffix)
    return cast(IO[bytes], opener(file)) if opener else file


@contextmanager
def _open_plain(path: Path, by_content: bool = False) -> Iterator[IO[bytes]]:
    """Open a file, undoing its compression (known by suffix, or by its first bytes)."""
    with path.open("rb") as raw:
        name = path.name
        if by_content:
            magic = raw.read(6)
            raw.seek(0)
            kinds = ((b"\x1f\x8b", ".gz"), (b"\xfd7zXZ\x00", ".xz"), (b"BZh", ".bz2"))
            name = next((suffix for start, suffix in kinds if magic.startswith(start)), "")
            name = f"archive{name}"
        yield _buffered(_decompressed(name, raw), path)[1]
