"""Tables as other programs write them: headers, numbers of rows, gaps, long examples."""

import numpy as np
import pytest

from longlens.tasks import DataError, import_file, load

X = np.random.default_rng(1).standard_normal((30, 7)).round(2)
Y = np.arange(30) % 2


def written(folder, name, *columns, header=None, mark=","):
    """A file with these columns, of which an array of two dimensions is several."""
    rows = zip(*columns, strict=True)
    lines = [mark.join(str(v) for cell in row for v in np.atleast_1d(cell)) for row in rows]
    path = folder / name
    path.write_text("\n".join([*([header] if header else []), *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("0,1,2,3,4,5,6,7", [Y, X]),
        (",0,1,2,3,4,5,6,7", [range(30), Y, X]),
        ("id,a,b,c,d,e,f,g,label", [range(101, 131), X, Y]),
        ("index,label,a,b,c,d,e,f,g", [range(30), Y, X]),
    ],
)
def test_headers_and_numbers_of_rows_are_no_examples_and_no_values(tmp_path, header, columns):
    path = written(tmp_path, "a.csv", *columns, header=header)
    manifest = import_file(path, root=tmp_path)
    assert sum(manifest.examples.values()) == 30
    assert manifest.spec.max_length == 7
    assert manifest.spec.class_names == ("0", "1")
    assert "the first line is a header" in manifest.notes


def test_every_column_that_is_left_out_is_noted(tmp_path):
    columns = range(30), [f"row-{n}" for n in range(30)], Y, X
    path = written(tmp_path, "a.csv", *columns, header=",id,label,a,b,c,d,e,f,g")
    manifest = import_file(path, root=tmp_path)
    assert manifest.spec.max_length == 7
    left_out = [f"column {n} names or counts the rows and is left out" for n in (0, 1)]
    assert [note for note in manifest.notes if "left out" in note] == left_out


def test_a_header_of_a_table_of_text_is_no_class(tmp_path):
    texts = [f"film {n}" for n in range(30)]
    path = written(tmp_path, "a.csv", texts, np.where(Y, "good", "bad"), header="review,sentiment")
    manifest = import_file(path, root=tmp_path)
    assert manifest.spec.class_names == ("bad", "good")
    plain = written(tmp_path, "b.csv", texts, np.where(Y, "good", "bad"))
    assert sum(import_file(plain, root=tmp_path).examples.values()) == 30


@pytest.mark.parametrize("header", [None, "review,sentiment"])
def test_a_class_that_is_written_as_a_gap_makes_no_header(tmp_path, header):
    """The first review was lost where the second one was of such a class."""
    texts, names = [f"film {n}" for n in range(30)], np.where(Y, "none", "good")
    manifest = import_file(written(tmp_path, "a.csv", texts, names, header=header), root=tmp_path)
    assert sum(manifest.examples.values()) == 30
    assert manifest.spec.class_names == ("good", "none")


@pytest.mark.parametrize("gap", ["", "NA", "null", "None", "nan"])
def test_gaps_end_an_example_however_they_are_written(tmp_path, gap):
    whole = np.random.default_rng(0).integers(0, 9, (30, 7)).astype(str).astype(object)
    whole[::3, 5:] = gap
    path = written(tmp_path, "a.csv", Y, whole)
    manifest = import_file(path, root=tmp_path)
    assert manifest.spec.class_names == ("0", "1")
    assert (manifest.spec.inputs, manifest.spec.max_length) == ("tokens", 7)
    lengths = np.concatenate([split.lengths for split in load("a", tmp_path).splits.values()])
    assert sorted(set(lengths.tolist())) == [5, 7]


def test_numbers_with_spaces_between_them(tmp_path):
    np.savetxt(tmp_path / "a.txt", np.column_stack([Y, X]))
    manifest = import_file(tmp_path / "a.txt", root=tmp_path)
    assert (manifest.spec.max_length, manifest.spec.class_names) == (7, ("0", "1"))


def test_a_text_may_be_long(tmp_path):
    path = written(tmp_path, "a.csv", ["ACGT" * 40_000, "TT"] * 5, ["x", "y"] * 5, header="text,y")
    assert import_file(path, root=tmp_path).spec.max_length == 160_000


def test_what_cannot_be_kept_as_it_is_is_refused(tmp_path):
    (tmp_path / "latin.csv").write_bytes(b"label,text\n" + "grün,a\nrot,b\n".encode("cp1252"))
    with pytest.raises(DataError, match=r"not in UTF-8 \(byte 13\)"):
        import_file(tmp_path / "latin.csv", root=tmp_path)
    whole = np.arange(210).reshape(30, 7).astype(object)
    whole[3, 2] = "inf"
    with pytest.raises(DataError, match="NaN or infinite"):
        import_file(written(tmp_path, "inf.csv", Y, whole), root=tmp_path)
    labels = Y.astype(object)
    labels[3] = "inf"
    with pytest.raises(DataError, match="label 4 is infinite"):
        import_file(written(tmp_path, "goal.csv", labels, X), root=tmp_path)
    np.savez(tmp_path / "flat.npz", x=X[:, 0], y=Y)
    with pytest.raises(DataError, match="every example is one number"):
        import_file(tmp_path / "flat.npz", root=tmp_path)


def in_order(columns, header):
    """The columns of X and the labels, as a header of letters and ``label`` has them."""
    return [columns[1] if name == "label" else columns[0][:, "abc".index(name)] for name in header]


@pytest.mark.parametrize(("ending", "label"), [("csv", None), ("csv", "0"), ("parquet", None)])
@pytest.mark.parametrize("header", ["label,a,b,c", "c,b,a,label", "b,label,c,a"])
def test_columns_of_a_test_file_are_found_by_their_names(tmp_path, ending, header, label):
    parts = {"train": ("label,a,b,c", slice(0, 20)), "test": (header, slice(20, 30))}
    (tmp_path / "set").mkdir()
    for part, (names, rows) in parts.items():
        columns = in_order((X[rows], Y[rows]), names.split(","))
        if ending == "csv":
            written(tmp_path / "set", f"{part}.csv", *columns, header=names)
            continue
        parquet = pytest.importorskip("pyarrow.parquet")
        import pyarrow

        table = pyarrow.table(dict(zip(names.split(","), columns, strict=True)))
        parquet.write_table(table, tmp_path / "set" / f"{part}.parquet")
    import_file(tmp_path / "set", "folder", label=label, root=tmp_path)
    train, test = (tmp_path / "set" / f"{part}.{ending}" for part in ("train", "test"))
    alone = train.rename(tmp_path / f"a.{ending}")  # it would find the test file by itself
    import_file(alone, "options", test_inputs=test, label=label, root=tmp_path)
    for name in ("folder", "options"):
        found = load(name, tmp_path)["test"].arrays["inputs"].whole()[:, :, 0]
        assert sorted(found.tolist()) == sorted(X[20:, :3].astype(np.float32).tolist()), name


def test_other_columns_in_a_test_file_are_refused_and_named(tmp_path):
    written(tmp_path, "a_train.csv", Y, X[:, :3], header="label,a,b,c")
    for header, problem in (("label,a,c", "lacks 'b'"), ("a,b,c,d,label", "has besides 'd'"),
                            ("label,a,B,d", "lacks 'c' and has besides 'd'")):  # fmt: skip
        columns = [Y if name == "label" else X[:, 0] for name in header.split(",")]
        written(tmp_path, "a_test.csv", *columns, header=header)
        with pytest.raises(
            DataError, match=rf"a_test\.csv: input columns must be .*; it {problem}"
        ):
            import_file(tmp_path / "a_train.csv", root=tmp_path)


def test_columns_of_one_name_keep_their_order(tmp_path):
    for part, header in (("train", "label,v,w,v"), ("test", "v,v,label,w")):
        columns = [X[:, 0], X[:, 2], Y, X[:, 1]] if part == "test" else [Y, X[:, :3]]
        written(tmp_path, f"a_{part}.csv", *columns, header=header)
    import_file(tmp_path / "a_train.csv", root=tmp_path)
    found = load("a", tmp_path)["test"].arrays["inputs"].whole()[:, :, 0]
    assert sorted(found.tolist()) == sorted(X[:, :3].astype(np.float32).tolist())


ORDER = np.random.default_rng(2).permutation(300)  # rows of a frame that was shuffled


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "index", "Index"])
@pytest.mark.parametrize("numbers", [ORDER[:30], range(1, 31), np.sort(ORDER[:30]) * 1.0])
def test_numbers_of_rows_are_no_values_in_any_order(tmp_path, name, numbers):
    path = written(tmp_path, "a.csv", numbers, Y, X, header=f"{name},label,a,b,c,d,e,f,g")
    manifest = import_file(path, root=tmp_path)
    assert manifest.spec.max_length == 7
    assert "column 0 names or counts the rows and is left out" in manifest.notes


