"""What the loop writes while it trains: curves, a line at a time, and events."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from longlens.files import disk_faults_named, finite, make_folder, sync_folder
from longlens.training.mirror import Mirror
from longlens.untrusted import check_shape, parse_json

CURVES, CHECKPOINTS = "curves.jsonl", "checkpoints"  # in a run's folder
GROUPS = {"*": {"*": (int, float, None)}}  # accuracy_by_operator: {"3": {"accuracy": 0.1, …}}
CURVE_LINE = {
    "step": int, "split": str, "loss?": (int, float), "epoch?": (int, float),
    "seconds?": (int, float), "*": (int, float, str, None, GROUPS),
}  # fmt: skip


class Log:
    """The curves of a run, in its folder; ``longlens.runs`` keeps a record of it beside them.

    >>> import tempfile
    >>> log = Log(Path(tempfile.mkdtemp()) / "a")
    >>> log.curve({"step": 1, "split": "train", "loss": 2.0})
    >>> log.close()
    >>> list(read_curves(log.folder))
    [{'step': 1, 'split': 'train', 'loss': 2.0}]
    """

    def __init__(self, folder: Path, mirror: Mirror | None = None) -> None:
        make_folder(folder)
        self.folder = folder
        # without a buffer: a line that a full disk refused is not tried again when it is closed
        self._curves = (folder / CURVES).open("ab", buffering=0)
        self.mirror = mirror

    def event(self, kind: str, **details: Any) -> None:
        """Something happened beside the curves: a resume, a step that was skipped …"""

    def curve(self, line: Mapping[str, Any]) -> None:
        """Append a line to the curves."""
        rest = memoryview((json.dumps(finite(line), allow_nan=False) + "\n").encode())
        with disk_faults_named(self.folder / CURVES):
            while rest:  # a disk that is almost full takes a part
                rest = rest[self._curves.write(rest) :]
        if self.mirror is not None:
            values = {f"{line['split']}/{k}": v for k, v in line.items() if isinstance(v, float)}
            self.mirror.log(values, line["step"])

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
        if self.mirror is not None:
            self.mirror.close()


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
                check_shape(values, CURVE_LINE)
            except ValueError as error:
                raise ValueError(f"{path} is damaged in line {number} ({error})") from None
            yield values
