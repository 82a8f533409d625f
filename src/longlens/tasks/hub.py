"""Tasks to and from the data sets of Hugging Face's `datasets` (`pip install 'longlens[data]'`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from longlens.tasks.data import Split, Task
from longlens.tasks.errors import DataError
from longlens.tasks.formats import read_dataset
from longlens.tasks.manifest import Manifest
from longlens.tasks.own import import_given


def to_datasets(task: Task) -> Any:
    """A `datasets.DatasetDict` with the splits of a task.

    Columns: `inputs` (of a pair `first` and `second`), `label` with its class names, or `targets`,
    and the extras of the task.

    >>> import tempfile, longlens.tasks as tasks
    >>> sizes = dict(train=10, validation=4, test=4)
    >>> task = tasks.load("listops", root=tempfile.mkdtemp(), **sizes)
    >>> to_datasets(task)["train"].features["label"].num_classes
    10
    """
    try:
        import datasets
    except ModuleNotFoundError:
        raise DataError("to_datasets needs datasets: pip install 'longlens[data]'") from None
    if task.spec.kind == "next_token":
        raise DataError(f"{task.name} is one stream of tokens, not a set of examples")
    made = {}
    for name, split in task.splits.items():
        columns = _columns(split)
        first = datasets.Dataset.from_dict({key: rows[:1] for key, rows in columns.items()})
        features = first.features
        if task.spec.kind == "classification":
            assert task.spec.num_classes is not None
            names = task.spec.class_names or tuple(map(str, range(task.spec.num_classes)))
            features["label"] = datasets.ClassLabel(names=list(names))
        made[name] = datasets.Dataset.from_dict(columns, features=features)
    return datasets.DatasetDict(made)


def _columns(split: Split) -> dict[str, list[Any]]:
    examples = list(split)
    names = ("first", "second") if split.spec.pair else ("inputs",)
    found: dict[str, list[Any]] = {
        name: [np.asarray(example.inputs[place]) for example in examples]
        for place, name in enumerate(names)
    }
    goal = "label" if split.spec.kind == "classification" else "targets"
    found[goal] = [np.asarray(example.target).tolist() for example in examples]
    for key in split.spec.extras:
        found[key] = [example.extras[key] for example in examples]
    return found


def import_dataset(
    dataset: Any,
    name: str,
    *,
    label: str | None = None,
    kind: Literal["classification", "regression"] | None = None,
    inputs: Literal["tokens", "floats"] | None = None,
    validation: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    root: str | Path | None = None,
    replace: bool = False,
) -> Manifest:
    """Make a task out of a `datasets.Dataset` or `DatasetDict`; ``load(name)`` opens it afterwards.

    Splits named train, validation and test are kept. Text is read byte by byte.

    Args:
        dataset: with a column of labels and one of inputs (text, token numbers or series).
        name: of the task.
        label: the column with the labels; None: `label`, `target` and the like.
        kind: as in `import_file`, as are all that follow.
        inputs: whether whole numbers are tokens or a series.
        validation: share of train held out, where no split is given for it.
        test: the same for test.
        seed: of the split.
        root: the cache.
        replace: an imported task of this name.

    >>> import datasets, tempfile
    >>> made = datasets.Dataset.from_dict(dict(text=["ab", "ba", "b"] * 5, label=[0, 1, 1] * 5))
    >>> import_dataset(made, "letters", root=tempfile.mkdtemp()).examples["train"]
    11

    """
    given = read_dataset(dataset, name, label)
    return import_given(
        given, name, name, kind, inputs, validation=validation, test=test, seed=seed, root=root,
        replace=replace,
    )  # fmt: skip
