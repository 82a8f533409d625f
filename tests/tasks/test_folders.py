"""Files of the layout of EigenWorms, Speech Commands and Genomic Benchmarks become tasks."""

from __future__ import annotations

import wave

import numpy as np
import pytest

from longlens.tasks import DataError, import_file, load

RNG = np.random.default_rng(0)


def inputs(task, split):
    return [task[split][n].inputs[0] for n in range(len(task[split]))]


def test_eigenworms(tmp_path):
    """UEA's .ts: a head, then six channels parted by colons, and the class."""
    worms = tmp_path / "EigenWorms"
    worms.mkdir()
    head = (
        "#A comment\n@problemName EigenWorms\n@timeStamps false\n@missing false\n"
        "@univariate false\n"
        "@dimensions 6\n@equalLength true\n@seriesLength 40\n@classLabel true 1 2 3 4 5\n@data\n"
    )
    values = {part: RNG.standard_normal((20, 6, 40)).round(3) for part in ("TRAIN", "TEST")}
    for part, examples in values.items():
        lines = [
            ":".join([*(",".join(map(str, channel)) for channel in example), str(1 + n % 5)])
            for n, example in enumerate(examples)
        ]
        (worms / f"EigenWorms_{part}.ts").write_text(head + "\n".join(lines) + "\n")
    manifest = import_file(worms, root=tmp_path)
    task = load("eigenworms", tmp_path)
    assert manifest.examples == {"train": 18, "validation": 2, "test": 20}
    assert (task.spec.channels, task.spec.max_length, task.spec.num_classes) == (6, 40, 5)
    written = {np.float32(example.T).tobytes() for example in values["TEST"]}
    assert {np.asarray(x).tobytes() for x in inputs(task, "test")} == written


def write_wav(path, samples, width=2):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(width)
        file.setframerate(16_000)
        file.writeframes(samples.tobytes())


def test_speech_commands(tmp_path):
    """A folder for each word, lists of what is held out, clips of up to a second, and noise."""
    home = tmp_path / "speech_commands_v0.02"
    for word in ("yes", "no", "stop"):
        for n in range(8):
            size = 160 - 20 * (n == 3)
            write_wav(home / word / f"{n:08x}_nohash_{n}.wav",
                      RNG.integers(-(2**15), 2**15, size).astype("<i2"))  # fmt: skip
    write_wav(home / "_background_noise_" / "running_tap.wav", np.zeros(900, "<i2"))
    (home / "README.md").write_text("not a class")
    (home / "validation_list.txt").write_text(
        "yes/00000000_nohash_0.wav\nno/00000001_nohash_1.wav\n"
    )
    (home / "testing_list.txt").write_text(
        "\n".join(f"{word}/00000005_nohash_5.wav" for word in ("yes", "no", "stop")) + "\n"
    )
    manifest = import_file(home, "speech", root=tmp_path)
    task = load("speech", tmp_path)
    assert manifest.examples == {"train": 19, "validation": 2, "test": 3}
    assert task.spec.class_names == ("no", "stop", "yes")
    assert (task.spec.inputs, task.spec.channels, task.spec.max_length) == ("floats", 1, 160)
    everything = np.concatenate(inputs(task, "train"))
    assert -1 <= everything.min() < -0.9 and 0.9 < everything.max() < 1
    assert {len(x) for x in inputs(task, "train")} == {140, 160}


@pytest.mark.parametrize("width", [1, 2, 4])
def test_silence_and_the_loudest_sample_are_the_same_at_any_width(tmp_path, width):
    from longlens.tasks.folders import read_wav

    middle = 128 if width == 1 else 0
    kind = {1: "u1", 2: "<i2", 4: "<i4"}[width]
    samples = np.array([middle, middle - 2 ** (8 * width - 1)]).astype(kind)
    write_wav(tmp_path / "a.wav", samples, width)
    np.testing.assert_array_equal(read_wav(tmp_path / "a.wav"), [[0.0], [-1.0]])


