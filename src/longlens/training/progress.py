"""Watching a run: a live view in a terminal (rich, where it is installed), else plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from longlens.tasks.progress import Bar
from longlens.training.job import State


def duration(seconds: float) -> str:
    """Spell a time for people.

    >>> duration(42), duration(3725)
    ('42s', '1h02m')
    """
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes = round(seconds / 60)
    return f"{minutes}m" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def sentence(line: Mapping[str, Any], total: int, left: float | None) -> str:
    """One line of a curve as text.

    >>> sentence({"step": 5, "split": "train", "loss": 1.5, "accuracy": 0.5}, 10, 30)
    'step 5/10  train  loss 1.5000  accuracy 0.5000  left 30s'
    """
    words = [f"step {line['step']}/{total}", str(line["split"])]
    for key, value in line.items():
        if isinstance(value, float) and key not in ("seconds", "epoch", "lr", "tokens_per_second"):
            words.append(f"{key} {value:.4f}")
    if "lr" in line:
        words.append(f"lr {line['lr']:.2e}")
    if line.get("tokens_per_second"):
        words.append(f"{line['tokens_per_second']:,.0f} tokens/s")
    if left is not None:
        words.append(f"left {duration(left)}")
    return "  ".join(words)


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


class CurveDisplay:
    """Shows lines of the curves as they come, with the time that is left.

    Args:
        name: of the run.
        total: steps in all.
        start: steps done before.
        quiet: show nothing.
    """

    def __init__(self, name: str, total: int, start: int = 0, quiet: bool = False) -> None:
        self.total, self.start, self.quiet = total, start, quiet
        self.began = time.perf_counter()
        self._bar = Bar(name, total, start, quiet)

    def show(self, line: Mapping[str, Any]) -> None:
        """Show a line of the curves."""
        step, of_training = line["step"], line["split"] == "train"
        if self._bar and of_training:
            text = sentence(line, self.total, None).split("train", 1)[1].strip()
            self._bar.update(step, f"{step}/{self.total}  {text}")
            return
        left = None
        if of_training and step > self.start:
            spent = time.perf_counter() - self.began
            left = spent / (step - self.start) * (self.total - step)
        self.say(sentence(line, self.total, left))

    def say(self, text: str) -> None:
        """Show a message."""
        if self._bar:
            self._bar.say(text)
        elif not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the live view."""
        self._bar.close()
