"""Progress on standard error: a bar in a terminal that has rich, else a line every few seconds."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Any

INTERVAL = 4.0  # seconds between two lines


class Bar:
    """Shows how far something is, until it is closed.

    Lines come from a thread of their own, so that there is life also while one step takes minutes.

    >>> bar = Bar("demo", total=3, quiet=True)
    >>> bar.update(1, "1 of 3")
    >>> bar.close()
    """

    def __init__(
        self, label: str, total: int | None, completed: int = 0, quiet: bool = False
    ) -> None:
        self.label, self.quiet, self.text = label, quiet, ""
        self._changed = self._said = time.monotonic()
        self._closed = threading.Event()
        self._bar = None if quiet else _rich_bar()
        if self._bar is not None:
            self._task = self._bar.add_task(label, total=total, completed=completed, text="")
            self._bar.start()
        elif not quiet:
            threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while not self._closed.wait(max(0.1, self._said + INTERVAL - time.monotonic())):
            if time.monotonic() - self._said >= INTERVAL:
                idle = time.monotonic() - self._changed
                self.say(self._line() + (f"  (for {idle:.0f} s)" if idle >= INTERVAL else ""))

    def _line(self) -> str:
        return f"{self.label}: {self.text}" if self.text else self.label

    def update(self, completed: int, text: str) -> None:
        """Show how much is done, and a text beside it."""
        self.text, self._changed = text, time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=completed, text=text)

    def say(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        self._said = time.monotonic()
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        elif not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def close(self, last: bool = False) -> None:
        """End it; ``last``: where there is no bar, with a last line."""
        self._closed.set()
        if self._bar is not None:
            self._bar.stop()
        elif last:
            self.say(self._line())


def _rich_bar() -> Any:
    """A bar of rich; None where there is no terminal, or no rich."""
    if not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
    except ImportError:  # the library part installs without rich
        return None
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=20)
    return Progress(*columns, TextColumn("{task.fields[text]}"), console=Console(stderr=True))


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

    def __enter__(self) -> Progress:
        self._started = time.monotonic()
        self._bar = Bar(self.label, self.total, quiet=self.quiet)
        return self

    def advance(self, count: int) -> None:
        """Report that ``count`` more units are done."""
        self.done += count
        of_total = f" of {self.total:,}" if self.total is not None else ""
        spent = time.monotonic() - self._started
        self._bar.update(self.done, f"{self.done:,}{of_total} {self.unit}, {spent:.0f} s")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close(last=kind is None)
