"""Files from outside: what would be changed, cut or blown up on the way in is refused."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import tarfile
import warnings
import zipfile

import numpy as np
import pytest

from longlens.cli.main import main
from longlens.files import canonical_json, digest
from longlens.tasks import DataError, import_arrays, load, prepare, sources
from longlens.tasks.npy import open_npy, read_npy
from longlens.tasks.png import decode_png, encode_png
from longlens.tasks.writer import Writer
from tests.tasks import layouts

X = np.arange(80).reshape(20, 4) % 7
Y = np.arange(20) % 2
FULL = np.full(20, 4)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"tokens": np.full((20, 4), 1e300)}, "tokens hold 1e.300, but are stored as float32"),
        ({"tokens": np.full((20, 4), -1e39)}, "scale it first"),
        ({"targets": np.full(20, 1e300)}, "targets hold 1e.300"),
        ({"targets": np.full(20, 2**63, np.uint64)}, "classes must be from 0 to 2147483647"),
        ({"targets": np.full(20, 2**40)}, "classes must be from 0 to 2147483647"),
        ({"tokens": np.full((20, 4), 2**63, np.uint64)}, "tokens must be in 0 … 2147483647"),
        ({"lengths": np.full(20, 2**63 + 4, np.uint64)}, "lengths must be 1 or more, to 21474"),
        ({"targets": Y == 1}, "got bool; write false and true as the classes 0 and 1"),
        ({"targets": Y == 1, "kind": "regression"}, "got bool"),
        ({"targets": Y == 1, "kind": "classification"}, "got bool"),
        ({"targets": Y * 1j}, "got complex128"),
        ({"targets": Y.astype(str)}, "got <U"),
        ({"targets": Y.astype("M8[s]")}, "got datetime64"),
        ({"tokens": X[:, :, None], "lengths": FULL}, r"got int64 of shape \(20, 4, 1\)"),
        ({"tokens": X[:, :, None, None] * 1.0, "lengths": FULL}, "of shape"),
        ({"tokens": np.array(3), "lengths": FULL}, r"of shape \(\)"),
        ({"targets": np.ones((20, 0))}, r"targets is empty: \(20, 0\)"),
        ({"targets": np.ones((20, 2, 0))}, "targets is empty"),
        ({"targets": np.array(3)}, "targets has no rows for 20 examples"),
        ({"targets": np.array(3.5)}, "targets has no rows for 20 examples"),
        ({"lengths": np.array(3)}, r"lengths must be \(N,\) integers, got int64 \(\)"),
        ({"targets": [0, 1]}, "targets must be an array or a path, got list"),
        ({"num_classes": 0}, "num_classes is 0"),
        ({"vocab_size": 0}, "tokens must be in 0 … -1"),
        ({"tokens": np.zeros(0, int), "targets": None}, "a stream"),
    ],
)
def test_imports_refuse_what_they_would_change(tmp_path, arguments, problem):
    given = {"name": "mine", "tokens": X, "targets": Y} | arguments
    with pytest.raises(DataError, match=problem):
        import_arrays(root=tmp_path, **given)
    assert not list(tmp_path.rglob("manifest.json"))


def test_floats_are_rounded_to_float32_and_nothing_else(tmp_path):
    values = np.linspace(-3.4e38, 3.4e38, 80).reshape(20, 4)
    import_arrays("f", values, values[:, 0], root=tmp_path, seed=0)
    found = load("f", tmp_path)
    stored = np.concatenate([found[s].arrays["inputs"].whole() for s in found.splits])
    assert sorted(stored.ravel()) == sorted(values.astype(np.float32).ravel())


def npy(array, version=(1, 0)):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version)
    return file.getvalue()


WHOLE = npy(np.arange(6.0))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        WHOLE[:-1],
        WHOLE + b"\0",
        WHOLE[:40],
        WHOLE.replace(b"(6,)", b"(6e)"),
        WHOLE.replace(b"(6,)", b"(-6)"),
        WHOLE.replace(b"(6,), ", b"(9**9)"),
        WHOLE.replace(b"<f8", b"|O8"),
        WHOLE.replace(b"{'descr'", b"(((((((("),
        WHOLE.replace(b"{'descr'", b"\\\n\t\x00 '''"),
        WHOLE[:6] + b"\x07\x00" + WHOLE[8:],
        npy(np.zeros(2, [("é", float)]), (3, 0)),
    ],
)
def test_an_npy_file_is_exactly_one_array(tmp_path, content):
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    for read in (lambda: open_npy(path, "x"), lambda: read_npy(content, "x")):
        with pytest.raises(DataError, match=r"x is not a readable \.npy file"):
            read()


@pytest.mark.parametrize("array", [np.arange(6.0), np.zeros((0, 3)), np.ones((3, 2), order="F")])
def test_npy_files_are_read_as_they_were_written(tmp_path, array):
    np.save(tmp_path / "x.npy", array)
    for found in (open_npy(tmp_path / "x.npy", "x"), read_npy(npy(array), "x")):
        assert found.dtype == array.dtype and np.array_equal(found, array)


def test_npz_and_single_numbers_as_targets_are_one_line(tmp_path, capsys):
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "y.npz", y=Y)
    np.save(tmp_path / "y.npy", np.array(1))
    words = ["data", "import", "mine", "--root", str(tmp_path), "--tokens", str(tmp_path / "x.npy")]
    for name, problem in (("y.npz", "is an .npz archive; give one"), ("y.npy", "has no rows")):
        assert main([*words, "--targets", str(tmp_path / name)]) == 1
        err = capsys.readouterr().err
        assert problem in err and err.count("\n") == 1, err


def tar(files, path, end=True):
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        place = archive.offset
    if not end:
        path.write_bytes(path.read_bytes()[:place])
    return path


REVIEWS = [(name, data) for name, data in layouts.imdb_files(layouts.reviews()).items()]


def prepare_text(root, source):
    return prepare("text", root, source=source, quiet=True, subset=True, validation=4)


def damaged_header(path):
    content = bytearray(path.read_bytes())
    content[512 * 20 + 3] ^= 1  # in the header of the eleventh file; the others would be lost
    path.write_bytes(content)
    return path


def test_tar_archives_that_end_early_are_refused(tmp_path):
    whole = prepare_text(tmp_path / "whole", tar(REVIEWS, tmp_path / "a.tar"))
    assert sum(whole.examples.values()) == len(REVIEWS)
    for number, source in enumerate(
        [
            tar(REVIEWS[:-3], tmp_path / "cut.tar", end=False),
            damaged_header(tar(REVIEWS, tmp_path / "header.tar")),
        ]
    ):
        with pytest.raises(DataError, match=r"tar is truncated or damaged"):
            prepare_text(tmp_path / str(number), source)
    joined = tmp_path / "joined.tar"
    joined.write_bytes((tmp_path / "a.tar").read_bytes() * 2)
    with pytest.raises(DataError, match=r"joined\.tar is truncated or damaged"):
        prepare_text(tmp_path / "joined", joined)


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_compressed_archives_that_end_early_are_refused(tmp_path, compress):
    content = compress(tar(REVIEWS, tmp_path / "a.tar").read_bytes())
    for cut in (-1, -9, len(content) // 2):
        (tmp_path / "b.tar.z").write_bytes(content[:cut])
        with pytest.raises(DataError, match=r"truncated or damaged|holds neither"):
            prepare_text(tmp_path / "root", tmp_path / "b.tar.z")


def test_archives_that_repeat_a_name_are_refused(tmp_path):
    twice = [*REVIEWS, (REVIEWS[0][0], b"another text")]
    with pytest.raises(DataError, match=r"holds 'aclImdb/train/neg/0_7.txt' twice"):
        prepare_text(tmp_path / "tar", tar(twice, tmp_path / "a.tar"))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, data in twice:
            archive.writestr(name, data)
    with pytest.raises(DataError, match=r"holds 'aclImdb/train/neg/0_7.txt' twice"):
        prepare_text(tmp_path / "zip", tmp_path / "a.zip")


def test_two_files_of_one_name_must_be_copies(tmp_path):
    files = layouts.mnist_files(np.random.default_rng(0))
    name = "train-labels-idx1-ubyte"
    labels = gzip.decompress(files.pop(f"{name}.gz"))
    folder = layouts.write_folder(tmp_path / "f", {**files, name: labels, f"copy/{name}": labels})
    options = dict(source=folder, quiet=True, subset=True, validation=4)
    prepare("smnist", tmp_path / "same", **options)
    (folder / "copy" / name).write_bytes(labels[:-1] + b"\7")
    with pytest.raises(DataError, match=f"two different files {name}"):
        prepare("smnist", tmp_path / "other", **options)


@pytest.mark.parametrize("kind", ["gz", "zip", "tar.xz", "xz in zip"])
def test_archives_that_expand_without_bound_are_refused(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(sources, "ALWAYS_ALLOWED", 1 << 20)
    zeros = bytes(8 << 20)
    path = tmp_path / "bomb"
    if kind == "gz":
        path = tmp_path / "enwik8.gz"
        path.write_bytes(gzip.compress(zeros))
    elif kind == "tar.xz":
        path.write_bytes(lzma.compress(tar([("enwik8", zeros)], tmp_path / "t").read_bytes()))
    else:
        name, data = ("enwik8", zeros) if kind == "zip" else ("enwik8.xz", lzma.compress(zeros))
        layouts.write_zip(path, {name: data})
    with pytest.raises(DataError, match=r"is refused: it expands to more than 1\.0 MB"):
        prepare("enwik8", tmp_path / "root", source=path, subset=True, quiet=True)


def test_zip_files_that_seem_encrypted_or_of_another_kind_are_one_error(tmp_path):
    whole = layouts.write_zip(tmp_path / "a.zip", {"enwik8": b"text " * 100}).read_bytes()
    central = whole.index(b"PK\1\2")
    for place, value in ((8, 1), (10, 77), (8, 32)):  # flags: encrypted; method; flags: a patch
        content = bytearray(whole)
        content[central + place] = content[place - 2] = value
        (tmp_path / "b.zip").write_bytes(content)
        with pytest.raises(DataError, match=r"b\.zip is truncated or damaged"):
            prepare("enwik8", tmp_path / "r", source=tmp_path / "b.zip", subset=True, quiet=True)
    (tmp_path / "c.zip").write_bytes(whole[:-30])
    with pytest.raises(DataError, match=r"c\.zip is truncated or damaged"):
        prepare("enwik8", tmp_path / "r", source=tmp_path / "c.zip", subset=True, quiet=True)


def test_a_zip_file_with_a_damaged_name_is_refused(tmp_path):
    path = layouts.write_zip(tmp_path / "a.zip", layouts.imdb_files(layouts.reviews()))
    content = path.read_bytes()
    place = content.rindex(b"aclImdb/train/pos/1_7.txt")  # in the list at the end
    path.write_bytes(content[:place] + b"X" + content[place + 1 :])
    prepare_text(tmp_path / "whole", layouts.write_zip(tmp_path / "b.zip", dict(REVIEWS)))
    with pytest.raises(DataError, match=r"a\.zip is truncated or damaged"):
        prepare_text(tmp_path / "root", path)


@pytest.mark.parametrize("damage", ["value", "twice", "torn", "nothing", "other"])
def test_a_damaged_journal_costs_time_and_nothing_else(tmp_path, damage, monkeypatch):
    options = dict(train=8, validation=4, test=4, min_length=8, max_length=40, quiet=True)
    whole = prepare("listops", tmp_path / "whole", **options)
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare("listops", tmp_path, **options)
    (journal,) = tmp_path.rglob("journal.jsonl")
    content = journal.read_bytes()
    journal.write_bytes({
        "value": content.replace(b'"shape": [8', b'"shape": [9'), "twice": 2 * content,
        "torn": content[:-5], "nothing": b"", "other": b'{"a": 1}\n[]\n3\n',
    }[damage])  # fmt: skip
    assert prepare("listops", tmp_path, **options).identity == whole.identity
    load("listops", tmp_path, **{k: v for k, v in options.items() if k != "quiet"})


def test_a_picture_expands_to_its_own_size_only():
    picture = encode_png(np.zeros((4, 4), np.uint8))
    assert decode_png(picture).shape == (4, 4)
    wide = picture.replace(b"IHDR\0\0\0\4", b"IHDR\xff\0\0\4")
    for content in (wide, picture + b"\0", picture[:-1]):
        with pytest.raises(DataError, match="not a readable PNG"):
            decode_png(content)


def corpus(folder, lines):
    files = layouts.corpus_files()
    files["docs.jsonl"] += b"".join(lines)
    return layouts.write_folder(folder, files)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"id": "d/003", "title": "t", "text": "other"}, "the id 'd/003' was used before"),
        ({"id": "d/999", "title": "t", "text": 3}, "expected a JSON object"),
        ({"id": None, "title": "t", "text": "x"}, "expected a JSON object"),
        ('{"id": "a", "id": "b", "title": "t", "text": "x"}', "expected a JSON object"),
        ('{"id": "a", "title": "t", "text": "\\ud800"}', "expected a JSON object"),
        ("[" * 100_000, "expected a JSON object"),
    ],
)
def test_documents_with_an_id_twice_and_worse_are_refused(tmp_path, line, problem):
    text = line if isinstance(line, str) else json.dumps(line)
    source = corpus(tmp_path / "files", [text.encode() + b"\n"])
    with pytest.raises(DataError, match=problem):
        prepare("retrieval-mine", tmp_path / "root", source=source, quiet=True)


@pytest.mark.parametrize(
    "line",
    ['{"text": "x", "label": true}', '{"text": "x", "label": 1.0}', '{"text": "", "label": 1}',
     '{"text": "\\ud800", "label": 1}', '{"text": 3, "label": 1}', "[" * 100_000],
)  # fmt: skip
def test_reviews_are_a_text_and_a_whole_number(tmp_path, line):
    files = layouts.imdb_json(layouts.reviews())
    files["train.jsonl"] += line.encode() + b"\n"
    with pytest.raises(DataError, match=r"train.jsonl, line 13: (label must be|not a JSON)"):
        prepare_text(tmp_path / "root", layouts.write_folder(tmp_path / "files", files))


@pytest.mark.parametrize(
    "labels", [np.full(24, 256), np.full(24, -1), np.ones(24), np.ones(23, int)]
)
def test_labels_of_images_are_checked_before_they_become_bytes(tmp_path, labels):
    np.save(tmp_path / "images.npy", np.zeros((24, 32, 32), np.uint8))
    np.save(tmp_path / "labels.npy", labels)
    with pytest.raises(DataError, match=r"labels.npy must be"):
        prepare("image", tmp_path / "r", source=tmp_path, quiet=True, subset=True, validation=4)


@pytest.mark.parametrize(
    "content",
    [b"\0\0\x08\x03\0\0\0\1", b"\0\0\x08\0" + bytes(5), b"\0\0\x08\xff" + bytes(20),
     layouts.idx(np.zeros((12 * 28, 28), np.uint8)), layouts.idx(np.zeros((6, 56, 28), np.uint8))],
)  # fmt: skip
def test_idx_files_have_the_dimensions_of_their_kind(tmp_path, content):
    files = layouts.mnist_files(np.random.default_rng(0))
    del files["train-images-idx3-ubyte.gz"]
    files["train-images-idx3-ubyte"] = content
    folder = layouts.write_folder(tmp_path / "files", files)
    with pytest.raises(DataError, match="train-images-idx3-ubyte is not"):
        prepare("smnist", tmp_path / "r", source=folder, quiet=True, subset=True, validation=4)


def test_a_word_list_without_words_and_one_that_is_there_twice(tmp_path):
    files = layouts.wikitext_files()
    empty = layouts.write_folder(tmp_path / "a", {**files, "wikitext-103/wiki.train.tokens": b""})
    twice = layouts.write_folder(tmp_path / "b", {**files, "old/wiki.train.tokens": b"x\n"})
    for source, problem in ((empty, "is empty"), (twice, "two files wiki.train.tokens")):
        with pytest.raises(DataError, match=problem):
            prepare("wikitext103", tmp_path / "r", source=source, subset=True, quiet=True)


def test_a_manifest_cannot_name_files_elsewhere(tmp_path):
    import_arrays("mine", X, Y, root=tmp_path)
    folder = tmp_path / "imported" / "mine" / "1"
    np.save(tmp_path / "secret.npy", X)
    values = json.loads((folder / "manifest.json").read_text())
    values["arrays"]["train/inputs"]["files"] = ["../../../secret.npy"]
    content = {k: v for k, v in values.items()
               if k not in ("checksum", "identity", "sources", "notes", "made_with")}  # fmt: skip
    values["identity"] = digest(content)
    del values["checksum"]
    values["checksum"] = digest(values)
    (folder / "manifest.json").write_text(canonical_json(values))
    with pytest.raises(
        DataError, match=r"'\.\./\.\./\.\./secret\.npy', which is none of its files"
    ):
        load("mine", tmp_path)
