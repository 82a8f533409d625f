"""One run, from its options to its record: what the command line and the experiments call."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from longlens import tasks
from longlens.files import (
    DiskFullError,
    locked,
    make_folder,
    remove_folder,
    replace_file,
    sync_folder,
)
from longlens.layers.registry import check_options
from longlens.models.count import parameter_count
from longlens.models.pretrained import CONFIG, WEIGHTS, config_json
from longlens.runs.ablate import check_ablation, without_heads
from longlens.runs.build import build_on_meta, describe_model, make_model, spec_of
from longlens.runs.document import now
from longlens.runs.finished import finished_record
from longlens.runs.jobs import describe_data, make_job
from longlens.runs.measure import flops_per_token, speed
from longlens.runs.record import LOCK, RECORD, Record, RecordWriter, read_record
from longlens.runs.transfer import load_transfer, transfer_tests
from longlens.tasks import Task
from longlens.tasks.mix import MixedTask, with_easier_sets
from longlens.training import budget
from longlens.training.checkpoint import CheckpointError
from longlens.training.distributed import Ranks, join_ranks
from longlens.training.faults import Stopped, TrainingError
from longlens.training.job import Job
from longlens.training.log import CHECKPOINTS
from longlens.training.loop import Trainer
from longlens.training.memory import forget_peak_memory, peak_memory_mib
from longlens.training.mirror import open_mirror
from longlens.training.options import TrainOptions
from longlens.training.process import set_process
from longlens.training.provenance import is_clean, provenance
from longlens.weights import save_tensors


def train_run(options: TrainOptions, task: Task | None = None) -> Record:
    """Train as ``options`` say, or go on with what was begun, and return the record.

    Args:
        options: see :class:`TrainOptions`. A run that is finished, on the data that are there now,
            is not trained again.
        task: the data, if they are loaded already; None: ``options.task`` is loaded. Easier sets
            are added to either, if asked for and not done yet.

    Returns:
        the record, as it stands in ``record.json``.

    Raises:
        ValueError: the model cannot be built (before the run's folder is made).
        Stopped: a signal came, the state is saved.
        TrainingError: the run cannot go on; the message says why.

    >>> import tempfile
    >>> options = TrainOptions(
    ...     task="cumsum", task_options=dict(length=16, train=8, validation=4, test=4), dim=8,
    ...     depth=1, steps=2, batch_size=4, progress=False, runs=tempfile.mkdtemp(),
    ...     root=tempfile.mkdtemp())
    >>> record = train_run(options)
    >>> record.status, sorted(record.metrics)
    ('finished', ['test', 'validation'])
    """
    folder, device = run_folder(options), find_device(options.device)
    if not (folder / RECORD).exists():  # what is misspelt is answered by one line
        check_options(options.mixer, options.mixer_options)
        if task is None:
            spec_of(options)
    talks = options.progress and os.environ.get("RANK", "0") == "0"
    if talks:  # at once: building the model for the first time makes torch import a lot
        _say(f"folder  {folder}\ntrain   {_how_long(options)}, batches of {options.batch_size}, "
             f"seed {options.seed}, on {device.type}")  # fmt: skip
    check_model(options, task)
    if talks:
        with suppress(ValueError):  # the data of a run that was begun before may be gone
            _say(describe_model(options, None if task is None else task.spec))
    with join_ranks(device) as ranks, ExitStack() as stack:
        if ranks.main:
            stack.enter_context(locked(folder / LOCK, str(folder)))
            if options.resume == "restart":
                _set_aside(folder)
        ranks.wait()
        finished = finished_record(folder, options, task)
        if finished is not None:
            if ranks.main:  # left by a process that was killed just after the record
                remove_folder(folder / CHECKPOINTS)
            if talks:
                _say(f"finished on {(finished.ended or '')[:10]}; --resume restart trains it anew")
            return finished
        task = _load(options, ranks, task)
        started = time.perf_counter()  # of budgets: data that must be made first are not part
        if "pretrain" in options.protocols:
            first = folder / "pretrain"
            stage = _pretraining(options)
            pretrained = finished_record(first, stage, task) or _train(
                stage, task, ranks, first, started, kind=options.pretrain_kind
            )
            # what earlier processes spent on it is part of the budget, too
            started = min(started, time.perf_counter() - (pretrained.train_seconds or 0.0))
            if options.resume == "require":  # the run was gone on with; this stage may begin
                options = replace(options, resume="auto")
            return _train(options, task, ranks, folder, started, first / WEIGHTS)
        return _train(options, task, ranks, folder, started)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _how_long(options: TrainOptions) -> str:
    steps = f"{options.steps:,} steps" if options.steps else f"{options.epochs or 10:g} epochs"
    return options.budget or steps


def run_folder(options: TrainOptions) -> Path:
    """The folder of a run's record."""
    return Path(options.runs) / (options.name or options.default_name())


def check_model(options: TrainOptions, task: Task | None = None) -> None:
    """Raise ValueError where a run cannot be built; one that was begun before needs no look."""
    if not (run_folder(options) / RECORD).exists():
        build_on_meta(options, None if task is None else task.spec)


def _train(
    options: TrainOptions,
    task: Task,
    ranks: Ranks,
    folder: Path,
    started: float,
    weights: Path | None = None,
    kind: str = "supervised",
) -> Record:
    """One stage: train one model to the end and write its record."""
    set_process(options, ranks.device)
    origin = provenance(ranks.device)
    writer = None
    if ranks.main:
        writer = RecordWriter(folder, open_mirror(options.log, folder, options.to_json()))
    with _ending_recorded(writer):
        model = make_model(options, task.spec, kind, ranks.device, weights)
        check_ablation(options, model)
        # whether the code that made the weights to begin with was that of its commit
        clean_before = weights is None or read_record(weights.parent).clean is not False
        job = make_job(options, task, model, ranks, kind)
        if writer is not None:
            _begin(
                writer, options, job, ranks, origin,
                task=task.name,
                protocol=options.protocol if kind == "supervised" else f"pretrain ({kind})",
                data=describe_data(options, task),
                parameters=parameter_count(model),
                # the end says it exactly; until then code that may have contributed counts
                clean=clean_before and is_clean(origin) and writer.record.clean is not False,
            )  # fmt: skip
            replace_file(folder / CONFIG, config_json(model.config).encode())
        elsewhere = load_transfer(options, ranks, job.test)
        flops = flops_per_token(model, job)
        forget_peak_memory(ranks.device)
        trainer = Trainer(job, options, ranks, folder, writer, origin, started)
        result = trainer.run()
        trainer.state.note_memory(peak_memory_mib(ranks.device))  # of training, not of what follows
        ablations = None
        if options.ablate == "heads" and job.test is not None:
            ablations = without_heads(trainer.engine, job.test, trainer.evaluation_rows)
        transfer = transfer_tests(trainer.engine, elsewhere) or None
        final = trainer.final_weights()
        if writer is not None:
            save_tensors(folder / WEIGHTS, final, {"format": "pt"})
            writer.curve_bytes()  # curves and weights are on the disk before the record says so
            state, low = trainer.state, trainer.engine.low_precision
            writer.end(
                "finished",
                steps=state.step,
                total_steps=state.total,
                micro_batch=state.micro_batch,
                selected_step=result.selected_step,
                metrics=result.metrics,
                train_seconds=round(state.seconds, 3),
                speed=speed(state, flops, ranks, origin["hardware"], low),
                peak_memory_mib=round(state.peak_memory_mib, 1),
                clean=clean_before and state.clean,
                ablations=ablations,
                transfer=transfer,
            )
            remove_folder(folder / CHECKPOINTS)
        ranks.wait()
    if signum := trainer.signals.received:  # during the last evaluation; nothing else may begin
        raise Stopped(signum, f"stopped by a signal; {folder} is finished")
    return read_record(folder)


def _begin(
    writer: RecordWriter,
    options: TrainOptions,
    job: Job,
    ranks: Ranks,
    origin: dict[str, str],
    **facts: Any,
) -> None:
    """Write what is known of a run before its first step."""
    objective = job.objective
    writer.update(
        status="running",
        error=None,
        started=writer.record.started or now(),
        mixer=options.mixer,
        seed=options.seed,
        options=options.to_json(),
        provenance=origin,
        metric={"name": objective.metric, "higher_is_better": objective.higher_is_better},
        deterministic=options.deterministic or ranks.device.type == "cpu",
        device=origin["hardware"],
        world_size=ranks.world_size,
        **facts,
    )


@contextmanager
def _ending_recorded(writer: RecordWriter | None) -> Iterator[None]:
    """Let the record say how a run ended that did not finish; the error goes on."""
    try:
        yield
    except Stopped:
        if writer is not None:
            writer.end("stopped")
        raise
    except (TrainingError, CheckpointError) as error:
        if writer is not None and not isinstance(error.__cause__, OSError):  # of the data
            writer.end("failed", error=str(error))
        raise
    except KeyboardInterrupt:  # a second Ctrl-C, or one before the first step: nothing is saved
        if writer is not None and writer.record.status:
            writer.end("stopped")
        raise
    except (DiskFullError, OSError):  # there may be no room for a record, either
        raise
    except Exception as error:  # of torch or the driver: the record of a run that began says so
        if writer is not None and writer.record.status:
            writer.end("failed", error=f"{type(error).__name__}: {error}")
        raise
    finally:
        if writer is not None:
            writer.close()


def _pretraining(options: TrainOptions) -> TrainOptions:
    """The options of the first stage of self-pretraining."""
    stage = replace(options, name="pretrain")
    if options.pretrain_steps is not None:
        stage = replace(stage, steps=options.pretrain_steps, epochs=None, budget=None)
    elif options.budget is not None:  # half of the time, the rest is for the second stage
        stage = replace(stage, budget=f"{budget.seconds(options.budget) / 2:.3f}s")
    return stage


def find_device(name: str) -> torch.device:
    """The device that an option means: "auto" is cuda where there is one."""
    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device must be one of auto, cpu, cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch sees no CUDA device here; use cpu")
    auto = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(auto if name == "auto" else name)


def _load(options: TrainOptions, ranks: Ranks, task: Task | None) -> Task:
    """Load what is not loaded yet on every rank; the first verifies it, and makes it if needed."""
    if not ranks.main:
        ranks.wait()
    verify: Literal["full", "size"] = "full" if ranks.main else "size"
    if task is None:
        task = tasks.load(options.task, options.root, verify=verify, **options.task_options)
    if options.mix_easier and not isinstance(task, MixedTask):
        task = with_easier_sets(task, options.root, verify=verify)
    if ranks.main:
        ranks.wait()
    if ranks.any(ranks.same(task.identity) != task.identity):
        raise TrainingError(f"the data of {options.task} were replaced just now; try again")
    return task


def _set_aside(folder: Path) -> None:
    """Move what an earlier run left to ``NAME.old-1`` (or 2, …): nothing is deleted."""
    first = {RECORD: 0, CHECKPOINTS: 1}  # what would make the rest count
    left = [path for path in folder.iterdir() if path.name != LOCK]
    if not left:
        return
    number = 1
    while (target := folder.with_name(f"{folder.name}.old-{number}")).exists():
        number += 1
    make_folder(target)
    for path in sorted(left, key=lambda path: first.get(path.name, 2)):
        path.rename(target / path.name)
        sync_folder(target)
        sync_folder(folder)
