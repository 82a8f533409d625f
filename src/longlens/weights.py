"""Tensors at rest: the safetensors format, written and read with torch alone. Nothing is pickled.

A file is an 8-byte little-endian length, a JSON header of that length that gives each tensor's
type, shape and place, and the tensors' bytes. Files are interchangeable with the ``safetensors``
package's.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_LENGTH = struct.Struct("<Q")
_LONGEST_HEADER = 100_000_000  # the limit of the format


def write_tensors(
    file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named tensors to an open file.

    >>> import io
    >>> file = io.BytesIO()
    >>> write_tensors(file, {"a": torch.arange(3)})
    >>> _ = file.seek(0)
    >>> read_tensors(file)
    {'a': tensor([0, 1, 2])}
    """
    header: dict[str, Any] = {}
    if metadata:
        header["__metadata__"] = dict(metadata)
    place = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise ValueError(f"{name} has dtype {tensor.dtype}, which safetensors cannot store")
        end = place + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, end],
        }
        place = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors start at a multiple of 8
    file.write(_LENGTH.pack(len(text)))
    file.write(text)
    for tensor in tensors.values():
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        file.write(flat.view(torch.uint8).numpy().data)


def read_tensors(file: BinaryIO) -> dict[str, Tensor]:
    """Read the named tensors of an open file; raise ValueError where it is damaged."""
    try:
        (length,) = _LENGTH.unpack(file.read(8))
        if length > _LONGEST_HEADER:
            raise ValueError(f"its header would have {length} bytes")
        header: dict[str, Any] = json.loads(file.read(length))
        header.pop("__metadata__", None)
        data = bytearray(file.read())
        if len(data) != max((entry["data_offsets"][1] for entry in header.values()), default=0):
            raise ValueError("its length is not the one that its header states")
        found = {}
        for name, entry in header.items():
            start, end = entry["data_offsets"]
            dtype = _TYPES[entry["dtype"]]
            if start == end:
                found[name] = torch.empty(entry["shape"], dtype=dtype)
            else:
                piece = data[start:end]  # a copy: aligned, and freed with its tensor
                found[name] = torch.frombuffer(piece, dtype=dtype).view(entry["shape"])
    except (struct.error, ValueError, KeyError, TypeError, RuntimeError) as error:
        name = getattr(file, "name", "the file")
        raise ValueError(f"{name} is not a whole safetensors file ({error})") from None
    return found


def load_tensors(path: Path | str) -> dict[str, Tensor]:
    """Read the named tensors of the file at ``path``."""
    with Path(path).open("rb") as file:
        return read_tensors(file)


def save_tensors(
    path: Path | str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named tensors to a new file at ``path``."""
    with Path(path).open("wb") as file:
        write_tensors(file, tensors, metadata)
