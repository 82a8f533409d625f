"""Watching a run: its speed, and what it shows on standard error while it trains."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from longlens.tasks.progress import Bar
from longlens.training.budget import FORWARD
from longlens.training.job import Job, State

REFRESH = 0.5  # seconds; reading the loss more often would keep the device waiting


def duration(seconds: float) -> str:
    """Spell a time for people.

    >>> duration(42), duration(3725)
    ('42s', '1h02m')
    """
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes = round(seconds / 60)
    return f"{minutes}m" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def sentence(values: Mapping[str, Any]) -> str:
    """Loss and metric as text.

    >>> sentence({"step": 5, "loss": 1.5, "accuracy": 0.5, "seconds": 3.0})
    'loss 1.5000  accuracy 0.5000'
    """
    hidden = ("seconds", "epoch")
    shown = {k: v for k, v in values.items() if isinstance(v, float) and k not in hidden}
    return "  ".join(f"{name} {value:.4f}" for name, value in shown.items())


def describe_steps(job: Job, state: State, every: int, batch_size: int) -> str:
    """What is about to be done, in two lines, once data and steps are known."""
    sizes = {"training": job.train, "validation": job.validation, "test": job.test}
    counted = ", ".join(f"{len(b.members):,} {name}" for name, b in sizes.items() if b)
    last = ""
    if job.test is not None:  # a short run may take less time than its test
        work = FORWARD * len(job.test.members) / batch_size
        last = f", test once at the end (as much work as {work:,.0f} steps)"
    return (
        f"data    {counted} examples; an epoch is {job.epoch_steps:,} steps\n"
        f"steps   {state.total:,}{f' (from {state.step:,} on)' if state.step else ''}, "
        f"validation every {min(every, state.total):,}{last}"
    )


class Meter:
    """Measures speed over steps that nothing else interrupts.

    What was counted since the last line is dropped where compilation (the first interval),
    evaluation or a checkpoint fell into it.
    """

    def __init__(self) -> None:
        self.first = True
        self._reset()

    def _reset(self) -> None:
        self.began: float | None = None
        self.steps = self.tokens = self.padded = 0
        self.spoiled = self.first

    def start(self) -> None:
        """A step begins."""
        if self.began is None:
            self.began = time.perf_counter()

    def add(self, tokens: int, padded: int) -> None:
        """A step was given to the device."""
        self.steps += 1
        self.tokens += tokens
        self.padded += padded

    def discard(self) -> None:
        """Something else happens now."""
        self.spoiled = self.spoiled or self.began is not None

    def stop(self, state: State, world_size: int) -> int | None:
        """The device has done all steps: add them to the state; returns tokens a second."""
        rate = None
        if self.began is not None and not self.spoiled:
            spent = time.perf_counter() - self.began
            state.timed_seconds += spent
            state.timed_steps += self.steps
            state.timed_tokens += self.tokens * world_size
            state.timed_padded += self.padded * world_size
            rate = round(self.tokens * world_size / spent)
        self.first = False
        self._reset()
        return rate


class Display:
    """Shows a run while it trains: step, loss, speed and time left, and evaluations as they come.

    Args:
        name: of the run.
        total: steps in all.
        start: steps done before.
        quiet: show nothing.
    """

    def __init__(self, name: str, total: int, start: int = 0, quiet: bool = False) -> None:
        self.total, self.quiet, self.rate = total, quiet, 0.0
        self._bar = Bar(name, total, start, quiet)
        self._at, self._read = start, time.perf_counter()
        self._begun = False
        self._bar.update(start, f"step {start}/{total}")

    def step(self, step: int, read: Callable[[], Mapping[str, float]]) -> None:
        """A step was done; ``read`` gives loss and metric, and waits for the device."""
        spent = time.perf_counter() - self._read
        if self.quiet or (spent < REFRESH and step < self.total and self._begun):
            return
        words = [f"step {step}/{self.total}", sentence(read())]
        if self._begun and step > self._at:  # the first step compiles and allocates
            now = (step - self._at) / spent
            self.rate = 0.7 * self.rate + 0.3 * now if self.rate else now
            left = duration((self.total - step) / self.rate)
            words += [f"{self.rate:.3g} steps/s", f"left {left}"]
        self._bar.update(step, "  ".join(words))
        self._at, self._read, self._begun = step, time.perf_counter(), True

    def evaluating(self, step: int, split: str, done: int, batches: int) -> None:
        """A batch of an evaluation was done."""
        self._bar.update(step, f"step {step}/{self.total}  {split} {done}/{batches} batches")
        self._at, self._read = step, time.perf_counter()

    def evaluated(self, line: Mapping[str, Any]) -> None:
        """Show the line of the curves that an evaluation has made."""
        self.say(f"step {line['step']}/{self.total}  {line['split']}  {sentence(line)}")

    def say(self, text: str) -> None:
        """Show a message."""
        self._bar.say(text)

    def close(self) -> None:
        """End the live view."""
        self._bar.close()
