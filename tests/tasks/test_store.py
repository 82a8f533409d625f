"""The cache: what is on the disk is what was written, or nobody gets it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from longlens.files import PARTIAL, DiskFullError, canonical_json, digest
from longlens.tasks import DataError, files, load, prepare
from longlens.tasks.cache import cache_root, check_name
from longlens.tasks.data import Rows, Task
from longlens.tasks.manifest import FILENAME, read_manifest
from longlens.tasks.spec import Spec
from longlens.tasks.writer import JOURNAL, Writer

TINY = {"length": 16, "train": 3, "validation": 2, "test": 2}


def tiny(root: Path, **options) -> Path:
    prepare("cumsum", root, quiet=True, **(TINY | options))
    return next(path.parent for path in root.glob(f"cumsum/*/{FILENAME}"))


def test_every_flipped_byte_is_found(tmp_path):
    folder = tiny(tmp_path)
    Task(folder)
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for place in range(len(whole)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(DataError, match=r"damaged|list|format|missing|prepared"):
                Task(folder)
        path.write_bytes(whole)
    Task(folder)


def test_white_space_in_the_manifest_is_a_change_too(tmp_path):
    path = tiny(tmp_path) / FILENAME
    path.write_text(path.read_text().replace("\n ", "\n  ", 1))
    with pytest.raises(DataError, match="damaged"):
        Task(path.parent)


@pytest.mark.parametrize("damage", ["truncate", "delete", "extra", "no manifest"])
def test_other_damage_is_named(tmp_path, damage):
    folder = tiny(tmp_path)
    victim = folder / "train-inputs-00000.npy"
    if damage == "truncate":
        victim.write_bytes(victim.read_bytes()[:-1])
    elif damage == "delete":
        victim.unlink()
    elif damage == "extra":
        victim = folder / "notes.txt"
        victim.write_text("mine")
    else:
        victim = folder / FILENAME
        victim.unlink()
    with pytest.raises(DataError, match=victim.name):
        load("cumsum", tmp_path, **TINY)
    with pytest.raises(DataError, match=victim.name):
        prepare("cumsum", tmp_path, quiet=True, **TINY)


def test_size_check_finds_truncation_but_says_that_it_finds_no_flips(tmp_path):
    folder = tiny(tmp_path)
    victim = folder / "train-inputs-00000.npy"
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    Task(folder, verify="size")
    victim.write_bytes(whole[:-1])
    with pytest.raises(DataError, match="damaged"):
        Task(folder, verify="size")
    with pytest.raises(DataError, match="verify"):
        Task(folder, verify="hope")  # type: ignore[arg-type]


def test_a_foreign_data_set_in_the_place_of_another_is_refused(tmp_path):
    folder = tiny(tmp_path)
    prepare("cummax", tmp_path, quiet=True, **TINY)
    other = next(path.parent for path in tmp_path.glob(f"cummax/*/{FILENAME}"))
    shutil.rmtree(folder)
    shutil.copytree(other, folder)
    with pytest.raises(DataError, match="cummax"):
        load("cumsum", tmp_path, **TINY)
    with pytest.raises(DataError, match="another data set"):
        prepare("cumsum", tmp_path, quiet=True, **TINY)


def test_another_format_is_refused(tmp_path):
    path = tiny(tmp_path) / FILENAME
    values = json.loads(path.read_text())
    values["format"] = 99
    values.pop("checksum")
    values["checksum"] = digest(values)
    path.write_text(canonical_json(values))
    with pytest.raises(DataError, match="format 99"):
        Task(path.parent)


def test_identity_is_of_the_data_alone(tmp_path):
    first, second = tiny(tmp_path / "a"), tiny(tmp_path / "b")
    assert read_manifest(first).identity == read_manifest(second).identity
    assert read_manifest(tiny(tmp_path / "c", seed=1)).identity != read_manifest(first).identity
    same = {p.name: p.read_bytes() for p in first.iterdir()}
    assert same == {p.name: p.read_bytes() for p in second.iterdir()}


def test_a_full_disk_is_one_clear_error_and_leaves_no_part_of_a_file(tmp_path, monkeypatch):
    def no_space(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(DiskFullError, match="disk is full"):
        files.save_array(tmp_path / "a.npy", np.zeros(3))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_while_preparing(tmp_path, monkeypatch):
    real, calls = files.save_array, []

    def sometimes(path, array):
        calls.append(path)
        if len(calls) == 4:
            raise DataError(f"the disk is full: {path} could not be written")
        return real(path, array)

    monkeypatch.setattr("longlens.tasks.writer.save_array", sometimes)
    with pytest.raises(DataError, match="disk is full"):
        prepare("cumsum", tmp_path, quiet=True, **TINY)
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".npy" + PARTIAL)]
    assert not list(tmp_path.glob(f"cumsum/*/{FILENAME}"))
    monkeypatch.undo()
    resumed = load("cumsum", tmp_path, **TINY)
    assert resumed.identity == load("cumsum", tmp_path / "clean", **TINY).identity


def test_space_is_checked_before_anything_is_written(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DataError, match=r"needs .* are free"):
        prepare("cumsum", tmp_path, quiet=True, **TINY)
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".npy"]


def test_a_process_waits_for_another_that_prepares_the_same_data_set(tmp_path, capsys):
    folder = tiny(tmp_path)
    shutil.rmtree(folder)
    with ThreadPoolExecutor(1) as pool:
        with files.locked(folder.parent / f".{folder.name}.lock", "cumsum"):
            waiting = pool.submit(prepare, "cumsum", tmp_path, quiet=True, **TINY)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.3)
            assert not folder.exists()
        waiting.result(timeout=60)
    assert folder.exists()
    assert "cumsum: another process is working on it, waiting" in capsys.readouterr().err


def test_a_journal_of_other_options_is_not_reused(tmp_path):
    folder = tmp_path / "set"
    one = Writer(folder, "demo", 1, {"seed": 0})
    one.write_block("train", 0, {"x": np.arange(3)})
    assert Writer(folder, "demo", 1, {"seed": 0}).has_block("train", 0)
    assert not Writer(folder, "demo", 1, {"seed": 1}).has_block("train", 0)


@pytest.mark.parametrize("damage", ["file", "torn line", "stray"])
def test_only_intact_blocks_are_reused(tmp_path, damage):
    writer = Writer(tmp_path / "set", "demo", 1, {})
    writer.write_block("train", 0, {"x": np.arange(3)})
    writer.write_block("train", 1, {"x": np.arange(4)})
    partial = tmp_path / "set.partial"
    if damage == "file":
        victim = partial / "train-x-00001.npy"
        victim.write_bytes(victim.read_bytes()[:-1] + b"!")
    elif damage == "torn line":
        journal = partial / JOURNAL
        journal.write_bytes(journal.read_bytes()[:-5])
    else:
        (partial / "train-x-00002.npy.tmp").write_bytes(b"half")
    again = Writer(tmp_path / "set", "demo", 1, {})
    assert again.has_block("train", 0)
    assert again.has_block("train", 1) == (damage == "stray")
    assert not list(partial.glob("*.tmp"))
    if damage != "stray":
        assert not (partial / "train-x-00001.npy").exists()


def test_rows_over_several_files():
    rng = np.random.default_rng(0)
    parts = [rng.integers(0, 9, (n, 2)) for n in (3, 1, 5)]
    rows, whole = Rows(parts), np.concatenate(parts)
    index = np.array([8, 0, 3, 3, 4])
    assert np.array_equal(rows.take(index), whole[index])
    for start in range(9):
        for stop in range(start, 10):
            assert np.array_equal(rows.slice(start, stop), whole[start:stop])
    assert np.array_equal(rows.whole(), whole) and rows.nbytes == whole.nbytes


def test_a_mapped_array_cannot_write_to_the_cache(tmp_path):
    folder = tiny(tmp_path)
    task = Task(folder)
    task["train"].arrays["inputs"].parts[0][:] = 7
    Task(folder)


def test_unknown_names_and_options(tmp_path):
    with pytest.raises(DataError, match="unknown task 'bogus'"):
        load("bogus", tmp_path)
    with pytest.raises(DataError, match="no option 'colour'"):
        load("cumsum", tmp_path, colour=1)
    with pytest.raises(DataError, match="split must be one of"):
        load("cumsum", tmp_path, **TINY)["dev"]
    with pytest.raises(DataError, match=r"not prepared.*prepare text"):
        load("text", tmp_path)
    with pytest.raises(DataError, match="name must be"):
        check_name("../etc")
    with pytest.raises(DataError, match="kind"):
        Spec(kind="magic", inputs="tokens", max_length=1, vocab_size=2)  # type: ignore[arg-type]


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LONGLENS_DATA", str(tmp_path / "x"))
    assert cache_root() == tmp_path / "x"
    assert cache_root(tmp_path / "y") == tmp_path / "y"
    monkeypatch.delenv("LONGLENS_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if os.name == "posix" and os.uname().sysname == "Linux":
        assert cache_root() == tmp_path / "longlens"
