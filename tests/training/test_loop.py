"""Whole runs: every kind of task and protocol, selection, budgets, micro-batches, faults."""

import copy
import math
import os
import signal
from dataclasses import replace

import pytest
import torch

from longlens import files, tasks
from longlens.files import DiskFullError
from longlens.models.build import Model
from longlens.runs import train_run
from longlens.runs.build import make_model
from longlens.runs.jobs import make_job
from longlens.runs.measure import flops_per_token
from longlens.runs.record import read_record
from longlens.runs.run import run_folder
from longlens.tasks.mix import with_easier_sets
from longlens.training import checkpoint, loop, rehearse
from longlens.training.budget import Timing
from longlens.training.distributed import Ranks
from longlens.training.faults import Stopped, TrainingError
from longlens.training.job import Job
from longlens.training.log import read_curves
from longlens.weights import load_tensors
from tests.training.runs import outcome

ATOMIC = {"task": "cumsum", "length": None, "mixer_options": {},
          "task_options": {"length": 32, "train": 60, "validation": 12, "test": 12}}  # fmt: skip


def weights(options):
    return load_tensors(run_folder(options) / "model.safetensors")


def import_stream(root):
    from longlens.tasks import import_arrays

    folder = root / "arrays"
    folder.mkdir(exist_ok=True)
    import numpy as np

    np.save(folder / "tokens.npy", np.arange(4000, dtype=np.uint8) % 7)
    import_arrays("stream", folder / "tokens.npy", root=root, replace=True)


@pytest.mark.parametrize(
    "changes",
    [
        ATOMIC | {"mixer": "lru"},
        {"mixer": "s4d", "mixer_options": {}, "norm": "batch", "protocol": "denoise+augment"},
        {"protocol": "pretrain", "pretrain_kind": "causal", "pretrain_steps": 4},
        {"pooling": "cls", "bidirectional": True, "protocol": "denoise+pretrain", "steps": 4},
    ],
    ids=["regression", "denoise+augment", "pretrain", "all"],
)
def test_tasks_and_protocols_train(run_options, changes):
    options = run_options(**({"steps": 8, "evaluate_every": 4} | changes))
    record = train_run(options)
    metric = record.metric["name"]
    assert record.status == "finished" and set(record.metrics) == {"validation", "test"}
    assert math.isfinite(record.metrics["test"][metric])
    lines = list(read_curves(run_folder(options)))
    assert ("denoise_loss" in lines[0]) == ("denoise" in options.protocols)
    assert [line["step"] for line in lines if line["split"] == "validation"][-1] == options.steps
    if "pretrain" in options.protocols:
        first = read_record(run_folder(options) / "pretrain")
        assert first.status == "finished" and "test" not in first.metrics
    Model.from_pretrained(run_folder(options))  # what was written is a model


def test_next_token_prediction_learns_a_cycle(run_options, data):
    import_stream(data)
    options = run_options(task="stream", task_options={}, length=32, mixer="lru", mixer_options={},
                          dim=16, dropout=0.0, ema=0.0, lr=0.03, steps=40)  # fmt: skip
    record = train_run(options)
    assert record.metric == {"name": "bits_per_token", "higher_is_better": False}
    assert record.metrics["test"]["bits_per_token"] < 0.5 < math.log2(7)


def test_a_run_that_loses_what_it_learned_says_so(run_options, data, monkeypatch, capsys):
    import_stream(data)
    options = run_options(task="stream", task_options={}, length=32, mixer="lru", mixer_options={},
                          dim=16, dropout=0.0, ema=0.0, lr=0.03, steps=40, log_every=5,
                          progress=True)  # fmt: skip
    assert not train_run(replace(options, name="calm")).events
    assert "back where it began" not in capsys.readouterr().err
    monkeypatch.setattr(
        loop.Schedule, "factor", lambda self, step: 1.0 if step < 25 else 300.0
    )  # far too high
    record = train_run(replace(options, name="lost"))
    (event,) = record.events  # once, though it stays lost
    assert event["kind"] == "collapse" and event["step"] > 25
    assert event["loss"] > math.log(7) > event["lowest"]
    assert capsys.readouterr().err.count("is back where it began") == 1


