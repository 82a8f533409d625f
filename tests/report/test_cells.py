"""Results read, and cells that compare only what may be compared."""

import json
import math
from html import escape

import pytest

from longlens.report import figures
from longlens.report.build import build_page
from longlens.report.cells import Metric, filled, mean_text, table
from longlens.report.compare import Difference
from longlens.report.figures import overview
from longlens.report.formats import text_table
from longlens.report.results import read_results
from tests.report.sample import TASKS, figure5, record, table2, write_results
from tests.report.test_runs import write_run


def experiment(tmp_path, values):
    (tmp_path / "x.json").write_text(json.dumps(values))
    (found,) = read_results([tmp_path / "x.json"]).experiments
    return found


def test_a_cell_has_seeds_spread_and_difference(tmp_path):
    cell = table(experiment(tmp_path, table2()))["LaS"]["ListOps"]
    assert cell.values == pytest.approx([53, 55]) and cell.mean == pytest.approx(54)
    assert cell.deviation == pytest.approx(2**0.5)
    assert cell.difference == pytest.approx(0.95) and cell.better
    assert cell.text() == "54.00 ± 1.41"
    assert [word for word, _ in cell.marks] == ["1 failed"]
    conditions = cell.conditions()
    assert conditions["seeds"] == "0, 1" and conditions["training minutes"] == "9"
    assert conditions["data"] == "listops listopsfffff" and conditions["parameters"] == "1,234,567"


def test_repeats_of_a_seed_are_no_seeds(tmp_path):
    runs = [record("LaS", "Text", 0, 0.80), record("LaS", "Text", 0, 0.82)]
    other = record("Transformer", "Text", 0, 0.70)
    values = table2() | {"records": [*runs, other, record("Transformer", "Text", 1, 0.72)]}
    found = table(experiment(tmp_path, values))
    ours, theirs = found["LaS"]["Text"], found["Transformer"]["Text"]
    assert ours.values == pytest.approx([81]) and ours.deviation is None
    assert [word for word, _ in ours.marks] == ["repeated seed"] and theirs.marks == []
    against = Difference("Text", ours, theirs)
    assert against.margin is None and against.verdict == "ahead once"
    values["records"].append(record("LaS", "Text", 3, 0.75))
    three = table(experiment(tmp_path, values))["LaS"]["Text"]
    assert three.values == pytest.approx([81, 75]) and three.mean == pytest.approx(78)
    assert three.conditions()["seeds"] == "0, 3"


@pytest.mark.parametrize(
    ("second", "differing"),
    [
        ({"steps": 200}, "steps"),
        ({"mixer": "s4d", "mixer_options": {"window": 9}}, "mixer, mixer_options.window"),
        ({"augment_options": {"policy": False}}, "augment_options.policy"),
        # how it is computed and where it is kept, and defaults, of which one record says nothing
        ({"graphs": "step", "device": "cuda", "name": "b", "seed": 1}, None),
        ({"clip": 1.0, "steps": None, "augment_options": {"policy": True}}, None),
    ],
)
def test_seeds_with_other_options_are_marked_and_compared_with_nothing(tmp_path, second, differing):
    first = {"dim": 64, "mixer": "las", "mixer_options": {}}
    seeds = [record("LaS", "Text", 0, 0.80, options=first),
             record("LaS", "Text", 1, 0.82, options=first | second)]  # fmt: skip
    cell = table(experiment(tmp_path, table2() | {"records": seeds}))["LaS"]["Text"]
    marks = [] if differing is None else [("mixed options", f"the runs differ in {differing}")]
    assert cell.marks == marks and cell.comparable is (differing is None)


def test_seeds_of_data_that_were_replaced_in_between_are_marked(tmp_path):
    seeds = [record("LaS", "Text", 0, 0.80), record("LaS", "Text", 1, 0.82)]
    seeds[1]["data"]["identity"] = "0" * 64
    cell = table(experiment(tmp_path, table2() | {"records": seeds}))["LaS"]["Text"]
    assert cell.marks == [("mixed options", "the runs differ in data")] and not cell.comparable


