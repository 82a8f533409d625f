"""Cells to records: what is done, what others do, what fails, and who does it."""

import os
import pickle
import signal
import threading
import time
from dataclasses import replace

import pytest

from longlens.files import locked
from longlens.runs import sweep, train_run
from longlens.runs.engines import Here, Processes, find_engine
from longlens.runs.record import Record, RecordWriter, read_record
from longlens.runs.run import LOCK, run_folder
from longlens.runs.search import parse, tune
from longlens.training.faults import Stopped
from longlens.training.loop import Trainer
from longlens.training.options import TrainOptions
from tests.training.runs import without_times

SIZES = {"length": 16, "train": 32, "validation": 8, "test": 8}


def cells_in(folder, count=2, **changes):
    return [
        dict(task="cumsum", task_options=SIZES, dim=8, depth=1, batch_size=8, steps=2,
             device="cpu", seed=seed, runs=str(folder / "runs"), root=str(folder / "data"))
        | changes
        for seed in range(count)
    ]  # fmt: skip


def test_what_is_done_is_not_done_again(tmp_path):
    first = sweep(cells_in(tmp_path))
    assert [record.seed for record in first] == [0, 1]
    assert all(record.status == "finished" for record in first)
    seen = []
    again = sweep(cells_in(tmp_path, 3), each=lambda place, record: seen.append(place))
    assert again[:2] == first and again[2].seed == 2 and seen == [0, 1, 2]


class Counting(Here):
    """One cell after another, and how many there were."""

    def __init__(self):
        self.asked = []

    def run(self, cells):
        self.asked.append(len(cells))
        yield from super().run(cells)


def test_an_engine_gets_only_what_is_left_and_free(tmp_path):
    cells, engine = cells_in(tmp_path, 3), Counting()
    sweep(cells[:1], engine)
    folder = run_folder(TrainOptions.from_values(cells[1]))
    with locked(folder / LOCK, "the test"):
        waiting = threading.Thread(target=lambda: sweep(cells, engine, pause=0.02))
        waiting.start()
        until = time.monotonic() + 60
        while len(engine.asked) < 2:
            assert time.monotonic() < until
            time.sleep(0.02)
        time.sleep(0.2)  # many looks at the lock
    waiting.join(60)
    assert engine.asked == [1, 1, 1]  # the first; then the last alone; then the one that was busy
    sweep(cells, engine)
    assert len(engine.asked) == 3


def test_a_record_of_other_options_survives_a_failure(tmp_path):
    done, other = cells_in(tmp_path, 2, name="mine")
    (first,) = sweep([done])
    (failed,) = sweep([other])
    assert failed.status == "failed" and "other options" in failed.error
    assert read_record(tmp_path / "runs" / "mine") == first


@pytest.mark.parametrize("after", [False, True])
def test_a_signal_at_the_end_of_a_run_stops_the_sweep(tmp_path, monkeypatch, after):
    """During the last evaluation the run stops, after it the run is finished; no other begins."""
    finish = Trainer._finish

    def late(trainer):
        if not after:
            os.kill(os.getpid(), signal.SIGTERM)
        result = finish(trainer)
        os.kill(os.getpid(), signal.SIGTERM)
        return result

    monkeypatch.setattr(Trainer, "_finish", late)
    with pytest.raises(Stopped, match="is finished" if after else "stopped at step 2"):
        sweep(cells_in(tmp_path, 2))
    (record,) = (tmp_path / "runs").glob("*/record.json")
    assert read_record(record.parent).status == ("finished" if after else "stopped")


def test_a_stop_comes_back_from_another_process():
    stop = pickle.loads(pickle.dumps(Stopped(15, "saved")))
    assert (stop.signum, str(stop)) == (15, "saved")


def test_options_and_mappings_are_the_same_cells(tmp_path):
    (cell,) = cells_in(tmp_path, 1)
    options = TrainOptions.from_values({**cell, "lr": "1e-3", "progress": False})
    assert sweep([options]) == sweep([cell])


def test_a_cell_that_fails_leaves_the_others_alone_and_is_tried_again(tmp_path):
    cells = cells_in(tmp_path, 2)
    cells[0] |= {"batch_size": 64}  # more than there are examples
    failed, done = sweep(cells)
    assert (failed.status, done.status) == ("failed", "finished")
    assert "batch_size must be at most the 32 examples" in failed.error
    folder = run_folder(TrainOptions.from_values(cells[0]))
    assert read_record(folder).error == failed.error
    assert sweep(cells)[0].status == "failed"  # still too many, and no traceback


