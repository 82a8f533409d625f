"""What is decided about a call before it runs: the plan that runs, and that `explain` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longlens.ops.las.call import Call
from longlens.ops.las.checks import check_rates, may_read, read_alpha
from longlens.ops.las.transforms import exporting

IMPLEMENTATIONS = ("auto", "reference", "sdpa", "triton")


class Assumed(NamedTuple):
    """What a plan takes for granted about α."""

    alpha_max: float | None = None  # a bound on it; None: nothing is known
    equal_in_group: bool = False  # it is constant over the query heads of each key head
    fits: bool = True  # the ranges of all decays, where a call of the family has read them


@dataclass(frozen=True)
class Plan:
    """The way that a call takes and why; `print(plan)` reads well."""

    impl: str  # whose attention runs: "reference", "sdpa" or "triton"
    route: str  # a row of `routes.ROUTES`
    reasons: tuple[str, ...] = ()
    assumed: Assumed = field(default_factory=Assumed)
    prologue: bool = False  # one Triton pass prepares queries, keys and values
    pieces: tuple[Plan | None, ...] = ()  # of a chunked call; None: rows that see no key
    steps: tuple[str, ...] = ()  # the functions and kernels that will run; `explain` fills it in

    def __str__(self) -> str:
        head = self.impl if self.impl == self.route else f"{self.impl}/{self.route}"
        counted = (f"{s} × {n}" if n > 1 else s for s, n in Counter(self.steps).items())
        steps = [f"steps: {', '.join(counted)}"] if self.steps else []
        return "\n  - ".join([head, *self.reasons, *steps])


class Route(NamedTuple):
    """One way to compute attention, and when it may."""

    impl: str
    name: str
    refusal: Callable[[Any, Assumed], str | None]  # why it does not serve a call; None: it does
    why: str  # it is taken
    run: Callable[[Any, Plan], Tensor]
    steps: Callable[[Any, Plan], list[str]] | list[str]
    named: bool = True  # `impl` may ask for it by name, and not "auto" alone choose it


def always(call: Any, assumed: Assumed) -> None:
    """The refusal of a route that serves whatever comes."""
    return


def choose(routes: tuple[Route, ...], call: Any, impl: str, assumed: Assumed) -> Route:
    """The first route of a table that serves the call, among those of `impl` where it is named.

    By itself, "auto" takes Triton on CUDA devices only, and exports none of it.
    """
    refusal, on_gpu = None, call.query.is_cuda and not exporting()
    for route in routes:
        if (route.named and route.impl == impl) or (
            impl == "auto" and (on_gpu or route.impl != "triton")
        ):
            refusal = route.refusal(call, assumed)
            if refusal is None:
                return route
    raise ValueError(
        f"impl={impl!r} is not possible: {refusal}; use "
        + ("'reference'" if impl == "sdpa" else "'auto'")
    )


def check_impl(impl: str) -> None:
    """Refuse an unknown implementation."""
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl must be one of {IMPLEMENTATIONS}, got {impl!r}")


def assume(call: Call, impl: str) -> Assumed:
    """Read α where that is possible and needed; elsewhere its bound, if any, is all there is."""
    alpha = call.alpha
    if alpha is None or call.alpha_max is not None or impl in ("reference", "triton"):
        check_rates(alpha, call.alpha_max)
        return Assumed(call.alpha_max)
    if not may_read(alpha):
        return Assumed()
    bound, equal = read_alpha(alpha, call.key.shape[1])
    # Each head's α has a gradient of its own, so learning them rules sharing out.
    return Assumed(bound, equal and not alpha.requires_grad)


def no_operator(call: Any) -> str | None:
    """Why PyTorch's fused attention does not take such tensors; None: it does."""
    device, dtype = call.query.device.type, call.query.dtype
    if device not in ("cpu", "cuda", "meta") or (device == "cuda" and dtype == torch.float64):
        return f"PyTorch exposes no fused attention for {dtype} on {device}"
    return None
