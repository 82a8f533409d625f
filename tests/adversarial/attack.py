"""Damaging files one at a time and judging what is made of them."""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np

from longlens.cli.main import main
from longlens.tasks import load, prepare
from tests.adversarial.damage import damaged

SEED = 17
SECONDS = 30  # longer than this is a hang
Judge = Callable[[], object]


class HangError(Exception):
    """A damaged file kept the program busy."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise HangError

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def attack(
    name: str, files: list[Path], judge: Judge, count: int, *, opened: bool = False
) -> Counter:
    """Damage one of ``files`` at a time, ``count`` times, and judge what comes of it.

    ``judge`` reads the files and returns what it got; for ``opened`` kinds, where that may differ
    from the original, it validates what it got itself, and may return a word for the outcome.
    """
    rng = Random(f"{SEED} {name}")
    whole = judge()
    counts: Counter = Counter()
    problems = []
    for number in range(count):
        path = rng.choice(files)
        before = path.read_bytes()
        text = path.suffix in (".json", ".jsonl") or rng.random() < 0.1
        way, content = damaged(before, rng, text)
        while content == 2 * before and path.suffix in (".gz", ".xz"):
            way, content = damaged(before, rng, text)  # two whole streams are a whole file
        path.write_bytes(content)
        outcome = "accepted"
        try:
            with limited(), contextlib.redirect_stderr(io.StringIO()):
                found = judge()
            if opened:
                outcome = found if isinstance(found, str) else "validated"
            else:
                outcome = "the same" if found == whole else "accepted"
        except (ValueError, OSError):
            outcome = "refused"
        except Exception as error:
            outcome = "traceback"
            problems.append(f"{number}: {path.name} {way}: {type(error).__name__}: {error}")
        finally:
            path.write_bytes(before)
        counts[outcome] += 1
        if outcome == "accepted":
            problems.append(f"{number}: {path.name} {way}: read as if it were whole")
    print(f"\n{name}: {dict(counts)}", end="")
    assert not problems, "\n".join([f"{name}: {dict(counts)}", *problems[:40]])
    assert opened or judge() == whole  # the files are as they were
    return counts


def arrays_of(name: str, root: Path, **options: object) -> object:
    task = load(name, root, **options)
    return task.identity, {
        (split, key): hashlib.sha256(rows.whole().tobytes()).hexdigest()
        for split, part in task.splits.items()
        for key, rows in part.arrays.items()
    }


def preparing(task: str, source: Path, root: Path, options: dict[str, object]) -> Judge:
    def judge() -> object:
        shutil.rmtree(root, ignore_errors=True)
        prepare(task, root, source=source, quiet=True, **options)
        found = arrays_of(task, root, **options)
        validate(task, root, options)
        return found

    return judge


def validate(task: str, root: Path, options: dict[str, object]) -> None:
    """What every prepared task promises: tokens and classes in range, floats that are finite."""
    found = load(task, root, **options)
    for split in found.splits.values():
        assert len(split) == found.examples[split.name] or found.spec.kind == "next_token"
        for key in ("inputs", "flat", "stream"):
            if key in split.arrays and len(split.arrays[key]):
                values = split.arrays[key].whole()
                if found.spec.inputs == "tokens":
                    assert values.min() >= 0 and values.max() < found.spec.vocab_size
                else:
                    assert np.isfinite(values).all()
        if "targets" in split.arrays and found.spec.kind == "classification":
            assert split.targets.min() >= 0 and split.targets.max() < found.spec.num_classes
        elif "targets" in split.arrays:
            assert np.isfinite(split.targets).all()


def command(words: list[str]) -> str:
    """Run a command; an error must be one line on standard error, and is raised as ValueError."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    text = out.getvalue() + err.getvalue()
    bad = [c for c in text if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160]
    if bad:
        raise AssertionError(f"{words}: control characters reach the terminal: {bad[:3]}")
    if code:
        lines = err.getvalue().splitlines()
        if not lines or any(not line.startswith("longlens") for line in lines):
            raise AssertionError(f"{words}: no one-line error: {err.getvalue()!r}")
        raise ValueError(lines[-1])
    return text