def genomic(home, suffix=".txt"):
    for part, count in (("train", 10), ("test", 4)):
        for label in ("negative", "positive"):
            for n in range(count):
                path = home / part / label / f"{n}{suffix}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("".join(RNG.choice(list("ACGTN"), 30 + n)))


def test_genomic_benchmarks(tmp_path):
    """As downloaded, a file for each sequence; and as tables or Parquet, seq and label."""
    genomic(tmp_path / "demo_human_or_worm")
    manifest = import_file(tmp_path / "demo_human_or_worm", root=tmp_path)
    task = load("demo-human-or-worm", tmp_path)
    assert manifest.examples == {"train": 18, "validation": 2, "test": 8}
    assert task.spec.class_names == ("negative", "positive")
    assert {chr(token - 1) for token in np.concatenate(inputs(task, "train"))} == set("ACGTN")
    table = tmp_path / "tables"
    table.mkdir()
    for part in ("train", "test"):
        rows = "".join(f"{'ACGT' * 5},{n % 2}\n" for n in range(10))
        (table / f"{part}.csv").write_text(f"seq,label\n{rows}")
    assert import_file(table, "t", root=tmp_path).examples["test"] == 10
    pytest.importorskip("pyarrow")
    from pyarrow import parquet
    from pyarrow import table as columns

    saved = tmp_path / "saved"
    saved.mkdir()
    for part in ("train", "test"):
        parquet.write_table(
            columns({"seq": ["ACGTA"] * 12, "label": [0, 1] * 6}),
            saved / f"{part}-00000-of-00001-aeb55728756a44ae.parquet",
        )
    assert import_file(saved, "p", root=tmp_path).examples["test"] == 12


def test_wrong_folders_get_one_clear_line(tmp_path):
    genomic(tmp_path / "mixed")
    write_wav(tmp_path / "mixed/train/positive/x.wav", np.zeros(9, "<i2"))
    with pytest.raises(DataError, match=r"several kinds: \.txt, \.wav"):
        import_file(tmp_path / "mixed", root=tmp_path)
    (tmp_path / "broken/a").mkdir(parents=True)
    (tmp_path / "broken/a/x.wav").write_bytes(b"RIFF")
    with pytest.raises(DataError, match=r"x\.wav is no \.wav file"):
        import_file(tmp_path / "broken", root=tmp_path)
    write_wav(tmp_path / "silent/a/x.wav", np.zeros(0, "<i2"))
    with pytest.raises(DataError, match="has no samples"):
        import_file(tmp_path / "silent", root=tmp_path)
    (tmp_path / "empty/a").mkdir(parents=True)
    (tmp_path / "empty/a/x.txt").write_text(" \n")
    with pytest.raises(DataError, match=r"x\.txt is empty"):
        import_file(tmp_path / "empty", root=tmp_path)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="a folder without train and test files"):
        import_file(tmp_path / "nothing", root=tmp_path)


def test_text_that_is_not_in_utf_8_is_refused(tmp_path):
    genomic(tmp_path / "dna")
    (tmp_path / "dna/train/positive/3.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(DataError, match=r"3\.txt is not in UTF-8 \(byte 3\); convert it first"):
        import_file(tmp_path / "dna", root=tmp_path)
    (tmp_path / "a.ts").write_bytes("@data\n1,2:café\n1,3:b\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.ts is not in UTF-8 \(byte 13\)"):
        import_file(tmp_path / "a.ts", root=tmp_path)


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path):
    genomic(tmp_path / "dna")
    for path in (tmp_path / "dna").rglob("*.txt"):
        path.write_text("café", encoding="utf-8-sig")
    import_file(tmp_path / "dna", root=tmp_path)
    for tokens in inputs(load("dna", tmp_path), "train"):
        assert bytes((tokens - 1).tolist()).decode() == "café"
