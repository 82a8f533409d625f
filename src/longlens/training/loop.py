"""The training loop. Read :meth:`Trainer.run` first; everything else is a part of it.

A step is a pure function of the state and of the step's number: which batch it takes, how that is
augmented and what dropout draws follow from (seed, step, rank). So a run that is killed at any
moment and started again from its last checkpoint computes what it would have computed.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longlens.files import finite
from longlens.tasks.batches import Batch, Batches
from longlens.tasks.progress import Bar
from longlens.training import budget, checkpoint, distributed
from longlens.training.distributed import Ranks
from longlens.training.engine import DENOISING, Engine
from longlens.training.evaluate import evaluate
from longlens.training.examples import Examples
from longlens.training.faults import (
    Interrupted,
    Signals,
    Stopped,
    TrainingError,
    out_of_memory,
    out_of_memory_message,
)
from longlens.training.job import Job, Result, State
from longlens.training.log import Log
from longlens.training.memory import peak_memory_mib
from longlens.training.objective import SUMS
from longlens.training.optim import Schedule, endless_warmup, warmup_steps
from longlens.training.options import TrainOptions
from longlens.training.progress import Display, Meter, describe_steps
from longlens.training.provenance import is_clean
from longlens.training.randomness import key, seed_everything
from longlens.training.rehearse import choose_micro_batch, choose_steps, evaluation_work
from longlens.training.resume import RunCheckpoints
from longlens.weights import save_tensors

ROLLBACKS = 3  # a run that is not finite again after this many stops


class Trainer:
    """Trains one model, going on where an earlier process stopped.

    Args:
        job: what to train.
        options: how.
        ranks: this process among all.
        folder: of the run.
        log: of curves and events, on the main rank; None on the others.
        provenance: code, versions and hardware, kept in checkpoints.
        started: ``time.perf_counter()`` when the data were there, for budgets.
    """

    def __init__(
        self,
        job: Job,
        options: TrainOptions,
        ranks: Ranks,
        folder: Path,
        log: Log | None,
        provenance: Mapping[str, Any],
        started: float,
    ) -> None:
        self.job, self.options, self.ranks = job, options, ranks
        self.folder, self.log, self.started = folder, log, started
        self.state = State(clean=is_clean(provenance))
        self.engine = Engine(job, options, ranks)
        self.best: dict[str, Tensor] = {}
        self.signals = Signals()
        self.meter = Meter()
        self.evaluation_rows = (options.evaluate_batch or options.batch_size) // ranks.world_size
        self.checkpoints = RunCheckpoints(job, options, ranks, folder, log, provenance)

    def run(self) -> Result:
        """Train to the end and return what came out.

        Raises:
            Stopped: a signal came; its checkpoint is written.
            TrainingError: the run cannot go on.
        """
        with self.signals.caught():
            self.begin()
            try:
                while True:
                    self._log_if_due()
                    with suppress(Interrupted):  # the next line stops, and it is due again
                        self._evaluate_if_due()
                    self._checkpoint_if_due()
                    if self._is_over():
                        return self._finish()
                    self.step()
                    self.display.step(self.state.step, self._current_metrics)
            finally:
                self.display.close()

    def step(self) -> None:
        """One optimisation step on the next batch."""
        self.meter.start()
        batch = self._next_batch()
        examples = self._examples(batch, self.state.step)
        self.engine.optimizer.set_factor(self.schedule.factor(self.state.step))
        try:
            self.engine.update(examples)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            rows = min(self.state.micro_batch, len(examples.inputs))
            length = examples.inputs.shape[1 if examples.inputs.is_floating_point() else -1]
            raise TrainingError(out_of_memory_message(rows, length)) from error
        self.meter.add(batch.tokens, batch.padded_tokens)
        self.state.step += 1

    def _is_over(self) -> bool:
        patience = self.options.patience
        worn_out = bool(patience) and self.state.without_improvement >= patience
        return self.state.step >= self.state.total or worn_out

    # ------------------------------------------------------------------ beginning

    def _take(self, saved: checkpoint.Checkpoint) -> None:
        """Take over a checkpoint's tensors and counters."""
        self.state = self.checkpoints.state_of(saved)
        self.engine.take(saved.tensors, self.state.step)
        if self.state.best_step >= 0:
            self.best = saved.under("best/") or saved.under("model/")

    def _fix_length(self) -> None:
        """Decide how many rows are computed at once and how many steps there are, for good."""
        state = self.state

        def examples(batch: Batch) -> Examples:
            return self._examples(batch, 0)

        state.micro_batch = self.engine.micro_batch = choose_micro_batch(self.engine, examples)
        if self.options.micro_batch == "auto":
            self._event("micro_batch", rows=state.micro_batch)
        state.total, measured = choose_steps(
            self.engine, examples, self.job.epoch_steps, self.evaluation_rows, self.started
        )
        if measured is not None:
            self._event("budget", steps=state.total, **measured)

    def begin(self) -> None:
        """Take up the last checkpoint or the beginning, and set up what follows from it."""
        saved = self.checkpoints.resume()
        quiet = not (self.options.progress and self.ranks.main)
        if saved is None:
            with closing(Bar(self.folder.name, None, quiet=quiet)) as bar:
                bar.update(0, "timing steps and evaluation")  # where they have to be: a budget
                self._fix_length()
        else:
            self._take(saved)
        options, state = self.options, self.state
        self.engine.micro_batch = state.micro_batch
        if self.ranks.main and (problem := endless_warmup(options.warmup, state.total)):
            print(f"note: {problem}", file=sys.stderr, flush=True)
        self.schedule = Schedule(
            options.schedule,
            state.total,
            warmup_steps(options.warmup, state.total),
            options.final_lr,
            options.plateau_patience,
            options.plateau_factor,
            state.reductions,
            state.waited,
        )
        self.evaluate_every = budget.evaluation_interval(
            options.evaluate_every, state.total, self.job.epoch_steps,
            evaluation_work(self.job, options),
        )  # fmt: skip
        self._seek()
        self.checkpoints.written = time.perf_counter()
        self._began = time.perf_counter() - state.seconds
        if not quiet:
            plan = describe_steps(self.job, state, self.evaluate_every, options.batch_size)
            print(plan, file=sys.stderr, flush=True)
        self.display = Display(self.folder.name, state.total, state.step, quiet)
        if saved is None and (options.budget or options.micro_batch == "auto"):
            self._checkpoint()  # what was measured must not be measured anew

    # ------------------------------------------------------------------ data

    def _seek(self) -> None:
        """Point the stream of batches at the state's step."""
        self._batches = self.job.batches(self.state.step + self.state.offset)

    def _next_batch(self) -> Batch:
        try:
            return next(self._batches)
        except OSError as error:
            self._checkpoint()
            raise TrainingError(
                f"the data could not be read ({error}); step {self.state.step} is saved: bring "
                "the file back and give the same command again"
            ) from error

    def _examples(self, batch: Batch, step: int) -> Examples:
        """Prepare a batch, and seed everything random of its step."""
        seed = key(self.options.seed, step + self.state.offset, self.ranks.rank)
        seed_everything(seed, self.ranks.device)
        generator = torch.Generator(self.ranks.device).manual_seed(seed ^ 1)
        return self.job.prepare(batch, generator, training=True)

    # ------------------------------------------------------------------ curves and faults

    def _log_if_due(self) -> None:
        state = self.state
        # before every evaluation too, so that a run that ends there has its last line
        due = state.step % self.options.log_every == 0 or self._evaluation_is_due()
        if not due or state.step == state.logged:
            return
        sums = self.ranks.add(self.engine.sums.clone()).cpu()  # here the host waits for the device
        if self._check_finite():
            return
        good = state.step - state.logged - state.left_out
        line = self._line("train") | self.job.objective.metrics(sums[:SUMS])
        if self.job.prepare.denoises:
            line["denoise_loss"] = DENOISING.metrics(sums[SUMS:])["loss"]
        line["gradient_norm"] = float(self.engine.norms) / good if good else math.nan
        line["lr"] = self.options.lr * self.schedule.factor(state.step - 1)
        line["tokens_per_second"] = self.meter.stop(state, self.ranks.world_size)
        self.engine.clear()
        # what a run trains on first is easier, so that its loss says nothing of the rest
        first = state.logged + state.offset < self.job.first_steps
        state.logged, state.left_out = state.step, 0
        self._write(line)
        if not (first or math.isnan(line["loss"])) and state.watch(line["loss"]):
            lowest = state.lowest_loss
            self._event("collapse", step=state.step, loss=line["loss"], lowest=lowest)
            self.display.say(
                f"step {state.step}: the training loss, {line['loss']:.4f}, is back where it began "
                f"(lowest: {lowest:.4f}); the learning rate may be too high"
            )

    def _line(self, split: str) -> dict[str, Any]:
        return {
            "step": self.state.step,
            "epoch": round(self.job.epochs_at(self.state.step + self.state.offset), 4),
            "split": split,
            "seconds": round(time.perf_counter() - self._began, 3),
        }

    def _current_metrics(self) -> Mapping[str, float]:
        """Loss and metric of this rank since the last line of the training curve."""
        return self.job.objective.metrics(self.engine.sums[:SUMS].cpu())

    def _write(self, line: dict[str, Any]) -> None:
        if self.log is not None:
            self.log.curve(line)

    def _event(self, kind: str, **details: Any) -> None:
        if self.log is not None:
            self.log.event(kind, **details)

    def _check_finite(self) -> bool:
        """Act on steps that were not finite; True where the run went back."""
        first, skipped = int(self.engine.first_bad), int(self.engine.skipped)
        if first < 0:
            return False
        self.engine.clear_bad()
        if self.options.nonfinite == "skip":
            self.state.left_out += skipped
            self._event("skip", step=first, skipped=skipped)
            self.display.say(f"{skipped} steps from step {first} on were not finite: left out")
            return False
        path = self._save_bad_step(first)
        problem = f"the loss or gradient of step {first} is not finite (batch and weights: {path})"
        if self.options.nonfinite == "rollback" and self.state.rollbacks < ROLLBACKS:
            self._roll_back(first, problem)
            return True
        raise TrainingError(
            f"{problem}; lower --lr, or go on from the last checkpoint with --nonfinite skip or "
            "--nonfinite rollback"
        )

    def _save_bad_step(self, step: int) -> Path:
        """Keep what it takes to compute a step again; every rank must call it."""
        batch = next(self.job.batches(step + self.state.offset))
        rank = "" if self.ranks.world_size == 1 else f"-rank-{self.ranks.rank}"
        path = self.folder / f"nonfinite-step-{step}{rank}.safetensors"
        tensors = {k: v for k, v in self._examples(batch, step).tensors().items() if v is not None}
        model = {f"model/{k}": v for k, v in distributed.whole_state(self.job.model).items()}
        weights = model if self.ranks.main else {}  # the others have the same
        save_tensors(path, {**tensors, "index": batch.index, **weights})
        return path

    def _roll_back(self, bad: int, problem: str) -> None:
        """Go back to the last checkpoint, and on with the batches that follow the bad one."""
        reached, rollbacks = bad + self.state.offset, self.state.rollbacks + 1
        saved = self.checkpoints.go_back()
        if saved is None:
            raise TrainingError(f"{problem}; there is no checkpoint yet to go back to")
        self._take(saved)
        self.state.rollbacks = rollbacks
        self.state.offset = reached + 1 - self.state.step
        self.schedule.reductions, self.schedule.waited = self.state.reductions, self.state.waited
        self._seek()
        self.meter.discard()
        self._event("rollback", step=bad, back_to=self.state.step)
        self.display.say(f"{problem}; back to step {self.state.step}, on with the batches after it")

    # ------------------------------------------------------------------ evaluation

    def _evaluation_is_due(self) -> bool:
        step = self.state.step
        return step > 0 and (step % self.evaluate_every == 0 or step == self.state.total)

    def _evaluate_if_due(self) -> None:
        state = self.state
        if not self._evaluation_is_due() or state.evaluated == state.step:
            return
        self.meter.discard()
        metric = self.job.objective.metric
        with self.engine.averaged():
            metrics = self._evaluate("validation", self.job.validation)
            improved = self.job.objective.better(metrics[metric], state.best_metric)
            if improved:
                self.best = distributed.whole_state(self.job.model)
                state.best_step, state.best_metric = state.step, metrics[metric]
                state.best_metrics = finite(metrics)
        state.without_improvement = 0 if improved else state.without_improvement + 1
        self.schedule.evaluated(improved)
        state.reductions, state.waited = self.schedule.reductions, self.schedule.waited
        state.evaluated = state.step
        line = self._line("validation") | metrics
        self._write(line)
        self.display.evaluated(line)

    def _evaluate(self, split: str, batches: Batches, views: int = 1) -> dict[str, Any]:
        def each(number: int) -> None:
            self.display.evaluating(self.state.step, split, number, len(batches))
            if self.signals.received and self.ranks.world_size == 1:
                raise Interrupted

        return evaluate(self.engine, batches.epoch(0), self.evaluation_rows, True, each, views)

    # ------------------------------------------------------------------ checkpoints, the end

    def _checkpoint_if_due(self) -> None:
        at_line = self.state.step == self.state.logged
        signum = self.signals.received
        if self.ranks.world_size > 1:  # ranks agree at lines of the curve, where all of them wait
            flag = torch.tensor(signum if at_line else 0, device=self.ranks.device)
            signum = int(self.ranks.largest(flag)) if at_line else 0
        spent = time.perf_counter() - self.checkpoints.written
        late = at_line and self.ranks.same(spent >= self.options.checkpoint_seconds)
        if (late and self.state.step) or signum or self._is_over():
            self._checkpoint()
        if signum:
            raise self._stopped(signum)

    def _stopped(self, signum: int) -> Stopped:
        return Stopped(
            signum, f"stopped at step {self.state.step}; the same command goes on from here"
        )

    def _checkpoint(self) -> None:
        state = self.state
        if self.checkpoints.step == state.step or self._check_finite():
            return
        self.meter.discard()
        tensors = self.engine.tensors()
        current = state.best_step == state.step and not self.engine.average
        if not (self.options.small_checkpoints and current):
            tensors |= {f"best/{name}": tensor for name, tensor in self.best.items()}
        state.seconds = time.perf_counter() - self._began
        state.note_memory(peak_memory_mib(self.ranks.device))
        self.checkpoints.write(state, tensors)

    def _finish(self) -> Result:
        """Evaluate the selected weights on test, for the first time."""
        if self.best:
            distributed.load_whole_state(self.job.model, self.best)
        else:  # validation was never finite: the last weights stay, and the metrics show it
            self.state.best_step = self.state.step
        metrics = {"validation": self.state.best_metrics}
        views = 1 if self.job.test is None else self.options.views  # pretraining has no test
        try:
            for split, batches in (("validation", self.job.validation), ("test", self.job.test)):
                if batches is not None and (views > 1 or not metrics.get(split)):
                    metrics[split] = self._evaluate(split, batches, views)
        except Interrupted:
            raise self._stopped(self.signals.received) from None
        return Result(self.state.best_step, metrics)

    def final_weights(self) -> dict[str, Tensor]:
        """The selected weights after :meth:`run`, whole, on the CPU; every rank must call it."""
        return distributed.whole_state(self.job.model, keep_vars=False)