def test_wrong_cells_are_found_before_anything_runs(tmp_path):
    cells = cells_in(tmp_path, 2)
    with pytest.raises(ValueError, match="dim must be a whole number, got 'wide'"):
        sweep([cells[0], {**cells[1], "dim": "wide"}])
    with pytest.raises(ValueError, match="lr must be a number, got 1000"):
        sweep([cells[0], {**cells[1], "lr": 10**400}])
    with pytest.raises(ValueError, match="'widht' is no option"):
        sweep([cells[0], {**cells[1], "widht": 3}])
    with pytest.raises(ValueError, match="unknown mixer 'lass'; did you mean 'las'"):
        sweep([cells[0], {**cells[1], "mixer": "lass"}])
    with pytest.raises(ValueError, match="unknown option of 'las' 'windwo'; did you mean 'window'"):
        sweep([cells[0], {**cells[1], "mixer_options": {"windwo": 3}}])
    with pytest.raises(ValueError, match="wiki-of-mine"):
        sweep([cells[0], {**cells[1], "task": "wiki-of-mine", "task_options": {}}])
    with pytest.raises(ValueError, match="cells 0 and 1 would both be"):
        sweep([cells[0], cells[0]])
    with pytest.raises(ValueError, match="got 'moon'"):
        sweep(cells, "moon")
    with pytest.raises(ValueError, match="devices are for runs on this machine"):
        sweep(cells, "slurm", devices=["0"])
    with pytest.raises(ValueError, match="workers must be 1 or more, got 0"):
        find_engine("here", 0)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("wrong", [{"mixer": "lass"}, {"mixer_options": {"windwo": 3}}])
def test_a_run_that_cannot_be_built_makes_neither_data_nor_a_folder(tmp_path, wrong):
    with pytest.raises(ValueError, match="did you mean"):
        train_run(TrainOptions(**{**cells_in(tmp_path)[0], **wrong}))
    assert not list(tmp_path.iterdir())


def test_blocks_of_a_cell_may_have_options_of_their_own(tmp_path):
    (cell,) = cells_in(tmp_path, 1, depth=2, mixer_options={"window": [1, 3]})
    assert sweep([cell])[0].status == "finished"


def test_a_cell_that_somebody_else_works_on_is_waited_for(tmp_path):
    cells = cells_in(tmp_path, 2)
    folder = run_folder(TrainOptions.from_values(cells[0]))
    done = []
    with locked(folder / LOCK, "the test"):
        waiting = threading.Thread(
            target=lambda: sweep(cells, pause=0.05, each=lambda place, _: done.append(place))
        )
        waiting.start()
        until = time.monotonic() + 60
        while done != [1]:
            assert time.monotonic() < until
            time.sleep(0.02)
    waiting.join(60)
    assert done == [1, 0]


def test_processes_find_what_one_process_finds(tmp_path):
    cells = cells_in(tmp_path, 3, steps=3)
    here = sweep(cells)
    elsewhere = sweep([{**cell, "runs": str(tmp_path / "many")} for cell in cells], workers=2)
    for one, other in zip(here, elsewhere, strict=True):
        one, other = (replace(without_times(r), options={}) for r in (one, other))
        assert one == other and one.metrics


def test_a_process_that_dies_every_time_fails_its_cell(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "torch.py").write_text("import os; os._exit(9)")  # whatever imports torch, dies
    cells = cells_in(tmp_path, 2)
    begun = run_folder(TrainOptions.from_values(cells[0]))
    record = RecordWriter(begun)
    record.update(status="running", options=TrainOptions.from_values(cells[0]).to_json())
    record.close()
    failed = sweep(cells, Processes(1))
    assert [one.error for one in failed] == ["its process died, 3 times"] * 2
    assert failed[0].name == begun.name != failed[1].name
    for one in failed:
        assert read_record(tmp_path / "runs" / one.name).status == "failed"


def test_a_search_asks_for_the_same_again():
    asked = []

    def run(cells):
        asked.append([cell["lr"] for cell in cells])
        return [
            Record(status="failed") if cell["lr"] > 0.05 else
            Record(status="finished", metric={"name": "r2", "higher_is_better": True},
                   metrics={"validation": {"r2": -cell["lr"]}})
            for cell in cells
        ]  # fmt: skip

    space = parse(["lr=1e-4:1e-1:log", "dim=8,16"])
    first = tune({}, space, 7, run=run, at_once=2)
    assert [len(batch) for batch in asked] == [2, 2, 2, 1]
    second = tune({}, space, 7, run=run, at_once=2)
    assert [cell for cell, _ in first] == [cell for cell, _ in second]
    other = tune({}, space, 7, run=run, at_once=2, seed=1)
    assert [cell for cell, _ in first] != [cell for cell, _ in other]
