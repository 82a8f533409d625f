"""Every declared experiment: its header, its published numbers, and that every run can be built."""

import importlib
import math
from dataclasses import astuple

import pytest

from longlens.experiments.catalog import NAMES, SAME, find
from longlens.experiments.catalog.base import Experiment, Run, slug
from longlens.experiments.catalog.published import TABLE9
from longlens.experiments.catalog.table9 import attention
from longlens.experiments.standins import SMALL, prepare_stand_in
from longlens.layers.registry import MIXERS
from longlens.runs.build import build_on_meta
from longlens.runs.sweeps import as_options
from longlens.tasks import load
from longlens.tasks.identity import expected_spec
from longlens.training.options import TrainOptions
from tests.experiments.test_recipes import read_tables


def catalog(name):
    return importlib.import_module(f"longlens.experiments.catalog.{name}")


# As printed, from the papers' tables: at least one number of each.
PRINTED = {
    "table2": {("LaS", "Image"): 70.44, ("MEGA", "Path-X"): 97.98, ("Luna-256", "Avg."): 61.95},
    "table3": {("LaS", "pMNIST"): 98.05, ("S4", "sMNIST"): 99.63},
    "table4": {("S + ALiBi", "Retrieval"): 81.02, ("LaS", "Avg."): 68.52},
    "table7": {("LaS", "Select"): 0.783, ("Vanilla Attention", "CumSum"): 1.0},
    "table8": {("LaS", "Text8"): 1.3332, ("Vanilla Attention", "Enwik8"): 1.2885},
    "figure3": {("S", "WikiText-103"): 21.69, ("Vanilla Attention", "WikiText-103"): 20.20},
    "table9": {
        ("P = 5, B = 0.001, lr = 0.001", "ListOps"): 53.05,
        ("P = 5, B = 0.0001, lr = 0.0001", "Text"): 79.28,
        ("P = 3, B = 0.001, lr = S4's", "Pathfinder"): 81.62,
    },
    "techniques": {("gMLP + techniques", "Avg."): 85.98, ("Transformer, rotary", "Avg."): 64.98},
    "readings": {("LaS", "ListOps"): 53.05, ("LaS", "Text"): 79.28},
    "lasplus": {("Megalodon", "Avg."): 88.63, ("MEGA", "Avg. (5)"): 86.25},
    "lineup": {("LaS", "Image"): 70.44, ("S4", "Text"): 86.82},
    "cost": {("MEGA", "Speed"): 2.9, ("Linformer", "Mem."): 0.10},
    "directions": {("LaS causal", "Image"): 70.44, ("S4 bidirectional", "Text"): 86.82},
}
UNPRINTED = {  # plots, ratios to MEGA, ours
    "figure5", "figure6", "locality", "minutes", "farfield", "fit", "sweep", "heads", "scaling",
    "decays", "lengths", "subtrees", "scratchpad", "augmented", "curriculum", "signals",
    "optimisers",
}  # fmt: skip


def small_ucr_set(folder, name):
    """Train and test file of a few short series, whatever the set."""
    rows = "".join(f"{label}\t{label}.5\t0.25\t{label}.0\n" for label in (1, 2) * 10)
    paths = [folder / f"{name}_{part}.tsv" for part in ("TRAIN", "TEST")]
    for path in paths:
        path.write_text(rows)
    return tuple(paths)


@pytest.mark.parametrize("name", NAMES)
def test_every_declared_run_can_be_built(name, tmp_path, monkeypatch):
    monkeypatch.setattr("longlens.tasks.own.find_ucr", lambda ucr: small_ucr_set(tmp_path, ucr))
    for run in find(name).runs:
        try:
            options = as_options(run.options | {"root": str(tmp_path)})
        except ValueError as error:
            pytest.fail(f"{name}: {run.row}, {run.column}: {error}")
        assert options.mixer in MIXERS
        lengths = [options.steps, options.epochs, options.budget]
        assert lengths.count(None) == 2, (run.row, run.column)


