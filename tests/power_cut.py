"""What a power cut can leave behind, from the recorded order of a process's file operations.

`recorded` notes every name that is made, changed or deleted and every flush, in order, with the
content that was flushed. `after_power_cut` plays the first n of them on a model of a disk that
keeps no promise beyond those of POSIX:

* content counts once its file was flushed; before, a file may be empty, or hold zeros;
* a name (made, changed or deleted) counts once its folder was flushed; before, it may have reached
  the disk or not, each name by itself.

Three disks are played: a lazy one on which nothing arrives that was not asked for, a hasty one that
writes names at once but content only when asked, and one that decides by chance.
"""

from __future__ import annotations

import os
import random
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

DISKS = ("lazy", "hasty", "chance")
_recorder: list[Recording] = []


@dataclass
class Recording:
    """The operations below ``root``, in order: (kind, path, path or content or None)."""

    root: Path
    log: list[tuple] = field(default_factory=list)

    def add(self, kind, path, second=None):
        if Path(path).is_relative_to(self.root):
            self.log.append((kind, Path(path), second))

    def mark(self, promise):
        """Note that from here on ``promise`` was made to whoever called."""
        self.log.append(("mark", self.root, promise))


def _whole(path, folder=-1):
    base = Path(f"/proc/self/fd/{folder}").readlink() if folder not in (-1, None) else Path.cwd()
    return base / os.fsdecode(path)


def _listen(event, arguments):
    if not _recorder:
        return
    add = _recorder[0].add
    if event == "open" and not isinstance(arguments[0], int):
        path, _, flags = arguments
        if flags & os.O_CREAT:
            add("open", _whole(path), bool(flags & os.O_TRUNC))
    elif event == "os.rename":
        old, new, old_folder, new_folder = arguments
        add("rename", _whole(old, old_folder), _whole(new, new_folder))
    elif event == "os.mkdir":
        add("mkdir", _whole(arguments[0], arguments[2]))
    elif event in ("os.remove", "os.rmdir"):
        add("delete", _whole(*arguments))
    elif event in ("os.link", "os.symlink", "os.truncate"):
        raise AssertionError(f"the model does not know {event}")


sys.addaudithook(_listen)


@contextmanager
def recorded(root: Path):
    """Record what this process does below ``root``, an empty folder."""
    recording, flush = Recording(root.resolve()), os.fsync

    def fsync(descriptor):
        flush(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        recording.add("flush", path, None if path.is_dir() else path.read_bytes())

    with mock.patch("os.fsync", fsync):
        _recorder.append(recording)
        try:
            yield recording
        finally:
            _recorder.pop()


class _Node:
    """A file or folder on the disk, whatever its names are."""

    def __init__(self, is_folder):
        self.is_folder = is_folder
        self.now: dict[str, _Node] = {}  # names as the process sees them
        self.kept: dict[str, _Node] = {}  # names that survive
        self.content = b""  # that survives
        self.flushed = False  # whether all of the content does


class _Disk:
    def __init__(self, root):
        self.root, self.top = root, _Node(True)
        self.pending: list[tuple[set[_Node], list[tuple[_Node, str, _Node | None]]]] = []

    def _place(self, path):
        """The folder of ``path`` and its name there."""
        node = self.top
        for part in path.relative_to(self.root).parts[:-1]:
            node = node.now[part]
        return node, path.name

    def _change(self, *changes):
        for folder, name, node in changes:
            if node is None:
                folder.now.pop(name)
            else:
                folder.now[name] = node
        self.pending.append(({folder for folder, _, _ in changes}, list(changes)))

    def play(self, kind, path, second):
        if kind == "flush" and path == self.root:
            return self._flush_folder(self.top)
        if kind == "mark":
            return None
        folder, name = self._place(path)
        there = folder.now.get(name)
        if kind == "open":
            if there is None:
                self._change((folder, name, _Node(False)))
            else:
                there.flushed = False
        elif kind == "mkdir" and there is None:
            self._change((folder, name, _Node(True)))
        elif kind == "delete" and there is not None:
            self._change((folder, name, None))
        elif kind == "rename" and there is not None:
            self._change((folder, name, None), (*self._place(second), there))
        elif kind == "flush" and there is not None:
            if there.is_folder:
                self._flush_folder(there)
            else:
                there.content, there.flushed = second, True
        return None

    def _flush_folder(self, node):
        still = []
        for waiting, changes in self.pending:
            waiting.discard(node)
            if waiting:
                still.append((waiting, changes))
            else:
                self._keep(changes)
        self.pending = still

    @staticmethod
    def _keep(changes):
        for folder, name, node in changes:
            if node is None:
                folder.kept.pop(name, None)
            else:
                folder.kept[name] = node

    def cut(self, kind, chance):
        """Decide about everything that was not flushed."""
        for _, changes in self.pending:
            if kind == "hasty" or (kind == "chance" and chance.random() < 0.5):
                self._keep(changes)

    def write(self, node, path, kind, chance):
        """Write what is left to a real folder."""
        if node.is_folder:
            path.mkdir()
            for name, inner in node.kept.items():
                self.write(inner, path / name, kind, chance)
            return
        content = node.content
        if kind == "chance" and not node.flushed:
            content = chance.choice([b"", content, content + bytes(chance.randrange(100))])
        path.write_bytes(content)


def after_power_cut(recording: Recording, count: int, kind: str, target: Path, seed: int = 0):
    """Write what is left of the first ``count`` operations to the new folder ``target``.

    Returns:
        the promises that had been made by then.
    """
    disk, chance = _Disk(recording.root), random.Random(f"{seed} {count}")
    for operation in recording.log[:count]:
        disk.play(*operation)
    disk.cut(kind, chance)
    disk.write(disk.top, target, kind, chance)
    return [promise for what, _, promise in recording.log[:count] if what == "mark"]
