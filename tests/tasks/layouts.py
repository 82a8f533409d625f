"""Tiny files of every official layout, made by the tests themselves."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np

from longlens.tasks.png import encode_png


def cifar_files(rng: np.random.Generator, per_batch: int = 4) -> dict[str, bytes]:
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    files = {}
    for name in names:
        rows = rng.integers(0, 256, (per_batch, 3073), dtype=np.uint8)
        rows[:, 0] %= 10
        files[f"cifar-10-batches-bin/{name}"] = rows.tobytes()
    return files


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist_files(rng: np.random.Generator, train: int = 12, test: int = 6) -> dict[str, bytes]:
    files = {}
    for prefix, count in (("train", train), ("t10k", test)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        files[f"{prefix}-images-idx3-ubyte.gz"] = gzip.compress(idx(images), mtime=0)
        files[f"{prefix}-labels-idx1-ubyte.gz"] = gzip.compress(idx(labels), mtime=0)
    return files


def reviews(count: int = 12) -> dict[str, list[tuple[str, int]]]:
    return {
        split: [(f"{split} review {i}: {'good ' * (i % 5)}café", i % 2) for i in range(count)]
        for split in ("train", "test")
    }


def imdb_files(rows: dict[str, list[tuple[str, int]]]) -> dict[str, bytes]:
    return {
        f"aclImdb/{split}/{'pos' if label else 'neg'}/{i}_7.txt": text.encode()
        for split, part in rows.items()
        for i, (text, label) in enumerate(part)
    }


def imdb_json(rows: dict[str, list[tuple[str, int]]]) -> dict[str, bytes]:
    return {
        f"{split}.jsonl": "".join(
            json.dumps({"label": label, "text": text}) + "\n" for text, label in reversed(part)
        ).encode()
        for split, part in rows.items()
    }


def aan_files(pairs: int = 6) -> dict[str, bytes]:
    files = {}
    for split in ("train", "eval", "test"):
        lines = [
            f"{float(i % 2)}\tP{i}\tP{i + 1}\tb'{split} paper {i}'\tb'{split} paper {i + 1}'\n"
            for i in range(pairs)
        ]
        files[f"lra_release/tsv_data/new_aan_pairs.{split}.tsv"] = "".join(lines).encode()
    return files


def corpus_files(documents: int = 60) -> dict[str, bytes]:
    rows = [
        {
            "id": f"d/{i:03d}",
            "title": f"Paper {i // 2 if i < 6 else i}",
            "text": f"text of {i} " * 3,
        }
        for i in range(documents)
    ]
    citations = [(i, (i * 7 + k) % documents) for i in range(documents) for k in range(1, 9)]
    return {
        "docs.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode(),
        "citations.tsv": "".join(f"d/{a:03d}\td/{b:03d}\n" for a, b in citations).encode(),
    }


def pathfinder_files(
    rng: np.random.Generator, count: int = 40, corrupt: int | None = 3
) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for folder, shift in (("curv_baseline", 1), ("curv_contour_length_14", 0)):
        lines = []
        for i in range(count):
            picture = rng.integers(0, 256, (32, 32), dtype=np.uint8)
            data = b"" if i == corrupt else encode_png(picture)
            files[f"pathfinder32/{folder}/imgs/0/sample_{i}.png"] = data
            lines.append(f"imgs/0 sample_{i}.png {i} {(i + shift) % 2} 1.0 14 4 2 0.5 1 1\n")
        files[f"pathfinder32/{folder}/metadata/0.npy"] = "".join(lines).encode()
    return files


def wikitext_files() -> dict[str, bytes]:
    return {
        "wikitext-103/wiki.train.tokens": b" = Title = \n\n the cat sat on the mat \n"
        b" the <unk> ran \n",
        "wikitext-103/wiki.valid.tokens": b" the dog sat \n",
        "wikitext-103/wiki.test.tokens": b" a cat ran \n",
    }


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def write_tar(path: Path, files: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path
