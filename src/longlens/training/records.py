"""A run's record: one folder that says what was run, on what, how it went and what came out.

=====================  ====================================================================
``record.json``        options, seed, provenance, data, events, results (see ``SCHEMA``)
``curves.jsonl``       one JSON object a line: step, epoch, split, loss, metric, lr, seconds
``model.safetensors``  the selected weights, with the model's options in ``config.json``
``checkpoints/``       the last two states; deleted when the run has finished
=====================  ====================================================================
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from longlens.files import (
    disk_faults_named,
    finite,
    make_folder,
    replace_file,
    sync_folder,
    to_json,
)
from longlens.training import shapes
from longlens.untrusted import check_shape, parse_json

SCHEMA = 1
RECORD, CURVES, CHECKPOINTS = "record.json", "curves.jsonl", "checkpoints"
EXPERIMENT = "experiment.json"  # beside the runs of an experiment: labels, published numbers
# Keys of the record that hold times: two equal runs differ in these alone.
TIMES = ("started", "ended", "events", "speed", "peak_memory_mib")


def now() -> str:
    """The time, in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Record:
    """The folder of one run, open for writing.

    >>> import tempfile
    >>> record = Record(Path(tempfile.mkdtemp()) / "a")
    >>> record.update(status="running")
    >>> record.curve({"step": 1, "split": "train", "loss": 2.0})
    >>> record.close()
    >>> list(read_curves(record.folder)), read_record(record.folder)["status"]
    ([{'step': 1, 'split': 'train', 'loss': 2.0}], 'running')
    """

    def __init__(self, folder: Path, tensorboard: bool = False) -> None:
        make_folder(folder)
        self.folder = folder
        self.checkpoints = folder / CHECKPOINTS
        path = folder / RECORD
        self.values: dict[str, Any] = (
            read_record(folder) if path.exists() else {"schema": SCHEMA, "name": folder.name}
        )
        # without a buffer: a line that a full disk refused is not tried again when it is closed
        self._curves = (folder / CURVES).open("ab", buffering=0)
        self._board = _open_board(folder) if tensorboard else None

    def update(self, **values: Any) -> None:
        """Set keys of ``record.json``, atomically."""
        self.values |= values
        replace_file(self.folder / RECORD, to_json(self.values))

    def event(self, kind: str, **details: Any) -> None:
        """Add an event (start, resume, skip …) with the time."""
        events = [*self.values.get("events", []), {"kind": kind, "time": now(), **details}]
        self.update(events=events)

    def curve(self, line: Mapping[str, Any]) -> None:
        """Append a line to the curves."""
        rest = memoryview((json.dumps(finite(line), allow_nan=False) + "\n").encode())
        with disk_faults_named(self.folder / CURVES):
            while rest:  # a disk that is almost full takes a part
                rest = rest[self._curves.write(rest) :]
        if self._board is not None:
            for key, value in line.items():
                if isinstance(value, float):
                    self._board.add_scalar(f"{line['split']}/{key}", value, line["step"])

    def curve_bytes(self) -> int:
        """The curves' length, after all of it is on the disk."""
        sync_folder(self.folder)
        os.fsync(self._curves.fileno())
        return self._curves.tell()

    def cut_curves(self, length: int) -> None:
        """Forget what was written after a checkpoint that had ``length`` bytes of curves."""
        if self._curves.tell() < length:
            raise ValueError(
                f"{self.folder / CURVES} is shorter than when the checkpoint was written"
            )
        self._curves.truncate(length)
        self._curves.seek(length)

    def close(self) -> None:
        """Close the curves."""
        self._curves.close()
        if self._board is not None:
            self._board.close()


def _open_board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("tensorboard=true needs: pip install tensorboard") from None
    return SummaryWriter(str(folder / "tensorboard"))


def read_record(folder: Path | str) -> dict[str, Any]:
    """Read a run's ``record.json``.

    Raises:
        ValueError: there is none, it is damaged, or a newer version wrote it.
    """
    path = Path(folder) / RECORD
    try:
        values = parse_json(path.read_bytes())
        other = isinstance(values, dict) and values.get("schema") != SCHEMA
        if not other:
            check_shape(values, shapes.RECORD)
            if values["status"] == "finished":
                check_shape(values, shapes.FINISHED)
    except FileNotFoundError:
        raise ValueError(f"{folder} is no run: it has no {RECORD}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error})") from None
    if other:
        raise ValueError(f"{path} is of another version; this one reads schema {SCHEMA}")
    return dict(values)


def read_curves(folder: Path | str) -> Iterator[dict[str, Any]]:
    """Yield the lines of a run's curves; a last line that is not yet whole is left out.

    Raises:
        ValueError: another line is damaged.
    """
    path = Path(folder) / CURVES
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                values = parse_json(line)
                check_shape(values, shapes.CURVE_LINE)
            except ValueError as error:
                raise ValueError(f"{path} is damaged in line {number} ({error})") from None
            yield values


def check_same_data(records: Iterable[Mapping[str, Any]]) -> None:
    """Raise where two finished runs on the same task with the same options had different data.

    Args:
        records: or what results files keep of them: options, data and status.

    >>> options = {"task_options": {"seed": 1}}
    >>> runs = [{"status": "finished", "options": options, "data": {"name": "mine", "identity": i}}
    ...         for i in ("one", "other")]
    >>> check_same_data(runs)
    Traceback (most recent call last):
    ValueError: runs on mine were trained on different data: seed 0 on one…, seed 0 on other…; ...
    """
    seen: dict[str, Mapping[str, Any]] = {}
    for record in records:
        data = record.get("data") or {}
        if record.get("status") != "finished" or not data.get("identity"):
            continue
        options = record.get("options") or {}
        task_options, mixed = options.get("task_options") or {}, bool(options.get("mix_easier"))
        kind = [data.get("name"), task_options, mixed]
        other = seen.setdefault(json.dumps(kind, sort_keys=True), record)
        if other["data"]["identity"] != data["identity"]:
            first, second = (
                f"{_title(one)} on {one['data']['identity'][:16]}…" for one in (other, record)
            )
            raise ValueError(
                f"runs on {data.get('name')} were trained on different data: {first}, {second}; "
                "delete those of the data that do not count, or train them again"
            )


def _title(record: Mapping[str, Any]) -> str:
    words = [record.get("row"), record.get("column"), f"seed {record.get('seed', 0)}"]
    return ", ".join(str(word) for word in words if word is not None)


def comparable(values: Mapping[str, Any]) -> dict[str, Any]:
    """A record without the keys that hold times: what two equal runs share."""
    return {key: value for key, value in values.items() if key not in TIMES}