def test_the_training_file_decides_which_column_numbers_the_rows(tmp_path):
    """In the test file its numbers repeat, or it is not there."""
    header = ",label,a,b,c,d,e,f,g"
    written(tmp_path, "a_train.csv", ORDER[:30], Y, X, header=header)
    for numbers, names in ((ORDER[:30] // 9, header), (np.empty((30, 0)), header[1:])):
        written(tmp_path, "a_test.csv", *([numbers] if names == header else []), Y, X, header=names)
        manifest = import_file(tmp_path / "a_train.csv", root=tmp_path, replace=True)
        assert manifest.spec.max_length == 7
    written(tmp_path, "b_train.csv", ORDER[:30] // 9, Y, X, header=header)  # these are values
    written(tmp_path, "b_test.csv", ORDER[:30], Y, X, header=header)
    assert import_file(tmp_path / "b_train.csv", root=tmp_path).spec.max_length == 8


@pytest.mark.parametrize(
    ("name", "values"), [("index", X[:, 0]), ("index", Y), ("", Y), ("steps", range(30))]
)
def test_other_columns_are_values(tmp_path, name, values):
    path = written(tmp_path, "a.csv", values, Y, X, header=f"{name},label,a,b,c,d,e,f,g")
    assert import_file(path, root=tmp_path).spec.max_length == 8


def test_several_columns_without_a_name_are_values(tmp_path):
    path = written(tmp_path, "a.csv", Y, X, range(30), header="label" + "," * 8)
    assert import_file(path, root=tmp_path).spec.max_length == 8


@pytest.mark.parametrize("name", ["index", "__index_level_0__", "id"])
def test_numbers_of_rows_in_parquet_files(tmp_path, name):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    rest = {"a": X[:, 0], "b": X[:, 1]}, {"review": [f"film {n}" for n in range(30)]}
    for number, columns in enumerate(rest):
        columns = columns | {"label": Y, name: ORDER[:30]}
        parquet.write_table(pyarrow.table(columns), tmp_path / f"{number}.parquet")
        manifest = import_file(tmp_path / f"{number}.parquet", root=tmp_path)
        assert manifest.spec.max_length == (7 if number else 2)
        assert f"column {name} names or counts the rows and is left out" in manifest.notes


def test_a_column_of_that_name_may_hold_the_inputs(tmp_path):
    texts = [f"film {n}" for n in range(30)]
    path = written(tmp_path, "text.csv", texts, Y, header="index,label")
    assert "inputs are text" in import_file(path, root=tmp_path).notes
    path = written(tmp_path, "none.csv", ORDER[:30], Y, header="index,label")
    with pytest.raises(DataError, match="no column but 'index' has inputs, and that one numbers"):
        import_file(path, root=tmp_path)
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    for name in ("index", "idx"):
        parquet.write_table(pyarrow.table({name: list(X), "label": Y}), tmp_path / "a.parquet")
        assert import_file(tmp_path / "a.parquet", name, root=tmp_path).spec.max_length == 7
    parquet.write_table(pyarrow.table({"idx": ORDER[:30], "label": Y}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="no column has inputs; it has idx, label"):
        import_file(tmp_path / "a.parquet", root=tmp_path)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["1_1", "11", "1_2"], ("11", "1_1", "1_2")),
        (["01", "1", "2"], ("01", "1", "2")),
        (["+1", "1", "2"], ("+1", "1", "2")),
        (["02", "01", "10"], ("1", "2", "10")),
        (["1.0", "1", "2"], ("1", "2")),  # pandas writes both
        ([10**18, 10**18 + 1, 3], ("3", f"{10**18}", f"{10**18 + 1}")),
    ],
)
def test_labels_that_differ_are_different_classes(tmp_path, labels, names):
    path = written(tmp_path, "a.csv", labels * 10, X, header="label,a,b,c,d,e,f,g")
    assert import_file(path, root=tmp_path).spec.class_names == names
    if isinstance(labels[0], int):
        np.savez(tmp_path / "b.npz", x=X, y=np.array(labels * 10))
        assert import_file(tmp_path / "b.npz", root=tmp_path).spec.class_names == names


def test_underscores_make_no_numbers(tmp_path):
    values = X.astype(str).astype(object)
    values[3, 2] = "1_1"
    with pytest.raises(DataError, match="line 4, column 3: '1_1' is no number"):
        import_file(written(tmp_path, "a.csv", Y, values), root=tmp_path)
    (tmp_path / "a.ts").write_text("@data\n" + "1,2,1_1:a\n" * 9)
    with pytest.raises(DataError, match="line 2: '1_1' is no number"):
        import_file(tmp_path / "a.ts", root=tmp_path)
