"""Files of records, labels, results and audits: JSON of a schema; earlier ones are read, too."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from longlens.untrusted import parse_json

SCHEMA = 2
"""Of records, results, labels of experiments and audits. 1 had ``speed.seconds`` for
``train_seconds``, ``seconds`` in the points of audits, and two meanings of ``wall_seconds``."""


def now() -> str:
    """The time, in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def seconds_between(started: str | None, ended: str | None) -> float | None:
    """By the clock; None where a time is missing or is none.

    >>> seconds_between("2026-01-01T00:00:00+00:00", "2026-01-01T00:01:30+00:00")
    90.0
    """
    try:
        first, last = (datetime.fromisoformat(time or "") for time in (started, ended))
        return (last - first).total_seconds()
    except (ValueError, TypeError):  # no dates, or only one of them with a time zone
        return None


def read_document(path: Path) -> dict[str, Any]:
    """Read a JSON file of this or an earlier schema: a record, labels, results, an audit.

    Raises:
        ValueError: it cannot be read, is damaged, or a newer version wrote it.
    """
    try:
        values = parse_json(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error})") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} is damaged (it is {values!r:.60})")
    schema = values.get("schema")
    if type(schema) is not int or not 1 <= schema <= SCHEMA:
        raise ValueError(f"{path} is of another version; this one reads schema 1 to {SCHEMA}")
    return upgrade(values)


def upgrade(values: dict[str, Any]) -> dict[str, Any]:
    """The content of a file of an earlier schema as this one has it.

    >>> upgrade({"schema": 1, "status": "failed", "speed": {"seconds": 2.0}})["train_seconds"]
    2.0
    """
    if values["schema"] == SCHEMA:
        return values
    lists = {
        key: [_upgraded(entry) for entry in values[key]]
        for key in ("records", "points", "global")
        if isinstance(values.get(key), list)
    }
    return {**_upgraded(values), **lists, "schema": SCHEMA}


def _upgraded(entry: Any) -> Any:
    """A record or a point of an audit, of schema 1."""
    if not isinstance(entry, dict):
        return entry  # damaged; who checks its shape says so
    entry = dict(entry)
    if "receptive_field" in entry:
        entry["train_seconds"] = entry.pop("seconds", None)
    if isinstance(speed := entry.get("speed"), dict):
        entry["speed"] = {name: rate for name, rate in speed.items() if name != "seconds"}
        entry["train_seconds"] = speed.get("seconds")
    if "started" in entry:
        entry["wall_seconds"] = seconds_between(entry["started"], entry.get("ended"))
    return entry
