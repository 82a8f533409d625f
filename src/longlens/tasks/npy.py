"""Reading ``.npy`` files that anybody may have written: one array, as long as its header says."""

from __future__ import annotations

import io
import math
import warnings
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from longlens.tasks.arrays import Array
from longlens.tasks.errors import DataError

_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def open_npy(path: str | Path, what: str, mode: Literal["r", "c"] = "r") -> Array:
    """Map the array of the file ``path`` into memory; ``what`` is its name in messages."""
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, io.SEEK_END)
            dtype, shape, order, offset = _header(file, size, what)
    except OSError as error:
        raise DataError(f"{what} cannot be read ({error.strerror})") from None
    if math.prod(shape) == 0:  # which cannot be mapped
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, mode, offset, shape, order)


def read_npy(content: bytes, what: str) -> Array:
    """Return the array of an ``.npy`` file's content; ``what`` is its name in messages."""
    dtype, shape, order, offset = _header(io.BytesIO(content), len(content), what)
    flat = np.frombuffer(content, dtype, math.prod(shape), offset)
    return flat.reshape(shape, order=order)


def _header(
    file: BinaryIO, size: int, what: str
) -> tuple[np.dtype[Any], tuple[int, ...], Literal["C", "F"], int]:
    """Type, shape, order and place of the array in a file of ``size`` bytes."""
    file.seek(0)
    if file.read(2) == b"PK":
        raise DataError(f"{what} is an .npz archive; give one .npy file for each array")
    file.seek(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            version = np.lib.format.read_magic(file)
            if version not in _READERS:
                raise ValueError(f"format {version}")
            shape, fortran, dtype = _READERS[version](file)
        if dtype.hasobject:
            raise ValueError("it holds Python objects")
        if any(length < 0 for length in shape):
            raise ValueError(f"its shape is {shape}")
        expected = file.tell() + dtype.itemsize * math.prod(shape)
        if size != expected:
            raise ValueError(f"{size} bytes where its header says {expected}")
    except Exception as error:  # numpy's parser raises whatever Python's own parsers do
        raise DataError(f"{what} is not a readable .npy file ({error})") from None
    return dtype, tuple(map(int, shape)), "F" if fortran else "C", file.tell()
