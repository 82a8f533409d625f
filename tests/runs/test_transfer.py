"""Tests of a trained model on other data than its own."""

import pytest

from longlens.runs import train_run
from longlens.runs.run import run_folder
from longlens.runs.trained import evaluate_run
from longlens.training.options import TrainOptions


def test_a_run_tests_itself_on_other_data(run_options):
    longer = dict(min_length=30, max_length=90, train=8, validation=8, test=20)
    transfer = {"longer": {"task_options": longer}, "cut": {"length": 9, "limit": 5}}
    options = run_options(transfer_options=transfer)
    record = train_run(options)
    assert set(record.transfer) == {"longer", "cut"}
    assert record.transfer["longer"]["examples"] == 20 and record.transfer["cut"]["examples"] == 5
    again = evaluate_run(run_folder(options), task_options=longer)
    for name in ("loss", "accuracy"):
        assert record.transfer["longer"][name] == pytest.approx(again[name], rel=1e-5)
    assert record.transfer["cut"]["loss"] != record.metrics["test"]["loss"]


def test_without_other_data_nothing_is_recorded(run_options):
    assert train_run(run_options()).transfer is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(transfer_options={"long": {"min_length": 9}}), "transfer_options.long must hold"),
        (dict(transfer_options={"long": 9}), "got 9"),
        (dict(transfer_options={"a": {"length": 9}}, positions="learned"), "positions"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        TrainOptions(**options)