@pytest.mark.parametrize("name", NAMES)
def test_every_declared_run_names_its_optimiser_and_rate(name):
    """A recipe stays what it is when the defaults of `longlens train` change."""
    for run in find(name).runs:
        assert {"optimizer", "lr"} <= run.options.keys(), (run.row, run.column)


@pytest.mark.parametrize("name", NAMES)
def test_every_quick_run_can_be_built(name, tmp_path):
    for cell in find(name).cells(quick=True, runs=tmp_path):
        try:
            as_options(cell)
        except ValueError as error:
            pytest.fail(f"{name}: {cell['name']}: {error}")


@pytest.mark.parametrize("name", NAMES)
def test_the_header_says_what_it_costs_and_how_to_run_it(name):
    experiment = find(name)
    header = catalog(name).__doc__
    assert experiment.name == name
    assert (
        f"    longlens run {name}" in header
        and experiment.described().command == f"longlens run {name}"
    )
    assert experiment.cost.startswith(f"{len(experiment.runs)} runs")
    assert experiment.notes and experiment.source and "\n" not in experiment.title


def printed_numbers(cells):
    return {column: float(cell.rstrip("×")) for column, cell in cells.items() if cell}


@pytest.mark.parametrize("name", [n for n in NAMES if "| --- |" in catalog(n).__doc__])
def test_docstrings_show_the_published_data(name):
    """The table that a reader sees and the data that tables and reports use are the same."""
    (shown,) = read_tables(catalog(name).__doc__)
    if name == "table9":
        norms = {"BN": "batch", "LN": "layer"}
        for task, line in shown.items():
            texts = [norms.get(text, text) for text in line.values()]
            values = [str(value) for value in astuple(TABLE9[task])]
            assert [as_number(text) for text in texts] == [as_number(text) for text in values]
        assert list(shown) == list(TABLE9)
        return
    published = {"MEGA": catalog("locality").MEGA} if name == "locality" else find(name).published
    assert {row: printed_numbers(cells) for row, cells in shown.items()} == published


def as_number(text):
    try:
        return float(text)
    except ValueError:
        return text


def test_published_numbers_are_as_printed():
    assert {name for name in NAMES if not find(name).published} == UNPRINTED
    for name, numbers in PRINTED.items():
        published = find(name).published
        for (row, column), number in numbers.items():
            assert published[row][column] == number, (name, row, column)
    assert set(PRINTED) | UNPRINTED == set(NAMES)


def test_numbers_that_stand_in_several_headers_agree():
    table2 = find("table2").published
    pairs = [
        (find("lasplus").published["MEGA"], table2["MEGA"]),
        (find("lasplus").published["LaS"], table2["LaS"]),
        (find("readings").published["LaS"], table2["LaS"]),
        (find("table4").published["LaS"], table2["LaS-chunk"]),
        (find("directions").published["LaS causal"], table2["LaS"]),
        (find("directions").published["S4 bidirectional"], table2["S4-v2"]),
        (catalog("locality").MEGA, table2["MEGA"]),
    ]
    for one, other in pairs:
        shared = (set(one) & set(other)) - {"Avg."}
        assert len(shared) >= 2
        assert {c: one[c] for c in shared} == {c: other[c] for c in shared}


@pytest.mark.parametrize("name", ["table2", "table4", "lasplus"])
def test_printed_means_are_the_means_of_the_printed_numbers(name):
    """A wrong digit in a header would show here. (LongConvs' printed mean is off by 0.05.)"""
    experiment, count = find(name), 0
    for row, cells in experiment.published.items():
        tasks = {label: value for label, value in cells.items() if label in experiment.columns}
        five = {label: value for label, value in tasks.items() if label != "Path-X"}
        for label, values in (("Avg.", tasks), ("Avg. (5)", five)):
            if label in cells and values:
                mean = math.fsum(values.values()) / len(values)
                printed = 86.55 if (name, row) == ("table2", "LongConvs") else cells[label]
                assert abs(mean - printed) < 0.0101, (row, label, mean)
                count += 1
    assert count >= 4


