"""AdamW and Muon in groups, learning-rate schedules, and an average of the weights."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from longlens.training.muon import Muon


def parameter_groups(
    named: Iterable[tuple[str, nn.Parameter]],
    hints: Mapping[str, Mapping[str, float]] | None = None,
    *,
    lr: float,
    weight_decay: float,
    decay_vectors: bool = False,
    muon: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Group parameters by learning rate, weight decay and who updates them.

    A parameter that ``hints`` name (state-space parameters, see ``longlens.layers.base``) has its
    own learning rate and decay; of the others, vectors (biases, norms) are not decayed unless
    ``decay_vectors``. Those named by ``muon`` and not by ``hints`` are for Muon.

    Returns:
        groups with ``names``, ``params``, ``base_lr``, ``weight_decay`` and ``muon``.

    >>> layer = nn.Linear(2, 2)
    >>> groups = parameter_groups(layer.named_parameters(), lr=0.1, weight_decay=0.01)
    >>> [(g["names"], g["weight_decay"]) for g in groups]
    [(['weight'], 0.01), (['bias'], 0.0)]
    """
    groups: dict[tuple[float, float, bool], dict[str, Any]] = {}
    for name, parameter in named:
        if not parameter.requires_grad:
            continue
        hint = (hints or {}).get(name, {})
        decays = weight_decay if parameter.dim() > 1 or decay_vectors else 0.0
        rate, decay = hint.get("lr", lr), hint.get("weight_decay", decays)
        by_muon = name in muon and not hint
        group = groups.setdefault(
            (rate, decay, by_muon),
            {
                "names": [], "params": [], "base_lr": rate, "weight_decay": decay,
                "muon": by_muon,
            },
        )  # fmt: skip
        group["names"].append(name)
        group["params"].append(parameter)
    return list(groups.values())


