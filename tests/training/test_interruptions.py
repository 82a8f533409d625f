"""Ctrl-C twice, a full disk, no locks: one line for the user, nothing lost, the same result."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from dataclasses import replace

import pytest

from longlens import files
from longlens.cli.main import main
from longlens.runs import train_run
from longlens.runs.record import RECORD, RecordWriter, read_record
from longlens.runs.run import run_folder
from longlens.training import loop
from tests.cli.test_train import words
from tests.training.runs import outcome

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


def train(options):
    """The command line, with every option that the tests' runs set."""
    extra = ["--dropout", "0.1", "--ema", "0.9", "--checkpoint_seconds", "0", "--progress", "false"]
    return main(["train", *words(options), *extra, "--name", options.name])


def one_line(capsys):
    lines = capsys.readouterr().err.strip().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("listops: "))  # being made
    assert "\n" not in text and "Traceback" not in text and text.startswith("longlens train: ")
    return text


def same_as_alone(options):
    alone = replace(options, name="alone")
    train_run(options)
    train_run(alone)
    assert outcome(run_folder(options)) == outcome(run_folder(alone))


def test_a_second_interrupt_ends_at_once_and_loses_nothing(run_options, monkeypatch, capsys):
    options, original = run_options(name="a"), loop.Trainer.step

    def interrupted(self):
        original(self)
        if self.state.step == 7:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "step", interrupted)
        assert train(options) == 130
    assert "interrupted; the same command goes on" in one_line(capsys)
    assert read_record(run_folder(options)).status == "stopped"
    same_as_alone(options)


def test_a_full_disk_while_the_curve_is_written(run_options, monkeypatch, capsys):
    options, original = run_options(name="a"), RecordWriter.__init__

    class AlmostFull:
        """A file that takes the first ten bytes of its fourth line and no more."""

        def __init__(self, file):
            self.file, self.lines = file, 0

        def write(self, data):
            self.lines += 1
            if self.lines == 4:
                return self.file.write(data[:10])
            if self.lines > 4:
                raise NO_SPACE
            return self.file.write(data)

        def __getattr__(self, name):
            return getattr(self.file, name)

    def opened(self, *arguments):
        original(self, *arguments)
        self._curves = AlmostFull(self._curves)

    with monkeypatch.context() as patch:
        patch.setattr(RecordWriter, "__init__", opened)
        assert train(options) == 1
    assert "the disk is full" in (text := one_line(capsys)) and "curves.jsonl" in text
    same_as_alone(options)


@pytest.mark.parametrize("number", [1, 2])  # as the run begins, and as it ends
def test_a_full_disk_while_the_record_is_written(run_options, monkeypatch, capsys, number):
    options, original, seen = run_options(name="a"), files.write_file, []

    def full(path, content):
        seen.append(path.name)
        if seen.count(RECORD + files.PARTIAL) >= number:
            with files.disk_faults_named(path):
                raise NO_SPACE
        return original(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_file", full)
        assert train(options) == 1
    assert "the disk is full" in (text := one_line(capsys)) and RECORD in text
    assert (run_folder(options) / RECORD).exists() == (number == 2)
    same_as_alone(options)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(run_options, monkeypatch, capsys, tmp_path, code):
    def no_lock(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", no_lock)
    assert train(run_options(name="a")) == 1
    assert "cannot be locked" in (text := one_line(capsys)) and os.strerror(code) in text
    table = tmp_path / "table.json"
    table.write_text('[{"task": "cumsum"}]')
    for command in (
        ["data", "prepare", "cumsum", "--root", str(tmp_path)],
        ["run", str(table), "--quiet", "--runs", str(tmp_path)],
    ):
        assert main(command) == 1
        text = capsys.readouterr().err
        assert "cannot be locked" in text and text.count("\n") == 1