def test_a_warmup_as_long_as_the_run_is_said(run_options, capsys):
    for warmup, said in ((2.0, False), (3.0, True), (0.9, False)):
        train_run(run_options(steps=3, evaluate_every=3, warmup=warmup))
        error = capsys.readouterr().err
        assert ("note: warmup is 3 steps, and the run has 3:" in error) == said
        assert ("note" in error) == said


def test_the_record_says_it_all(run_options):
    options = run_options()
    record = train_run(options)
    assert record.options == options.to_json()
    assert len(record.data["identity"]) == 64 and record.seed == 0
    assert {"commit", "torch", "hardware"} <= set(record.provenance)
    assert record.total_steps == record.steps == 24
    model = Model.from_pretrained(run_folder(options))
    assert record.parameters == sum(p.numel() for p in model.parameters())
    groups = record.metrics["test"]
    for extra in ("operator", "depth", "decided"):
        parts = groups[f"accuracy_by_{extra}"].values()
        assert sum(part["count"] for part in parts) == 12
        mean = sum(part["count"] * part["accuracy"] for part in parts) / 12
        assert mean == pytest.approx(groups["accuracy"])
    assert record.speed["tokens_per_second"] > 0 and record.peak_memory_mib > 10
    assert record.speed["padded_tokens_per_second"] >= record.speed["tokens_per_second"]
    assert record.speed["flops_per_second"] > 0


def test_the_arithmetic_of_a_second_loss_counts(run_options):
    found = []
    for protocol in ("scratch", "denoise"):
        options = run_options(protocol=protocol, name=protocol)
        task = tasks.load("listops", options.root, **options.task_options)
        ranks = Ranks(torch.device("cpu"))
        model = make_model(options, task.spec, "supervised", ranks.device)
        found.append(flops_per_token(model, make_job(options, task, model, ranks)))
    tokens = 3 * 2 * options.dim * (task.spec.vocab_size + 1)  # products of the head over tokens
    assert found[1] >= found[0] + tokens


def test_the_weights_that_validation_selects_are_kept(run_options):
    options = run_options(lr=0.3, ema=0.0, evaluate_every=2)  # a rate that makes it jump about
    record = train_run(options)
    found = {line["step"]: line["accuracy"] for line in read_curves(run_folder(options))
             if line["split"] == "validation"}  # fmt: skip
    best = max(found, key=lambda step: (found[step], -step))
    assert record.selected_step == best
    assert record.metrics["validation"]["accuracy"] == found[best]


def test_early_stopping_and_its_curve(run_options):
    record = train_run(run_options(lr=0.0, ema=0.0, patience=2, evaluate_every=4, log_every=50))
    assert record.steps == 12 and record.total_steps == 24 and record.selected_step == 4


def test_micro_batches_give_the_same_result(run_options):
    found = {}
    for rows in (None, 4, 1):
        options = run_options(micro_batch=rows, dropout=0.0, name=str(rows), steps=6,
                              evaluate_every=6)  # fmt: skip
        train_run(options)
        found[rows] = weights(options)
    for rows in (4, 1):
        for name, tensor in found[None].items():
            torch.testing.assert_close(found[rows][name], tensor, rtol=1e-4, atol=1e-5)
    assert any(not torch.equal(found[1][n], t) for n, t in found[None].items())  # it did differ


def test_learned_decay_rates_do_not_depend_on_micro_batches(run_options):
    """An end of their range is where gradients of parts and of the whole could differ."""
    found = {}
    learned = {"num_heads": 2, "learned_alpha": True, "bound": 0.01}
    for rows in (None, 3, 1):
        options = run_options(micro_batch=rows, dropout=0.0, name=str(rows), steps=12, warmup=0,
                              evaluate_every=12, mixer_options=learned)  # fmt: skip
        train_run(options)
        found[rows] = {n: t for n, t in weights(options).items() if n.endswith("alpha")}
    for rows in (3, 1):
        for name, tensor in found[None].items():
            torch.testing.assert_close(found[rows][name], tensor, rtol=1e-3, atol=1e-6)
    assert found[None] and all(float(t.min()) >= 0 for t in found[None].values())


