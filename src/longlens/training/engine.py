"""A model, its optimiser and one step of both: device work alone, nothing waits for the host.

Losses, gradient norms and faults add up in device memory until the loop reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from longlens.layers.decay import DecayRates
from longlens.training import distributed
from longlens.training.distributed import Ranks
from longlens.training.examples import Examples, of_any_length
from longlens.training.job import Job
from longlens.training.objective import SUMS, Objective
from longlens.training.optim import Optimizer, parameter_groups, update_average
from longlens.training.options import TrainOptions
from longlens.training.process import is_compiled
from longlens.training.scratchpad import answer

DENOISING = Objective("masked")


class Engine:
    """Runs steps and keeps the tensors of a run.

    Args:
        job: the model, on its device, and the objective.
        options: how to optimise.
        ranks: this process among all.

    Attributes:
        sums: what the training curve is computed from, of this rank, since it was last cleared.
        norms: sum of the gradient norms since then.
        first_bad: the first step since then that was not finite; -1: none.
        skipped: how many were not finite.
    """

    def __init__(self, job: Job, options: TrainOptions, ranks: Ranks) -> None:
        self.job, self.options, self.ranks = job, options, ranks
        self.device = ranks.device
        on_cuda = self.device.type == "cuda"
        self.low_precision = options.dtype == "bfloat16" or (options.dtype == "auto" and on_cuda)
        self._build_optimizer()
        self.graphs = options.graphs if on_cuda else "none"
        if self.graphs == "auto":
            self.graphs = "step" if ranks.world_size == 1 else "none"
        self._heads = {"tokens": True} if job.prepare.scratchpad else {}
        self._losses: Callable[[Examples, Tensor], tuple[Tensor, Tensor]] = self._loss_and_sums
        self.forward: Callable[[Tensor, Tensor | None], Any] = self._outputs
        self.compiled = is_compiled(options, self.device)
        if self.compiled:
            self._compile()
        if job.prepare.scratchpad:
            self.forward = partial(answer, self.forward, on_any_rank=ranks.any)
        self.update: Callable[[Examples], None] = self.device_step
        if self.graphs == "step":
            if ranks.world_size > 1:
                raise ValueError("graphs=step works in one process; under torchrun use none")
            from longlens.training.capture import CapturedStep

            self.update = CapturedStep(self.device_step)
        rates = (m for m in job.model.modules() if isinstance(m, DecayRates))
        self._learned_rates = [m for m in rates if m.learned_alpha]
        self.micro_batch = options.batch_size
        zero = torch.zeros((), dtype=torch.int64, device=self.device)
        self.sums = torch.zeros(2 * SUMS, dtype=torch.float64, device=self.device)
        self.norms = torch.zeros((), dtype=torch.float64, device=self.device)
        self.first_bad, self.skipped, self.device_step_number = zero - 1, zero.clone(), zero.clone()
        self._buffers = [b for name, b in job.model.named_buffers() if "running_" in name]
        self._kept_buffers = [buffer.clone() for buffer in self._buffers]

    def _build_optimizer(self) -> None:
        job, options = self.job, self.options
        groups = parameter_groups(
            job.model.named_parameters(),
            job.optim_hints,
            lr=options.lr,
            weight_decay=options.weight_decay,
            decay_vectors=options.decay_vectors,
            muon=self._matrices() if options.optimizer == "muon" else (),
        )
        self.module = distributed.distribute(job.model, self.ranks, options.parallel, job.units)
        self.sharded = self.ranks.world_size > 1 and options.parallel == "fsdp"
        named = dict(job.model.named_parameters())  # FSDP has replaced the parameters
        self.parameters = [named[name] for group in groups for name in group["names"]]
        for group in groups:
            group["params"] = [named[name] for name in group["names"]]
            if self.sharded:
                group["sharded"] = group["params"]
                group["params"] = [distributed.local(p.detach()) for p in group["params"]]
        betas = (options.beta1, options.beta2)
        self.optimizer = Optimizer(groups, betas, capturable=self.device.type == "cuda")
        self.average = [t.detach().clone() for t in self.optimizer.tensors] if options.ema else []

    def _matrices(self) -> set[str]:
        """Names of the linear maps inside the blocks: what Muon is for."""
        linear = (m for unit in self.job.units for m in unit.modules() if type(m) is nn.Linear)
        weights = {id(module.weight) for module in linear}
        return {name for name, p in self.job.model.named_parameters() if id(p) in weights}

    def _compile(self) -> None:
        batches = (*self.job.first, self.job.train, self.job.validation)
        lengths = {length for each in batches for length in each.shapes}
        how: dict[str, Any] = {"dynamic": None if self.options.shapes == "any" else False}
        if self.graphs == "inductor":
            how["mode"] = "reduce-overhead"
        if self.options.compile_blocks:
            for block in self.job.units:
                block.compile(**how)
            return
        self._losses = torch.compile(self._loss_and_sums, **how)
        self.forward = torch.compile(self._outputs, **how)
        if self.options.shapes == "any" and len(lengths) > 1:
            self._losses = of_any_length(self._losses)
            self.forward = of_any_length(self.forward)

    # ------------------------------------------------------------------ one step

    def device_step(self, examples: Examples) -> None:
        """Forward, backward, clipping and update."""
        world = self.ranks.world_size
        self.optimizer.zero_grad()
        counts = self._counts(examples)
        total = torch.zeros((), device=self.device)
        step_sums = torch.zeros_like(self.sums)
        parts = list(examples.split(self.micro_batch))
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            with distributed.gradients_kept_local(self.module, local=not last):
                loss, sums = self._losses(part, counts)
                (loss * world).backward()  # gradients are averaged over the ranks
            total += loss.detach()
            step_sums += sums
        if self.sharded:
            for parameter, tensor in zip(self.parameters, self.optimizer.tensors, strict=True):
                gradient = parameter.grad
                tensor.grad = None if gradient is None else distributed.local(gradient)
                parameter.grad = None
        norm = self._gradient_norm()
        bad = ~(torch.isfinite(norm) & torch.isfinite(total))
        if world > 1:
            bad = self.ranks.largest(bad.float()) > 0
        skip = self._note_bad(bad)
        clip = self.options.clip
        scale = (norm / clip).clamp(min=1.0) if clip else torch.ones_like(norm)
        self.optimizer.step(scale, skip.float())
        for rates in self._learned_rates:
            rates.clamp_()  # else their gradient would depend on how rows are cut into parts
        for buffer, kept in zip(self._buffers, self._kept_buffers, strict=True):
            buffer.copy_(torch.where(skip, kept, buffer))  # what a bad batch did to statistics
            kept.copy_(buffer)
        if self.average:
            update_average(self.average, self.optimizer.tensors, self.options.ema)
        self.sums += step_sums.masked_fill(bad, 0.0)
        self.norms += norm.double().masked_fill(bad, 0.0)
        self.device_step_number += 1

    def _loss_and_sums(self, examples: Examples, counts: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of some rows, over the counts of the whole batch, and sums for the curve."""
        objective = self.job.objective
        with self._autocast():
            if examples.hidden is None:
                outputs = self.module(examples.inputs, examples.mask)
            else:
                outputs, tokens = self.module(examples.inputs, examples.mask, tokens=True)
        loss = objective.loss_sum(outputs, examples.targets, examples.where) / counts[0]
        sums = objective.sums(outputs, examples.targets, examples.where)
        second = torch.zeros_like(sums)
        if examples.hidden is not None and examples.original is not None:
            original = examples.original.reshape(tokens.shape[:2])
            hidden = examples.hidden.reshape(tokens.shape[:2])
            denoising = DENOISING.loss_sum(tokens, original, hidden) / counts[1]
            loss = loss + self.options.denoise_weight * denoising
            second = DENOISING.sums(tokens, original, hidden)
        return loss, torch.cat([sums, second])

    def _outputs(self, inputs: Tensor, mask: Tensor | None) -> Any:
        """The model's outputs, for evaluation; with a scratchpad those of both heads."""
        with self._autocast():
            return self.module(inputs, mask, **self._heads)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.low_precision:
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    def _counts(self, examples: Examples) -> Tensor:
        """How many terms the two losses have in the whole batch, over all ranks: (2,)."""
        objective, hidden = self.job.objective, examples.hidden
        first = objective.count(examples.targets, examples.where)
        second = torch.ones_like(first) if hidden is None else hidden.sum(dtype=torch.float32)
        counts = torch.stack([first, second])
        if objective.per_position or hidden is not None:
            return self.ranks.add(counts).clamp(min=1.0)
        return counts * self.ranks.world_size

    def _gradient_norm(self) -> Tensor:
        gradients = [t.grad for t in self.optimizer.tensors if t.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        return self.ranks.add(norm.square()).sqrt() if self.sharded else norm

    def _note_bad(self, bad: Tensor) -> Tensor:
        """Remember a step that was not finite; returns whether to leave out the update.

        The policy "skip" leaves out bad updates, the others every one from the first bad one on, so
        that the weights stay as they were before it until the host finds out.
        """
        earliest = torch.where(bad & (self.first_bad < 0), self.device_step_number, self.first_bad)
        self.first_bad.copy_(earliest)
        self.skipped += bad
        return bad if self.options.nonfinite == "skip" else earliest >= 0

    # ------------------------------------------------------------------ counters and weights

    def clear(self) -> None:
        """Forget the sums of the training curve."""
        self.sums.zero_()
        self.norms.zero_()

    def clear_bad(self) -> None:
        """Forget steps that were not finite."""
        self.first_bad.fill_(-1)
        self.skipped.zero_()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside the block the model has the averaged weights, if there are any."""
        if not self.average:
            yield
            return
        tensors = self.optimizer.tensors
        kept = [tensor.detach().clone() for tensor in tensors]
        with torch.no_grad():
            torch._foreach_copy_(tensors, self.average)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(tensors, kept)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a step changes, whole and on the CPU; every rank must call it."""
        tensors = {f"model/{k}": v for k, v in distributed.whole_state(self.job.model).items()}
        like = dict(zip(self.optimizer.names, self.parameters, strict=True))
        for name, moments in self.optimizer.state().items():
            for kind, tensor in moments.items():
                joined = tensor if kind == "step" else distributed.whole(like[name], tensor)
                tensors[f"{kind}/{name}"] = distributed.copy_to_cpu(joined)
        for name, average in zip(self.optimizer.names, self.average, strict=False):
            tensors[f"ema/{name}"] = distributed.copy_to_cpu(distributed.whole(like[name], average))
        tensors["sums"] = self.ranks.add(self.sums.clone()).cpu()
        tensors["norms"] = distributed.copy_to_cpu(self.norms)
        return tensors

    def take(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Take over what :meth:`tensors` returned, in place."""
        kinds: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            kind, _, rest = name.partition("/")
            kinds.setdefault(kind, {})[rest] = tensor
        distributed.load_whole_state(self.job.model, kinds["model"])
        like = dict(zip(self.optimizer.names, self.parameters, strict=True))
        moments: dict[str, dict[str, Tensor]] = {}
        for kind in ("step", "exp_avg", "exp_avg_sq"):
            for name, tensor in kinds.get(kind, {}).items():
                part = tensor if kind == "step" else distributed.part_of(like[name], tensor)
                moments.setdefault(name, {})[kind] = part
        self.optimizer.load(moments)
        for name, average in zip(self.optimizer.names, self.average, strict=False):
            average.copy_(distributed.part_of(like[name], kinds["ema"][name]))
        for buffer, kept in zip(self._buffers, self._kept_buffers, strict=True):
            kept.copy_(buffer)
        self.clear()
        self.clear_bad()
        if self.ranks.main:  # they were added over the ranks: one of them takes them over
            self.sums.copy_(kinds["sums"][""])
        self.norms.copy_(kinds["norms"][""])
        self.device_step_number.fill_(step)

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Inside the block steps may be taken; afterwards everything is as before."""
        kept = self.tensors()
        self.optimizer.set_factor(0.0)
        try:
            yield
        finally:
            self.optimizer.zero_grad()
            self.take(kept, step=0)
