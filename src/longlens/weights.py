"""Tensors at rest, in the safetensors format. Nothing is pickled.

Files are read by the ``safetensors`` package (part of ``longlens[lab]``), which checks that the
tensors cover the file without a gap or an overlap. They are written here, since a checkpoint goes
to the disk while it is hashed, without a second copy in memory, and since one tensor may be stored
under several names. What :func:`save_tensors` writes also carries a checksum of names, types,
shapes and values, which is compared when the file is read.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from longlens.files import replace_file
from longlens.untrusted import parse_json

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_LENGTH = struct.Struct("<Q")
CHECKSUM = "sha256"  # the key of the metadata


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
            raise ValueError(f"{name} has dtype {tensor.dtype}, which cannot be stored")
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
        file.write(_bytes(tensor))


def _bytes(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Sha256 over names, types, shapes and values, in the order of the names."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        found.update(_bytes(tensor))
    return found.hexdigest()


def read_tensors(file: BinaryIO) -> dict[str, Tensor]:
    """Read the named tensors of an open file; raise ValueError where it is damaged."""
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load
    except ModuleNotFoundError:
        message = "reading weights needs safetensors: pip install 'longlens[lab]'"
        raise ModuleNotFoundError(message, name="safetensors") from None
    content = file.read()
    try:
        tensors: dict[str, Tensor] = load(content)
        (length,) = _LENGTH.unpack_from(content)
        # The package takes the last of two tensors of one name; here they are refused.
        header: dict[str, Any] = parse_json(content[8 : 8 + length])
        checksum = header.get("__metadata__", {}).get(CHECKSUM)
        if checksum is not None and checksum != _digest(tensors):
            raise ValueError("its checksum does not match its content")
    except (SafetensorError, ValueError, KeyError) as error:  # KeyError: a type torch lacks
        name = getattr(file, "name", "the file")
        raise ValueError(f"{name} is not a whole safetensors file ({error})") from None
    return tensors


def load_tensors(path: Path | str) -> dict[str, Tensor]:
    """Read the named tensors of the file at ``path``."""
    with Path(path).open("rb") as file:
        return read_tensors(file)


def save_tensors(
    path: Path | str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named tensors and their checksum to ``path``: the whole file or none."""
    here = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
    full = {**(metadata or {}), CHECKSUM: _digest(here)}
    replace_file(Path(path), lambda file: write_tensors(file, here, full))