def test_the_average_of_the_weights_is_what_is_evaluated(run_options):
    plain, averaged = run_options(ema=0.0, name="a"), run_options(ema=0.9, name="b")
    lines = []
    for options in (plain, averaged):
        train_run(options)
        lines.append([x for x in read_curves(run_folder(options)) if x["split"] == "train"])
    keep = ("loss", "gradient_norm")
    assert [[x[k] for k in keep] for x in lines[0]] == [[x[k] for k in keep] for x in lines[1]]
    a, b = weights(plain), weights(averaged)
    assert any(not torch.equal(a[name], b[name]) for name in a)


def test_bfloat16(run_options):
    options = run_options(dtype="bfloat16", steps=3, evaluate_every=3)
    exact = replace(options, dtype="float32")
    a, b = (train_run(o).metrics["test"]["loss"] for o in (options, exact))
    assert a != b and a == pytest.approx(b, rel=0.03)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
@pytest.mark.parametrize("shapes", ["each", "any"])
def test_compiled_steps_compute_the_same(run_options, shapes):
    torch.compiler.reset()
    options = run_options(compile=True, steps=8, evaluate_every=4, shapes=shapes, dropout=0.0)
    plain = replace(options, compile=False)
    a, b = (train_run(o).metrics["test"]["loss"] for o in (options, plain))
    assert a == pytest.approx(b, rel=1e-4)


