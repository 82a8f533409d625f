"""Thousands of damaged files: none is read as if it were whole, and none ends in a traceback.

Three kinds of file, by what can be known of them:

- **sealed**: a checksum of ours covers every byte (weights, checkpoints, prepared data, and what an
  interrupted preparation left). Whatever is loaded must be what was written, to the bit.
- **compressed**: the format has checksums (gzip, xz, zip). A source is refused, or gives the same
  data as the whole one.
- **open** (test_damage_open.py): nothing could tell a changed digit from a meant one (a user's
  arrays, tables, JSON lines, records, results, configs). Such a file may be read, but what comes
  out is validated, and every error is one line: a ValueError or an OSError, which commands print
  without a traceback.
"""

from __future__ import annotations

import contextlib
import io
import lzma
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from longlens.tasks import import_arrays, prepare
from longlens.tasks.writer import Writer
from longlens.training import checkpoint
from longlens.weights import load_tensors, save_tensors
from tests.adversarial.attack import SEED, arrays_of, attack, preparing
from tests.adversarial.counts import record
from tests.tasks import layouts

pytestmark = pytest.mark.adversarial


def content_of(tensors: dict[str, torch.Tensor]) -> dict[str, object]:
    return {n: (str(t.dtype), tuple(t.shape), t.numpy().tobytes()) for n, t in tensors.items()}


def some_tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(SEED)
    return {"a.weight": torch.randn(7, 5), "b": torch.arange(9), "flag": torch.tensor([True]),
            "empty": torch.zeros(0, 3), "scalar": torch.tensor(2.5)}  # fmt: skip


def attack_weights(folder: Path, count: int) -> Counter:
    path = folder / "model.safetensors"
    save_tensors(path, some_tensors(), {"format": "pt"})
    return attack("weights", [path], lambda: content_of(load_tensors(path)), count)


def attack_checkpoints(folder: Path, count: int) -> Counter:
    checkpoint.save(folder, 3, some_tensors(), {"state": {"step": 3}, "curve_bytes": 0})
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert len(files) == 2

    def judge() -> object:
        found = checkpoint.load(folder)
        assert found is not None
        return content_of(found.tensors), found.facts

    return attack("checkpoints", files, judge, count)


def attack_data(root: Path, count: int) -> Counter:
    rng = np.random.default_rng(SEED)
    lengths = rng.integers(1, 9, 60)
    tokens = rng.integers(0, 50, int(lengths.sum()))
    import_arrays("mine", tokens, np.arange(60) % 3, lengths=lengths, root=root)
    files = sorted(path for path in root.rglob("*") if path.suffix in (".npy", ".json"))
    return attack("prepared data", files, lambda: arrays_of("mine", root), count)


def attack_interrupted(folder: Path, count: int) -> Counter:
    options = dict(train=60, validation=20, test=20, min_length=8, max_length=40)
    kept = folder / "kept"
    with pytest.MonkeyPatch.context() as patch:

        def stop(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(Writer, "finish", stop)
        with contextlib.suppress(KeyboardInterrupt), contextlib.redirect_stderr(io.StringIO()):
            prepare("listops", kept, quiet=True, **options)
    files = sorted(path for path in kept.rglob("*") if path.suffix in (".npy", ".jsonl"))
    (journal,) = [path for path in files if path.name == "journal.jsonl"]

    def judge() -> object:
        root = folder / "root"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(kept, root)
        return prepare("listops", root, quiet=True, **options).identity

    return attack("interrupted preparations", files + len(files) * [journal], judge, count)


def compressed_sources(folder: Path) -> dict[str, tuple[str, list[Path], Path, dict[str, object]]]:
    """Kind -> task, files to damage, source, options."""
    rng = np.random.default_rng(SEED)
    imdb, small = layouts.imdb_files(layouts.reviews()), dict(subset=True, validation=4)
    lines = layouts.imdb_json(layouts.reviews())
    mnist = layouts.write_folder(folder / "mnist", layouts.mnist_files(rng))
    jsonl = layouts.write_folder(
        folder / "jsonl", {f"{name}.xz": lzma.compress(data) for name, data in lines.items()}
    )
    text = bytes(rng.integers(97, 123, 400, dtype=np.uint8))
    archives = {
        "text, tar.gz": ("text", layouts.write_tar(folder / "a.tar.gz", imdb), small),
        "text, tar.xz": ("text", layouts.write_tar(folder / "a.tar.xz", imdb, "w:xz"), small),
        "text, zip": ("text", layouts.write_zip(folder / "a.zip", imdb), small),
        "image, tar.gz": ("image", layouts.write_tar(folder / "c.tar.gz",
                                                     layouts.cifar_files(rng, 2)), small),
        "enwik8, zip": ("enwik8", layouts.write_zip(folder / "e.zip", {"enwik8": text}),
                        dict(subset=True)),
        "wikitext103, zip": ("wikitext103", layouts.write_zip(folder / "w.zip",
                             layouts.wikitext_files()), dict(subset=True)),
        "retrieval, tar.gz": ("retrieval", layouts.write_tar(folder / "r.tar.gz",
                              layouts.aan_files()), dict(subset=True)),
        "retrieval-mine, zip": ("retrieval-mine", layouts.write_zip(folder / "m.zip",
                                layouts.corpus_files()), {}),
    }  # fmt: skip
    sources = {
        kind: (task, [path], path, options) for kind, (task, path, options) in archives.items()
    }
    sources["smnist, idx.gz"] = ("smnist", sorted(mnist.iterdir()), mnist, small)
    sources["text, jsonl.xz"] = ("text", sorted(jsonl.iterdir()), jsonl, small)
    return sources


def test_damage_that_can_be_seen_is_never_accepted(tmp_path):
    total: Counter = Counter()
    for name, attacker, count in (
        ("weights", attack_weights, 500),
        ("checkpoints", attack_checkpoints, 400),
        ("data", attack_data, 500),
        ("interrupted", attack_interrupted, 200),
    ):
        (tmp_path / name).mkdir()
        total += attacker(tmp_path / name, count)
    (tmp_path / "sources").mkdir()
    for kind, (task, files, source, options) in compressed_sources(tmp_path / "sources").items():
        judge = preparing(task, source, tmp_path / "root", options)
        total += attack(kind, files, judge, 80)
    assert sum(total.values()) >= 2000
    record(
        "damaged files, sealed or compressed", seed=SEED, files=sum(total.values()),
        refused=total["refused"], read_to_the_same_content=total["the same"],
        accepted=total["accepted"], tracebacks=total["traceback"],
    )  # fmt: skip