def test_a_stand_in_is_compared_and_averaged_with_nothing(tmp_path):
    found = experiment(tmp_path, table2())
    cells = table(found)["LaS"]
    assert cells["Pathfinder"].mean == 90 and cells["Pathfinder"].published == 81.62
    assert cells["Pathfinder"].difference is None and not cells["Pathfinder"].comparable
    assert mean_text(found, cells) == "—"  # a column is missing from the mean: no mean
    three = {name: cells[name] for name in ("ListOps", "Text", "Image")}
    ours, published = (54 + 80 + 69) / 3, (53.05 + 79.28 + 70.44) / 3
    assert mean_text(found, three) == f"{ours:.2f} ({published:.2f})"


def test_further_published_columns_are_part_of_no_mean(tmp_path):
    found = experiment(tmp_path, table2())
    assert found.extra == ("Speed",) and "Speed" not in found.columns
    assert mean_text(found, table(found)["Nobody"]) == "—"


def test_quick_runs_and_validation_numbers_are_compared_with_nothing(tmp_path):
    values = table2() | {"quick": True}
    quick = experiment(tmp_path, values)
    assert not any(cell.comparable for cell in filled(quick))
    assert table(quick)["S4"]["Text"].marks == []  # nothing was run there
    only = record("LaS", "Text")
    del only["metrics"]["test"]
    cell = table(experiment(tmp_path, table2() | {"records": [only]}))["LaS"]["Text"]
    assert cell.mean == pytest.approx(51) and not cell.comparable
    assert [word for word, _ in cell.marks] == ["validation"]


def test_a_test_result_that_is_not_finite_is_not_replaced_by_validation(tmp_path):
    only = record("LaS", "Text")
    only["metrics"]["test"]["accuracy"] = None
    cell = table(experiment(tmp_path, table2() | {"records": [only]}))["LaS"]["Text"]
    assert cell.mean is None and [word for word, _ in cell.marks] == ["1 without a value"]


def test_a_number_selected_on_test_says_so_and_is_averaged_with_nothing(tmp_path):
    values = table2()
    for one in values["records"]:
        if (one["row"], one["column"]) == ("LaS", "Text"):
            one["data"]["selected_on"] = "test"
    found = experiment(tmp_path, values)
    cell = table(found)["LaS"]["Text"]
    assert "selected on test" in [word for word, _ in cell.marks]
    assert cell.mean == pytest.approx(80) and cell.difference is None and not cell.comparable
    two = {name: table(found)["LaS"][name] for name in ("Text", "ListOps")}
    assert mean_text(found, two).startswith("(")  # of the published ones alone
    assert "80.00 [selected on test] (79.28)" in text_table(found).markdown()


@pytest.mark.parametrize(
    ("used", "mark"),
    [
        ({"protocol": "values+augment"}, "more labels"),
        ({"protocol": "values+augment", "collapse": 2}, "more labels"),
        ({"collapse": 2}, "collapsed"),
        ({"collapse_depth": 3}, "collapsed"),
    ],
)
def test_values_of_subexpressions_are_marked_where_something_is_published(tmp_path, used, mark):
    values = table2()
    for one in values["records"]:
        if (one["row"], one["column"]) == ("LaS", "Text"):
            one["options"] = {**one.get("options", {}), **used}
    cell = table(experiment(tmp_path, values))["LaS"]["Text"]
    assert [word for word, _ in cell.marks] == [mark] and not cell.comparable
    ours_alone = table(experiment(tmp_path, values | {"published": {}}))["LaS"]["Text"]
    assert ours_alone.marks == [] and ours_alone.comparable