def test_a_budget_fixes_the_steps_and_keeps_them(run_options, monkeypatch):
    options = run_options(budget="10m", steps=None, evaluate_every=None)
    original = rehearse.time_steps

    def slow(*arguments):  # real rehearsals, but a result that does not depend on the machine
        timing = original(*arguments)
        assert min(timing.step, timing.evaluation, timing.final) > 0
        return Timing(step=60.0, evaluation=1.0, final=2.0)

    monkeypatch.setattr(rehearse, "time_steps", slow)
    monkeypatch.setattr(loop.Trainer, "_evaluate_if_due", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train_run(options)
    saved = checkpoint.load(run_folder(options) / "checkpoints")
    assert saved.facts["step"] == 0 and saved.facts["state"]["total"] in (7, 8, 9)
    monkeypatch.undo()
    monkeypatch.setattr(rehearse, "time_steps", None)  # would fail if it were timed again
    record = train_run(options)
    assert record.steps == record.total_steps == saved.facts["state"]["total"]
    # the rehearsal left no trace: the same number of steps, given, ends the same
    plain = replace(options, budget=None, steps=record.steps, name="plain")
    train_run(plain)
    same, other = weights(options), weights(plain)
    assert all(torch.equal(same[name], other[name]) for name in same)


def train_lines(options):
    lines = read_curves(run_folder(options))
    return {line["step"]: line for line in lines if line["split"] == "train"}


class Poison:
    """Makes the loss of chosen steps NaN."""

    def __init__(self, monkeypatch, *positions):
        original = loop.Trainer._examples

        def examples(trainer, batch, step):
            made = original(trainer, batch, step)
            if step + trainer.state.offset in positions:
                return replace(made, targets=made.targets * math.nan)
            return made

        monkeypatch.setattr(loop.Trainer, "_examples", examples)


def test_a_step_that_is_not_finite_stops_with_its_batch_saved(run_options, monkeypatch):
    options = run_options(**ATOMIC, mixer="lru")
    with monkeypatch.context() as patch:
        Poison(patch, 7)
        with pytest.raises(TrainingError, match=r"step 7 is not finite .*nonfinite-step-7"):
            train_run(options)
    record = read_record(run_folder(options))
    assert record.status == "failed" and "step 7" in record.error
    batch = load_tensors(run_folder(options) / "nonfinite-step-7.safetensors")
    assert batch["targets"].isnan().all() and batch["inputs"].shape == (6, 32, 1)
    assert len(batch["index"]) == 6
    kept = {k.removeprefix("model/"): v for k, v in batch.items() if k.startswith("model/")}
    # the last checkpoint is clean: without the poison the run ends as if nothing had happened
    train_run(options)
    before = {}
    original = loop.Trainer._examples

    def watched(trainer, batch, step):
        if step == 7 and not before:
            before.update(copy.deepcopy(trainer.job.model.state_dict()))
        return original(trainer, batch, step)

    monkeypatch.setattr(loop.Trainer, "_examples", watched)
    train_run(replace(options, name="alone"))
    assert outcome(run_folder(options)) == outcome(run_folder(replace(options, name="alone")))
    assert kept.keys() == before.keys()
    assert all(torch.equal(kept[name], before[name]) for name in kept)


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_skipped_steps_change_nothing_but_themselves(run_options, monkeypatch, norm):
    Poison(monkeypatch, 7, 8)
    options = run_options(**ATOMIC, mixer="lru", nonfinite="skip", norm=norm)
    record = train_run(options)
    events = [e for e in record.events if e["kind"] == "skip"]
    assert events[0]["step"] == 7 and sum(e["skipped"] for e in events) == 2
    assert record.status == "finished"
    assert all(t.isfinite().all() for t in weights(options).values())
    # the line at 8 is about the steps 6 and 7, of which 6 is good; that at 9 about 8 alone
    lines = train_lines(options)
    assert [step for step, line in lines.items() if line["loss"] is None] == [9]
    assert lines[9]["gradient_norm"] is None and lines[9]["r2"] is None
    single = replace(options, log_every=1, name="single")
    train_run(single)
    for name in ("loss", "gradient_norm"):
        assert lines[8][name] == pytest.approx(train_lines(single)[7][name])
    assert all(event.get("lowest") != 0.0 for event in record.events)  # no loss was 0


def test_a_checkpoint_keeps_how_many_steps_were_left_out(run_options, monkeypatch):
    """A run that is stopped between a bad step and its line writes the line that it would have."""
    Poison(monkeypatch, 6)
    options = run_options(**ATOMIC, mixer="lru", nonfinite="skip", name="alone")
    train_run(options)
    original = loop.Trainer.step

    def stopped(self):
        original(self)
        if self.state.step == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "step", stopped)
        with pytest.raises(Stopped):
            train_run(replace(options, name="stopped"))
    train_run(replace(options, name="stopped"))
    assert outcome(run_folder(replace(options, name="stopped"))) == outcome(run_folder(options))


def test_rollback_goes_back_and_past_the_batch(run_options, monkeypatch):
    Poison(monkeypatch, 7)
    options = run_options(**ATOMIC, mixer="lru", nonfinite="rollback")
    record = train_run(options)
    (event,) = [e for e in record.events if e["kind"] == "rollback"]
    assert (event["step"], event["back_to"]) == (7, 6)
    steps = [x["step"] for x in read_curves(run_folder(options)) if x["split"] == "train"]
    assert steps == sorted(set(steps)) and steps[-1] == 24 and record.steps == 24
    Poison(monkeypatch, *range(30))
    with pytest.raises(TrainingError, match="not finite"):
        train_run(replace(options, name="hopeless"))


def test_out_of_memory_names_the_setting(run_options, monkeypatch):
    def full(self, examples):
        if self.micro_batch > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return original(self, examples)

    original = rehearse.Engine.device_step
    monkeypatch.setattr(rehearse.Engine, "device_step", full)
    options = run_options(steps=3, evaluate_every=3)
    with pytest.raises(TrainingError, match=r"6 sequences of \d+ positions .* --micro_batch 3"):
        train_run(options)
    record = train_run(replace(options, micro_batch="auto"))
    assert record.micro_batch == 2 and record.status == "finished"
    assert [e["rows"] for e in record.events if e["kind"] == "micro_batch"] == [2]


