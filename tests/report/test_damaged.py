"""One malformed record or results file is listed and skipped; the others are shown."""

import json

import pytest

from longlens.cli.main import main
from longlens.report.results import read_results
from longlens.runs.folders import curve_lines, find_runs
from longlens.runs.record import read_record
from longlens.training.log import read_curves
from tests.report.sample import table2
from tests.runs.test_collect import HEADER, write_run

BAD_RECORDS = [
    "",
    "[]",
    "{",
    "null",
    '{"schema": 1}',
    '{"schema": 1, "status": "finished"}',
    '{"schema": 2, "status": "finished"}',
    '{"schema": 3, "status": "failed"}',
    '{"schema": true, "status": "failed"}',
    '{"schema": 1, "status": "finished", "status": "failed"}',
    '{"schema": 1, "status": 3}',
    '{"schema": 1, "status": "failed", "options": []}',
    '{"schema": 1, "status": "failed", "metric": "accuracy"}',
    '{"schema": 1, "status": "failed", "metrics": {"test": [1]}}',
    '{"schema": 1, "status": "failed", "metrics": {"test": {"accuracy": "high"}}}',
    '{"schema": 1, "status": "failed", "metrics": {"test": {"accuracy": NaN}}}',
    '{"schema": 1, "status": "failed", "events": {"a": 1}}',
    '{"schema": 1, "status": "failed", "events": [1]}',
    '{"schema": 1, "status": "failed", "data": "listops"}',
    '{"schema": 1, "status": "failed", "seed": true}',
    '{"schema": 1, "status": "failed", "steps": 1%s}' % ("0" * 400),
    '{"schema": 1, "status": "failed", "error": "\xff"}',
    "[" * 100_000,
]


@pytest.fixture
def mine(tmp_path):
    folder = tmp_path / "runs" / "mine"
    write_run(folder, "good")
    write_run(folder, "bad")
    runs = {name: {"row": "LaS", "column": "Image", "seed": n} for n, name in
            enumerate(("good", "bad"))}  # fmt: skip
    (folder / "experiment.json").write_text(json.dumps({**HEADER, "runs": runs}))
    return folder


@pytest.mark.parametrize("content", BAD_RECORDS)
def test_a_malformed_record_is_listed_and_skipped(mine, tmp_path, capsys, content):
    (mine / "bad" / "record.json").write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=r"record\.json is (damaged|of another version)"):
        read_record(mine / "bad")
    bad, good = find_runs(mine)
    assert bad.status == "damaged" and good.status == "finished"
    page, out = tmp_path / "page.html", tmp_path / "out.json"
    for words, code in (
        (["runs", str(mine)], 0),
        (["runs", str(mine), "--by", "task", "--sort", "test"], 0),
        (["runs", str(mine), "--diff", "--columns", "name,lr,test.loss"], 0),
        (["show", str(mine / "good"), str(mine / "bad")], 1),
        (["collect", str(mine), "-o", str(out)], 0),
        (["report", str(mine), "-o", str(page)], 0),
        (["report", str(mine), "--format", "csv"], 0),
    ):
        assert main(words) == code, words
        text = capsys.readouterr()
        assert "bad/record.json" in text.err and text.err.count("\n") == 1, words
    assert "unreadable" in page.read_text() and "50.00" in page.read_text()
    states = [record["status"] for record in json.loads(out.read_text())["records"]]
    assert states == ["finished", "failed"]


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "null", '{"step": 1}', '{"step": "1", "split": "train"}',
     '{"step": 1, "split": "train", "loss": [1]}', '{"step": 1, "split": "train", "loss": NaN}',
     '{"step": 1, "split": "train", "step": 2}', "\xff", "[" * 100_000],
)  # fmt: skip
def test_malformed_curves_are_listed_and_left_out(mine, tmp_path, capsys, line):
    path = mine / "bad" / "curves.jsonl"
    path.write_text(path.read_text() + line + "\n", encoding="latin-1")
    with pytest.raises(ValueError, match=r"curves\.jsonl is damaged in line 501"):
        list(read_curves(mine / "bad"))
    assert curve_lines(read_record(mine / "bad"), []) == []
    for words, code in (
        (["show", str(mine / "bad")], 1),
        (["collect", str(mine), "-o", str(tmp_path / "out.json")], 0),
        (["report", str(mine), "-o", str(tmp_path / "page.html")], 0),
    ):
        assert main(words) == code
        assert "bad/curves.jsonl is damaged in line 501" in capsys.readouterr().err
    states = [r["status"] for r in json.loads((tmp_path / "out.json").read_text())["records"]]
    assert states == ["finished", "finished"]  # the numbers are the record's


