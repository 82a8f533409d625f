"""Your own arrays as a task: integer tokens or float channels, with targets or next-token."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from longlens.tasks.cache import cache_root, check_name
from longlens.tasks.errors import DataError
from longlens.tasks.files import check_space, locked
from longlens.tasks.manifest import Manifest
from longlens.tasks.order import permutation
from longlens.tasks.registry import TASKS
from longlens.tasks.spec import SPLITS, Kind, Spec
from longlens.tasks.writer import Writer

Array = npt.NDArray[Any]
ArrayOrPath = str | Path | Array
BLOCK = 10_000
STREAM_BLOCK = 5_000_000


def imported_folder(root: str | Path | None, name: str) -> Path | None:
    """Folder of the imported task ``name``; None where the name belongs to longlens."""
    if name in TASKS or name.startswith("retrieval-"):
        return None
    return cache_root(root) / "imported" / check_name(name)


def _open(value: ArrayOrPath, argument: str) -> Array:
    if isinstance(value, np.ndarray):
        return value
    try:
        return np.load(value, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{argument}: {value} is not a readable .npy file ({error})") from None


@dataclass
class _Inputs:
    """Inputs of N examples: (N, L[, C]) or flat (total[, C]), with lengths if they vary."""

    values: Array
    lengths: npt.NDArray[np.int64] | None
    flat: bool
    count: int

    def block(self, index: npt.NDArray[np.int64], starts: Array) -> dict[str, Array]:
        """Return the arrays of the examples ``index``."""
        if self.lengths is None:
            return {"inputs": self.values[index]}
        pieces = [
            self.values[starts[i] : starts[i + 1]]
            if self.flat
            else self.values[i, : self.lengths[i]]
            for i in index
        ]
        return {"flat": np.concatenate(pieces), "lengths": self.lengths[index].astype(np.int32)}


def _check_inputs(values: Array, lengths: Array | None, argument: str) -> _Inputs:
    floating = values.dtype.kind == "f"
    if values.dtype.kind not in "uif":
        raise DataError(f"{argument} must be integers or floats, got {values.dtype}")
    if not values.size:
        raise DataError(f"{argument} is empty")
    if floating and not np.isfinite(values).all():
        raise DataError(f"{argument} holds NaN or infinite values")
    if not floating and int(values.min()) < 0:
        raise DataError(f"{argument} must be 0 or more, got {int(values.min())}")
    if lengths is None:
        if values.ndim not in (2, 3) or (values.ndim == 3 and not floating):
            raise DataError(
                f"{argument} must be (N, L) tokens or floats, or (N, L, C) floats, got shape "
                f"{values.shape}; for varying lengths give lengths as well"
            )
        return _Inputs(values, None, False, len(values))
    if lengths.ndim != 1 or lengths.dtype.kind not in "ui" or not lengths.size or lengths.min() < 1:
        raise DataError(
            f"lengths must be (N,) integers of 1 or more, got {lengths.dtype} {lengths.shape}"
        )
    whole = lengths.astype(np.int64)
    flat = values.ndim == 1 or (floating and values.ndim == 2 and len(values) == whole.sum())
    if flat and len(values) != whole.sum():
        raise DataError(f"lengths add up to {whole.sum()}, {argument} has {len(values)} positions")
    if not flat and (len(values) != len(whole) or whole.max() > values.shape[1]):
        raise DataError(f"lengths {lengths.shape} do not fit {argument} {values.shape}")
    return _Inputs(values, whole, flat, len(whole))


def _check_targets(targets: Array, count: int, kind: Kind | None) -> tuple[Kind, Array]:
    if len(targets) != count:
        raise DataError(f"targets has {len(targets)} rows for {count} examples")
    guessed: Kind = "classification" if targets.dtype.kind in "ui" else "regression"
    chosen: Kind = kind or guessed
    if chosen == "classification":
        if targets.dtype.kind not in "ui" or targets.ndim != 1 or targets.min() < 0:
            raise DataError(
                f"classes must be (N,) integers of 0 or more, got {targets.dtype} {targets.shape}"
            )
        return chosen, np.asarray(targets).astype(np.int64)
    if chosen != "regression":
        raise DataError(f"kind must be classification or regression with targets, got {kind!r}")
    values = np.asarray(targets, np.float32)
    if not np.isfinite(values).all():
        raise DataError("targets holds NaN or infinite values")
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim == 2:
        values = values[:, :, None]  # (N, T): one value at each of the last T positions
    if values.ndim != 3:
        raise DataError(
            f"regression targets must be (N,), (N, T) or (N, T, D), got {targets.shape}"
        )
    return chosen, values


def import_arrays(
    name: str,
    tokens: ArrayOrPath,
    targets: ArrayOrPath | None = None,
    *,
    lengths: ArrayOrPath | None = None,
    kind: Literal["classification", "regression", "next_token"] | None = None,
    num_classes: int | None = None,
    vocab_size: int | None = None,
    validation: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    root: str | Path | None = None,
    replace: bool = False,
) -> Manifest:
    """Make a task out of your own data; ``load(name)`` opens it afterwards.

    Args:
        name: under which you will load it.
        tokens: integers (N, L), or floats (N, L) or (N, L, C); with ``lengths`` also all examples
            one after the other, (total,) or (total, C). Without targets: one long stream (total,).
        targets: classes (N,), or floats (N,), (N, T) or (N, T, D) for the last T positions. None:
            next-token prediction on the stream.
        lengths: (N,) where examples differ in length.
        kind: what the targets are, where their type does not say it.
        num_classes: default: the largest class + 1.
        vocab_size: default: the largest token + 1 (and one more for padding where 0 is in use).
        validation: share held out, at random by ``seed`` (of a stream: from its end).
        test: share held out in the same way.
        seed: of the split.
        root: the cache.
        replace: overwrite an imported task of this name.

    >>> import tempfile; root = tempfile.mkdtemp()
    >>> x = np.arange(120).reshape(20, 6) % 7
    >>> import_arrays("mine", x, x[:, 0], root=root).examples
    {'test': 2, 'train': 16, 'validation': 2}

    """
    folder = imported_folder(root, name)
    if folder is None:
        raise DataError(f"name {name!r} belongs to a task of longlens; choose another")
    _refuse_overwriting(folder, replace)
    if not (0 < validation < 1 and 0 < test < 1 and validation + test < 1):
        raise DataError(
            "validation and test must be shares between 0 and 1 that leave a rest, got "
            f"{validation} and {test}"
        )
    values = _open(tokens, "tokens")
    check_space(folder, int(2.1 * values.nbytes), f"importing {name}")
    options = {"validation": validation, "test": test, "seed": seed}
    with locked(folder.parent / f".{name}.lock", name):
        _refuse_overwriting(folder, replace)  # another process may have been quicker
        writer = Writer(folder, name, 1, options, fresh=True)
        try:
            if targets is None:
                spec, sizes = _write_stream(
                    writer, values, lengths, kind, vocab_size, validation, test
                )
            else:
                given = None if lengths is None else np.asarray(_open(lengths, "lengths"))
                inputs = _check_inputs(values, given, "tokens")
                chosen, goals = _check_targets(_open(targets, "targets"), inputs.count, kind)
                spec = _spec(inputs, chosen, goals, num_classes, vocab_size)
                sizes = _write_examples(writer, spec, inputs, goals, validation, test, seed)
        except BaseException:
            writer.discard()
            raise
        if folder.exists():
            shutil.rmtree(folder)
        return writer.finish(spec, sizes, [])


def _refuse_overwriting(folder: Path, replace: bool) -> None:
    if folder.exists() and not replace:
        raise DataError(
            f"a task {folder.name!r} exists in {folder}; pass replace=True (--replace true)"
        )


def _write_stream(
    writer: Writer,
    values: Array,
    lengths: ArrayOrPath | None,
    kind: str | None,
    vocab_size: int | None,
    validation: float,
    test: float,
) -> tuple[Spec, dict[str, int]]:
    if kind not in (None, "next_token"):
        raise DataError(f"kind {kind!r} needs targets")
    if lengths is not None:
        raise DataError("lengths needs targets: without targets, tokens is one stream")
    if values.ndim != 1 or values.dtype.kind not in "ui":
        raise DataError(f"a stream must be (total,) integers, got {values.dtype} {values.shape}")
    held = [int(len(values) * validation), int(len(values) * test)]
    if min(*held, len(values) - sum(held)) < 2:
        raise DataError(f"{len(values)} tokens are too few to split")
    vocab = _vocabulary(values, vocab_size)
    dtype = np.min_scalar_type(vocab - 1)
    cut = len(values) - sum(held)
    bounds = {
        "train": (0, cut),
        "validation": (cut, cut + held[0]),
        "test": (cut + held[0], len(values)),
    }
    for split, (start, stop) in bounds.items():
        for block, begin in enumerate(range(start, stop, STREAM_BLOCK)):
            part = np.asarray(values[begin : min(begin + STREAM_BLOCK, stop)]).astype(dtype)
            writer.write_block(split, block, {"stream": part})
    spec = Spec(kind="next_token", inputs="tokens", max_length=0, vocab_size=vocab)
    return spec, {split: stop - start for split, (start, stop) in bounds.items()}


def _vocabulary(values: Array, vocab_size: int | None) -> int:
    low, high = int(values.min()), int(values.max())
    if low < 0 or (vocab_size is not None and high >= vocab_size):
        raise DataError(f"tokens must be in 0 … {(vocab_size or high + 1) - 1}, got {low} … {high}")
    return vocab_size or high + 1


def _spec(
    inputs: _Inputs, kind: Kind, goals: Array, num_classes: int | None, vocab_size: int | None
) -> Spec:
    floating = inputs.values.dtype.kind == "f"
    longest = int(inputs.lengths.max()) if inputs.lengths is not None else inputs.values.shape[1]
    classes = None
    if kind == "classification":
        classes = num_classes or int(goals.max()) + 1
        if int(goals.max()) >= classes:
            raise DataError(f"targets go up to {int(goals.max())}, num_classes is {num_classes}")
    vocab, pad = None, None
    if not floating:
        vocab = _vocabulary(inputs.values, vocab_size)
        if inputs.lengths is not None:  # padding needs an id that no real token has
            zero_used = (
                bool((inputs.values == 0).any())
                if inputs.flat
                else any(
                    bool((inputs.values[i, :n] == 0).any()) for i, n in enumerate(inputs.lengths)
                )
            )
            pad = vocab if zero_used else 0
            vocab += int(zero_used)
    elif inputs.lengths is not None:
        pad = 0
    channelled = inputs.values.ndim - (1 if inputs.flat else 2) == 1
    if kind == "regression" and inputs.lengths is not None and goals.shape[1] > 1:
        raise DataError("targets at several positions need examples of one length")
    if kind == "regression" and goals.shape[1] > longest:
        raise DataError(f"targets cover {goals.shape[1]} positions, the inputs have {longest}")
    return Spec(
        kind=kind,
        inputs="floats" if floating else "tokens",
        max_length=longest,
        vocab_size=vocab,
        pad_id=pad,
        num_classes=classes,
        channels=(inputs.values.shape[-1] if channelled else 1) if floating else None,
        target_dim=goals.shape[2] if kind == "regression" else None,
        target_length=goals.shape[1] if kind == "regression" else None,
    )


def _write_examples(
    writer: Writer,
    spec: Spec,
    inputs: _Inputs,
    goals: Array,
    validation: float,
    test: float,
    seed: int,
) -> dict[str, int]:
    held = [max(1, int(inputs.count * validation)), max(1, int(inputs.count * test))]
    if inputs.count - sum(held) < 1:
        raise DataError(f"{inputs.count} examples are too few to split into three")
    order = permutation(inputs.count, seed)
    parts = dict(
        zip(("validation", "test", "train"), np.split(order, np.cumsum(held)), strict=True)
    )
    starts = (
        np.cumsum([0, *inputs.lengths]) if inputs.lengths is not None else np.zeros(0, np.int64)
    )
    dtype: Any = (
        np.float32 if spec.inputs == "floats" else np.min_scalar_type((spec.vocab_size or 1) - 1)
    )
    for split in SPLITS:
        index = np.sort(parts[split])
        for block, begin in enumerate(range(0, len(index), BLOCK)):
            rows = index[begin : begin + BLOCK]
            arrays = inputs.block(rows, starts)
            key = "flat" if "flat" in arrays else "inputs"
            arrays[key] = np.asarray(arrays[key]).astype(dtype)
            if spec.inputs == "floats" and arrays[key].ndim == (1 if key == "flat" else 2):
                arrays[key] = arrays[key][..., None]
            goal = goals[rows]
            writer.write_block(split, block, arrays | {"targets": goal})
    return {split: len(parts[split]) for split in sorted(SPLITS)}
