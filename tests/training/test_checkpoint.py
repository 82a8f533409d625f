"""Checkpoints on the disk: whatever is damaged in the newest, the one before it is taken."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from longlens.training import checkpoint
from longlens.training.checkpoint import FACTS, TENSORS, CheckpointError


def save(folder, step, **options):
    facts = {"curve_bytes": 10 * step, "state": {"step": step, "best_metric": float("nan")}}
    return checkpoint.save(folder, step, {"model/a": torch.full((3,), step)}, facts, **options)


def changed(path, old, new):
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


def nested(path):
    path.write_bytes(b"[" * 100_000 + b"]" * 100_000)


DAMAGES = {
    "a counter": lambda path: changed(path / FACTS, b'"step": 2', b'"step": 3'),
    "a space": lambda path: changed(path / FACTS, b'"step": 2', b'"step":  2'),
    "no object": lambda path: (path / FACTS).write_text("[]"),
    "null": lambda path: (path / FACTS).write_text("null"),
    "empty": lambda path: (path / FACTS).write_text(""),
    "zeros": lambda path: (path / FACTS).write_bytes(bytes(100)),
    "no text": lambda path: (path / FACTS).write_bytes(b"\xff\xfe"),
    "deep": lambda path: nested(path / FACTS),
    "no checksum": lambda path: (path / FACTS).write_text(
        json.dumps({k: v for k, v in json.loads((path / FACTS).read_text()).items()
                    if k != "checksum"}, sort_keys=True, indent=1) + "\n"),
    "no facts": lambda path: (path / FACTS).unlink(),
    "facts of another": lambda path: shutil.copy(path.parent / "step-00000001" / FACTS, path),
    "tensors of another": lambda path: shutil.copy(path.parent / "step-00000001" / TENSORS, path),
    "tensors cut": lambda path: (path / TENSORS).write_bytes((path / TENSORS).read_bytes()[:-1]),
    "no tensors": lambda path: (path / TENSORS).unlink(),
    "a folder": lambda path: [(path / TENSORS).unlink(), (path / TENSORS).mkdir()],
    "a file": lambda path: [shutil.rmtree(path), path.write_text("")],
    "nothing": lambda path: [shutil.rmtree(path), path.mkdir()],
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_whatever_is_damaged_the_one_before_is_taken(tmp_path, damage):
    save(tmp_path, 1)
    DAMAGES[damage](save(tmp_path, 2))
    found = checkpoint.load(tmp_path)
    assert found.facts["step"] == 1 and found.tensors["model/a"].tolist() == [1, 1, 1]
    assert len(found.damaged) == 1 and "step-00000002" in found.damaged[0]
    save(tmp_path, 2)  # reached again
    assert checkpoint.load(tmp_path).facts["step"] == 2


def test_where_all_are_damaged_nothing_begins_again_silently(tmp_path):
    for step in (1, 2):
        DAMAGES["null"](save(tmp_path, step))
    with pytest.raises(CheckpointError, match="no checkpoint can be read"):
        checkpoint.load(tmp_path)


def test_every_byte_of_the_facts_counts(tmp_path):
    path = save(tmp_path, 1) / FACTS
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            checkpoint.load(tmp_path)


def test_curves_that_were_cut_take_an_older_checkpoint(tmp_path):
    for step in (1, 2):
        save(tmp_path, step)
    assert checkpoint.load(tmp_path, curve_bytes=20).facts["step"] == 2
    assert checkpoint.load(tmp_path, curve_bytes=19).facts["step"] == 1
    with pytest.raises(CheckpointError, match="the curves had 10 bytes then, and have 9"):
        checkpoint.load(tmp_path, curve_bytes=9)


def test_a_damaged_checkpoint_does_not_take_the_place_of_a_whole_one(tmp_path):
    save(tmp_path, 1)
    DAMAGES["empty"](save(tmp_path, 5))
    save(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]
    DAMAGES["empty"](save(tmp_path, 3))
    assert checkpoint.load(tmp_path).facts["step"] == 2