def test_table_9_is_the_one_source():
    assert TABLE9["Text"].lr == 1e-4 and len(TABLE9) == 5
    cell = attention("Text", "las")
    assert (cell["dim"], cell["lr"], cell["epochs"], cell["norm"]) == (64, 1e-4, 20.0, "batch")
    assert cell["mixer_options"] == {"window": 5, "bound": 0.0001}
    by_place = {(run.row, run.column): run.options for run in find("table2").runs}
    assert by_place["LaS", "Text"] == cell
    assert by_place["LaS-chunk", "Image"] == next(
        run.options for run in find("table4").runs if (run.row, run.column) == ("LaS", "Image")
    )


def test_selection_on_test_is_no_default():
    """The rows that select on test say so, and there are no others."""
    found = [
        (name, run.row)
        for name in NAMES
        for run in find(name).runs
        if run.options.get("task_options", {}).get("validation_from") == "test"
    ]
    assert len(found) == 2 and all("selected on test" in row for _, row in found)


def test_readings_change_what_they_say():
    """A reading that Table 9 has already is left out; S4's plateau is the repository's."""
    runs = {(run.row, run.column): run.options for run in find("readings").runs}
    assert ("bound 0.001", "Text") in runs and ("bound 0.001", "ListOps") not in runs
    assert ("window 3", "Text") in runs and ("window 3", "Image") not in runs
    plain = runs["LaS", "Text"]
    assert plain == attention("Text", "las")
    for (row, column), options in runs.items():
        if column == "Text" and row != "LaS":
            assert options != plain, row
    plateau = runs["schedule plateau", "Text"]
    assert {key: plateau[key] for key in plateau if plateau.get(key) != plain.get(key)} == {
        "schedule": "plateau", "plateau_patience": 10, "plateau_factor": 0.2, "warmup": 0.0,
    }  # fmt: skip
    assert runs["schedule plateau", "ListOps"]["plateau_patience"] == 5
    first = runs["S4's first configuration, selected on test", "Text"]
    assert (first["length"], first["pooling"], first["beta2"]) == (2048, "last", 0.999)
    assert "pooling" not in runs["S4's first configuration", "ListOps"]
    assert first["task_options"] == {"validation_from": "test"}
    assert ("length 2,048", "Image") not in runs


def test_the_line_that_was_chosen_is_in_the_grid_of_table_9():
    """Every published accuracy stands at the run that Table 9's own line makes."""
    experiment = find("table9")
    runs = {(run.row, run.column): run.options for run in experiment.runs}
    places = [(row, task) for row, cells in experiment.published.items() for task in cells]
    assert len(places) == 5
    for row, task in places:
        assert runs[row, task] == attention(task, "las"), (row, task)


def test_stand_ins_have_columns_of_their_own():
    """A column with published numbers never holds data that stand in for others."""
    for name in NAMES:
        experiment = find(name)
        published = {column for cells in experiment.published.values() for column in cells}
        for run in experiment.runs:
            origin = run.options.get("task_options", {}).get("origin")
            stand_in = run.options["task"].startswith("retrieval-") or (
                run.options["task"] in ("pathfinder", "pathx") and origin != "lra"
            )
            label = run.row if experiment.kind == "curve" else run.column
            assert stand_in == label.endswith((" (own)", " (PeerRead)")), (name, run)
            assert not (stand_in and run.column in published)


@pytest.mark.parametrize("task", SMALL)
def test_the_expected_spec_is_that_of_the_data(task, tmp_path):
    assert prepare_stand_in(task, tmp_path) and not prepare_stand_in(task, tmp_path)
    real = load(task, tmp_path, **SMALL[task]).spec
    expected = expected_spec(task, **SMALL[task])
    assert real.stands_in_for is not None and "no result" in real.stands_in_for
    for name in ("kind", "inputs", "pad_id", "num_classes", "channels", "target_dim", "pair",
                 "target_length", "image"):  # fmt: skip
        assert getattr(expected, name) == getattr(real, name), name
    assert expected.max_length >= real.max_length
    if task != "wikitext103":  # whose vocabulary the text decides
        assert expected.vocab_size == real.vocab_size


