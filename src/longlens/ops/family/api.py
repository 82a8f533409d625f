"""`decay_attention`: the family in one function, and how a call of it runs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from longlens.ops.family import routes
from longlens.ops.family.call import DecayCall, check
from longlens.ops.family.reference import reference_weights
from longlens.ops.las.plan import Plan


def decay_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    alpha: Tensor | None = None,
    log_gate: Tensor | None = None,
    slopes: Tensor | None = None,
    power: Tensor | None = None,
    log_forget: Tensor | None = None,
    sink: Tensor | None = None,
    taps: Tensor | None = None,
    smoothing: str | None = None,
    edge: str = "zero",
    is_causal: bool = True,
    key_mask: Tensor | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    rate_max: float | None = None,
    impl: str = "auto",
) -> Tensor:
    """Attention with any decay before the softmax and any smoother after it, exact.

    The parts may be combined; all are differentiable. `ops/family/reference.py` is the definition.

    Args:
        query: (B, Hq, L, D); the queries are the last ones of the keys' positions.
        key: (B, Hkv, S, D).
        value: (B, Hkv, S, Dv).
        alpha: (Hq,), at least 0: scores are multiplied by exp(-α·distance), as in LaS.
        log_gate: (B, Hq, S, D), at most 0: logarithms of gates per token and channel, whose running
            sum decays each product of channels (Wall attention). Causal only.
        slopes: (Hq,): -slope·distance is added to scores (ALiBi), fixed or learned.
        power: (Hq,): -power·log(1 + distance) is added, so that weights follow a power law.
        log_forget: (B, Hq, S), at most 0: logarithms of forget gates, whose sum between key and
            query is added (Forgetting Transformer). Causal only.
        sink: (Hq,): a logit that takes part in the softmax and gives nothing.
        taps: (Hq, P): filters of the attention rows, see `filter_values`; None: none.
        smoothing: where taps reach, as in `las_attention`.
        edge: as in `las_attention`.
        is_causal: whether key j must not lie after query i.
        key_mask: (B, S) bool, True for a real token.
        scale: factor of the scores; None: 1/sqrt(D).
        enable_gqa: allow fewer key heads than query heads.
        rate_max: a bound on `alpha` and -`log_gate` (on their sum, if both are there) that is known
            without reading them. Compiled code and CUDA graphs want one; without it eager code
            reads, and compiled code takes parts that hold for any range.
        impl: "auto", or "reference", "sdpa", "triton" by name; `explain_decay` tells what "auto"
            takes.

    Returns:
        (B, Hq, L, Dv). A query with no key to attend to gets zeros.

    >>> from longlens.ops.family import smoothing_taps
    >>> q, k, v = (torch.randn(2, 4, 100, 32) for _ in range(3))
    >>> forget = torch.nn.functional.logsigmoid(torch.randn(2, 4, 100) + 4)
    >>> decay_attention(q, k, v, log_forget=forget, taps=smoothing_taps(4, 5, "gaussian")).shape
    torch.Size([2, 4, 100, 32])

    """
    call = DecayCall(
        query, key, value, alpha, log_gate, slopes, power, log_forget, sink, taps, smoothing, edge,
        is_causal, key_mask, scale, enable_gqa, rate_max,
    )  # fmt: skip
    return routes.attend(call, impl)


def explain_decay(
    query: Tensor, key: Tensor, value: Tensor, *, impl: str = "auto", **options: Any
) -> Plan:
    """Say which way `decay_attention` takes for the same arguments, why, and by which steps.

    >>> q = torch.randn(1, 2, 100, 16)
    >>> print(explain_decay(q, q, q, slopes=torch.tensor([0.1, 0.2])))
    sdpa/folded
      - every decay in range: one attention call
      - steps: biased_attention
    """
    call = check(DecayCall(query, key, value, **options))
    return routes.with_steps(call, routes.make_plan(call, impl))


def decay_weights(query: Tensor, key: Tensor, **options: Any) -> Tensor:
    """The smoothed attention matrix (B, Hq, L, S) itself, for small lengths.

    >>> q = torch.zeros(1, 1, 2, 4)
    >>> decay_weights(q, q, sink=torch.zeros(1))[0, 0]
    tensor([[0.5000, 0.0000],
            [0.3333, 0.3333]])
    """
    return reference_weights(check(DecayCall(query, key, key, **options)))


__all__ = ["decay_attention", "decay_weights", "explain_decay"]
