"""Your own arrays as a task: integer tokens or float channels, with targets or next-token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

from longlens.files import make_folder
from longlens.tasks.arrays import Array
from longlens.tasks.errors import DataError, check_shares
from longlens.tasks.files import check_space, locked
from longlens.tasks.imported import home_folder, imported_folder, next_folder, remove_others
from longlens.tasks.manifest import Manifest
from longlens.tasks.spec import SPLITS, Kind, Spec
from longlens.tasks.split import split_examples
from longlens.tasks.user_arrays import (
    ArrayOrPath,
    Inputs,
    check_inputs,
    check_targets,
    open_array,
    vocabulary,
)
from longlens.tasks.writer import Writer

BLOCK = 10_000
STREAM_BLOCK = 5_000_000


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
    split: ArrayOrPath | None = None,
    class_names: Sequence[str] | None = None,
    encoding: str | None = None,
    notes: Sequence[str] = (),
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
        validation: share held out, at random by ``seed``, all classes in their shares (of a stream:
            from its end).
        test: share held out in the same way; of few examples both are at least as many as classes.
        seed: of the split.
        split: (N,) train, validation or test (or 0, 1, 2) for every example, where that is given;
            without one for validation, its share of train is held out.
        class_names: of the classes, in their order.
        encoding: how tokens are shown: "bytes", "bytes+1" or None.
        notes: kept with the data, as they are.
        root: the cache.
        replace: an imported task of this name; readers find the old data until the new ones are
            complete.

    >>> import tempfile; root = tempfile.mkdtemp()
    >>> x = np.arange(120).reshape(20, 6) % 7
    >>> import_arrays("mine", x, x[:, 0], root=root).examples
    {'test': 2, 'train': 16, 'validation': 2}
    """
    home = home_folder(root, name)
    if home is None:
        raise DataError(f"name {name!r} belongs to a task of longlens; choose another")
    _refuse_overwriting(root, name, replace)
    check_shares(validation, test)
    values = open_array(tokens, "tokens")
    check_space(home, int(2.1 * values.nbytes), f"importing {name}")
    options = {"validation": validation, "test": test, "seed": seed}
    with locked(home.parent / f".{name}.lock", name):
        _refuse_overwriting(root, name, replace)  # another process may have been quicker
        folder, partial = next_folder(home), home.with_name(f".{name}.partial")
        writer = Writer(folder, name, 1, options, fresh=True, partial=partial)
        writer.notes += notes
        try:
            if targets is not None:
                spec, inputs, goals = _read(values, targets, lengths, kind, num_classes, vocab_size)
                names = None if class_names is None else tuple(class_names)
                spec = replace_fields(spec, class_names=names, encoding=encoding)
                given = None if split is None else np.asarray(open_array(split, "split"))
                sizes = _write_examples(writer, spec, inputs, goals, given)
            elif lengths is not None:
                raise DataError("lengths needs targets: without targets, tokens is one stream")
            else:
                spec, sizes = _write_stream(writer, values, kind, vocab_size)
        except BaseException:
            writer.discard()
            raise
        make_folder(home)
        manifest = writer.finish(spec, sizes, [])
        remove_others(folder)
        return manifest


def _refuse_overwriting(root: str | Path | None, name: str, replace: bool) -> None:
    folder = imported_folder(root, name)
    if folder is not None and not replace:
        raise DataError(f"a task {name!r} exists in {folder}; pass replace=True (--replace true)")


def _read(
    values: Array, targets: ArrayOrPath, lengths: ArrayOrPath | None, kind: Kind | None,
    num_classes: int | None, vocab_size: int | None,
) -> tuple[Spec, Inputs, Array]:  # fmt: skip
    """Examples and their targets, checked, and what they make a task of."""
    given = None if lengths is None else np.asarray(open_array(lengths, "lengths"))
    inputs = check_inputs(values, given, "tokens")
    chosen, goals = check_targets(open_array(targets, "targets"), inputs.count, kind)
    return _spec(inputs, chosen, goals, num_classes, vocab_size), inputs, goals


def _write_stream(
    writer: Writer, values: Array, kind: str | None, vocab_size: int | None
) -> tuple[Spec, dict[str, int]]:
    """Write a stream of tokens, of which the last ones are held out; return spec and sizes."""
    if kind not in (None, "next_token"):
        raise DataError(f"kind {kind!r} needs targets")
    if values.ndim != 1 or values.dtype.kind not in "ui" or not values.size:
        raise DataError(f"a stream must be (total,) integers, got {values.dtype} {values.shape}")
    held = [int(len(values) * writer.options[split]) for split in ("validation", "test")]
    if min(*held, len(values) - sum(held)) < 2:
        raise DataError(f"{len(values)} tokens are too few to split")
    vocab = vocabulary(values, vocab_size)
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


def _spec(
    inputs: Inputs, kind: Kind, goals: Array, num_classes: int | None, vocab_size: int | None
) -> Spec:
    floating = inputs.values.dtype.kind == "f"
    longest = int(inputs.lengths.max()) if inputs.lengths is not None else inputs.values.shape[1]
    classes = None
    if kind == "classification":
        classes = int(goals.max()) + 1 if num_classes is None else num_classes
        if int(goals.max()) >= classes:
            raise DataError(f"targets go up to {int(goals.max())}, num_classes is {num_classes}")
    vocab, pad = None, None
    if not floating:
        vocab = vocabulary(inputs.values, vocab_size)
        if inputs.lengths is not None:  # padding needs an id that no real token has
            rows = [inputs.values]
            if not inputs.flat:
                rows = [inputs.values[i, :n] for i, n in enumerate(inputs.lengths)]
            zero_used = any(bool((row == 0).any()) for row in rows)
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


def _check_classes(writer: Writer, train: Array, every: Array) -> None:
    """Raise if training knows one class alone; note those that it does not know."""
    known = np.unique(train)
    if len(known) < 2 and len(np.unique(every)) > 1:
        raise DataError(f"all {len(train)} examples of train are of one class; check the split")
    if unknown := np.setdiff1d(every, known).tolist():
        names = ", ".join(map(str, unknown[:8])) + (" …" if len(unknown) > 8 else "")
        writer.notes.append(f"no example of train is of class {names} (numbered from 0)")


def _write_examples(
    writer: Writer, spec: Spec, inputs: Inputs, goals: Array, given: Array | None
) -> dict[str, int]:
    """Write examples in three splits, as given or by the writer's seed; return their sizes."""
    classes = goals if spec.kind == "classification" else None
    shares = {name: writer.options[name] for name in ("validation", "test", "seed")}
    parts = split_examples(inputs.count, classes, given, **shares)
    if classes is not None:
        _check_classes(writer, classes[parts["train"]], classes)
    starts = np.cumsum([0, *(() if inputs.lengths is None else inputs.lengths)])
    dtype: Any = np.dtype(np.float32)
    if spec.inputs == "tokens":
        dtype = np.min_scalar_type((spec.vocab_size or 1) - 1)
    for split in SPLITS:
        index = np.sort(parts[split])
        for block, begin in enumerate(range(0, len(index), BLOCK)):
            rows = index[begin : begin + BLOCK]
            arrays = inputs.block(rows, starts)
            key = "flat" if "flat" in arrays else "inputs"
            arrays[key] = np.asarray(arrays[key]).astype(dtype)
            if spec.inputs == "floats" and arrays[key].ndim == (1 if key == "flat" else 2):
                arrays[key] = arrays[key][..., None]
            writer.write_block(split, block, arrays | {"targets": goals[rows]})
    return {split: len(parts[split]) for split in sorted(SPLITS)}
