"""Gray PNG pictures, read and written by Pillow, which is imported when the first one is."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from longlens.files import replace_file
from longlens.tasks.arrays import Bytes
from longlens.tasks.errors import DataError

_LARGEST = 1 << 26  # pixels: 8,192 by 8,192
_END = b"\0\0\0\0IEND\xaeB`\x82"  # the last chunk, and nothing after it


def encode_png(picture: Bytes) -> bytes:
    """Encode gray values (rows, columns) as a PNG.

    >>> decode_png(encode_png(np.array([[0, 128, 255]], np.uint8))).tolist()
    [[0, 128, 255]]
    """
    from PIL import Image

    if picture.ndim != 2 or picture.dtype != np.uint8 or not picture.size:
        raise DataError(
            f"picture must be (rows, columns) uint8, got {picture.dtype} {picture.shape}"
        )
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG", optimize=True)
    return file.getvalue()


def write_png(path: Path, picture: Bytes) -> None:
    """Write gray values (rows, columns) to ``path``."""
    replace_file(path, encode_png(picture))


def decode_png(data: bytes) -> Bytes:
    """Decode a PNG of 8 bits or less a channel to gray values (rows, columns); colour becomes luma.

    Raises:
        DataError: not such a PNG, or a damaged one (every chunk's checksum is checked).
    """
    from PIL import Image

    try:
        if not data.endswith(_END):
            raise ValueError("it is truncated, or something follows it")
        with Image.open(io.BytesIO(data), formats=["PNG"]) as picture:
            if picture.width * picture.height > _LARGEST:
                raise ValueError(f"{picture.height} rows by {picture.width} columns")
            if picture.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
                raise ValueError(f"pixels of mode {picture.mode}")
            picture.verify()  # the checksums; it must be opened anew after that
        with Image.open(io.BytesIO(data), formats=["PNG"]) as picture:
            if picture.mode in ("1", "L", "LA"):
                return np.asarray(picture.convert("LA"))[..., 0].copy()
            return luma(np.asarray(picture.convert("RGB")))
    except Exception as error:  # Pillow's parser raises whatever its parts do
        raise DataError(f"not a readable PNG: {error}") from None


def luma(colour: Bytes) -> Bytes:
    """Gray values of colours (…, 3): ITU-R 601 luma in integers, rounded to the nearest."""
    weights = np.array([19595, 38470, 7471], np.uint32)  # 0.299, 0.587, 0.114 in 1/65536
    return ((colour.astype(np.uint32) @ weights + 32768) >> 16).astype(np.uint8)
