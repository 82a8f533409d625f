"""Nothing that was promised is lost at a power cut, whenever it comes."""

from __future__ import annotations

import shutil
import sys

import numpy as np
import pytest

from longlens import files
from longlens.runs import train_run
from longlens.runs.record import RECORD, read_record
from longlens.tasks import import_arrays, load, prepare
from longlens.tasks.imported import imported_folder
from longlens.training import checkpoint
from longlens.training.log import CHECKPOINTS, CURVES
from longlens.weights import load_tensors
from tests.power_cut import DISKS, Recording, after_power_cut, recorded
from tests.training.runs import outcome, tiny

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
X, Y = np.arange(80).reshape(20, 4) % 5, np.arange(20) % 2


@pytest.fixture(autouse=True, scope="module")
def no_waiting():
    """The real disk need not be flushed for a model of one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


SMALL = dict(length=16, train=5, validation=2, test=2)


def every_cut(recording, target, check, disks=DISKS):
    """Call ``check(folder, promises)`` for every moment and every disk; return how often."""
    moments = range(len(recording.log) + 1)
    for count in moments:
        for kind in disks:
            promises = after_power_cut(recording, count, kind, target)
            check(target, promises)
            shutil.rmtree(target)
    return len(moments) * len(disks)


def record_imports(root):
    with recorded(root) as recording:
        for number in range(2):
            manifest = import_arrays("m", X + number, Y, root=root, replace=number > 0)
            recording.mark(manifest.identity)
    return recording


def check_imports(known):
    def check(folder, promises):
        if imported_folder(folder, "m") is None:
            assert not promises, "an import is lost"
            return
        found = known.index(load("m", folder).identity)
        assert found >= len(promises) - 1, "the data are older than promised"

    return check


def test_an_import_is_the_old_or_the_new_one(tmp_path):
    (root := tmp_path / "root").mkdir()
    recording = record_imports(root)
    known = [promise for kind, _, promise in recording.log if kind == "mark"]
    assert every_cut(recording, tmp_path / "after", check_imports(known)) > 150


@pytest.mark.parametrize("forgotten", ["files", "folders", "the folder before its name"])
def test_the_model_finds_what_is_not_flushed(tmp_path, forgotten):
    (root := tmp_path / "root").mkdir()
    recording = record_imports(root)

    def kept(kind, path, content):
        if kind != "flush":
            return True
        if forgotten == "files":
            return content is None
        return content is not None or (forgotten != "folders" and path.name != ".m.partial")

    recording.log = [operation for operation in recording.log if kept(*operation)]
    known = [promise for kind, _, promise in recording.log if kind == "mark"]
    with pytest.raises((AssertionError, ValueError)):
        every_cut(recording, tmp_path / "after", check_imports(known))


def test_a_prepared_data_set_is_whole_or_not_there(tmp_path):
    (root := tmp_path / "root").mkdir()
    with recorded(root) as recording:
        recording.mark(prepare("cumsum", root, quiet=True, **SMALL).identity)
    (identity,) = [promise for kind, _, promise in recording.log if kind == "mark"]
    there = []

    def check(folder, promises):
        (whole, *_) = [*folder.glob("cumsum/*/manifest.json"), None]
        is_there = whole is not None and not whole.parent.name.endswith(files.PARTIAL)
        there.append(is_there)
        assert is_there or not promises
        assert load("cumsum", folder, **SMALL).identity == identity  # made from what is left

    every_cut(recording, tmp_path / "after", check)
    assert {True, False} == set(there)


RUN = dict(steps=9, evaluate_every=4, name="a")


@pytest.fixture(scope="module")
def recorded_run(tmp_path_factory):
    """A run with its recording, and the folder that holds runs/ and data/."""
    base = tmp_path_factory.mktemp("run")
    options = tiny(base, **RUN)
    load("listops", options.root, **options.task_options)
    (root := base / "runs").mkdir()
    save = checkpoint.save
    with pytest.MonkeyPatch.context() as patch, recorded(root) as recording:

        def marked(folder, step, *arguments, **keywords):
            save(folder, step, *arguments, **keywords)
            recording.mark(step)

        patch.setattr(checkpoint, "save", marked)
        train_run(options)
        recording.mark("finished")
    return base, recording


def check_run(base, resumed):
    """A check that every checkpoint leads to the same end; ``resumed`` collects their steps."""
    alone = outcome(base / "runs" / "a")

    def check(folder, promises):
        here, curves = folder / "a", folder / "a" / CURVES
        status = read_record(here).status if (here / RECORD).exists() else None
        assert status == "finished" or "finished" not in promises
        if status == "finished":
            assert load_tensors(here / "model.safetensors") and outcome(here) == alone
            return
        found = checkpoint.load(here / CHECKPOINTS, curves.stat().st_size if curves.exists() else 0)
        step = 0 if found is None else found.facts["step"]
        assert step >= max([0, *promises]) and (found is None or not found.damaged)
        if step not in resumed:  # once from each checkpoint, all the way
            resumed.add(step)
            train_run(tiny(base, **RUN, runs=str(folder)))
            assert outcome(here) == alone

    return check


def test_a_run_goes_on_from_its_last_checkpoint_or_is_finished(recorded_run, tmp_path):
    base, recording = recorded_run
    resumed = set()
    assert every_cut(recording, tmp_path / "after", check_run(base, resumed)) > 200
    assert resumed == {0, 3, 4, 6, 8, 9}


RUN_FILES = ["model.safetensors.partial", "record.json.partial", "state.safetensors", "state.json"]


@pytest.mark.parametrize("forgotten", RUN_FILES)
def test_the_model_finds_what_a_run_does_not_flush(recorded_run, tmp_path, forgotten):
    base, whole = recorded_run
    log = [one for one in whole.log if one[0] != "flush" or one[1].name != forgotten]
    recording = Recording(whole.root, log)
    with pytest.raises((AssertionError, ValueError)):
        every_cut(recording, tmp_path / "after", check_run(base, {0, 3, 4, 6, 8, 9}), ["hasty"])
