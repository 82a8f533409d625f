"""On CUDA: captured steps equal eager ones, nothing waits for the host, resuming is exact."""

import os
from dataclasses import replace

import pytest
import torch

from longlens.runs import train_run
from longlens.runs.run import run_folder
from longlens.training import loop
from longlens.training.faults import Stopped
from longlens.weights import load_tensors
from tests.training.runs import outcome
from tests.training.test_resume import stop_at

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),  # inductor's
]


def weights(options):
    return load_tensors(run_folder(options) / "model.safetensors")


@pytest.fixture
def on_gpu(run_options):
    def make(**changes):
        base = {
            "device": "cuda",
            "compile": False,
            "dtype": "float32",
            "buckets": 2,
            "graphs": "none",
        }
        return run_options(**(base | changes))

    return make


PLATEAU = {"schedule": "plateau", "plateau_patience": 1, "plateau_factor": 0.2, "warmup": 0.0,
           "lr": 0.01, "evaluate_every": 4}  # fmt: skip
COLLAPSED = {"collapse": 2, "collapse_steps": 6, "protocol": "values+augment"}
SCRATCHPAD = {"protocol": "scratchpad+augment", "length": None, "bidirectional": False}


@pytest.mark.parametrize(
    "changes",
    [{}, {"micro_batch": 2}, {"norm": "batch", "ema": 0.0}, PLATEAU, COLLAPSED, SCRATCHPAD],
)
def test_captured_steps_equal_eager_ones(on_gpu, changes):
    eager = on_gpu(dropout=0.0, name="eager", **changes)
    captured = replace(eager, graphs="step", name="captured")
    for options in (eager, captured):
        train_run(options)
    for name, tensor in weights(eager).items():
        torch.testing.assert_close(weights(captured)[name], tensor, rtol=1e-4, atol=1e-5)


def test_dropout_changes_from_replay_to_replay(on_gpu):
    options = on_gpu(graphs="step", dropout=0.5, lr=0.0, ema=0.0, limit=6, log_every=1, buckets=1)
    train_run(options)
    lines = (run_folder(options) / "curves.jsonl").read_text().splitlines()
    losses = [line.split('"loss": ')[1].split(",")[0] for line in lines if '"train"' in line]
    assert len(set(losses[6:])) > len(losses[6:]) // 2  # same batch, same weights, other draws


@pytest.mark.parametrize("graphs", ["none", "step"])
def test_a_step_never_waits_for_the_host(on_gpu, monkeypatch, graphs):
    original = loop.Trainer.step

    def strict(self):
        if self.state.step < 40:  # compiling and capturing wait
            return original(self)
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            return original(self)
        finally:
            torch.cuda.set_sync_debug_mode(before)

    monkeypatch.setattr(loop.Trainer, "step", strict)
    assert train_run(on_gpu(graphs=graphs, steps=50)).steps == 50


def test_captured_steps_of_a_program_for_any_length(on_gpu):
    """Batch norm, a mask, programs that are compiled anew between captures."""
    options = on_gpu(graphs="step", compile=True, shapes="any", norm="batch", buckets=4, steps=60)
    assert train_run(options).status == "finished"


def test_captured_steps_with_batch_norm_and_no_mask(on_gpu):
    options = on_gpu(
        task="cumsum",
        task_options={"length": 32, "train": 60, "validation": 12, "test": 12},
        length=None, mixer_options={}, graphs="step", norm="batch",
    )  # fmt: skip
    assert train_run(options).status == "finished"


@pytest.mark.parametrize("graphs", ["none", "step"])
def test_resume_is_exact_with_deterministic_kernels(on_gpu, monkeypatch, graphs):
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    options = on_gpu(deterministic=True, graphs=graphs, name="alone")
    train_run(options)
    stopped = replace(options, name="stopped")
    with monkeypatch.context() as patch:
        stop_at(patch, 11)
        with pytest.raises(Stopped):
            train_run(stopped)
    train_run(stopped)
    torch.use_deterministic_algorithms(False)
    assert outcome(run_folder(stopped)) == outcome(run_folder(options))


def test_rollback_works_with_captured_steps(on_gpu, monkeypatch):
    original = loop.Trainer._examples

    def poisoned(trainer, batch, step):
        made = original(trainer, batch, step)
        if step + trainer.state.offset == 13:
            return replace(made, targets=made.targets * float("nan"))
        return made

    monkeypatch.setattr(loop.Trainer, "_examples", poisoned)
    options = on_gpu(
        task="cumsum",
        task_options={"length": 32, "train": 60, "validation": 12, "test": 12},
        length=None, mixer_options={}, graphs="step", nonfinite="rollback",
    )  # fmt: skip
    record = train_run(options)
    assert [e["step"] for e in record.events if e["kind"] == "rollback"] == [13]
    assert all(t.isfinite().all() for t in weights(options).values())