def test_a_full_disk_loses_nothing(run_options, monkeypatch):
    options = run_options(name="a")
    with monkeypatch.context() as patch:
        original = files.write_file

        def full(path, content):
            if "step-00000009" in str(path):
                raise OSError(28, "No space left on device")
            return original(path, content)

        patch.setattr(checkpoint, "write_file", full)
        with pytest.raises(DiskFullError, match=r"disk is full: .*step-00000009"):
            train_run(options)
    names = sorted(p.name for p in (run_folder(options) / "checkpoints").iterdir())
    assert names == ["step-00000006", "step-00000008"]
    train_run(options)
    train_run(replace(options, name="alone"))
    assert outcome(run_folder(options)) == outcome(run_folder(replace(options, name="alone")))


def test_data_that_vanish_are_named_and_nothing_is_lost(run_options, monkeypatch, tmp_path):
    options = run_options(root=str(tmp_path / "data"))
    with monkeypatch.context() as patch:
        original = Job.batches

        def stream(self, position):
            for number, batch in enumerate(original(self, position)):
                if number == 10:
                    raise OSError(116, "Stale file handle", "train-flat.npy")
                yield batch

        patch.setattr(Job, "batches", stream)
        with pytest.raises(TrainingError, match=r"data could not be read .*train-flat.*step 10"):
            train_run(options)
    (path,) = (tmp_path / "data").glob("listops/*/train-*flat*.npy")
    hidden = path.rename(tmp_path / "hidden.npy")
    with pytest.raises(ValueError, match="is missing"):
        train_run(options)
    hidden.rename(path)
    assert train_run(options).events[-1] | {"time": "", "commit": ""} == {
        "kind": "resume", "step": 10, "time": "", "commit": "",
    }  # fmt: skip


def test_a_batch_larger_than_the_split_is_refused(run_options):
    with pytest.raises(ValueError, match="batch_size must be at most the 60 examples"):
        train_run(run_options(batch_size=61))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (ATOMIC | {"protocol": "denoise"}, "hides tokens"),
        (ATOMIC | {"protocol": "augment"}, "augment"),
        (ATOMIC | {"mix_easier": True}, "no easier sets; listops, pathfinder, pathx have"),
        ({"protocol": "pretrain", "pretrain_kind": "causal", "bidirectional": True}, "never see"),
        ({"views": 4}, "views=4 needs a protocol with augment"),
    ],
)
def test_protocols_that_make_no_sense_are_refused(run_options, changes, message):
    with pytest.raises(ValueError, match=message):
        train_run(run_options(**changes))


def test_easier_sets_are_mixed_into_training_alone(run_options, tmp_path):
    options = run_options(task="pathfinder", task_options={"images": 40}, length=None,
                          mix_easier=True, protocol="augment", root=str(tmp_path), steps=2,
                          evaluate_every=2, mixer="lru", mixer_options={})  # fmt: skip
    alone = tasks.load("pathfinder", tmp_path, images=40)
    mixed = with_easier_sets(alone, tmp_path)
    for given, name in ((None, "loads"), (alone, "loaded"), (mixed, "mixed")):
        options = replace(options, name=name)
        record = train_run(options, given)
        assert record.status == "finished"
        assert record.data["examples"] == {"train": 96, "validation": 4, "test": 4}
        assert record.data["identity"] != alone.identity
        curves = list(read_curves(run_folder(options)))
        assert curves[0]["epoch"] == round(2 / 16, 4)  # 96 examples, not 32


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # inductor's own
def test_one_compiled_block_serves_all(run_options):
    """The same weights within rounding, and one program instead of one a block."""
    from torch._dynamo.utils import counters

    common = dict(depth=4, dropout=0.0, compile=True, buckets=1, steps=4)
    torch._dynamo.reset()
    counters.clear()
    whole = train_run(run_options(**common, name="whole"))
    torch._dynamo.reset()
    counters.clear()
    blocks = train_run(run_options(**common, name="blocks", compile_blocks=True))
    assert counters["stats"]["unique_graphs"] <= 4  # training, evaluation; not times four blocks
    assert blocks.metrics["test"]["loss"] == pytest.approx(whole.metrics["test"]["loss"], rel=1e-4)