def test_views_are_marked_and_may_be_compared(tmp_path):
    values = table2()
    for one in values["records"]:
        if (one["row"], one["column"]) == ("LaS", "Text"):
            one["options"] = {**one.get("options", {}), "views": 16}
    found = experiment(tmp_path, values)
    cell = table(found)["LaS"]["Text"]
    assert [word for word, _ in cell.marks] == ["16 views"] and cell.comparable
    assert "[16 views] (79.28)" in text_table(found).markdown()


def test_failed_runs_have_no_number(tmp_path):
    values = table2()
    lost = record("S4", "Image")
    lost["metrics"] = {"validation": None, "test": {"accuracy": None}}
    values["records"].append(lost)
    cell = table(experiment(tmp_path, values))["S4"]["Image"]
    assert cell.mean is None and [word for word, _ in cell.marks] == ["1 without a value"]
    cell = table(experiment(tmp_path, table2()))["Transformer"]["Text"]
    assert cell.mean is None and cell.text() == "—" and len(cell.unfinished) == 1
    assert [word for word, _ in cell.marks] == ["1 stopped"]


def test_less_is_better_for_bits(tmp_path):
    found = experiment(tmp_path, figure5())
    cells = table(found)["LaS"]
    assert cells["32"].better and cells["128"].better is False  # 1.4 < 1.5, 1.35 > 1.3
    assert mean_text(found, cells) == "—"
    assert Metric("perplexity").value({"loss": math.log(8)}) == pytest.approx(8)


def test_a_curve_has_ticks_where_it_has_points(tmp_path):
    values = figure5()
    values["columns"].append("65536")  # declared, and not run yet
    ((_, picture),) = overview(experiment(tmp_path, values), "Context")
    assert ">1,024<" in picture or ">1024<" in picture
    assert "65536" not in picture and "65,536" not in picture


def test_what_the_lists_leave_out_is_shown_all_the_same(tmp_path):
    values = table2()
    values["records"].append(record("Late", "Sorting"))
    found = experiment(tmp_path, values)
    assert found.rows[-1] == "Late" and found.columns[-1] == "Sorting"


def test_folders_of_runs_become_tables(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / "runs", f"a{seed}", seed=seed, accuracy=0.5 + 0.1 * seed)
    lines = [{"step": 1, "epoch": 0.5, "split": "train", "loss": 2.0}]
    write_run(tmp_path / "runs", "b", lr=0.3, accuracy=0.9, curves=lines)
    write_run(tmp_path / "runs" / "b", "pretrain", status="running")
    (found,) = read_results([tmp_path / "runs"]).experiments
    assert found.rows == ("las (lr=0.1)", "las (lr=0.3)") and found.columns == ("listops",)
    cells = table(found)
    assert cells["las (lr=0.1)"]["listops"].values == pytest.approx([40, 50])
    (run,) = cells["las (lr=0.3)"]["listops"].records
    assert run.epochs == 0.5 and run.curves == {"train.loss": [[1, 2.0]]}


def test_runs_of_different_epochs_or_steps_are_rows_of_their_own(tmp_path):
    all_asked = {"a": {"epochs": 1}, "b": {"epochs": 3}, "c": {"steps": 200, "epochs": None}}
    for name, asked in all_asked.items():
        write_run(tmp_path / "runs", name, options=asked)
    (found,) = read_results([tmp_path / "runs"]).experiments
    assert found.rows == (
        "las (epochs=1, steps=None)", "las (epochs=3, steps=None)", "las (epochs=None, steps=200)",
    )  # fmt: skip
    assert all(len(cell.records) == 1 for cell in filled(found))
    write_run(tmp_path / "runs", "d", options={"epochs": 1, "lr": 0.1})
    write_run(tmp_path / "runs", "e", options={"epochs": 1, "lr": 0.001, "seed": 1}, seed=1)
    rows = table(read_results([tmp_path / "runs"]).experiments[0])
    seeds = rows["las (epochs=1, lr=0.001, steps=None)"]["listops"].records
    assert [run.name for run in seeds] == ["a", "e"]  # what a record does not say is the default


