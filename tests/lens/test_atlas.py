"""The atlas: audits of a list of tasks, resumed where they were cut off, and what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from longlens.lens.atlas import ENTRIES, Entry, find_entries, make_atlas, run
from longlens.lens.atlas.rows import _complete, near
from longlens.report.atlas import atlas_page, atlas_table, atlas_words, curve_chart, draw_atlas
from longlens.report.atlas_chart import hint, state
from longlens.tasks import DataError, import_arrays

SMALL = dict(distance=4, train=60, validation=20, test=40)


def test_entries_are_found_by_name_group_pattern_and_file(tmp_path):
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES) >= 60
    assert [e.name for e in find_entries(["listops"])] == ["ListOps"]
    assert len(find_entries(["ucr archive"])) == 48
    assert find_entries(["data/mine.csv"])[0] == Entry("mine", "your own", "data/mine.csv")
    with pytest.raises(ValueError, match="unknown task 'listop'"):
        find_entries(["listop"])
    import_arrays("mine", np.zeros((9, 4)), np.arange(9) % 2, root=tmp_path)
    assert find_entries(["mine"], str(tmp_path)) == [Entry("mine", "your own", "mine")]


def test_an_audit_is_made_once_and_what_is_missing_is_named(tmp_path, monkeypatch):
    entries = [Entry("a", "far", "far-order", SMALL), Entry("b", "images", "smnist")]
    there = dict(runs=str(tmp_path / "runs"), root=str(tmp_path), budget="20s", progress=False)
    kept: list[int] = []
    first = make_atlas(entries, **there, each=lambda atlas: kept.append(len(atlas["tasks"])))
    assert [row["name"] for row in first["tasks"]] == ["a"]
    assert kept == [1, 1]
    assert "smnist is not prepared" in first["missing"][0]["reason"]

    path = tmp_path / "runs/a.json"
    report = json.loads(path.read_text())
    made: list[str] = []

    def counted(options, budget):
        made.append(options.task)
        if options.task == "smnist":
            raise DataError("smnist is not prepared")
        return dict(report)

    monkeypatch.setattr(run, "timed_audit", counted)
    again = make_atlas(entries, **there)
    assert made == ["smnist"]  # which may be there by now
    assert again["tasks"] == first["tasks"]
    path.write_text(path.read_text()[:100])  # cut off: it is made anew
    make_atlas(entries[:1], **there)
    make_atlas(entries[:1], **{**there, "budget": "19s"})  # it has had more
    collected = make_atlas(entries, **there, collect=True)
    assert collected["tasks"] == first["tasks"]
    assert collected["missing"] == [{"name": "b", "reason": "not audited yet"}]
    assert made == ["smnist", "far-order"]
    make_atlas(entries[:1], **{**there, "budget": "21s"})
    assert made == ["smnist", "far-order", "far-order"]
    assert json.loads(path.read_text())["asked"]["budget"] == "21s"


def test_what_was_not_probed_is_missing_and_not_called_unlearned(tmp_path, monkeypatch):
    cut_off = {"open": ["all"], "curve": [{"receptive_field": 3}], "options": {"fields": [3, 9]}}
    monkeypatch.setattr(run, "timed_audit", lambda options, budget: cut_off)
    entry = Entry("a", "far", "far-order", SMALL)
    atlas = make_atlas([entry], runs=str(tmp_path), budget="2s", progress=False)
    reason = "1 of 2 windows were not probed in 2s: give it more time"
    assert atlas["missing"] == [{"name": "a", "reason": reason}]


def test_ctrl_c_ends_the_atlas_and_keeps_no_half_audit(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "timed_audit", lambda options, budget: {
        "open": ["the rest, since it was interrupted"]})  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        make_atlas([Entry("a", "far", "far-order", SMALL)], runs=str(tmp_path), progress=False)
    assert not Path(tmp_path / "a.json").exists()


def test_what_an_eighth_misses():
    curve = [dict(receptive_field=field, validation=test, test=test)
             for field, test in ((3, 0.6), (9, 0.7), (33, 0.9), (None, 0.9))]  # fmt: skip
    sharp = np.tile([0.6, 0.7, 0.9, 0.9], (100, 1))
    found = near(curve, sharp, 3, 0.5, 72)
    assert found == {"window": 9, "missed": 0.5, "interval": [0.5, 0.5], "sure": 1.0}
    assert near(curve, sharp, 3, 0.5, 264)["missed"] == 0.0  # 33 is an eighth of it
    assert near(curve, sharp, 3, 0.5, 8)["window"] == 3  # the least that was tried
    assert near(curve[3:], sharp[:, 3:], 0, 0.5, 72) is None


def test_a_seed_that_was_not_tried_everywhere_does_not_count():
    probes = [dict(where="window", receptive_field=field, seed=seed)
              for seed in (0, 1, 2) for field in (3, 9, None)][:-1]  # fmt: skip
    assert [p["seed"] for p in _complete(probes)] == [0, 0, 0, 1, 1, 1]
    assert _complete(probes[:2]) == probes[:2]


def row(**values: object) -> dict[str, object]:
    usual = dict(
        name="Fish", group="UCR archive", options={}, identity="0", stands_in_for=None, length=463,
        probed=None, budget="60s", open=[], chance=0.5, floor=None, proven=None, verdict="short",
        learned=True, reach=33, reach_interval=[17, None], widest=241,
        best=dict(model="probe 33", test=0.9), **{"global": {"anywhere": 0.9}},
        near=dict(window=33, missed=0.0, interval=[0.0, 0.1], sure=0.2),
        curve=[dict(model="probe 3", receptive_field=3, test=0.6, deviation=0.0),
               dict(model="probe, anywhere", receptive_field=None, test=0.9, deviation=0.0)],
    )  # fmt: skip
    return usual | values


def test_the_page_draws_what_is_known_and_no_reach_where_nothing_was_learned():
    proof = dict(distance=64, accuracy=0.5, covers="windows", method="exact")
    rows = [
        row(),
        row(name="more <far>", reach=None, reach_interval=[241, None]),
        row(name="lost", learned=False, reach=3),
        row(name="far", learned=False, proven=proof, group="far"),
    ]
    assert [state(each) for each in rows] == ["reach", "more", "nothing", "proven"]
    assert hint(rows[0]).startswith("Fish: 463 positions, 33 needed (17 … more than 241)")
    assert "not learned" in hint(rows[2])
    assert "no window of 64" in hint(rows[3])
    atlas = dict(title="t", tasks=rows, missing=[dict(name="x", reason="not prepared")],
                 provenance={})  # fmt: skip
    table = atlas_table(atlas)
    reach = [line[list(table.head).index("reach")] for line in table.rows]
    assert reach == ["33", "241+", "not learned", "not learned"]
    assert "Of 4 tasks the probes learn 2." in atlas_words(atlas)[0]
    page = atlas_page(atlas)
    assert page.count('<a href="#t-') == 12  # a line of the table, a point wide and narrow, each
    assert page.count('<details id="t-') == 4
    assert "more &lt;far&gt;" in page
    assert "<far>" not in page
    assert "not prepared" in page
    assert draw_atlas(atlas).count("<title>") == 5  # the picture's and its points'
    assert "chance: 50.0 %" in curve_chart(rows[0])


def test_documents_say_what_the_record_says():
    root = Path(__file__).parents[2]
    atlas = json.loads((root / "results/atlas.json").read_text())
    assert len(atlas["tasks"]) >= 60
    docs, readme = (" ".join((root / name).read_text().split())
                    for name in ("docs/atlas.md", "README.md"))  # fmt: skip
    words = atlas_words(atlas)
    assert all(sentence in docs for sentence in words)
    learned, short = re.search(r"learn (\d+)\. On (\d+) of these", words[0]).groups()
    lost = words[2].partition(" ")[0]
    assert f"On {short} of the {learned} tasks that probes learn" in readme
    assert f"The {lost} that they do not learn" in readme


def test_a_file_that_changed_is_audited_anew(tmp_path):
    there = dict(runs=str(tmp_path / "runs"), root=str(tmp_path), budget="20s", progress=False)
    path = tmp_path / "mine.npz"
    found = []
    for seed in (0, 0, 1):
        x = np.random.default_rng(seed).standard_normal((60, 12))
        np.savez(path, x=x, y=(x[:, 3] > 0).astype(int))
        make_atlas(find_entries([str(path)]), **there)
        found.append((tmp_path / "runs/mine.json").stat().st_mtime_ns)
    assert found[0] == found[1] != found[2]


def test_two_files_of_one_name_are_not_mixed_up():
    with pytest.raises(ValueError, match="would both be called x"):
        find_entries(["a/x.csv", "b/x.csv"])
