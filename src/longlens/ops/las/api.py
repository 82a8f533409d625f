"""`las_attention` and its relatives: what users call. `routes.py` decides how a call runs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from longlens.ops.las.call import Call, cast, check
from longlens.ops.las.checks import check_rates
from longlens.ops.las.plan import Plan
from longlens.ops.las.reference import reference_weights
from longlens.ops.las.routes import attend, planned, with_steps
from longlens.ops.numerics import keep_dtypes


def las_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    alpha: Tensor | None = None,
    window: int = 1,
    smoothing: str | None = None,
    edge: str = "zero",
    is_causal: bool = True,
    key_mask: Tensor | None = None,
    query_offset: int | Tensor | None = None,
    chunk: int | None = None,
    local: int | tuple[int, int] | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    alpha_max: float | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    dropout_p: float = 0.0,
    impl: str = "auto",
) -> Tensor:
    """Local-and-Smooth attention, exact, without a matrix of queries by keys.

    The score of query i and key j is multiplied by exp(-α·distance) before the softmax, and the
    attention row is averaged over a window after it (Zimerman & Wolf, ICML 2024, Eq. 4).

    Args:
        query: (B, Hq, L, D). Query i sits at position i + `query_offset`.
        key: (B, Hkv, S, D). Key j sits at position j.
        value: (B, Hkv, S, Dv).
        alpha: decay rate of each query head, (Hq,), at least 0; None for no decay. Differentiable.
        window: width P of the average; 1 for no smoothing.
        smoothing: "causal" (each key averages its last P values), "centered" (P odd; under a
            causal mask a query then sees up to P//2 values ahead) or "masked" (centered, cut at
            the query). None: "causal" if `is_causal` else "centered".
        edge: "zero" (divide by P everywhere) or "renormalize" (each key shares its
            weight among the positions that it reaches, so that rows sum to 1).
        is_causal: whether key j must not lie after query i.
        key_mask: (B, S) bool, True for a real token.
        query_offset: position of the first query: an int, or a tensor of 1 or B integers.
            None: S - L, the queries are the last ones.
        chunk: attend only inside blocks of this many positions (LaS-chunk).
        local: attend only to keys closer than this many positions (a sliding window): the last
            `local` keys if causal, 2·local - 1 around the query else. A pair (left, right) counts
            the keys on each side of the query's own position; right is 0 if causal. The window
            bounds the softmax; the averaging after it gives to values up to P-1 positions beyond.
        softcap: c·tanh(s/c) in place of each score s, before the decay (Gemma 2). No fused kernel
            has it: the formula runs on blocks of rows.
        sink: (Hq,), the score of one more key in each head, whose value is zero (GPT-OSS).
        alpha_max: a bound on `alpha` known without reading it. Compiled code and CUDA graphs want
            one; without it eager code reads `alpha` and compiled code takes a range-free path.
        scale: factor of the scores; None: 1/sqrt(D).
        enable_gqa: allow fewer key heads than query heads.
        dropout_p: for the sake of SDPA's signature; anything but 0 raises.
        impl: "auto", or "reference", "sdpa", "triton" by name. `explain` tells what auto takes.

    Returns:
        (B, Hq, L, Dv). A query with no key to attend to gets zeros.

    >>> q, k, v = (torch.randn(2, 8, 100, 32) for _ in range(3))
    >>> las_attention(q, k, v, alpha=decay_rates(8), window=5).shape
    torch.Size([2, 8, 100, 32])

    """
    if dropout_p != 0:
        raise ValueError(f"dropout_p must be 0: LaS attention has no dropout, got {dropout_p}")
    call = Call(
        query, key, value, alpha, window, smoothing, edge, is_causal, key_mask, query_offset,
        chunk, alpha_max, scale, enable_gqa, local=local, softcap=softcap, sink=sink,
    )  # fmt: skip
    return attend(call, impl)


def las_attention_packed(
    packed: Tensor,
    num_heads: int,
    num_kv_heads: int,
    *,
    angles: tuple[Tensor, Tensor] | None = None,
    impl: str = "auto",
    **options: Any,
) -> Tensor:
    """`las_attention` on a projection's output, of which queries, keys and values are parts.

    Args:
        packed: (B, Hq + 2·Hkv, L, D), the heads of the queries, then of the keys and values.
        num_heads: Hq.
        num_kv_heads: Hkv.
        angles: cosines and sines of `rotary_angles`, by which queries and keys are still to be
            rotated; None: not at all.
        impl: as in `las_attention`.
        options: the other options of `las_attention`.

    Returns:
        (B, Hq, L, D). Where fused kernels serve the call, rotation and pooling are one pass over
        `packed`, and so is its gradient.

    >>> packed = torch.randn(2, 8 + 2 * 2, 100, 16)
    >>> las_attention_packed(packed, 8, 2, window=5).shape
    torch.Size([2, 8, 100, 16])

    """
    if packed.ndim != 4 or packed.shape[1] != num_heads + 2 * num_kv_heads:
        raise ValueError(
            f"packed must have shape (batch, {num_heads + 2 * num_kv_heads}, length, head_dim), "
            f"got {tuple(packed.shape)}"
        )
    q, k, v = packed.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    return attend(Call(q, k, v, packed=packed, angles=angles, enable_gqa=True, **options), impl)


def explain(
    query: Tensor, key: Tensor, value: Tensor, *, impl: str = "auto", **options: Any
) -> Plan:
    """Say which way `las_attention` takes for the same arguments, why, and by which steps.

    >>> q = torch.randn(1, 2, 100, 16)
    >>> print(explain(q, q, q, alpha=torch.tensor([0.0, 0.01])))
    sdpa/folded
      - causal decay with α·L <= 72, in range: one SDPA call
      - steps: fold_square, scaled_dot_product_attention
    """
    call = Call(query, key, value, **options)
    plan, _ = planned(call, impl)
    return with_steps(call, plan)


def las_weights(query: Tensor, key: Tensor, **options: Any) -> Tensor:
    """The smoothed attention matrix a' (B, Hq, L, S) itself, for small lengths: pictures, teaching.

    Takes the keyword arguments of `las_attention`. Columns of masked keys are zero.

    >>> q = torch.zeros(1, 1, 3, 4)
    >>> las_weights(q, q)[0, 0]
    tensor([[1.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333]])
    """
    call = Call(query, key, key, **options)
    cast(call)
    check(call)
    check_rates(call.alpha, call.alpha_max)
    with keep_dtypes(call.query):
        return reference_weights(call)
