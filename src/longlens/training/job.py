"""What a run is made of: the objects to train with, its counters, and what came out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from torch import nn

from longlens.tasks.batches import Batch, Batches
from longlens.training.examples import Prepare
from longlens.training.objective import Objective


@dataclass(frozen=True)
class Job:
    """What is trained: objects that the caller has built."""

    model: nn.Module
    """``model(inputs, mask)`` gives what the objective wants; under denoising
    ``model(inputs, mask, tokens=True)`` gives that and the logits of every token."""
    objective: Objective
    train: Batches
    validation: Batches
    test: Batches | None = None
    prepare: Prepare = field(default_factory=Prepare)
    optim_hints: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Learning rate and weight decay of single parameters, by name."""
    units: Sequence[nn.Module] = ()
    """Parts of the model that FSDP gathers one after the other."""
    data: str = ""
    """Identity of the data."""
    first: Sequence[Batches] = ()
    """What a run trains on before it comes to ``train``, one after another."""
    first_steps: int = 0
    """For how many steps in all, of which each has the same share; 0 without ``first``."""

    @property
    def epoch_steps(self) -> int:
        """Steps of one pass over the training split."""
        return max(1, len(self.train))

    def epochs_at(self, position: int) -> float:
        """Passes over the training split before the step ``position``; first steps are none."""
        return max(0, position - self.first_steps) / self.epoch_steps

    def batches(self, position: int) -> Iterator[Batch]:
        """Training batches without end, from the one that a run takes at its step ``position``."""
        start = 0
        for number, batches in enumerate(self.first, start=1):
            stop = self.first_steps * number // len(self.first)
            begin = max(start, position)
            yield from islice(_without_end(batches, begin - start), max(0, stop - begin))
            start = stop
        yield from _without_end(self.train, max(0, position - start))


def _without_end(batches: Batches, position: int) -> Iterator[Batch]:
    epoch, start = divmod(position, max(1, len(batches)))
    while True:
        yield from batches.epoch(epoch, start)
        epoch, start = epoch + 1, 0


@dataclass
class State:
    """Counters that a checkpoint keeps; everything else in it is tensors."""

    step: int = 0
    offset: int = 0
    """Batches that rollbacks passed over."""
    logged: int = 0
    """Step of the last line of the training curve."""
    left_out: int = 0
    """Steps since then that were not finite, under the policy "skip"."""
    evaluated: int = -1
    """Step of the last evaluation."""
    total: int = 0
    """Steps in all, fixed when the run began."""
    micro_batch: int = 0
    """Rows that a rank computes at once."""
    best_step: int = -1
    best_metric: float | None = None
    best_metrics: dict[str, Any] = field(default_factory=dict)
    """All of that evaluation."""
    without_improvement: int = 0
    """Evaluations since the best one."""
    reductions: int = 0
    """How often the plateau schedule has lowered the learning rate."""
    waited: int = 0
    """Evaluations that it has waited for."""
    rollbacks: int = 0
    seconds: float = 0.0
    """Wall time of training, in all processes so far."""
    timed_seconds: float = 0.0
    """Of the steps that speed is measured over: without compilation, evaluation, checkpoints."""
    timed_steps: int = 0
    timed_tokens: int = 0
    timed_padded: int = 0
    peak_memory_mib: float = 0.0
    """The most of all processes so far."""
    clean: bool = True
    """Whether the code of all of them was that of its commit."""
    first_loss: float | None = None
    """Of the first line of the training curve."""
    lowest_loss: float | None = None
    collapsed: bool = False
    """Whether training has lost again what it had learned."""

    def note_memory(self, mib: float) -> None:
        """Take note of the most memory that a process has used."""
        self.peak_memory_mib = max(self.peak_memory_mib, mib)

    def forget_speed(self) -> None:
        """Measure it anew: rates are of one machine."""
        self.timed_seconds, self.timed_steps, self.timed_tokens, self.timed_padded = 0.0, 0, 0, 0

    def watch(self, loss: float) -> bool:
        """Take note of a training loss; True where it is the first that is back at the beginning.

        Loss rises in many runs for a while. It is back where it had fallen by a fifth or more and
        stands within a hundredth of the first one again, or above it.

        >>> state = State()
        >>> [state.watch(loss) for loss in (2.31, 2.1, 1.5, 2.0, 2.3, 2.3)]
        [False, False, False, False, True, False]
        """
        if self.first_loss is None or self.lowest_loss is None:
            self.first_loss = self.lowest_loss = loss
        self.lowest_loss = min(self.lowest_loss, loss)
        learned = self.lowest_loss <= 0.8 * self.first_loss
        if self.collapsed or not learned or loss < 0.99 * self.first_loss:
            return False
        self.collapsed = True
        return True


@dataclass(frozen=True)
class Result:
    """What came out of a finished run."""

    selected_step: int
    metrics: dict[str, dict[str, Any]]
    """By split: loss, metric, and the metric by every extra of the task."""
