"""Two ranks compute what one computes, in shards or not, and a run may change their number."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from longlens.runs import train_run
from longlens.runs.record import read_record
from longlens.runs.run import run_folder
from longlens.training.log import read_curves
from longlens.weights import load_tensors
from tests.training.runs import tiny
from tests.training.test_loop import import_stream
from tests.training.test_resume import ROOT
from tests.training.two_ranks import MUON, SAME, SCRATCHPAD, STREAM


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the runs of one rank and of two."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "data").mkdir()
    import_stream(folder / "data")
    train_run(tiny(folder, **SAME, name="one"))
    train_run(tiny(folder, **MUON, name="one-muon"))
    train_run(tiny(folder, **STREAM, name="one-stream"))
    train_run(tiny(folder, **SCRATCHPAD, name="one-scratchpad"))
    helper = subprocess.Popen(
        [sys.executable, "-m", "tests.training.two_ranks", str(folder)],
        cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
    )  # fmt: skip
    try:
        _, errors = helper.communicate(timeout=500)
    except subprocess.TimeoutExpired:
        os.killpg(helper.pid, signal.SIGKILL)  # its two ranks as well
        helper.communicate()
        raise
    assert helper.returncode == 0, errors
    return folder


def close(folder, a, b):
    """Equal to rounding: both runs' weights and curves."""
    first, second = (load_tensors(folder / "runs" / n / "model.safetensors") for n in (a, b))
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-3, atol=1e-5)
    lines = [list(read_curves(folder / "runs" / name)) for name in (a, b)]
    for one, other in zip(*lines, strict=True):
        assert (one["step"], one["split"]) == (other["step"], other["split"])
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "ddp-micro", "fsdp-micro"])
def test_two_ranks_equal_one_with_twice_the_rows(folder, kind):
    close(folder, "one", kind)
    record = read_record(folder / "runs" / kind)
    assert record.world_size == 2
    one = read_record(folder / "runs" / "one")
    assert record.metrics["test"].keys() == one.metrics["test"].keys()
    by = "accuracy_by_operator"
    counts = [{k: v["count"] for k, v in r.metrics["test"][by].items()} for r in (record, one)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_ranks_equal_one_under_muon(folder, kind):
    """In shards the matrices are gathered first: a part has other singular values."""
    close(folder, "one-muon", f"{kind}-muon")


def test_ranks_make_the_same_number_of_passes_over_a_scratchpad(folder):
    """Each pass gathers weights from all ranks: one that had settled sooner would be waited for."""
    close(folder, "one-scratchpad", "fsdp-scratchpad")


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_losses_per_position_are_averaged_over_all_ranks(folder, kind):
    close(folder, "one-stream", f"{kind}-stream")


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_run_of_two_ranks_goes_on_with_one(folder, kind):
    options = tiny(folder, **SAME, name=f"{kind}-stopped")
    assert read_record(run_folder(options)).status == "stopped"
    record = train_run(options)
    assert record.status == "finished" and record.world_size == 1
    assert [e["step"] for e in record.events if e["kind"] == "resume"] == [6]
    close(folder, "one", f"{kind}-stopped")


def test_a_run_under_muon_in_shards_goes_on_with_one_rank(folder):
    options = tiny(folder, **MUON, name="fsdp-muon-stopped")
    assert train_run(options).status == "finished"
    close(folder, "one-muon", "fsdp-muon-stopped")
