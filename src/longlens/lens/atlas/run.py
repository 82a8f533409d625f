"""Audits of a list of tasks: a file each, so that the work goes on wherever it was cut off."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from longlens.files import BusyError, locked, make_folder, replace_file, to_json
from longlens.lens.atlas.entries import Entry
from longlens.lens.atlas.rows import atlas_row
from longlens.lens.audit import AuditOptions, timed_audit
from longlens.runs.document import SCHEMA
from longlens.tasks import DataError, import_file
from longlens.tasks.identity import current_identity
from longlens.tasks.own import bring_ucr, is_file
from longlens.training.budget import seconds
from longlens.training.provenance import provenance

Report = dict[str, Any]


def make_atlas(
    entries: Iterable[Entry],
    *,
    runs: str = "runs/atlas",
    root: str | None = None,
    budget: str = "60s",
    mixers: tuple[str, ...] = (),
    collect: bool = False,
    progress: bool = True,
    each: Callable[[Report], None] | None = None,
) -> Report:
    """Audit every entry that is not audited yet; return the content of ``results/atlas.json``.

    Several processes may work on one folder: each takes what nobody works on. An entry whose data
    are not there, or which another process works on, is listed in ``missing`` with the reason.

    Args:
        entries: see :func:`find_entries`.
        runs: folder of the audits' records.
        root: the data cache.
        budget: time of an audit, where an entry has none of its own.
        mixers: global models to train beside the probes; (): probes alone.
        collect: audit nothing; what was audited, with any budget, is the atlas.
        progress: say what is being done.
        each: called with the atlas so far after every audit.

    Raises:
        KeyboardInterrupt: on Ctrl-C; what was audited is kept.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> tiny = Entry("tiny", "far-field", "far-order",
    ...     dict(distance=4, train=40, validation=10, test=20))
    >>> atlas = make_atlas([tiny], runs=folder, root=folder, budget="20s", progress=False)
    >>> atlas["tasks"][0]["name"], atlas["tasks"][0]["proven"]["distance"]
    ('tiny', 4)
    """
    atlas: Report = {"schema": SCHEMA, "kind": "atlas", "title": "Which sequence tasks are long "
                     "range?", "provenance": provenance(), "tasks": [], "missing": []}  # fmt: skip
    todo = list(entries)
    make_folder(Path(runs))
    for number, entry in enumerate(todo):
        began = time.monotonic()
        try:
            wanted = None if collect else entry.budget or budget
            report = _audited(entry, Path(runs), root, wanted, mixers)
            _check_probed(report)
        except (DataError, BusyError) as error:
            atlas["missing"].append({"name": entry.name, "reason": str(error)})
            words = str(error)
        else:
            atlas["tasks"].append(atlas_row(entry, report))
            words = report["verdict"]["text"].partition(";")[0]
        if progress:
            took = time.monotonic() - began
            print(f"atlas {number + 1}/{len(todo)} {entry.name}: {words} ({took:.0f} s)",
                  file=sys.stderr, flush=True)  # fmt: skip
        if each is not None:
            each(atlas)
    return atlas


def _check_probed(report: Report) -> None:
    """Raise for an audit whose time ended before every window was probed: it says nothing yet."""
    probed = {model["receptive_field"] for model in report["curve"]}
    fields = report["options"]["fields"]
    if left := [field for field in fields if field not in probed]:
        raise DataError(f"{len(left)} of {len(fields)} windows were not probed in "
                        f"{report['asked']['budget']}: give it more time")  # fmt: skip


def _audited(
    entry: Entry, runs: Path, root: str | None, budget: str | None, mixers: tuple[str, ...]
) -> Report:
    """The record of an entry's audit; one of the same data is kept if it had as much time.

    Without a budget nothing is audited.
    """
    path = runs / f"{entry.name.replace('/', '-')}.json"
    asked = {"task": entry.task, "options": dict(entry.options), "mixers": list(mixers)}
    if budget is None:  # a record is replaced whole, so reading needs no lock
        if (report := _finished(path, asked, 0.0)) is None:
            raise DataError("not audited yet")
        return report
    with locked(path.with_suffix(".lock"), entry.name):
        name, options = entry.task, entry.options
        if name.startswith("ucr:"):
            name, options = bring_ucr(name, root), {}
        elif is_file(name):  # it may be another one than the last time
            name, options = import_file(name, root=root, for_audit=True, **options).name, {}
        report = _finished(path, asked, seconds(budget))
        current = current_identity(name, root, **options)
        if report is not None and current in (None, report["data"]["identity"]):
            return report
        found = timed_audit(AuditOptions(name, options, mixers=mixers, runs=str(runs), root=root,
                                         progress=False), budget)  # fmt: skip
        if any("interrupted" in words for words in found["open"]):
            raise KeyboardInterrupt
        report = found | {"asked": asked | {"budget": budget}}
        replace_file(path, to_json(report))
        return report


def _finished(path: Path, asked: Report, time: float) -> Report | None:
    """The record at ``path`` if it is of what is asked, finished, and had as much time."""
    try:
        report: Report = json.loads(path.read_text())
        had = report["asked"]
        same = had == asked | {"budget": had["budget"]}
        return report if same and seconds(had["budget"]) >= time and report["ended"] else None
    except (OSError, ValueError, KeyError):  # not there, or cut off
        return None
