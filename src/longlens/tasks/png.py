"""Gray PNG pictures, written and read with the standard library alone."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from longlens.files import replace_file
from longlens.tasks.errors import DataError

Picture = npt.NDArray[np.uint8]
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
_LARGEST = 1 << 26  # bytes of a decoded picture: 8,192 by 8,192 in gray


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def encode_png(picture: Picture) -> bytes:
    """Encode gray values (rows, columns) as a PNG.

    >>> decode_png(encode_png(np.array([[0, 128, 255]], np.uint8))).tolist()
    [[0, 128, 255]]
    """
    if picture.ndim != 2 or picture.dtype != np.uint8 or not picture.size:
        raise DataError(
            f"picture must be (rows, columns) uint8, got {picture.dtype} {picture.shape}"
        )
    rows, columns = picture.shape
    header = struct.pack(">IIBBBBB", columns, rows, 8, 0, 0, 0, 0)
    filtered = np.zeros((rows, columns + 1), np.uint8)  # filter 0 before each row
    filtered[:, 1:] = picture
    data = zlib.compress(filtered.tobytes(), 9)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def write_png(path: Path, picture: Picture) -> None:
    """Write gray values (rows, columns) to ``path``."""
    replace_file(path, encode_png(picture))


def decode_png(data: bytes) -> Picture:
    """Decode an 8-bit, non-interlaced PNG to gray values (rows, columns); colour becomes luma.

    Raises:
        DataError: not such a PNG, or a damaged one (every chunk's checksum is checked).

    """
    try:
        return _decode(data)
    except (struct.error, zlib.error, ValueError, IndexError) as error:
        raise DataError(f"not a readable PNG: {error}") from None


def _decode(data: bytes) -> Picture:
    if data[:8] != _SIGNATURE:
        raise ValueError("wrong signature")
    position, compressed, header, ended = 8, b"", None, False
    while position < len(data) and not ended:
        (length,) = struct.unpack(">I", data[position : position + 4])
        kind, body = data[position + 4 : position + 8], data[position + 8 : position + 8 + length]
        (checksum,) = struct.unpack(">I", data[position + 8 + length : position + 12 + length])
        if zlib.crc32(kind + body) != checksum:
            raise ValueError("wrong checksum")
        if kind == b"IHDR":
            header = struct.unpack(">IIBBBBB", body)
        elif kind == b"IDAT":
            compressed += body
        ended = kind == b"IEND"
        position += 12 + length
    if header is None or not ended or position != len(data):
        raise ValueError("it is truncated")
    columns, rows, depth, colour, _, _, interlaced = header
    if depth != 8 or colour not in _CHANNELS or interlaced:
        raise ValueError("only 8-bit gray or colour without interlacing is read")
    channels = _CHANNELS[colour]
    size = rows * (columns * channels + 1)
    if not 0 < size <= _LARGEST:
        raise ValueError(f"{rows} rows by {columns} columns")
    unpacking = zlib.decompressobj()
    unpacked = unpacking.decompress(compressed, size + 1)
    if len(unpacked) != size or not unpacking.eof or unpacking.unused_data:
        raise ValueError("its data are not as long as its header says")
    raw = np.frombuffer(unpacked, np.uint8).reshape(rows, columns * channels + 1)
    pixels = _unfilter(raw, channels).reshape(rows, columns, channels)
    if channels <= 2:
        return pixels[..., 0]
    return luma(pixels[..., :3])


def luma(colour: npt.NDArray[np.uint8]) -> Picture:
    """Gray values of colours (…, 3): ITU-R 601 luma in integers, rounded to the nearest."""
    weights = np.array([19595, 38470, 7471], np.uint32)  # 0.299, 0.587, 0.114 in 1/65536
    return ((colour.astype(np.uint32) @ weights + 32768) >> 16).astype(np.uint8)


def _unfilter(raw: Picture, channels: int) -> Picture:
    """Undo the five row filters of PNG; ``raw`` has the filter's number before each row."""
    out = np.zeros((raw.shape[0], raw.shape[1] - 1), np.uint8)
    above = np.zeros(out.shape[1], np.uint8)
    for number, row in enumerate(raw):
        kind, line = int(row[0]), row[1:]
        if kind == 0:
            done = line
        elif kind == 1:
            done = np.add.accumulate(line.reshape(-1, channels), axis=0, dtype=np.uint8).reshape(-1)
        elif kind == 2:
            done = line + above
        elif kind in (3, 4):
            done = _unfilter_mixed(kind, line.tolist(), above.tolist(), channels)
        else:
            raise ValueError(f"unknown row filter {kind}")
        out[number] = above = done
    return out


def _unfilter_mixed(kind: int, line: list[int], above: list[int], channels: int) -> Picture:
    done: list[int] = []
    for i, value in enumerate(line):
        left = done[i - channels] if i >= channels else 0
        up = above[i]
        if kind == 3:
            guess = (left + up) // 2
        else:  # the neighbour nearest to left + up - corner
            corner = above[i - channels] if i >= channels else 0
            base = left + up - corner
            guess = min((left, up, corner), key=lambda near: abs(base - near))
        done.append((value + guess) & 255)
    return np.array(done, np.uint8)
