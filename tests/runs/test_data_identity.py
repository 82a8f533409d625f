"""A result belongs to its data: once they are replaced, it is no result any more."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from longlens.cli.main import main
from longlens.lens.audit import AuditOptions, audit
from longlens.runs import train_run
from longlens.runs.run import run_folder
from longlens.runs.trained import predict_run
from longlens.tasks import DataError, import_arrays, load
from longlens.tasks.identity import current_identity
from longlens.tasks.imported import home_folder
from longlens.training.faults import TrainingError
from longlens.training.options import TrainOptions

SMALL = dict(mixer="conv", dim=8, depth=1, steps=1, batch_size=4, progress=False, device="cpu")


def import_mine(root, seed):
    rng = np.random.default_rng(seed)
    import_arrays(
        "mine", rng.integers(0, 5, (40, 8)), np.arange(40) % 2, root=root, replace=seed > 0
    )


@pytest.fixture
def options(tmp_path):
    import_mine(tmp_path / "data", 0)
    return TrainOptions(
        task="mine", runs=str(tmp_path / "runs"), root=str(tmp_path / "data"), name="a", **SMALL
    )


def test_a_finished_run_counts_for_its_own_data_alone(options):
    first = train_run(options)
    import_mine(options.root, 1)
    with pytest.raises(TrainingError, match="the data of mine have identity"):
        train_run(options)
    with pytest.raises(TrainingError, match="the data of mine have identity"):
        train_run(options, load("mine", options.root))
    again = train_run(replace(options, resume="restart"))
    assert again.data["identity"] != first.data["identity"]
    import_mine(options.root, 1)  # the same values: the same data
    assert train_run(options) == again


def test_a_record_is_believed_where_the_data_are_gone(options):
    record = train_run(options)
    home = home_folder(options.root, "mine")
    home.rename(home.with_name("elsewhere"))
    assert train_run(options) == record


def test_a_pretrained_stage_is_not_taken_over_to_other_data(options, monkeypatch):
    both = replace(options, protocol="pretrain")
    train_run(both)
    (run_folder(both) / "record.json").unlink()  # cut off after the first stage
    import_mine(options.root, 1)
    with pytest.raises(TrainingError, match=r"a.pretrain holds a finished run .* identity"):
        train_run(both)


def test_an_audit_leaves_out_what_was_trained_on_other_data(options):
    asked = AuditOptions(
        "mine", fields=(3,), mixers=(), seeds=1, steps=1, diagnostics=False,
        training=dict(dim=8, depth=1, batch_size=4, device="cpu"), progress=False,
        runs=options.runs, root=options.root,
    )  # fmt: skip
    assert [point["status"] for point in audit(asked)["points"]] == ["finished"]
    import_mine(options.root, 1)
    (point,) = audit(asked)["points"]
    assert point["status"] == "failed" and "identity" in point["error"] and point["test"] is None


def test_the_commands_say_so_in_one_line(options, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = tmp_path / "table.json"
    shared = {"task": "mine", "root": options.root, **SMALL}
    cells = [{**shared, "name": f"run-{seed}", "seed": seed} for seed in (0, 1)]
    table.write_text(json.dumps(cells))
    command = ["run", str(table), "--runs", options.runs]
    assert main(command) == 0
    curve = ["curve", f"{options.runs}/run-0", "--examples", "8,16"]
    assert main(curve) == 0
    import_mine(options.root, 1)
    capsys.readouterr()
    for words in (command, curve):
        assert main(words) == 1
        text = capsys.readouterr().err
        assert "mine have identity" in text and "Traceback" not in text


def test_a_look_inside_takes_the_data_of_the_run(options, tmp_path):
    from longlens.lens.subjects import find_subjects

    train_run(options)
    assert find_subjects(str(run_folder(options)), before=False)
    import_mine(options.root, 1)
    with pytest.raises(ValueError, match="were replaced: mine has identity"):
        find_subjects(str(run_folder(options)), before=False)
    assert find_subjects(str(run_folder(options)), before=False, inputs="random")


def test_points_of_a_curve_on_different_data_are_refused(options, monkeypatch):
    from longlens.lens import curves

    trained, options = [], replace(options, name=None)

    def replaced_after_the_first(one):
        if trained:
            import_mine(options.root, 1)
        trained.append(one)
        return train_run(one)

    monkeypatch.setattr(sys.modules["longlens.runs.sweeps"], "train_run", replaced_after_the_first)
    with pytest.raises(ValueError, match="runs on mine were trained on different data"):
        curves.curve({"a": options}, curves.Axis("examples", "limit", (8, 16)))


def test_data_made_from_replaced_data_are_refused(tmp_path):
    import_mine(tmp_path, 0)
    far = dict(inner="mine", distance=4)
    first = load("far-injection", tmp_path, **far)
    assert current_identity("far-injection", tmp_path, **far) == first.identity
    import_mine(tmp_path, 1)
    for look in (load, current_identity):
        with pytest.raises(DataError, match="was made from other data of mine"):
            look("far-injection", tmp_path, **far)


def test_blocks_made_from_replaced_data_are_not_reused(tmp_path, monkeypatch):
    import_mine(tmp_path, 0)
    far = dict(inner="mine", distance=4)
    from longlens.tasks.writer import Writer

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            load("far-injection", tmp_path, **far)
    import_mine(tmp_path, 1)
    task = load("far-injection", tmp_path, **far)
    import_mine(tmp_path / "clean", 0)
    import_mine(tmp_path / "clean", 1)
    assert task.identity == load("far-injection", tmp_path / "clean", **far).identity


def test_a_prediction_has_no_name_of_other_data(tmp_path):
    x, y = np.random.default_rng(0).standard_normal((40, 8)), np.arange(40) % 2
    import_arrays("mine", x, y, class_names=["a", "b"], root=tmp_path)
    run = TrainOptions(task="mine", runs=str(tmp_path), root=str(tmp_path), name="r", **SMALL)
    train_run(run)
    (answer,) = predict_run(run_folder(run), [x[0]])
    assert answer["name"] == "ab"[answer["prediction"]]
    import_arrays("mine", x, 1 - y, class_names=["c", "d"], root=tmp_path, replace=True)
    (again,) = predict_run(run_folder(run), [x[0]])
    assert again == {key: answer[key] for key in ("prediction", "probability")}
    for wrong in (np.where(np.arange(8) == 3, np.nan, x[0]), "1 inf 2", "1, nan, 2"):
        with pytest.raises(ValueError, match="example 0 holds NaN or infinite values"):
            predict_run(run_folder(run), [wrong])
