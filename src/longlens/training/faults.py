"""What can go wrong while training, and what is done about it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch


class TrainingError(ValueError):
    """A run cannot go on; the message says why and what helps. Its last checkpoint is whole."""


class Stopped(Exception):  # noqa: N818 (no error: a request that was fulfilled)
    """The run was asked to stop and has written its checkpoint."""

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(message)
        self.signum = signum

    def __reduce__(self) -> tuple[type[Stopped], tuple[int, str]]:
        return type(self), (self.signum, str(self))  # so that it can come back from another process


class Interrupted(Exception):  # noqa: N818 (the same, on its way to the loop)
    """An evaluation was left because of a signal."""


class Signals:
    """Remembers SIGTERM and SIGINT, so that the loop can write a checkpoint and leave.

    The first SIGINT says what happens, a second one interrupts at once. Outside of the main thread,
    where Python has no signal handlers, nothing is caught.
    """

    def __init__(self) -> None:
        self.received = 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
        if number == signal.SIGINT:  # print() must not be called while it is at work already
            os.write(2, b"\nstopping after this step; Ctrl-C again stops at once\n")

    @contextmanager
    def caught(self) -> Iterator[Signals]:
        """Catch the signals inside the block."""
        try:
            before = {
                number: signal.signal(number, self._handle)
                for number in (signal.SIGTERM, signal.SIGINT)
            }
        except ValueError:
            before = {}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on a GPU or a CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)


def out_of_memory_message(rows: int, length: int) -> str:
    """What to change when a step of ``rows`` sequences of ``length`` positions does not fit."""
    smaller = max(1, rows // 2)
    return (
        f"out of memory with {rows} sequences of {length} positions at once; use --micro_batch "
        f"{smaller} (less memory; the same result, but for norm=batch) or --micro_batch auto, "
        "--dtype bfloat16, or a smaller --length, --dim or --depth"
    )


def largest_that_fits(rows: int, attempt: Callable[[int], None]) -> int:
    """The largest of rows, rows/2, rows/4 … for which ``attempt`` does not run out of memory.

    Sizes are rounded up, so that ``rows`` is covered by that many equal micro-batches or nearly so.

    >>> def attempt(rows):
    ...     if rows > 10: raise MemoryError
    >>> largest_that_fits(32, attempt)
    8
    """
    size = rows
    while True:
        try:
            attempt(size)
            return size
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or size == 1:
                raise
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        size = -(-size // 2)