@dataclass
class Schedule:
    """The factor on every learning rate at each step.

    Linear from 0 over the warm-up, then ``cosine`` or ``linear`` down to ``final``, ``constant``,
    or ``plateau``: multiplied by ``reduction`` after ``patience`` evaluations without improvement.
    All but the plateau's two counters is a pure function of the step.

    >>> schedule = Schedule("linear", total=11, warmup=2)
    >>> [round(schedule.factor(step), 2) for step in (0, 1, 2, 6, 10)]
    [0.5, 1.0, 1.0, 0.56, 0.11]
    """

    kind: str
    total: int
    warmup: int
    final: float = 0.0
    patience: int = 5
    reduction: float = 0.5
    reductions: int = 0
    waited: int = 0

    def factor(self, step: int) -> float:
        """The factor for the update that is made after ``step`` updates."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.kind == "plateau":
            return float(self.reduction**self.reductions)
        if self.kind == "constant":
            return 1.0
        done = (step - self.warmup) / max(1, self.total - self.warmup)
        left = 1.0 - min(1.0, done)
        if self.kind == "cosine":
            left = 0.5 * (1.0 - math.cos(math.pi * left))
        return self.final + (1.0 - self.final) * left

    def evaluated(self, improved: bool) -> None:
        """Tell the plateau about an evaluation."""
        self.waited = 0 if improved else self.waited + 1
        if self.kind == "plateau" and self.waited > self.patience:
            self.reductions, self.waited = self.reductions + 1, 0


def warmup_steps(warmup: float, total: int) -> int:
    """Steps of warm-up: ``warmup`` itself from 1 on, below it that share of ``total``."""
    return round(warmup if warmup >= 1 else warmup * total)


def endless_warmup(warmup: float, total: int) -> str:
    """Say so where a warm-up in steps does not end before the run; an empty string if it does.

    >>> endless_warmup(10, 20), endless_warmup(0.1, 20)
    ('', '')
    """
    if warmup < 1 or warmup < total:
        return ""
    return (
        f"warmup is {warmup:,.0f} steps, and the run has {total:,}: the learning rate rises to "
        "the end; a warmup below 1 is a share of the run"
    )


class Optimizer:
    """Fused AdamW, and Muon, on plain tensors: state by name, no host synchronisation.

    Clipping is part of the fused update (the kernel divides the gradients by ``scale``), and
    an update is left out on the device where ``skip`` is 1.

    Args:
        groups: from :func:`parameter_groups` (without ``muon``: AdamW's), with ``params`` that own
            their memory (for weights in shards: the local shards, beside ``sharded``, the tensors
            of which they are parts).
        betas: AdamW's decay rates.
        capturable: keep learning rates in device memory, so that a CUDA graph sees them change.

    >>> w = torch.ones(2)
    >>> groups = [dict(names=["w"], params=[w], base_lr=0.1, weight_decay=0.0)]
    >>> optimizer = Optimizer(groups)
    >>> w.grad = torch.ones(2)
    >>> optimizer.set_factor(1.0)
    >>> optimizer.step(scale=torch.tensor(1.0), skip=torch.tensor(0.0))
    >>> w
    tensor([0.9000, 0.9000])
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        betas: tuple[float, float] = (0.9, 0.999),
        capturable: bool = False,
    ) -> None:
        self.names = [name for group in groups for name in group["names"]]
        self.tensors: list[Tensor] = [p for group in groups for p in group["params"]]
        self.in_memory = capturable

        def rated(group: dict[str, Any]) -> dict[str, Any]:
            rate = group["base_lr"]
            if capturable:
                rate = torch.tensor(rate, device=group["params"][0].device)
            return {**group, "lr": rate}

        self.muon = Muon([rated(group) for group in groups if group.get("muon")])
        self.adamw = torch.optim.AdamW(
            [rated(group) for group in groups if not group.get("muon")],
            lr=1.0,
            betas=betas,
            fused=True,
            capturable=capturable,
        )

    def set_factor(self, factor: float) -> None:
        """Set every group's learning rate to its base times ``factor``."""
        for group in (*self.muon.groups, *self.adamw.param_groups):
            rate = group["base_lr"] * factor
            if self.in_memory:
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def step(self, scale: Tensor, skip: Tensor) -> None:
        """Update the parameters from gradients divided by ``scale``, unless ``skip`` is 1."""
        # torch's own interface for loss scaling, which the fused kernels read on the device
        self.adamw.grad_scale = scale  # type: ignore[attr-defined]
        self.adamw.found_inf = skip  # type: ignore[attr-defined]
        self.muon.step(scale, skip)
        self.adamw.step()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for tensor in self.tensors:
            tensor.grad = None

    def state(self) -> dict[str, dict[str, Tensor]]:
        """``exp_avg``, ``exp_avg_sq`` and ``step`` of each parameter that was updated so far.

        Muon has ``exp_avg`` alone.
        """
        state = {name: {"exp_avg": momentum} for name, momentum in self.muon.momentum.items()}
        for name, tensor in zip(self.names, self.tensors, strict=True):
            if tensor in self.adamw.state:
                state[name] = dict(self.adamw.state[tensor])
        return state

    def load(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over what :meth:`state` returned; an empty state is that before the first step."""
        for name, tensor in zip(self.names, self.tensors, strict=True):
            given = state.get(name)
            if name in self.muon.momentum:
                momentum = self.muon.momentum[name]
                momentum.zero_() if given is None else momentum.copy_(given["exp_avg"])
                continue
            if given is None and tensor not in self.adamw.state:
                continue
            # in place where there is a state: a captured CUDA graph has its addresses
            moments = self.adamw.state[tensor]
            if not moments:
                device = tensor.device if self.in_memory else "cpu"
                moments["step"] = torch.zeros((), device=device)
                moments["exp_avg"], moments["exp_avg_sq"] = (
                    torch.zeros_like(tensor) for _ in range(2)
                )
            for key, target in moments.items():
                target.zero_() if given is None else target.copy_(given[key])


@torch.no_grad()
def update_average(average: list[Tensor], tensors: list[Tensor], decay: float) -> None:
    """Move an exponential average of the weights by one step, in place."""
    torch._foreach_lerp_(average, tensors, 1.0 - decay)
