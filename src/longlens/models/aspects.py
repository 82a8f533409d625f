"""What kind of layer is it? The design aspects of the LaS paper's Table 10, measured if possible.

Measured from a built layer: cost, causality, parameters, decaying structure, complex numbers,
recurrence. Stated by the layer's class (``Aspects``): regularisation, special initialisation,
stability, gating, normalisation.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from longlens.layers.base import Aspects
from longlens.layers.registry import MIXERS, Lazy, build, options_of
from longlens.models.count import OperationCounter, parameter_count

ASPECTS = {  # fields of a Description, and their short names in tables
    "decaying": "decay",
    "regularized": "R",
    "special_init": "U.I",
    "stable": "S",
    "gating": "G",
    "complex": "C",
    "normalized": "N",
    "non_recurrent": "non-rec",
}


@dataclass(frozen=True, kw_only=True)
class Description(Aspects):
    """One row of ``longlens layers``."""

    key: str
    paper: str
    cost: str
    direction: str
    """"causal", "bidirectional" or "both", by what the layer can be built as."""
    steps: bool
    """Has a recurrent or cached ``step``."""
    parameters: int
    decaying: bool
    complex: bool
    non_recurrent: bool


def influence(mixer: nn.Module, length: int, dim: int) -> Tensor:
    """How much the last (or, two-sided, middle) output depends on the input d steps before it.

    Returns:
        (distances,): mean |gradient| over channels and a few random inputs, d = 0, 1, 2, …
    """
    at = length - 1 if mixer.causal else length // 2
    x = torch.randn(4, length, dim, requires_grad=True)
    y = mixer(x)[:, at]
    total = torch.zeros(length)
    for _ in range(2):  # random projections of the output: no channel is left out
        (gradient,) = torch.autograd.grad((y * torch.randn_like(y)).sum(), x, retain_graph=True)
        total = total + gradient.abs().mean((0, 2))
    return total[: at + 1].flip(0)


def decays(mixer: nn.Module, length: int, dim: int) -> bool:
    """Whether near positions count at least twice as much as far ones, in a fresh layer.

    Near is the first eighth of the reachable distances without the position itself, far the last.
    """
    profile = influence(mixer, length, dim)[1:]
    eighth = max(1, len(profile) // 8)
    return bool(profile[:eighth].mean() > 2 * profile[-eighth:].mean())


def uses_complex_numbers(mixer: nn.Module, dim: int) -> bool:
    """Whether forward computes with complex numbers beyond the products inside an FFT."""
    with OperationCounter() as counter, torch.no_grad():
        mixer(torch.randn(1, 64, dim))
    return bool(counter.complex_calls)


def is_recurrent(mixer: nn.Module, dim: int) -> bool:
    """Whether a sequence eight times as long passes through more operators: a loop, or a scan.

    Operators that only make a kernel do not count. Both lengths are short, since attention may be
    computed in tiles of a long one.
    """
    calls = []
    for length in (4, 32):
        x = torch.randn(1, length, dim)
        with OperationCounter(follow=x) as counter, torch.no_grad():
            mixer(x)
        calls.append(counter.followed_calls)
    short, long = (sum(c.values()) for c in calls)
    return long > 1.25 * short or any("rnn" in name or "lstm" in name for name in calls[1])


def directions(key: str, mixer: nn.Module) -> str:
    """One of "causal", "bidirectional" and "both": what the key can be built as."""
    if "bidirectional" in options_of(key):
        return "both"
    return "causal" if mixer.causal else "bidirectional"


def paper(key: str) -> str:
    """Where a mixer comes from: what its key says, else the first line of its file."""
    factory = MIXERS[key]
    if isinstance(factory, Lazy) and factory.paper is not None:
        return factory.paper
    target: Any = factory.load() if isinstance(factory, Lazy) else factory
    text = sys.modules[target.__module__].__doc__ if target.__module__ in sys.modules else None
    return (text or target.__doc__ or "").strip().split("\n")[0].rstrip(".")


def describe(key: str, dim: int = 256, probe_length: int = 256) -> Description:
    """Describe one mixer of the registry.

    Args:
        key: its key.
        dim: the width at which parameters are counted.
        probe_length: the length at which decay is measured (on a narrower layer).

    >>> row = describe("s4d", dim=16)
    >>> row.decaying, row.complex, row.non_recurrent, row.cost
    (True, True, True, 'L log L')
    """
    limit = {"max_length": probe_length} if "max_length" in options_of(key) else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mixer = build(key, dim)
        probe_dim = 32
        probe = build(key, probe_dim, **limit)
        stated: Aspects = getattr(mixer, "aspects", Aspects())
        return Description(
            key=key,
            paper=paper(key),
            cost=str(mixer.cost),
            direction=directions(key, mixer),
            steps=hasattr(mixer, "step"),
            parameters=parameter_count(mixer),
            decaying=decays(probe, probe_length, probe_dim),
            complex=uses_complex_numbers(probe, probe_dim),
            non_recurrent=not is_recurrent(probe, probe_dim),
            **asdict(stated),
        )
