"""A run that is cut off and started again ends as if nothing had happened, or says why not."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from longlens.files import locked
from longlens.runs import train_run
from longlens.runs.record import read_record
from longlens.runs.run import LOCK, run_folder
from longlens.tasks.registry import TASKS
from longlens.training import checkpoint, loop, rehearse
from longlens.training.budget import Timing
from longlens.training.faults import Stopped, TrainingError
from longlens.training.log import read_curves
from tests.training.runs import outcome

ROOT = Path(__file__).parents[2]


def kill_runs(folder, kills, seed):
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.kills", str(folder), str(kills), str(seed)],
        cwd=ROOT, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_killed_runs_end_bit_identical(tmp_path):
    assert kill_runs(tmp_path, 3, 0) == 3


@pytest.mark.faults
def test_fifty_killed_runs_end_bit_identical(tmp_path):
    assert kill_runs(tmp_path, 50, 1) == 50


def stop_at(monkeypatch, step, signum=signal.SIGTERM):
    """Send a signal to this process after ``step`` steps."""
    original = loop.Trainer.step

    def patched(self):
        original(self)
        if self.state.step == step:
            os.kill(os.getpid(), signum)

    monkeypatch.setattr(loop.Trainer, "step", patched)


@pytest.mark.parametrize(  # inside an interval, at an evaluation, at the end
    ("step", "signum"), [(7, signal.SIGTERM), (8, signal.SIGINT), (24, signal.SIGTERM)]
)
def test_a_signal_saves_and_the_run_goes_on_exactly(run_options, monkeypatch, step, signum):
    train_run(run_options(name="alone"))
    options = run_options(name="stopped", checkpoint_seconds=1e9)
    with monkeypatch.context() as patch:
        stop_at(patch, step, signum)
        with pytest.raises(Stopped, match=f"stopped at step {step}; the same command"):
            train_run(options)
    folder = run_folder(options)
    assert read_record(folder).status == "stopped"
    assert train_run(replace(options, checkpoint_seconds=0.0)).status == "finished"
    resumed = read_record(folder)
    assert [event["step"] for event in resumed.events] == [step]
    alone = outcome(folder.parent / "alone")
    mine = outcome(folder)
    assert mine == alone


@pytest.mark.parametrize("step", [9, 12, 17])  # before, at and after the first reduction
def test_a_plateau_goes_on_exactly(run_options, monkeypatch, step):
    """The counters of a plateau are part of a checkpoint: the learning rate falls where it would.

    The weights stand still (a learning rate of 1e-30), so only the first evaluation is a best one.
    """
    own = dict(schedule="plateau", plateau_patience=1, plateau_factor=0.2, warmup=0.0, lr=1e-30,
               evaluate_every=4, log_every=2, dropout=0.0, ema=0.0)  # fmt: skip
    alone = run_options(name="alone", **own)
    train_run(alone)
    rates = [line["lr"] for line in read_curves(run_folder(alone)) if line["split"] == "train"]
    # reduced after the evaluations at 12 and 20
    expected = [1e-30] * 6 + [2e-31] * 4 + [4e-32] * 2
    assert rates == pytest.approx(expected, rel=1e-12, abs=0.0)
    options = run_options(name="stopped", checkpoint_seconds=1e9, **own)
    with monkeypatch.context() as patch:
        stop_at(patch, step)
        with pytest.raises(Stopped):
            train_run(options)
    train_run(options)
    assert outcome(run_folder(options)) == outcome(run_folder(alone))


def test_a_run_cut_off_before_its_first_checkpoint_begins_again(run_options, monkeypatch):
    train_run(run_options(name="alone"))
    options = run_options(name="cut", checkpoint_seconds=1e9)
    with monkeypatch.context() as patch:
        original = loop.Trainer.step

        def die(self):
            original(self)
            if self.state.step == 5:  # a line of the curve is written, a checkpoint is not
                raise GeneratorExit

        patch.setattr(loop.Trainer, "step", die)
        with pytest.raises(GeneratorExit):
            train_run(options)
    record = train_run(options)
    assert [event["kind"] for event in record.events] == ["begin again"]
    assert outcome(run_folder(options)) == outcome(run_folder(replace(options, name="alone")))


def test_a_finished_run_is_not_trained_again(run_options, monkeypatch):
    options = run_options()
    first = train_run(options)
    monkeypatch.setattr(loop.Trainer, "run", None)
    assert train_run(options) == first
    assert not (run_folder(options) / "checkpoints").exists()


NEWER = ("ablate", "train_on", "plateau_factor")


def test_a_run_outlives_options_that_are_added_later(run_options, monkeypatch):
    """Finished or stopped, a run of before an option existed is the run with its default."""
    options = run_options(name="finished")
    first = train_run(options)
    path = run_folder(options) / "record.json"
    older = json.loads(path.read_text())
    for name in NEWER:
        del older["options"][name]
    path.write_text(json.dumps(older))
    monkeypatch.setattr(loop.Trainer, "run", None)  # nothing is trained again
    assert train_run(options).metrics == first.metrics
    with pytest.raises(TrainingError, match=r"train_on is train.validation, was train"):
        train_run(replace(options, train_on="train+validation"))
    monkeypatch.undo()

    def older_checkpoint(*where, load=checkpoint.load):
        saved = load(*where)
        known = {k: v for k, v in saved.facts["identity"].items() if k not in NEWER}
        return replace(saved, facts=saved.facts | {"identity": known})

    stopped = stopped_run(run_options, monkeypatch)
    monkeypatch.setattr(checkpoint, "load", older_checkpoint)
    assert train_run(stopped).status == "finished"


def test_a_finished_run_on_an_older_version_of_the_data_is_refused(run_options, monkeypatch):
    options = run_options()
    train_run(options)
    newer = replace(TASKS[options.task], version=TASKS[options.task].version + 1)
    monkeypatch.setitem(TASKS, options.task, newer)
    with pytest.raises(TrainingError, match=rf"version 1 of {options.task}, .* version 2 now"):
        train_run(options)
    again = train_run(replace(options, resume="restart"))
    assert again.status == "finished" and again.data["version"] == 2


def stopped_run(run_options, monkeypatch, **changes):
    options = run_options(name="a", **changes)
    with monkeypatch.context() as patch:
        stop_at(patch, 5)
        with pytest.raises(Stopped):
            train_run(options)
    return options


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"lr": 0.5}, "lr is 0.5, was 0.001"),
        ({"dim": 16}, "dim is 16, was 8"),
        ({"task_options": {"train": 61, "validation": 12, "test": 12}}, "the data are"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(run_options, monkeypatch, changes, difference):
    options = stopped_run(run_options, monkeypatch)
    with pytest.raises(TrainingError, match=difference):
        train_run(replace(options, **changes))
    assert train_run(options).status == "finished"  # nothing was lost


def test_another_state_layout_is_refused(run_options, monkeypatch):
    options = stopped_run(run_options, monkeypatch)
    build = torch.nn.Linear

    def other(self, config):
        original(self, config)
        self.head.project = build(8, 11)

    from longlens.models.build import Model

    original = Model.__init__
    monkeypatch.setattr(Model, "__init__", other)
    with pytest.raises(TrainingError, match=r"head.project.weight has shape \[11, 8\], was \[10"):
        train_run(options)


def test_another_commit_goes_on_and_is_recorded(run_options, monkeypatch, capsys):
    options = stopped_run(run_options, monkeypatch)
    monkeypatch.setattr("longlens.training.provenance.commit", lambda: "0123456789ab")
    record = train_run(options)
    (event,) = record.events
    assert event["commit"] == "0123456789ab" and "commit is 0123456789ab" in event["changed"]
    assert "commit is 0123456789ab, was" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("commits", "clean"),
    [(("a", "b"), True), (("a-dirty", "b", "c"), False), (("a", "b-dirty", "c"), False)],
)
def test_a_record_is_clean_if_the_code_of_every_process_was(
    run_options, monkeypatch, commits, clean
):
    options = run_options()
    for step, commit in enumerate(commits, 1):
        with monkeypatch.context() as patch:
            patch.setattr("longlens.training.provenance.commit", lambda commit=commit: commit)
            if commit == commits[-1]:
                assert train_run(options).clean == clean
                continue
            stop_at(patch, 5 * step)
            with pytest.raises(Stopped):
                train_run(options)
            so_far = "".join(commits[:step])
            assert read_record(run_folder(options)).clean == ("dirty" not in so_far)


def test_a_run_is_as_clean_as_its_pretraining(run_options, monkeypatch):
    options = pretraining_run(run_options)
    with monkeypatch.context() as patch:
        patch.setattr("longlens.training.provenance.commit", lambda: "a-dirty")
        stop_in_pretraining(patch, finished=True)
        with pytest.raises(Stopped):
            train_run(options)
    monkeypatch.setattr("longlens.training.provenance.commit", lambda: "b")
    assert train_run(options).clean is False


def test_code_that_left_no_checkpoint_has_not_contributed(run_options, monkeypatch):
    options = run_options(checkpoint_seconds=1e9)
    with monkeypatch.context() as patch:
        patch.setattr("longlens.training.provenance.commit", lambda: "a-dirty")
        patch.setattr(loop.Trainer, "step", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train_run(options)
    monkeypatch.setattr("longlens.training.provenance.commit", lambda: "b")
    assert train_run(options).clean


def test_the_peak_of_memory_is_that_of_all_processes(run_options, monkeypatch):
    monkeypatch.setattr(loop, "peak_memory_mib", lambda _: 1e6)
    options = stopped_run(run_options, monkeypatch)
    monkeypatch.undo()
    assert train_run(options).peak_memory_mib == 1e6


@pytest.mark.parametrize("moved", [False, True])
def test_speed_is_that_of_one_machine(run_options, monkeypatch, moved):
    """The first process is made to have timed two steps of 1,000 s."""
    saved_state = checkpoint.save

    def slow(folder, step, tensors, facts, **how):
        timed = {"timed_seconds": 2000.0, "timed_steps": 2}
        facts = {**facts, "state": facts["state"] | timed}
        return saved_state(folder, step, tensors, facts, **how)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", slow)
        options = stopped_run(run_options, monkeypatch)
    if moved:
        monkeypatch.setattr("longlens.training.provenance.hardware", lambda _: "another machine")
    rate = train_run(replace(options, checkpoint_seconds=1e9)).speed["steps_per_second"]
    assert (rate > 1) == moved


def test_a_checkpoint_of_before_these_were_kept_is_taken(run_options, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("longlens.training.provenance.commit", lambda: "a-dirty")
        options = stopped_run(run_options, monkeypatch)

    def older_checkpoint(*where, load=checkpoint.load):
        saved = load(*where)
        newer = ("clean", "peak_memory_mib", "left_out")
        known = {k: v for k, v in saved.facts["state"].items() if k not in newer}
        return replace(saved, facts=saved.facts | {"state": known})

    monkeypatch.setattr("longlens.training.provenance.commit", lambda: "b")
    monkeypatch.setattr(checkpoint, "load", older_checkpoint)
    record = train_run(options)
    assert record.status == "finished" and record.clean is False


def test_resume_require_and_restart(run_options, monkeypatch):
    with pytest.raises(TrainingError, match="has no checkpoint"):
        train_run(run_options(name="a", resume="require"))
    options = stopped_run(run_options, monkeypatch)
    folder = run_folder(options)
    record = train_run(replace(options, resume="restart", lr=0.5))
    assert record.status == "finished" and record.options["lr"] == 0.5
    aside = json.loads((folder.with_name("a.old-1") / "record.json").read_text())
    assert aside["status"] == "stopped"


def pretraining_run(run_options, **changes):
    return run_options(name="a", protocol="pretrain", steps=6, evaluate_every=6, **changes)


def stop_in_pretraining(monkeypatch, finished):
    """Send a signal within pretraining, or as it ends: then it is finished, the run is not."""
    original = loop.Trainer._finish

    def patched(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return original(self)

    if finished:
        monkeypatch.setattr(loop.Trainer, "_finish", patched)
        monkeypatch.setattr(loop.Trainer, "_evaluate", lambda *_: {"loss": 1.0, "accuracy": 0.5})
    else:
        stop_at(monkeypatch, 4)


@pytest.mark.parametrize("finished", [False, True])
def test_resume_require_lets_the_second_stage_begin(run_options, monkeypatch, finished):
    options = pretraining_run(run_options)
    with pytest.raises(TrainingError, match="pretrain has no checkpoint"):
        train_run(replace(options, resume="require"))
    with monkeypatch.context() as patch:
        stop_in_pretraining(patch, finished)
        with pytest.raises(Stopped):
            train_run(options)
    stage = read_record(run_folder(options) / "pretrain")
    assert stage.status == ("finished" if finished else "stopped")
    assert train_run(replace(options, resume="require")).status == "finished"


@pytest.mark.parametrize("finished", [False, True])
def test_pretraining_by_an_earlier_process_is_part_of_the_budget(
    run_options, monkeypatch, finished
):
    """Whether it was stopped within pretraining or after it: 50 s of the 60 are gone."""
    options = replace(pretraining_run(run_options), steps=None, pretrain_steps=6, budget="60s")
    timing = Timing(step=1.0, evaluation=0.1, final=0.1)
    monkeypatch.setattr(rehearse, "time_steps", lambda *_: timing)
    original = loop.Trainer._checkpoint

    def slow(self):  # a process whose training took 50 s
        self._began -= 50 if self.state.step == 3 else 0
        original(self)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "_checkpoint", slow)
        stop_in_pretraining(patch, finished)
        with pytest.raises(Stopped):
            train_run(options)
    record = train_run(options)
    (event,) = [event for event in record.events if event["kind"] == "budget"]
    assert event["spent"] > 50 and record.total_steps < 10


def test_a_damaged_checkpoint_falls_back_to_the_one_before(run_options, monkeypatch):
    train_run(run_options(name="alone"))
    options = stopped_run(run_options, monkeypatch)
    folder = run_folder(options)
    old, new = sorted((folder / "checkpoints").iterdir())
    assert (old.name, new.name) == ("step-00000003", "step-00000005")
    data = bytearray((new / checkpoint.TENSORS).read_bytes())
    data[-1] ^= 1
    (new / checkpoint.TENSORS).write_bytes(data)
    record = train_run(options)
    assert record.events[0]["step"] == 3
    assert outcome(folder) == outcome(folder.parent / "alone")
    # and where all are damaged, nothing starts over silently
    folder.rename(folder.with_name("b"))
    options = stopped_run(run_options, monkeypatch, seed=1)
    for path in (folder / "checkpoints").iterdir():
        (path / checkpoint.FACTS).write_text("{")
    with pytest.raises(ValueError, match="no checkpoint can be read"):
        train_run(options)


def test_small_checkpoints_are_smaller_and_resume(run_options, monkeypatch):
    sizes = {}
    for small in (False, True):
        options = stopped_run(run_options, monkeypatch, small_checkpoints=small, ema=0.0, dim=32)
        (path, _) = sorted((run_folder(options) / "checkpoints").iterdir())
        sizes[small] = (path / checkpoint.TENSORS).stat().st_size
        assert train_run(options).status == "finished"
        run_folder(options).rename(run_folder(options).with_name(f"small-{small}"))
    assert sizes[True] < 0.8 * sizes[False]


def test_two_processes_cannot_train_one_run(run_options):
    options = run_options()
    with (
        locked(run_folder(options) / LOCK, "a"),
        pytest.raises(ValueError, match="another process"),
    ):
        train_run(options)
