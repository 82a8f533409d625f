"""Downloads: official addresses, checked sizes and sha256, resumed where they stopped."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from longlens._version import __version__
from longlens.files import make_folder, rename_file, sha256_file
from longlens.tasks.errors import DataError
from longlens.tasks.files import check_space, human_bytes, locked
from longlens.tasks.progress import Progress

_CHUNK = 1 << 18
TIMEOUT = 60.0


@dataclass(frozen=True)
class Remote:
    """One official file: its address, name, size and sha256 (None where nobody published one)."""

    url: str
    filename: str
    bytes: int | None
    sha256: str | None


def check_file(path: Path, remote: Remote) -> None:
    """Raise unless ``path`` has the size and sha256 of the official file."""
    size = path.stat().st_size
    if remote.bytes is not None and size != remote.bytes:
        raise DataError(
            f"{path} has {size} bytes, the official {remote.filename} has {remote.bytes}: "
            "it is truncated or another file"
        )
    if remote.sha256 is not None and (actual := sha256_file(path)) != remote.sha256:
        raise DataError(
            f"{path} has sha256 {actual}, the official {remote.filename} has {remote.sha256}: "
            "it is damaged or another file"
        )


def fetch(remote: Remote, folder: Path, *, mirror: str | None = None, quiet: bool = False) -> Path:
    """Download ``remote`` into ``folder`` unless it is there already; return its path.

    The bytes go to ``FILENAME.part``. A download that was cut off, even by a kill, goes on from
    there (HTTP Range). The file gets its name only when its size and sha256 are right; a complete
    download with a wrong checksum is deleted and reported.

    Args:
        remote: what to get.
        folder: where to keep it.
        mirror: an address to take ``FILENAME`` from instead of the official one.
        quiet: no progress on standard error.
    """
    path = folder / remote.filename
    make_folder(folder)
    part = path.with_name(path.name + ".part")
    with locked(folder / f".{remote.filename}.lock", remote.filename):
        if path.exists():
            check_file(path, remote)
            return path
        have = part.stat().st_size if part.exists() else 0
        if remote.bytes is not None:
            check_space(folder, remote.bytes - have, f"downloading {remote.filename}")
        url = f"{mirror.rstrip('/')}/{remote.filename}" if mirror else remote.url
        _download(url, part, remote, quiet)
        try:
            check_file(part, remote)
        except DataError as error:
            part.unlink()
            raise DataError(f"{url}: {error}; the download was deleted") from None
        rename_file(part, path)
    return path


def _download(url: str, part: Path, remote: Remote, quiet: bool) -> None:
    """Append to ``part`` what it still lacks of ``url``."""
    have = part.stat().st_size if part.exists() else 0
    if remote.bytes is not None and have >= remote.bytes:
        return  # complete or too long: the checksum decides
    request = urllib.request.Request(url, headers={"User-Agent": f"longlens/{__version__}"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            if have and response.status != 206:  # a server without ranges starts over
                have = 0
            length = response.headers.get("Content-Length")
            total = remote.bytes or (have + int(length) if length else None)
            label = f"downloading {remote.filename}"
            with (
                part.open("ab" if have else "wb") as file,
                Progress(label, total, "bytes", quiet) as progress,
            ):
                progress.advance(have)
                while chunk := response.read(_CHUNK):
                    file.write(chunk)
                    progress.advance(len(chunk))
    except urllib.error.HTTPError as error:
        if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{have}":
            return  # nothing is missing; a file of unknown size that was complete already
        raise DataError(
            f"{url} answered {error.code} {error.reason}; if you have {remote.filename} from "
            "elsewhere, give it with --from, or an address that has it with --mirror"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise DataError(
            f"{url} could not be downloaded ({error}); run the command again to go on, or give "
            f"{remote.filename} with --from"
        ) from None
    size = part.stat().st_size
    if total is not None and size < total:
        raise DataError(
            f"{url} broke off after {human_bytes(size)} of {human_bytes(total)}; run the command "
            "again to go on from there"
        )