def test_runs_of_several_metrics_become_a_table_each(tmp_path):
    write_run(tmp_path / "runs", "a", accuracy=0.5)
    write_run(tmp_path / "runs", "b", task="enwik8", metric={"name": "loss"})
    write_run(tmp_path / "runs", "c", task="enwik8", status="failed", error="not finite")
    found = read_results([tmp_path / "runs"])
    assert [(e.name, e.metric, e.columns) for e in found.experiments] == [
        ("runs-accuracy", "accuracy", ("listops",)), ("runs-loss", "loss", ("enwik8",)),
    ]  # fmt: skip
    (bits,) = table(found.experiments[1])["las"].values()
    assert bits.text() == "1.10" and [word for word, _ in bits.marks] == ["1 failed"]
    page = build_page(found)
    assert "On listops las has accuracy (%) 40.00" in page and "On enwik8 las has loss 1.10" in page


def test_runs_of_a_declared_experiment_keep_their_cells(tmp_path):
    write_run(tmp_path, "las--listops--0", accuracy=0.5)
    labels = {"las--listops--0": {"row": "LaS", "column": "ListOps", "seed": 0}}
    header = {key: value for key, value in table2().items() if key != "records"}
    (tmp_path / "experiment.json").write_text(json.dumps(header | {"runs": labels}))
    (found,) = read_results([tmp_path]).experiments
    assert table(found)["LaS"]["ListOps"].difference == pytest.approx(40 - 53.05)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", "damaged"),
        ("a.json", '{"schema": 7}', "schema 1"),
        ("a.json", '{"schema": 1, "kind": "poem"}', "got 'poem'"),
        (
            "a.json",
            '{"schema": 1, "records": [{"row": "x", "column": "y"}]}',
            "0..status is missing",
        ),
        ("a.csv", "shape,error\n", "no rows"),
    ],
)
def test_wrong_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        read_results([tmp_path])
    assert name in str(error.value)


def test_wrong_paths_are_named(tmp_path):
    with pytest.raises(ValueError, match="nowhere does not exist"):
        read_results([tmp_path / "nowhere"])
    with pytest.raises(ValueError, match="neither results"):
        read_results([tmp_path])
    write_results(tmp_path / "one")
    with pytest.raises(ValueError, match="the name 'figure5'"):
        read_results([tmp_path / "one", tmp_path / "one" / "figure5.json"])
    with pytest.raises(ValueError, match="there are no results 'tabel2'; there are: table2"):
        read_results([tmp_path / "one"]).only(["tabel2"])


def test_pictures_are_split_where_they_would_be_crowded(tmp_path, monkeypatch):
    few = experiment(tmp_path, table2())
    ((name, picture),) = overview(few, "all")
    assert name == "" and "Pathfinder *" in picture and "(published): 81.62" not in picture
    monkeypatch.setattr(figures, "MOST_SERIES", 2)
    assert [name for name, _ in overview(few, "all")] == ["ListOps", "Text", "Image", "Pathfinder"]
    assert overview(experiment(tmp_path, table2() | {"records": []}), "all") == []


def test_published_rows_stand_beside_a_single_one_of_ours(tmp_path):
    one = table2() | {"records": [record("LaS", task) for task in list(TASKS)[:2]]}
    ((_, picture),) = overview(experiment(tmp_path, one), "all")
    assert ">Transformer<" in picture and ">S4<" in picture


def test_published_rows_stand_beside_ours_where_data_are_the_same(tmp_path):
    values = table2() | {"records": [record("ours", TASKS[0])]}
    values["rows"] = [*values["rows"], "ours"]
    ((_, picture),) = overview(experiment(tmp_path, values), "all")
    published = {r: c[TASKS[0]] for r, c in values["published"].items() if TASKS[0] in c}
    assert published
    for row, number in published.items():
        assert escape(row) in picture and f"{number}" in picture
    assert str(values["published"]["LaS"][TASKS[1]]) not in picture  # nothing of ours there
