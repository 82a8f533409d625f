"""An audit by time: what is cheap first, then what tells most, until the time is over.

Linear probes at once; then probes of random features, first the two that see everything and the
ends of the curve, then always in the gap where accuracy changes most; then the same with other
seeds; then trained models, global ones and convolutions where the curve bends, while time lasts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from longlens.lens.audit.diagnostics import diagnose
from longlens.lens.audit.floor import PROBES
from longlens.lens.audit.judge import judge
from longlens.lens.audit.options import QUICK_TRAINING, AuditOptions
from longlens.lens.audit.probed import to_json
from longlens.lens.audit.run import Model, Report, add_models, empty_report, load_task, say
from longlens.lens.audit.verdict import SEEDS
from longlens.lens.probe import Outcome, Prober
from longlens.lens.probe.prober import SOLVE, Where, features_for
from longlens.runs import sweep
from longlens.runs.document import now
from longlens.runs.record import Record
from longlens.tasks import Task
from longlens.training.budget import seconds
from longlens.training.faults import Stopped
from longlens.training.progress import duration

SIZES = (20_000, 10_000, 6000, 3000, 2000, 1000, 500, 250)  # examples that probes are fitted to
TESTED, FEW = 3000, 500  # test examples: at most, and at least where fewer are fitted
PROBING, ALONE = 0.6, 0.85  # share of the time for probes, with trained models after them or not
LEAST = 10.0  # seconds of a trained model; with less time left none is begun
MODELS = 6  # trained models that the time left is shared by, if each then has LEAST


@dataclass
class Clock:
    """The time of an audit."""

    total: float
    began: float

    @property
    def left(self) -> float:
        """Seconds until the time is over."""
        return self.total - (time.monotonic() - self.began)


def timed_audit(
    options: AuditOptions,
    total: str = "5m",
    save: Callable[[Report], None] | None = None,
    began: float | None = None,
) -> Report:
    """Audit a task within a time; Ctrl-C ends it early, with the verdict so far.

    Args:
        options: see :class:`AuditOptions`; ``budget``, ``steps`` and ``epochs`` are chosen here.
        total: the time, as in 60s or 5m.
        save: called with the result so far after every step of the way.
        began: when the time began, by ``time.monotonic()``; None: now.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> data = dict(distance=4, train=40, validation=10, test=20)
    >>> report = timed_audit(AuditOptions("far-order", data, mixers=(), seeds=1, fields=(3, 9),
    ...     runs=folder, root=folder, progress=False), "20s")
    >>> [row["model"] for row in report["curve"]]
    ['probe 3', 'probe 9', 'probe, anywhere', 'probe, in place']
    """
    clock = Clock(seconds(total), time.monotonic() if began is None else began)
    task, length = load_task(options), options.training.get("length")
    report = empty_report(options, task)
    fields = report["options"]["fields"]
    report["options"].pop("budget", None)  # of each model: their records have it
    report["options"]["total"] = total
    report |= {"probes": [], "open": []}
    save = save or (lambda values: None)
    say(
        options, f"{task!r}; without looking {report['chance']:.1%}; {duration(clock.total)} in all"
    )
    try:
        report["diagnostics"] = diagnose(task, quick=True, length=length, probes_only=True)
        linear = [(name, report["diagnostics"].get(name)) for name in PROBES]
        said = ", ".join(
            f"{name.replace('_', ' ')} {probe['test']:.1%}" for name, probe in linear if probe
        )
        say(options, f"linear models: {said or 'none, examples are pairs'}")
        report |= judge(report)
        save(report)
        if not task.spec.pair:
            _probe(options, task, fields, report, clock, save)
        wanted = _wanted(options, fields, report)
        _train(options, task, wanted, report, clock, save)
    except (KeyboardInterrupt, Stopped):
        report["open"] = [*report["open"], "the rest, since it was interrupted"]
        say(options, "interrupted; this is the verdict so far")
    report |= judge(report)
    report["ended"] = now()
    save(report)
    return report


def order(accuracies: dict[int, float], fields: list[int]) -> int | None:
    """The field to look at next: in the gap where accuracy changes most, its middle.

    >>> order({}, [3, 9, 33, 129]), order({3: 0.5}, [3, 9, 33, 129])
    (3, 129)
    >>> order({3: 0.5, 129: 0.9}, [3, 9, 33, 129]), order({3: 0.5, 9: 0.9}, [3, 9])
    (9, None)
    """
    for end in (fields[0], fields[-1]):
        if end not in accuracies:
            return end
    known = [number for number, each in enumerate(fields) if each in accuracies]
    gaps = [(a, b) for a, b in pairwise(known) if b - a > 1]
    if not gaps:
        return None
    steps = [abs(accuracies[fields[b]] - accuracies[fields[a]]) for a, b in gaps]
    widest = max(range(len(gaps)), key=lambda n: (steps[n], gaps[n][1] - gaps[n][0]))
    return fields[sum(gaps[widest]) // 2]


class Size(NamedTuple):
    """Examples that a probe is fitted to and tested on, its features, and the seconds it takes."""

    train: int
    test: int
    features: int
    seconds: float


def _size(task: Task, count: int, share: float, clock: Clock, length: int | None) -> Size:
    """How large probes may be, so that ``count`` of them take this share of the time left."""
    train, test = len(task["train"]) + len(task["validation"]), min(TESTED, len(task["test"]))
    cut = length or task.spec.max_length
    positions = sum(int(np.minimum(part.lengths, cut).sum()) for part in task.splits.values())
    features = features_for(train, positions)
    pilot = Prober(task, 100, 50, length, features)
    pilot.probe("window", min(33, pilot.longest), 0)  # the first call of everything is slow
    each = pilot.probe("window", min(33, pilot.longest), 0).seconds / (len(pilot.known) + 50)
    began = time.perf_counter()
    torch.linalg.eigh(torch.eye(1000) + 1e-3)
    cube = 2 * (time.perf_counter() - began)

    def expected(size: int) -> float:
        tested = min(test, max(FEW, size))
        return each * (size + tested) + cube * (min(size, SOLVE) / 1000) ** 3

    sizes = [size for size in (train, *SIZES) if size <= min(train, SIZES[0])]
    fitting = [size for size in sizes if count * expected(size) <= share * clock.left]
    size = fitting[0] if fitting else sizes[-1]
    return Size(size, min(test, max(FEW, size)), features, expected(size))


def _probe(
    options: AuditOptions,
    task: Task,
    fields: list[int],
    report: Report,
    clock: Clock,
    save: Callable[[Report], None],
) -> None:
    """All probes, seed by seed, while there is time."""
    seeds = options.seeds or SEEDS
    count = seeds * (len(fields) + 2)
    share = PROBING if options.mixers else ALONE
    length = options.training.get("length")
    size = _size(task, count, share, clock, length)
    expected = size.seconds
    prober = Prober(task, size.train, size.test, length, size.features)
    report["probed"] = {"train": len(prober.known), "test": len(prober.test),
                        "as": "series" if prober.series else "symbols"}  # fmt: skip
    say(options, f"probes of {len(prober.known):,} examples, tested on {len(prober.test):,}, as "
                 f"{report['probed']['as']}")  # fmt: skip
    left = count
    for seed in range(seeds):
        for where, reach in _next(report, fields, seed):
            if clock.left < expected:
                report["open"] = [f"{left} of {count} probes"]
                return
            outcome = prober.probe(where, reach, seed)
            left -= 1
            expected = max(outcome.seconds, 0.5 * expected)
            report["probes"].append(to_json(outcome))
            report |= judge(report)
            report["open"] = [f"{left} probes"] if left else []
            save(report)
            _tell(options, outcome, left, expected, clock)


def _next(report: Report, fields: list[int], seed: int) -> Iterator[tuple[Where, int | None]]:
    yield "anywhere", None
    while True:
        known = {
            probe["receptive_field"]: probe["validation"]
            for probe in report["probes"]
            if probe["where"] == "window" and probe["seed"] == seed
        }
        reach = order(known, fields)
        if reach is None:
            break
        yield "window", reach
    yield "in place", None


def _tell(
    options: AuditOptions, outcome: Outcome, left: int, expected: float, clock: Clock
) -> None:
    name = f"probe {outcome.reach}" if outcome.reach else f"probe, {outcome.where}"
    soon = min(clock.left, left * expected)
    say(
        options,
        f"{name}, seed {outcome.seed}: test {outcome.test:.1%}, left out {outcome.left_out:.1%}, "
        f"{outcome.seconds:.1f} s; {left} probes open, about {duration(soon)}, "
        f"{duration(max(0.0, clock.left))} in all",
    )


def _train(
    options: AuditOptions,
    task: Task,
    wanted: list[tuple[str, int | None, int]],
    report: Report,
    clock: Clock,
    save: Callable[[Report], None],
) -> None:
    """Train as many of the ``wanted`` models (mixer, field, seed) as there is time for."""
    done: list[tuple[Model, Record]] = []
    before = report["open"]
    longest = max(LEAST, clock.left / max(1, min(MODELS, len(wanted))))
    ready = {**QUICK_TRAINING, "batch_size": max(1, min(32, len(task["train"]) // 2)),
             **options.training}  # fmt: skip
    beside = 0.25 * longest  # what loading, evaluation and the rest take: measured from then on
    for number, (mixer, reach, seed) in enumerate(wanted):
        if clock.left < LEAST + beside:
            report["open"] = [*before, f"{len(wanted) - number} of {len(wanted)} trained models"]
            return
        trained, began = max(1, int(min(longest, clock.left - beside))), time.monotonic()
        length = f"{trained}s"
        timed = replace(options, budget=length, steps=None, epochs=None, training=ready)
        model = Model(mixer, reach, seed, timed.train_options(task.spec, mixer, reach, seed))
        record = sweep([model.run])[0]
        beside = max(beside, 1.5 * (time.monotonic() - began - trained))
        done.append((model, record))
        add_models(report, done)
        still = len(wanted) - number - 1
        report["open"] = [*before, *([f"{still} trained models"] if still else [])]
        save(report)
        result = f"test {record.value('test'):.1%}" if record.is_finished else f"{record.error}"
        say(options, f"{model.name}, trained for {length}: {result}; "
                     f"{duration(max(0.0, clock.left))} left")  # fmt: skip


def _wanted(
    options: AuditOptions, fields: list[int], report: Report
) -> list[tuple[str, int | None, int]]:
    """Models by what they tell: global ones, then convolutions about the field that is needed."""
    needed = (report.get("ranges") or {}).get("of_gain", {}).get("0.95", {}).get("receptive_field")
    place = fields.index(needed) if needed in fields else len(fields) - 1
    near = [place, place - 1, place + 1, 0]
    chosen = list(dict.fromkeys(fields[n] for n in near if 0 <= n < len(fields)))
    kinds: list[tuple[str, int | None]] = [(mixer, None) for mixer in options.mixers]
    if options.mixers:
        kinds += [("conv", each) for each in chosen]
    return [
        (mixer, reach, seed) for seed in range(options.seeds or SEEDS) for mixer, reach in kinds
    ]
