"""A run that talks: what is shown before and while it trains, how it stops, and `--log`."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from longlens.runs import train_run
from longlens.runs.record import read_record
from longlens.runs.run import run_folder
from longlens.tasks import progress
from longlens.tasks.progress import Bar
from longlens.training import loop
from longlens.training.budget import FORWARD, evaluation_interval
from longlens.training.faults import Stopped
from longlens.training.log import read_curves
from longlens.training.progress import Display
from tests.training.runs import outcome, tiny


def test_the_plan_comes_first_then_evaluations(run_options, capsys):
    train_run(run_options(progress=True, steps=6, evaluate_every=3))
    shown = capsys.readouterr().err.splitlines()
    first = [line.split()[0] for line in shown if not line.startswith("listops: ")]
    assert first[:6] == ["folder", "train", "task", "model", "data", "steps"]
    text = "\n".join(shown)
    assert "listops: classification into 10 classes, length 96" in text
    assert "las, 1 blocks of width 8" in text and "parameters" in text
    assert "6 steps, batches of 6, seed 0, on cpu" in text
    assert "60 training, 12 validation, 12 test examples; an epoch is 10 steps" in text
    assert "step 6/6  validation  loss" in text


def test_lines_come_while_nothing_happens(capsys, monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 0.2)
    bar = Bar("a", total=3)
    bar.update(1, "step 1/3")
    time.sleep(1.3)
    bar.close()
    lines = capsys.readouterr().err.splitlines()
    assert 3 <= len(lines) <= 7 and all(line.startswith("a: step 1/3") for line in lines)
    assert lines[-1].endswith("(for 1 s)")
    time.sleep(0.5)
    assert capsys.readouterr().err == ""


def test_timing_for_a_budget_shows_life(run_options, capsys, monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 0.1)
    original = loop.choose_steps
    monkeypatch.setattr(loop, "choose_steps", lambda *a: (time.sleep(0.5), original(*a))[1])
    train_run(run_options(progress=True, steps=2))
    lines = [line for line in capsys.readouterr().err.splitlines() if "timing steps" in line]
    assert len(lines) >= 2


def test_quiet_shows_nothing(capsys, monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 0.05)
    bar = Bar("a", total=3, quiet=True)
    bar.update(1, "text")
    bar.say("hello")
    time.sleep(0.3)
    bar.close(last=True)
    assert capsys.readouterr().err == ""


def test_steps_show_loss_speed_and_time_left(monkeypatch):
    now = iter([0.0, *(t for step in range(1, 5) for t in (10.0 * step, 10.0 * step))])
    monkeypatch.setattr("longlens.training.progress.time.perf_counter", lambda: next(now))
    display = Display("a", total=10)
    seen = []
    for step in range(1, 5):
        display.step(step, lambda: {"loss": 0.5, "accuracy": 0.25})
        seen.append(display._bar.text)
    display.close()
    assert seen[0] == "step 1/10  loss 0.5000  accuracy 0.2500"  # the first one compiles
    assert seen[1] == "step 2/10  loss 0.5000  accuracy 0.2500  0.1 steps/s  left 1m"
    assert seen[3].endswith("0.1 steps/s  left 1m")


TALK = """
import sys, time
from longlens.runs import train_run
from longlens.training.loop import Trainer
from tests.training.runs import tiny
from pathlib import Path
original = Trainer.step
def slow(self):
    time.sleep(7)
    original(self)
