"""Every task with a source, end to end, from tiny files of the official layouts."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
import zlib

import numpy as np
import pytest
import torch

from longlens.tasks import Batches, DataError, load, prepare, retrieval
from longlens.tasks.decode import decode
from longlens.tasks.png import decode_png, encode_png, luma
from longlens.tasks.retrieval import CitationOptions, draw_negatives, split_documents
from longlens.tasks.text import hold_out
from longlens.tasks.writer import Writer
from tests.tasks import layouts


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def make(name, root, source, **options):
    prepare(name, root, source=source, quiet=True, **options)
    return load(name, root, **options)


def test_image_from_archive_folder_and_arrays_is_the_same(tmp_path, rng):
    parts = layouts.cifar_files(rng)
    options = {"validation": 4, "subset": True}
    archive = layouts.write_tar(tmp_path / "mine.tar.gz", parts)
    folder = layouts.write_folder(tmp_path / "folder", parts)
    rows = np.concatenate(
        [np.frombuffer(data, np.uint8).reshape(-1, 3073) for data in parts.values()]
    )
    gray = luma(rows[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1))
    arrays = tmp_path / "arrays"
    arrays.mkdir()
    np.save(arrays / "images.npy", gray.reshape(-1, 32, 32))
    np.save(arrays / "labels.npy", rows[:, 0])
    tasks = [
        make("image", tmp_path / str(i), s, **options)
        for i, s in enumerate((archive, folder, arrays))
    ]
    assert len({task.identity for task in tasks}) == 1
    task = tasks[0]
    assert [len(task[s]) for s in ("train", "validation", "test")] == [16, 4, 4]
    assert (
        np.array_equal(task["train"][3].inputs[0], gray[3])
        and task["train"][3].target == rows[3, 0]
    )
    assert task.manifest.sources[0]["sha256"]


def test_image_keeps_its_colours_on_request(tmp_path, rng):
    """The inputs stay the gray ones; the colours come beside them, rows in the same order."""
    parts = layouts.cifar_files(rng)
    options = {"validation": 4, "subset": True}
    folder = layouts.write_folder(tmp_path / "folder", parts)
    rows = np.concatenate(
        [np.frombuffer(data, np.uint8).reshape(-1, 3073) for data in parts.values()]
    )
    colours = rows[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1)
    arrays = tmp_path / "arrays"
    arrays.mkdir()
    np.save(arrays / "images.npy", colours.reshape(-1, 32, 32, 3))
    np.save(arrays / "labels.npy", rows[:, 0])
    gray = make("image", tmp_path / "a", folder, **options)
    task = make("image", tmp_path / "a", folder, color=True, **options)
    assert make("image", tmp_path / "b", arrays, color=True, **options).identity == task.identity
    assert make("image", tmp_path / "b", arrays, **options).identity == gray.identity
    assert gray.spec.extras == () and gray.identity != task.identity
    split = task["validation"]
    assert np.array_equal(split.extra("color"), colours[16:20])
    assert np.array_equal(split[1].extras["color"], colours[17])
    for resident in (False, True):
        batch = next(Batches(split, 4, seed=0, resident=resident).epoch(0))
        index = batch.index.numpy()
        assert batch.extras["color"].dtype == torch.uint8
        assert np.array_equal(batch.extras["color"].numpy(), colours[16 + index])
        assert np.array_equal(batch.inputs.numpy(), luma(colours[16 + index]))
    np.save(arrays / "images.npy", luma(colours).reshape(-1, 32, 32))
    with pytest.raises(DataError, match=r"color=True, but images\.npy"):
        make("image", tmp_path / "c", arrays, color=True, **options)


def test_luma_is_itu_601():
    colours = np.array(
        [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [10, 20, 30]], np.uint8
    )
    exact = colours @ np.array([0.299, 0.587, 0.114])
    assert np.abs(luma(colours) - exact).max() <= 0.51


def test_mnist_and_its_permutation(tmp_path, rng):
    folder = layouts.write_folder(tmp_path / "m", layouts.mnist_files(rng))
    plain = make("smnist", tmp_path, folder, validation=2, subset=True)
    mixed = make("pmnist", tmp_path, folder, validation=2, subset=True)
    order = mixed.array("permutation/order")
    assert sorted(order) == list(range(784)) and list(order) != sorted(order)
    for i in range(len(plain["train"])):
        assert np.array_equal(plain["train"][i].inputs[0][order], mixed["train"][i].inputs[0])
    other = make("pmnist", tmp_path, folder, validation=2, subset=True, permutation_seed=1)
    assert other.identity != mixed.identity


def test_text_from_folders_archive_and_json_is_the_same(tmp_path):
    rows = layouts.reviews(24)
    rows["train"] += [("twice", 1), ("twice", 1)]
    sources = [
        layouts.write_folder(tmp_path / "f", layouts.imdb_files(rows)),
        layouts.write_tar(tmp_path / "t.tar.gz", layouts.imdb_files(rows)),
        layouts.write_folder(tmp_path / "j", layouts.imdb_json(rows)),
    ]
    options = {"validation": 6, "subset": True}
    tasks = [make("text", tmp_path / str(i), s, **options) for i, s in enumerate(sources)]
    assert len({task.identity for task in tasks}) == 1
    task = tasks[0]
    assert [len(task[s]) for s in ("train", "validation", "test")] == [20, 6, 24]
    assert task["validation"].targets.mean() == 0.5
    texts = {s: {decode(task.spec, e.inputs[0]) for e in task[s]} for s in ("train", "validation")}
    assert not texts["train"] & texts["validation"]
    assert any("café" in text for text in texts["train"])
    assert min(e.inputs[0].min() for e in task["train"]) >= 1  # 0 is padding


def test_select_on_test_only_by_name(tmp_path):
    folder = layouts.write_folder(tmp_path / "j", layouts.imdb_json(layouts.reviews()))
    task = make("text", tmp_path, folder, validation_from="test", subset=True)
    assert len(task["validation"]) == len(task["test"]) == len(task["train"]) == 12
    assert "select-on-test" in task.manifest.notes[0]
    with pytest.raises(DataError, match="validation_from"):
        make("text", tmp_path, folder, validation_from="dev")


def test_held_out_copies_stay_together():
    rows = [(b"same", 0)] * 5 + [(b"%d" % i, i % 2) for i in range(40)]
    for seed in range(20):
        held = hold_out(rows, 10, seed)
        assert sum(i in held for i in range(5)) in (0, 5)
        assert sum(rows[i][1] for i in held) == len(held) // 2 == 5


def test_bytes_and_letters(tmp_path, rng):
    data = bytes(rng.integers(0, 256, 400, dtype=np.uint8))
    text = bytes(np.frombuffer(b" abcdefghijklmnopqrstuvwxyz", np.uint8)[rng.integers(0, 27, 400)])
    enwik8 = make(
        "enwik8", tmp_path, layouts.write_zip(tmp_path / "e.zip", {"enwik8": data}), subset=True
    )
    assert enwik8["train"].stream.tobytes() == data[:360]
    assert enwik8["test"].stream.tobytes() == data[380:]
    text8 = make(
        "text8", tmp_path, layouts.write_zip(tmp_path / "t.zip", {"text8": text}), subset=True
    )
    assert text8.spec.vocab_size == 27
    assert decode(text8.spec, text8["train"].stream, limit=1000) == text[:360].decode()
    with pytest.raises(DataError, match="400 bytes instead of 100000000"):
        prepare("enwik8", tmp_path, source=tmp_path / "e.zip", quiet=True)
    bad = layouts.write_zip(tmp_path / "b.zip", {"text8": text[:-1] + b"!"})
    with pytest.raises(DataError, match="neither a space"):
        make("text8", tmp_path / "b", bad, subset=True)


def test_wikitext_words(tmp_path):
    source = layouts.write_zip(tmp_path / "w.zip", layouts.wikitext_files())
    task = make("wikitext103", tmp_path, source, subset=True)
    words = task.array("vocabulary/text").tobytes().decode().split("\n")
    assert len(words) == task.spec.vocab_size
    line = [words[i] for i in task["train"].stream]
    assert line[:5] == ["=", "Title", "=", "<eos>", "<eos>"] and line.count("<eos>") == 4
    assert [words[i] for i in task["validation"].stream] == ["the", "<unk>", "sat", "<eos>"]


def test_retrieval_stores_each_document_once(tmp_path):
    source = layouts.write_tar(tmp_path / "lra_release.gz", layouts.aan_files(8))
    task = make("retrieval", tmp_path, source, subset=True)
    assert [len(task[s]) for s in ("train", "validation", "test")] == [8, 8, 8]
    documents = task["train"].documents
    assert documents is not None and len(documents) == 27
    first = task["train"][2]
    assert decode(task.spec, first.inputs[0]) == "b'train paper 2'"
    assert decode(task.spec, first.inputs[1]) == "b'train paper 3'" and first.target == 0
    short = make("retrieval", tmp_path, source, subset=True, max_length=5)
    assert short.spec.max_length == 5


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"1.0\tA\tB\tb'x'\n", "line 7"),
        (b"2.0\tA\tB\tx\ty\n", "line 7"),
        (b"1\tA\tB\t\ty\n", "empty"),
    ],
)
def test_a_wrong_pair_is_named_by_its_line(tmp_path, line, problem):
    parts = layouts.aan_files(6)
    name = "lra_release/tsv_data/new_aan_pairs.train.tsv"
    parts[name] += line
    folder = layouts.write_folder(tmp_path / "f", parts)
    with pytest.raises(DataError, match=problem):
        prepare("retrieval", tmp_path, source=folder, quiet=True, subset=True)
    assert not list((tmp_path / "retrieval").glob("*.partial"))


def test_blocks_of_another_source_are_never_mixed_in(tmp_path, monkeypatch):
    """A run on a large source is killed; the next one, on a small source, keeps nothing of it."""
    monkeypatch.setattr(retrieval, "PAIRS_IN_BLOCK", 2)
    large = layouts.write_folder(tmp_path / "large", layouts.aan_files(9))
    small = layouts.write_folder(tmp_path / "small", layouts.aan_files(3))

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            make("retrieval", tmp_path / "r", large, subset=True)
    assert list((tmp_path / "r").rglob("train-pairs-00004.npy"))
    again = make("retrieval", tmp_path / "r", small, subset=True)
    assert again.identity == make("retrieval", tmp_path / "clean", small, subset=True).identity


def test_a_corpus_with_citations(tmp_path):
    folder = layouts.write_folder(tmp_path / "c", layouts.corpus_files())
    task = make("retrieval-mine", tmp_path, folder, validation=0.3, test=0.3)
    assert task.spec.pair and "not comparable" in task.spec.stands_in_for
    used = {s: set(task[s].arrays["pairs"].whole().ravel().tolist()) for s in task.splits}
    assert not used["train"] & used["test"] and not used["train"] & used["validation"]
    for split in task.splits.values():
        assert abs(split.targets.mean() - 0.5) < 0.1


def test_copies_of_a_paper_share_a_split():
    documents = {f"d{i:02d}": (f"The  Title, {i // 2}!", b"%d" % i) for i in range(40)}
    documents |= {
        "e1": ("Other", b"one text"),
        "e2": ("Another", b"one text"),
        "e3": ("other", b"x"),
    }
    for seed in range(5):
        home = split_documents(documents, CitationOptions(seed=seed))
        assert all(home[f"d{i:02d}"] == home[f"d{i + 1:02d}"] for i in range(0, 40, 2))
        assert home["e1"] == home["e2"] == home["e3"]
        assert set(home.values()) == {"train", "validation", "test"}


def test_negatives_are_no_citations_and_no_easier():
    rng = np.random.default_rng(0)
    cited = {(f"a{i}", f"b{int(j)}") for i in range(60) for j in rng.integers(0, 40, 3)}
    positives = sorted(cited)
    paper = {name: name for pair in cited for name in pair}
    negatives = draw_negatives(positives, cited, paper, rng)
    assert not set(negatives) & cited and len(set(negatives)) == len(negatives)
    assert len(negatives) > 0.95 * len(positives)
    popular = max({b for _, b in positives}, key=lambda b: sum(p[1] == b for p in positives))
    share = [np.mean([p[1] == popular for p in pairs]) for pairs in (positives, negatives)]
    assert share[1] > share[0] / 3


def test_no_negative_pair_is_a_copy_of_a_positive_one():
    rng = np.random.default_rng(0)
    paper = {f"a{i}": f"a{i}" for i in range(20)} | {f"b{i}": f"b{i // 2}" for i in range(20)}
    cited = {(f"a{int(i)}", f"b{int(j)}") for i, j in rng.integers(0, 20, (120, 2))}
    negatives = draw_negatives(sorted(cited), cited, paper, rng)
    texts = {(paper[a], paper[b]) for a, b in cited}
    assert len(negatives) > 50 and not texts & {(paper[a], paper[b]) for a, b in negatives}


def test_lra_pathfinder_takes_the_hard_set_and_skips_the_corrupt_file(tmp_path, rng):
    parts = layouts.pathfinder_files(rng)
    doubled = parts | {f"copy/{name}": data for name, data in parts.items()}
    for number, source in enumerate(
        (
            layouts.write_folder(tmp_path / "f", parts),
            layouts.write_tar(tmp_path / "a.tar.gz", doubled),
        )
    ):
        task = make("pathfinder", tmp_path / str(number), source, origin="lra", subset=True)
        assert sum(task.manifest.examples.values()) == 39  # one file is corrupt
        assert "sample_3.png" in task.manifest.notes[0] and task.spec.stands_in_for is None
        hard = {
            decode_png(data).tobytes(): int(name.split("_")[-1][:-4]) % 2
            for name, data in parts.items()
            if "length_14/imgs" in name and data
        }
        for split in task.splits.values():
            for example in split:
                assert hard[example.inputs[0].tobytes()] == example.target
    with pytest.raises(DataError, match="200000"):
        prepare("pathfinder", tmp_path, source=source, quiet=True, origin="lra")
    with pytest.raises(DataError, match="go together"):
        prepare("pathfinder", tmp_path, source=source, quiet=True)


@pytest.mark.parametrize("name", ["image", "smnist", "text", "enwik8", "wikitext103", "retrieval"])
def test_counts_of_the_published_set_are_required(tmp_path, rng, name):
    parts = {
        "image": layouts.cifar_files(rng),
        "smnist": {
            k.removesuffix(".gz"): gzip.decompress(v) for k, v in layouts.mnist_files(rng).items()
        },
        "text": layouts.imdb_files(layouts.reviews()),
        "enwik8": {"enwik8": b"x" * 100},
        "wikitext103": layouts.wikitext_files(),
        "retrieval": layouts.aan_files(),
    }[name]
    folder = layouts.write_folder(tmp_path / "f", parts)
    with pytest.raises(DataError, match=r"published|instead of"):
        prepare(name, tmp_path, source=folder, quiet=True)
    assert not list((tmp_path / name).glob("*.partial"))


@pytest.mark.parametrize(
    "name", ["image", "smnist", "text", "enwik8", "wikitext103", "retrieval", "retrieval-x"]
)
def test_an_empty_source_is_an_error(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError):
        prepare(name, tmp_path, source=tmp_path / "empty", quiet=True)
    with pytest.raises(DataError, match="no such file"):
        prepare(name, tmp_path, source=tmp_path / "nowhere", quiet=True)


def test_the_official_file_is_checked_before_it_is_read(tmp_path, rng):
    archive = layouts.write_tar(tmp_path / "cifar-10-binary.tar.gz", layouts.cifar_files(rng))
    with pytest.raises(
        DataError, match=r"bytes, the official cifar-10-binary.tar.gz has 170052171"
    ):
        prepare("image", tmp_path, source=archive, quiet=True)
    with pytest.raises(DataError, match="official"):  # a folder that holds it
        prepare("image", tmp_path, source=tmp_path, quiet=True)


def evil_tar(path, kind):
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("../escape.bin" if kind == "dots" else "data_batch_1.bin")
        if kind == "absolute":
            info.name = "/tmp/escape.bin"
        if kind in ("symlink", "hardlink"):
            info.type = tarfile.SYMTYPE if kind == "symlink" else tarfile.LNKTYPE
            info.linkname = "/etc/passwd"
            archive.addfile(info)
        elif kind == "device":
            info.type = tarfile.CHRTYPE
            archive.addfile(info)
        else:
            info.size = 3
            archive.addfile(info, io.BytesIO(b"bad"))
    return path


@pytest.mark.parametrize("kind", ["dots", "absolute", "symlink", "hardlink", "device"])
def test_dangerous_tar_archives_are_refused(tmp_path, kind):
    with pytest.raises(DataError, match="refused"):
        prepare(
            "image",
            tmp_path / "r",
            source=evil_tar(tmp_path / "x.tar.gz", kind),
            quiet=True,
            subset=True,
        )
    assert not list(tmp_path.rglob("escape.bin")) and not list((tmp_path / "r").rglob("*.npy"))


@pytest.mark.parametrize("kind", ["dots", "link"])
def test_dangerous_zip_archives_are_refused(tmp_path, kind):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        info = zipfile.ZipInfo("../enwik8" if kind == "dots" else "enwik8")
        if kind == "link":
            info.external_attr = 0o120777 << 16
        archive.writestr(info, "x" * 400)
    with pytest.raises(DataError, match="refused"):
        prepare("enwik8", tmp_path / "r", source=tmp_path / "x.zip", quiet=True, subset=True)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("kind", ["tar.gz", "zip", "gz"])
def test_truncated_archives_are_named(tmp_path, rng, share, kind):
    noise = {"enwik8": bytes(rng.integers(0, 256, 30_000, dtype=np.uint8))}
    path = tmp_path / ("enwik8.gz" if kind == "gz" else f"x.{kind}")
    if kind == "tar.gz":
        layouts.write_tar(path, noise)
    elif kind == "zip":
        layouts.write_zip(path, noise)
    else:
        path.write_bytes(gzip.compress(noise["enwik8"]))
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(DataError, match=r"truncated|damaged|holds no"):
        prepare("enwik8", tmp_path / "r", source=path, quiet=True, subset=True)
    assert not list((tmp_path / "r").rglob("*.npy"))


def test_png_round_trip_and_filters(rng):
    picture = rng.integers(0, 256, (5, 7), dtype=np.uint8)
    assert np.array_equal(decode_png(encode_png(picture)), picture)
    # the same picture written with each of the five row filters by their definition
    rows = []
    padded = np.pad(picture.astype(int), ((1, 0), (1, 0)))
    for y in range(5):
        up, here = padded[y], padded[y + 1]
        left, corner = here[:-1], up[:-1]
        base = left + up[1:] - corner
        near = np.stack([left, up[1:], corner])
        paeth = near[np.abs(base - near).argmin(axis=0), np.arange(7)]
        guess = [0 * left, left, up[1:], (left + up[1:]) // 2, paeth][y]
        rows.append(bytes([y]) + ((here[1:] - guess) % 256).astype(np.uint8).tobytes())

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 7, 5, 8, 0, 0, 0, 0))
    data += chunk(b"IDAT", zlib.compress(b"".join(rows))) + chunk(b"IEND", b"")
    assert np.array_equal(decode_png(data), picture)
    for broken in (
        b"",
        data[:-5],
        data[:30],
        data.replace(b"IDAT", b"IDAX"),
        data[:45] + b"?" + data[46:],
    ):
        with pytest.raises(DataError, match="PNG"):
            decode_png(broken)
