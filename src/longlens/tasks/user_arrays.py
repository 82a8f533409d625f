"""Checks of the arrays that a user imports: what would be changed on the way in is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from longlens.tasks.arrays import Array, Ints
from longlens.tasks.errors import DataError
from longlens.tasks.npy import open_npy
from longlens.tasks.spec import Kind

ArrayOrPath = str | Path | Array
MOST = 2**31 - 1  # tokens, classes and lengths beyond it fit no model
BLOCK = 1_000_000  # numbers that are checked at once


def open_array(value: ArrayOrPath, argument: str) -> Array:
    """Return an array as it is, or map the ``.npy`` file that a path names."""
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, str | Path):
        raise DataError(f"{argument} must be an array or a path, got {type(value).__name__}")
    return open_npy(value, f"{argument}: {value}")


def check_floats(values: Array, argument: str) -> None:
    """Refuse NaN, infinities, and what would become one in float32, in which floats are stored."""
    rows = max(1, BLOCK * len(values) // max(1, values.size))
    for start in range(0, len(values), rows):
        part = np.asarray(values[start : start + rows])
        if not np.isfinite(part).all():
            raise DataError(f"{argument} hold NaN or infinite values")
        largest = np.abs(part.astype(np.longdouble)).max(initial=0)
        if largest > np.finfo(np.float32).max:
            raise DataError(
                f"{argument} hold {largest:.3g}, but are stored as float32, which ends at 3.4e38; "
                "scale it first"
            )


@dataclass
class Inputs:
    """Inputs of N examples: (N, L[, C]) or flat (total[, C]), with lengths if they vary."""

    values: Array
    lengths: Ints | None
    flat: bool
    count: int

    def block(self, index: Ints, starts: Array) -> dict[str, Array]:
        """Return the arrays of the examples ``index``."""
        if self.lengths is None:
            return {"inputs": self.values[index]}
        sequences = [
            self.values[starts[i] : starts[i + 1]]
            if self.flat
            else self.values[i, : self.lengths[i]]
            for i in index
        ]
        return {"flat": np.concatenate(sequences), "lengths": self.lengths[index].astype(np.int32)}


def check_inputs(values: Array, lengths: Array | None, argument: str) -> Inputs:
    """Check the inputs of examples and how long each is."""
    floating = values.dtype.kind == "f"
    if values.dtype.kind not in "uif":
        raise DataError(f"{argument} must be integers or floats, got {values.dtype}")
    if not values.size:
        raise DataError(f"{argument} is empty")
    allowed = (2, 3)[: 1 + floating] if lengths is None else (1, 2, 3)[: 2 + floating]
    if values.ndim not in allowed:
        raise DataError(
            f"{argument} must be (N, L) tokens or floats, or (N, L, C) floats, got {values.dtype} "
            f"of shape {values.shape}; for varying lengths give lengths as well (then also "
            "(total,) tokens or (total, C) floats)"
        )
    if floating:
        check_floats(values, argument)
    elif int(values.min()) < 0:
        raise DataError(f"{argument} must be 0 or more, got {int(values.min())}")
    if lengths is None:
        return Inputs(values, None, False, len(values))
    whole = _check_lengths(lengths)
    flat = values.ndim == 1 or (floating and values.ndim == 2 and len(values) == whole.sum())
    if flat and len(values) != whole.sum():
        raise DataError(f"lengths add up to {whole.sum()}, {argument} has {len(values)} positions")
    if not flat and (len(values) != len(whole) or whole.max() > values.shape[1]):
        raise DataError(f"lengths {lengths.shape} do not fit {argument} {values.shape}")
    return Inputs(values, whole, flat, len(whole))


def _check_lengths(lengths: Array) -> Ints:
    if lengths.ndim != 1 or lengths.dtype.kind not in "ui" or not lengths.size:
        raise DataError(f"lengths must be (N,) integers, got {lengths.dtype} {lengths.shape}")
    if lengths.min() < 1 or lengths.max() > MOST:
        raise DataError(
            f"lengths must be 1 or more, to {MOST}, got {lengths.min()} … {lengths.max()}"
        )
    return lengths.astype(np.int64)


def check_targets(targets: Array, count: int, kind: Kind | None) -> tuple[Kind, Array]:
    """Check the targets of examples; return what they are, and them as they are stored."""
    if targets.dtype.kind not in "uif":
        hint = "; write false and true as the classes 0 and 1" if targets.dtype == bool else ""
        raise DataError(f"targets must be integers or floats, got {targets.dtype}{hint}")
    rows = len(targets) if targets.ndim else "no"
    if rows != count:
        raise DataError(f"targets has {rows} rows for {count} examples")
    if not targets.size:
        raise DataError(f"targets is empty: {targets.shape}")
    guessed: Kind = "classification" if targets.dtype.kind in "ui" else "regression"
    chosen: Kind = kind or guessed
    if chosen == "classification":
        if targets.dtype.kind not in "ui" or targets.ndim != 1:
            hint = "; floats are --kind regression" if targets.dtype.kind == "f" else ""
            shape = f"{targets.dtype} {targets.shape}"
            raise DataError(f"classes must be (N,) integers, got {shape}{hint}")
        if targets.min() < 0 or targets.max() > MOST:
            raise DataError(
                f"classes must be from 0 to {MOST}, got {targets.min()} … {targets.max()}"
            )
        return chosen, np.asarray(targets).astype(np.int64)
    if chosen != "regression":
        raise DataError(f"kind must be classification or regression with targets, got {kind!r}")
    check_floats(targets, "targets")
    values = np.asarray(targets, np.float32)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim == 2:
        values = values[:, :, None]  # (N, T): one value at each of the last T positions
    if values.ndim != 3:
        raise DataError(
            f"regression targets must be (N,), (N, T) or (N, T, D), got {targets.shape}"
        )
    return chosen, values


def vocabulary(values: Array, vocab_size: int | None) -> int:
    """The number of tokens: the one given, or the largest token + 1."""
    low, high = int(values.min()), int(values.max())
    most = MOST if vocab_size is None else vocab_size - 1
    if low < 0 or high > most:
        raise DataError(f"tokens must be in 0 … {most}, got {low} … {high}")
    return high + 1 if vocab_size is None else vocab_size
