"""Replacing imported data: the old or the new, whole, at any moment, and nobody else's folder."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from longlens.tasks import DataError, import_arrays, load
from longlens.tasks.imported import home_folder, imported_folder
from longlens.tasks.manifest import FILENAME

X, Y = np.arange(80).reshape(20, 4) % 5, np.arange(20) % 2


class Killed(BaseException):
    """Stands for a process that ends here."""


def moments(monkeypatch, action, check):
    """Run ``action`` again and again, ending it at its 1st, 2nd … change of a name."""
    point, done = 0, False
    while not done:
        point, left = point + 1, [point + 1]
        with monkeypatch.context() as patch:
            for name in ("rename", "replace", "unlink", "rmdir"):
                original = getattr(os, name)

                def counted(*arguments, _original=original, left=left, **keywords):
                    left[0] -= 1
                    if left[0] <= 0:  # a dead process changes nothing any more
                        raise Killed
                    return _original(*arguments, **keywords)

                patch.setattr(os, name, counted)
            try:
                action()
                done = True
            except Killed:
                pass
        check(done)
    return point


def test_the_old_data_stay_whole_until_the_new_ones_are_complete(tmp_path, monkeypatch):
    old = import_arrays("m", X, Y, root=tmp_path).identity
    new = import_arrays("m", X + 1, Y, root=tmp_path / "other").identity
    seen = []

    def check(done):
        seen.append(load("m", tmp_path).identity)
        assert seen[-1] == new if done else seen[-1] in (old, new)
        if seen[-1] == new and not done:  # killed while the old one was deleted
            import_arrays("m", X, Y, root=tmp_path, replace=True)

    assert moments(monkeypatch, lambda: replace(tmp_path), check) > 10
    assert {old, new} == set(seen)
    assert [path.name for path in home_folder(tmp_path, "m").iterdir()] == [
        imported_folder(tmp_path, "m").name
    ]


def replace(root):
    import_arrays("m", X + 1, Y, root=root, replace=True)


def test_a_reader_that_is_overtaken_gets_the_new_data(tmp_path, monkeypatch):
    import_arrays("m", X, Y, root=tmp_path)
    reading = Path.iterdir

    def overtaken(self):
        if self.name == "1":
            monkeypatch.setattr(Path, "iterdir", reading)
            replace(tmp_path)
        return reading(self)

    monkeypatch.setattr(Path, "iterdir", overtaken)
    assert load("m", tmp_path).spec.vocab_size == X.max() + 2


def test_an_open_task_keeps_its_data(tmp_path):
    import_arrays("m", X, Y, root=tmp_path)
    task = load("m", tmp_path)
    before = [example.inputs[0].tolist() for example in task["train"]]
    replace(tmp_path)
    assert [example.inputs[0].tolist() for example in task["train"]] == before


def test_importing_leaves_the_folders_of_other_tasks_alone(tmp_path):
    names = ["foo.partial", "foo.lock", "foo.1", "foo"]
    made = {
        name: import_arrays(name, X + k, Y, root=tmp_path).identity for k, name in enumerate(names)
    }
    import_arrays("foo", X + 9, Y, root=tmp_path, replace=True)
    with pytest.raises(DataError):
        import_arrays("foo", X - 9, Y, root=tmp_path, replace=True)
    for name in names[:3]:
        assert load(name, tmp_path).identity == made[name]


def test_data_that_an_earlier_version_imported_can_be_read_and_replaced(tmp_path):
    manifest = import_arrays("m", X, Y, root=tmp_path)
    home, folder = home_folder(tmp_path, "m"), imported_folder(tmp_path, "m")
    for path in folder.iterdir():
        path.rename(home / path.name)
    folder.rmdir()
    assert (home / FILENAME).exists() and load("m", tmp_path).identity == manifest.identity
    replace(tmp_path)
    assert load("m", tmp_path).spec.vocab_size == X.max() + 2
    assert [path.name for path in home.iterdir()] == ["1"]
