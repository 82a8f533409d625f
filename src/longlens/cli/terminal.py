"""What commands say on a terminal: no control characters, and errors as one line each."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, TextIO, cast

from longlens.untrusted import one_line, printable

INTERRUPTED = "interrupted; the same command goes on from what is saved"


class PlainText:
    r"""A text stream that spells out control characters and what its encoding does not have.

    >>> import io
    >>> stream = io.StringIO()
    >>> print("a name from a file: \x1b[2J", file=PlainText(stream))
    >>> stream.getvalue()
    'a name from a file: \\x1b[2J\n'
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write ``text`` without control characters."""
        plain = printable(text)
        if encoding := getattr(self.stream, "encoding", None):  # a terminal's may lack dashes
            plain = plain.encode(encoding, "backslashreplace").decode(encoding)
        self.stream.write(plain)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several pieces of text."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def plain_output() -> Iterator[None]:
    """Within the block, what is printed holds no control characters, and fits the encoding.

    Progress bars, which are made of them, go to standard error.
    """
    if sys.stdout is None:  # closed, as by `>&-`; print writes nothing
        yield
        return
    with redirect_stdout(cast(TextIO, PlainText(sys.stdout))):
        yield


def complain(who: str, problem: object) -> None:
    """Print one line to standard error.

    >>> complain("longlens data", OSError(28, "No space left on device", "a.npy"))
    """
    if isinstance(problem, OSError) and problem.strerror:
        where = f"{problem.filename}: " if problem.filename is not None else ""
        problem = f"{where}{problem.strerror}"
    print(f"{who}: {one_line(problem)}", file=sys.stderr, flush=True)


def leave_pipe() -> None:
    """Let what is left go nowhere: the reader (head, less) has seen enough."""
    with suppress(OSError):  # where standard output is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