Trainer.step = slow
print("imported", file=sys.stderr, flush=True)
train_run(tiny(Path(sys.argv[1]), steps=2, progress=True))
"""


@pytest.mark.slow
def test_output_within_two_seconds_and_then_every_five(tmp_path):
    command = [sys.executable, "-c", TALK, str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        times = [time.monotonic() for _ in process.stderr]
    assert process.returncode == 0
    waits = [b - a for a, b in pairwise(times)]
    assert waits[0] < 2 and max(waits) < 5, waits


@pytest.mark.parametrize(
    ("steps", "epoch", "batch", "validation", "every"),
    [
        (100, 312, 64, 2000, 100),  # ten would take as long as the training
        (1000, 312, 64, 2000, 112),
        (10_000, 300, 32, 2000, 300),  # Long Range Arena, as published: an epoch
        (10_000, 700, 32, 2500, 700),
        (5, 1, 6, 12, 5),
    ],
)
def test_evaluations_take_a_tenth_at_most_or_there_is_one(steps, epoch, batch, validation, every):
    work = FORWARD * validation / batch
    assert evaluation_interval(None, steps, epoch, work) == every
    number = -(-steps // every)
    assert number == 1 or number * work <= 0.1 * steps
    assert evaluation_interval(7, steps, epoch, work) == 7  # asked for


def test_the_selected_evaluation_is_not_done_twice(run_options, monkeypatch):
    seen, original = [], loop.evaluate

    def counted(*arguments, **keywords):
        seen.append(original(*arguments, **keywords))
        return seen[-1]

    monkeypatch.setattr(loop, "evaluate", counted)
    record = train_run(run_options(steps=16))
    assert len(seen) == 3  # at 8 and 16, and test
    best = next(m for m in seen if m["accuracy"] == record.value("validation"))
    assert record.metrics["validation"] == best and "accuracy_by_operator" in best
    lines = [line for line in read_curves(record.folder) if line["split"] == "validation"]
    assert [line["accuracy_by_operator"] for line in lines] == [
        metrics["accuracy_by_operator"] for metrics in seen[:2]
    ]


def interrupt_once(monkeypatch, where, at):
    original, seen = getattr(loop.Trainer, where), []

    def interrupted(self, *arguments):
        seen.append(self.state.step)
        if len(seen) == at:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, *arguments)

    monkeypatch.setattr(loop.Trainer, where, interrupted)


@pytest.mark.parametrize(
    ("where", "at", "status"), [("step", 5, 5), ("_evaluate", 2, 16), ("_evaluate", 4, 24)]
)
def test_ctrl_c_says_what_happens_and_loses_nothing(
    run_options, monkeypatch, capfd, where, at, status
):
    options = run_options(name="a", progress=True)
    with monkeypatch.context() as patch:
        interrupt_once(patch, where, at)
        with pytest.raises(Stopped, match=f"stopped at step {status}; the same command goes on"):
            train_run(options)
    shown = capfd.readouterr().err
    assert shown.count("stopping after this step; Ctrl-C again stops at once") == 1
    assert read_record(run_folder(options)).status == "stopped"
    train_run(options)
    train_run(replace(options, name="alone"))
    same = [outcome(run_folder(replace(options, name=name))) for name in ("a", "alone")]
    assert same[0] == same[1]


# ---------------------------------------------------------------------- --log


def test_any_module_with_the_interface_of_wandb(run_options, monkeypatch):
    calls = []
    module = SimpleNamespace(
        init=lambda **k: calls.append(("init", k)),
        log=lambda values, step: calls.append((step, values)),
        finish=lambda: calls.append(("finish", {})),
    )
    monkeypatch.setitem(sys.modules, "my_tracker", module)
    options = run_options(steps=8, log="my_tracker", name="a")
    train_run(options)
    assert calls[0][0] == "init" and calls[-1][0] == "finish"
    assert calls[0][1]["project"] == "longlens" and calls[0][1]["name"] == "a"
    assert calls[0][1]["config"]["dim"] == 8
    lines = [line for line in read_curves(run_folder(options)) if line["split"] == "train"]
    sent = [(step, values["train/loss"]) for step, values in calls if "train/loss" in values]
    assert sent == [(line["step"], line["loss"]) for line in lines]
    assert options.identity() == replace(options, log="none").identity()


@pytest.mark.parametrize(
    ("name", "message"),
    [("no_such_tracker", "no such module is installed"), ("json", "init, log and finish")],
)
def test_a_wrong_log_is_named_before_training(run_options, name, message):
    options = run_options(log=name)
    with pytest.raises(ValueError, match=message):
        train_run(options)
    assert not (run_folder(options) / "record.json").exists()


def test_tensorboard(run_options):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    options = run_options(steps=8, log="tensorboard")
    train_run(options)
    board = events.EventAccumulator(str(run_folder(options) / "tensorboard")).Reload()
    lines = [line for line in read_curves(run_folder(options)) if line["split"] == "validation"]
    shown = [(e.step, e.value) for e in board.Scalars("validation/loss")]
    assert shown == [(line["step"], pytest.approx(line["loss"])) for line in lines]


REAL = """
import sys
from pathlib import Path
from longlens.runs import train_run
from tests.training.runs import tiny
train_run(tiny(Path(sys.argv[1]), steps=8, log=sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "left"), [("wandb", "wandb/offline-run-*/*.wandb"),
                                            ("trackio", "trackio/*.db")])  # fmt: skip
def test_trackers_offline(tmp_path, name, left):
    pytest.importorskip(name)
    offline = {"WANDB_MODE": "offline", "TRACKIO_DIR": str(tmp_path / "trackio")}
    done = subprocess.run(
        [sys.executable, "-c", REAL, str(tmp_path), name], cwd=tmp_path, text=True,
        capture_output=True, timeout=300,
        env=os.environ | offline | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob(left)), list(tmp_path.rglob("*"))
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "record.json").read_text())["status"] == "finished"


def test_old_records_with_tensorboard_are_the_same_run(run_options):
    options = run_options(steps=3)
    first = train_run(options)
    folder = run_folder(options)
    values = json.loads((folder / "record.json").read_text())
    del values["options"]["log"]
    values["options"]["tensorboard"] = False
    (folder / "record.json").write_text(json.dumps(values))
    assert train_run(tiny(folder.parents[1], root=options.root, steps=3)).metrics == first.metrics