def test_images_are_read_as_numbers_before_their_data_are_there():
    """What is checked before a run begins has the task's encoding, too."""
    model = build_on_meta(TrainOptions(task="image", pixels="numbers", mixer="conv", dim=8))
    assert model.config.numbers


def test_the_expected_lengths_are_the_published_ones():
    assert expected_spec("listops").max_length == 1999
    assert expected_spec("text").max_length == 13_704
    assert expected_spec("wikitext103").vocab_size == 267_735
    with pytest.raises(ValueError, match="unknown task 'listop'"):
        expected_spec("listop")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ({"task": "image", "mixer": "lass"}, "unknown mixer 'lass'"),
        ({"task": "image", "mixer_options": {"windw": 3}}, "did you mean 'window'"),
        ({"task": "image", "dim": 100}, "multiple of num_heads"),
        ({"task": "text", "protocol": "augment"}, "nothing is known to augment text"),
        ({"task": "cumsum", "protocol": "denoise"}, "hides tokens"),
        ({"task": "image", "mix_easier": True}, "image has no easier sets; listops, pathfinder"),
        (
            {"task": "listops", "task_options": {"min_length": 8}, "mix_easier": True},
            "min_length must be 20 or more for easier sets",
        ),
        ({"task": "image", "mixer": "s4", "positions": "rotary"}, "needs a mixer with the option"),
        ({"task": "enwik8", "bidirectional": True}, "never see ahead"),
        ({"task": "image", "task_options": {"colour": True}}, "has no option 'colour'"),
        ({"task": "sort", "length": 8}, "cut the targets"),
    ],
)
def test_a_run_that_cannot_be_built_is_named(cell, message):
    with pytest.raises(ValueError, match=message):
        as_options(cell)


def test_names():
    assert find("figure2") is find("table8") and set(SAME.values()) <= set(NAMES)
    with pytest.raises(ValueError, match=r"'tabel2' is no experiment \(did you mean table2\?\)"):
        find("tabel2")
    with pytest.raises(ValueError, match="there is no file"):
        find("nothing.py")


RUN = Run("a", "x", {"task": "cumsum"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": ("b",)}, "in no row or column"),
        ({"runs": (RUN, RUN)}, "declared twice"),
        ({"published": {"b": {"x": 1.0}}}, "is no row"),
        ({"rows": ("a", "A")}, "share a folder"),
        ({"reads": {"y": "speed.seconds"}}, "reads must name every column"),
        ({"metric": "ratio", "reads": {"x": "speed.seconds"}}, "a ratio is relative to a row"),
        ({"metric": "points"}, "metric must be one of"),
    ],
)
def test_declarations_are_checked(changes, message):
    declared = dict(name="e", title="t", metric="r2", rows=("a",), columns=("x",), runs=(RUN,))
    Experiment(**declared)
    with pytest.raises(ValueError, match=message):
        Experiment(**declared | changes)


def test_labels_share_no_folder():
    assert slug("LaS+") != slug("LaS")


def test_a_warmup_in_steps_keeps_its_share_of_another_length():
    """Else a run of minutes would end within the warm-up of hours."""
    table2 = find("table2")

    def cell(**changes):
        (found,) = table2.cells(only=["MEGA", "Text"], **changes)
        return found

    assert (cell()["steps"], cell()["warmup"]) == (25_000, 10_000.0)
    assert (cell(budget="8m")["budget"], cell(budget="8m")["warmup"]) == ("8m", 0.4)
    shorter = cell(changes={"steps": 500})
    assert (shorter["steps"], shorter["warmup"]) == (500, 0.4)
    for order in (["warmup", "steps"], ["steps", "warmup"]):  # what is asked for stays
        values = {"warmup": 100.0, "steps": 500}
        asked = cell(changes={name: values[name] for name in order})
        assert (asked["steps"], asked["warmup"]) == (500, 100.0)
    assert cell(changes={"lr": 0.1})["warmup"] == 10_000.0
