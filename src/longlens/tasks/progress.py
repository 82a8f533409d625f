"""Progress on standard error: a bar in a terminal that has rich, plain lines everywhere else."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

PLAIN_INTERVAL = 10.0  # seconds between two plain lines


class Progress:
    """Counts work that is being done; use as a context manager.

    >>> with Progress("demo", total=3, quiet=True) as progress:
    ...     progress.advance(3)
    >>> progress.done
    3
    """

    def __init__(
        self, label: str, total: int | None, unit: str = "examples", quiet: bool = False
    ) -> None:
        self.label, self.total, self.unit, self.quiet = label, total, unit, quiet
        self.done = 0
        self._bar: Any = None
        self._task: Any = None
        self._started = self._last = 0.0

    def __enter__(self) -> Progress:
        self._started = self._last = time.monotonic()
        if not self.quiet and sys.stderr.isatty():
            try:
                from rich import progress as rich_progress
                from rich.console import Console
            except ImportError:  # the library part installs without rich
                return self
            self._bar = rich_progress.Progress(
                rich_progress.TextColumn("{task.description}"),
                rich_progress.BarColumn(),
                rich_progress.MofNCompleteColumn(),
                rich_progress.TextColumn(self.unit),
                rich_progress.TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=self.total)
        return self

    def advance(self, count: int) -> None:
        """Report that ``count`` more units are done."""
        self.done += count
        if self._bar is not None:
            self._bar.advance(self._task, count)
        elif time.monotonic() - self._last >= PLAIN_INTERVAL:
            self._last = time.monotonic()
            self._line()

    def _line(self) -> None:
        if not self.quiet:
            of_total = f" of {self.total:,}" if self.total is not None else ""
            seconds = time.monotonic() - self._started
            print(
                f"{self.label}: {self.done:,}{of_total} {self.unit}, {seconds:.0f} s",
                file=sys.stderr,
                flush=True,
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif kind is None:
            self._line()
