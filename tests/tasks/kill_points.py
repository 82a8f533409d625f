"""Helper process: prepare a task again and again, dying at the n-th file operation each time.

Usage: kill_points.py ROOT NAME STEP JSON-OPTIONS [SOURCE]. Every attempt is a child process that
calls ``os._exit`` just before, or just after, its n-th rename, flush to disk, deletion or write of
the journal, for n = 1, 1+STEP, 1+2·STEP … until it comes to its end. Prints the last n.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from longlens.tasks import prepare
from longlens.tasks.writer import Writer


class Bomb:
    """Counts file operations and ends the process at the chosen one."""

    def __init__(self, point: int) -> None:
        self.point, self.count = point, 0

    def wrap(self, function):
        def wrapped(*arguments, **keywords):
            for part in ("before", "after"):
                self.count += 1
                if self.count == self.point:
                    os._exit(9)
                if part == "before":
                    result = function(*arguments, **keywords)
            return result

        return wrapped


def attempt(root: Path, name: str, options: dict, source: str | None, point: int) -> bool:
    """Run one attempt in a child; True if it came to its end."""
    child = os.fork()
    if child == 0:
        bomb = Bomb(point)
        os.fsync = bomb.wrap(os.fsync)
        for method in ("replace", "rename", "unlink"):
            setattr(Path, method, bomb.wrap(getattr(Path, method)))
        Writer._append = bomb.wrap(Writer._append)
        prepare(name, root, source=source, quiet=True, **options)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main() -> None:
    root, name, step = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    options = json.loads(sys.argv[4])
    source = sys.argv[5] if len(sys.argv) > 5 else None
    clean = root / "clean"
    reference = prepare(name, clean, source=source, quiet=True, **options)
    files = {p.relative_to(clean): p.read_bytes() for p in clean.rglob("*") if p.is_file()}
    point = 1 - step
    finished = False
    while not finished:
        point += step
        work = root / "work"
        finished = attempt(work, name, options, source, point)
        # a second death at the same place, then a run that is left alone
        if not finished:
            attempt(work, name, options, source, point)
        again = prepare(name, work, source=source, quiet=True, **options)
        found = {p.relative_to(work): p.read_bytes() for p in work.rglob("*") if p.is_file()}
        assert again.identity == reference.identity, point
        assert found == files, (point, sorted(set(found) ^ set(files)))
        shutil.rmtree(work)
    print(point)


if __name__ == "__main__":
    main()
