"""Tasks and Hugging Face data sets: pip install 'longlens[lab,data]', then

    python examples/hub_dataset.py

A data set becomes a task, on which everything here works: training, audits, probes. And a task
becomes a data set, for whatever reads those.
"""

from __future__ import annotations

import random
import tempfile

import datasets

from longlens.tasks import Batches, import_dataset, load, to_datasets


def words(count: int, seed: int) -> datasets.Dataset:
    """Texts of two words; the label says whether they are the same."""
    draw = random.Random(seed)
    pairs = [[draw.choice(["sun", "moon", "star"]) for _ in range(2)] for _ in range(count)]
    return datasets.Dataset.from_dict(
        dict(text=[" ".join(p) for p in pairs], label=[int(a == b) for a, b in pairs]),
        features=datasets.Features(
            text=datasets.Value("string"), label=datasets.ClassLabel(names=["different", "same"])
        ),
    )


def main(argv: list[str] | None = None) -> datasets.DatasetDict:
    """There and back again."""
    made = datasets.DatasetDict(train=words(200, 0), validation=words(50, 1), test=words(50, 2))
    with tempfile.TemporaryDirectory() as root:
        import_dataset(made, "same-word", root=root)
        task = load("same-word", root)
        print(task, task.spec.class_names)
        for batch in Batches(task["train"], batch_size=50):  # one epoch
            print(batch.inputs.shape, batch.targets.float().mean())
        return to_datasets(task)


if __name__ == "__main__":
    print(main())
