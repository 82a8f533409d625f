"""Tables, grids and search spaces as they are written down."""

import json

import pytest

from longlens.layers.registry import MIXERS
from longlens.runs.build import build_on_meta
from longlens.runs.cell import cell_key, grid, read_cells, set_option
from longlens.runs.record import Record
from longlens.runs.search import Range, grid_choices, parse, tune
from longlens.training.options import TrainOptions


def test_a_grid_has_every_combination_and_leaves_the_base_alone():
    base = {"task": "listops", "mixer_options": {"bound": 0.1}}
    cells = list(grid(base, {"mixer_options.window": [3, 5], "seed": [0, 1]}))
    assert [(c["mixer_options"]["window"], c["seed"]) for c in cells] == [
        (3, 0), (3, 1), (5, 0), (5, 1),
    ]  # fmt: skip
    assert all(cell["mixer_options"]["bound"] == 0.1 for cell in cells)
    assert base["mixer_options"] == {"bound": 0.1}
    assert len({cell_key(cell) for cell in cells}) == 4


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_tables_from_files(tmp_path, suffix):
    path = tmp_path / f"table.{suffix}"  # JSON is YAML too
    path.write_text(json.dumps([{"dim": 8}, {"dim": 16}]))
    assert read_cells(path) == [{"dim": 8}, {"dim": 16}]
    path.write_text(json.dumps({"base": {"dim": 8}, "grid": {"seed": [0, 1]}}))
    assert read_cells(path) == [{"dim": 8, "seed": 0}, {"dim": 8, "seed": 1}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "must hold a list of cells"),
        ("[]", "must hold a list of cells"),
        ("3", "must hold a list of cells"),
        ('{"grids": {}}', "got \\['grids'\\]"),
        ('{"grid": {"seed": 3}}', "choices of 'seed' must be a list"),
        ('[{"a": 1}, {"b": 1}, {"a": 1}]', "cells 0 and 2 are the same"),
        ("{", "not readable"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(tmp_path, text, message):
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_cells(path)
    path.rename(tmp_path / "table.yaml")
    with pytest.raises(ValueError, match=message):
        read_cells(tmp_path / "table.yaml")


def test_a_dot_needs_something_to_reach_into():
    with pytest.raises(ValueError, match="'dim' holds 8, which has no parts"):
        set_option({"dim": 8}, "dim.x", 1)


def test_search_spaces():
    space = parse(["lr=1e-4:1e-2:log", "dim=64:256:64", "norm=layer,rms", "prenorm=true,false"])
    assert space["lr"] == Range(1e-4, 1e-2, log=True)
    assert space["dim"] == Range(64, 256, step=64) and space["dim"].whole
    assert space["norm"] == ["layer", "rms"] and space["prenorm"] == [True, False]
    assert grid_choices({"dim": space["dim"]}) == {"dim": [64, 128, 192, 256]}
    assert grid_choices(parse(["lr=0.1:0.3:0.1"])) == {"lr": [0.1, 0.2, 0.3]}
    assert grid_choices(parse(["lr=1e-4:1e-2:log:3", "seed=0"])) == {
        "lr": [1e-4, 1e-3, 1e-2],
        "seed": [0],
    }


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("lr", "name=low:high"),
        ("lr=", "name=low:high"),
        ("lr=2:1", "a range is low:high"),
        ("lr=0:1:log", "above 0"),
        ("lr=1:2:x", "a range is low:high"),
        ("lr=1:2:0", "above 0"),
        ("lr=1:2:log:0", "above 0"),
        ("lr=1e-4:1e-2:5", "a step is at most the width of its range"),
    ],
)
def test_a_wrong_search_space_is_named(word, message):
    with pytest.raises(ValueError, match=message):
        parse([word])


def test_a_range_of_fractions_may_have_whole_ends():
    space = parse(["weight_decay=0:1", "lr=1:10:log", "mixer_options.bound=0:1:0.5", "depth=2:6"])
    asked = []

    def run(cells):
        asked.extend(cells)
        return [Record(status="failed") for _ in cells]

    tune({}, space, 12, run=run, sampler="random", at_once=12)
    assert {cell["depth"] for cell in asked} <= {2, 3, 4, 5, 6}
    assert {cell["mixer_options"]["bound"] for cell in asked} == {0.0, 0.5, 1.0}
    for name in ("weight_decay", "lr"):
        assert any(cell[name] % 1 for cell in asked), name
    assert grid_choices(parse(["dropout=0:1:0.25"])) == {"dropout": [0.0, 0.25, 0.5, 0.75, 1.0]}


def test_choices_may_be_lists_and_words_of_python():
    space = parse(["mixer_options.kernel_size=[3,5],[7,9]", "prenorm=True,False", "norm=rms,None"])
    assert space["mixer_options.kernel_size"] == [[3, 5], [7, 9]]
    assert space["prenorm"] == [True, False] and space["norm"] == ["rms", None]


@pytest.mark.filterwarnings("error")
def test_a_range_ends_at_its_last_step():
    asked = []

    def run(cells):
        asked.extend(cells)
        return [Record(status="failed") for _ in cells]

    tune({}, parse(["dropout=0:0.5:0.2", "depth=1:8:3"]), 20, run=run, sampler="random", at_once=20)
    assert {cell["dropout"] for cell in asked} == {0.0, 0.2, 0.4}
    assert {cell["depth"] for cell in asked} == {1, 4, 7}


def test_an_option_is_searched_once():
    with pytest.raises(ValueError, match="'lr' twice"):
        parse(["lr=1,2", "lr=3,4"])
    with pytest.raises(ValueError, match="needs the number of points"):
        grid_choices(parse(["lr=1e-4:1e-2:log"]))


def test_every_mixer_is_built_without_memory():
    """A run is checked so before it begins: what trains must pass, whatever the mixer."""
    for mixer in MIXERS:
        model = build_on_meta(TrainOptions(task="listops", mixer=mixer, dim=32))
        assert all(parameter.is_meta for parameter in model.parameters()), mixer