def test_a_line_that_is_not_yet_whole_is_no_damage(mine):
    path = mine / "good" / "curves.jsonl"
    path.write_text(path.read_text() + '{"step": 501, "sp')
    assert len(list(read_curves(mine / "good"))) == 500


def changed(**values):
    return json.dumps({**table2(), **values})


def with_record(**values):
    return changed(records=[*table2()["records"], {"row": "LaS", "column": "Image",
                                                   "status": "finished", **values}])  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bad.json", ""),
        ("bad.json", "[]"),
        ("bad.json", '{"schema": 1, "schema": 1}'),
        ("bad.json", changed(kind="film")),
        ("bad.json", changed(rows=3)),
        ("bad.json", changed(columns=[[1]])),
        ("bad.json", changed(published={"LaS": 3})),
        ("bad.json", changed(published={"LaS": {"Image": "high"}})),
        ("bad.json", changed(records=[3])),
        ("bad.json", changed(notes="text", kind="table")),
        ("bad.json", with_record(metrics={"test": {"accuracy": "0.5"}})),
        ("bad.json", with_record(curves={"validation.accuracy": [[1, 2, 3]]})),
        ("bad.json", with_record(curves=[1])),
        ("bad.json", with_record(speed={"tokens_per_second": "fast"})),
        ("bad.json", '{"schema": 1, "kind": "audit", "curve": 3}'),
        ("bad.json", '{"schema": 1, "kind": "audit", "curve": [{"model": "a"}], "length": "x"}'),
        ("bad.json", '{"schema": 1, "kind": "audit", "verdict": "yes"}'),
        ("bad.json", '{"schema": 1, "kind": "lens", "subjects": [{"layers": [{}]}]}'),
        ("bad.json", '{"schema": 1, "kind": "lens", "subjects": 3}'),
        ("bad.csv", ""),
        ("bad.csv", "a,b\n1\n"),
        ("bad.csv", "a,a\n1,2\n"),
        ("bad.csv", 'shape,implementation\n"1,2'),
        ("bad.csv", "some,columns\n1,2\n"),
        ("bad.csv", "shape,implementation,forward_backward_ms\n1,plain SDPA,fast\n"),
        ("bad.csv", "\xff"),
    ],
)
def test_a_malformed_results_file_is_listed_and_skipped(tmp_path, capsys, name, content):
    folder, page = tmp_path / "results", tmp_path / "page.html"
    folder.mkdir()
    (folder / "table2.json").write_text(json.dumps(table2()))
    values = content.replace('"experiment": "table2"', '"experiment": "other"')
    (folder / name).write_text(values, encoding="latin-1")
    assert main(["report", str(folder), "-o", str(page), "--pictures", str(tmp_path / "p")]) == 0
    err = capsys.readouterr().err
    assert "skipped: " in err and ("bad" in err or "other" in err) and err.count("\n") == 1, err
    assert "table2" in page.read_text() and "unreadable" in page.read_text()


def test_nothing_but_malformed_files_is_an_error(tmp_path, capsys):
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.csv").write_text("a\n")
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "page.html")]) == 1
    err = capsys.readouterr().err
    assert "a.json is damaged" in err and "b.csv has no rows" in err and err.count("\n") == 1


@pytest.mark.parametrize("name", ["../elsewhere", "/tmp/elsewhere", "a/b", "a\x1b"])
def test_the_name_in_labels_cannot_leave_the_folder_of_results(mine, capsys, name, monkeypatch):
    monkeypatch.chdir(mine.parents[1])
    labels = json.loads((mine / "experiment.json").read_text())
    (mine / "experiment.json").write_text(json.dumps({**labels, "experiment": name}))
    assert main(["collect", "runs/mine"]) == 1
    assert "the experiment's name must be a folder's name" in capsys.readouterr().err


@pytest.mark.parametrize("change", [{"runs": 3}, {"runs": {"a": 3}}, {"rows": 3}, {"metric": 3},
                                    {"runs": {"a": {"row": "x", "column": "Image", "seed": 0}}},
                                    {"experiment": None}])  # fmt: skip
def test_damaged_labels_are_one_line(mine, capsys, change):
    labels = json.loads((mine / "experiment.json").read_text())
    (mine / "experiment.json").write_text(json.dumps({**labels, **change}))
    assert main(["collect", str(mine)]) == 1
    err = capsys.readouterr().err
    assert "experiment.json is damaged" in err and err.count("\n") == 1
    with pytest.raises(ValueError, match=r"experiment\.json is damaged"):
        read_results([mine])
