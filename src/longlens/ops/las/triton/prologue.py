"""One pass before attention: rotate and scale the rows of Q and K, pool or filter V; its adjoint.

A program handles one block of rows of one head. Heads are numbered through q, k and v, so that for
the packed output of a projection neighbouring programs read neighbouring memory. Arithmetic is in
float32 and rounds once.
"""

# Kernels have no annotations to check.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

# Numbers that are not worth a compilation of their own when divisible by 16 or equal to 1
COUNTS = [
    *("rows", "keys", "mask_b", "share_b", "angle_b"),
    *("q_heads", "k_heads", "group", "rates", "shares"),
]


@triton.jit
def _load(base, i, stride, present, d, D: tl.constexpr, WIDTH: tl.constexpr):
    """Rows i of a head as float32 (BLOCK, WIDTH), zero where absent."""
    ok = present[:, None]
    if D < WIDTH:
        ok = ok & (d < D)[None, :]
    return tl.load(base + i[:, None] * stride + d[None, :], mask=ok, other=0.0).to(tl.float32)


@triton.jit
def _store(base, x, i, stride, present, d, OUT: tl.constexpr, WIDTH: tl.constexpr):
    ok = present[:, None]
    if OUT < WIDTH:
        ok = ok & (d < OUT)[None, :]
    tl.store(base + i[:, None] * stride + d[None, :], x.to(base.dtype.element_ty), mask=ok)


@triton.jit
def _rotate(
    x, partner, cos, sin, angle_base, i, present, d, D: tl.constexpr, INVERSE: tl.constexpr
):
    """Turn the pairs (x_d, x_{d+D/2}) by the angles of row i; `partner` holds the other halves."""
    half: tl.constexpr = D // 2
    at = angle_base + i[:, None] * half + (d % half)[None, :]
    ok = present[:, None] & (d < D)[None, :]
    c = tl.load(cos + at, mask=ok, other=0.0)
    s = tl.load(sin + at, mask=ok, other=0.0)
    first = (d < half)[None, :]
    if INVERSE:
        return x * c + tl.where(first, partner, -partner) * s
    return x * c + tl.where(first, -partner, partner) * s


@triton.jit
def _factors(alpha, head, distance, scale, HAS_ALPHA: tl.constexpr):
    """exp(-α·distance)·scale for each row."""
    if HAS_ALPHA:
        return tl.exp(-tl.load(alpha + head).to(tl.float32) * distance) * scale
    return distance * 0.0 + scale


@triton.jit
def _partner(d, D: tl.constexpr):
    """The index of the other element of each rotated pair."""
    half: tl.constexpr = D // 2
    return tl.where(d < half, d + half, tl.where(d < D, d - half, d))


@triton.jit
def _sequence(starts, stops, i, length, VARLEN: tl.constexpr):
    """First position and end of the sequence that each row belongs to."""
    if VARLEN:
        start = tl.load(starts + i, mask=i < length, other=0)
        stop = tl.load(stops + i, mask=i < length, other=0)
    else:
        start = i * 0
        stop = start + length
    return start, stop


@triton.jit
def _tap(taps, head, t, BEFORE: tl.constexpr, AFTER: tl.constexpr):
    """How much of the value t positions back goes into one of this head."""
    return tl.load(taps + head * (BEFORE + AFTER + 1) + AFTER + t).to(tl.float32)


@triton.jit
def _scaled(
    source, target, alpha, head, cos, sin, angle_base, i, source_stride, target_stride, rows,
    distance, scale, d, D: tl.constexpr, OUT: tl.constexpr, WIDTH: tl.constexpr,
    HAS_ALPHA: tl.constexpr, ROTARY: tl.constexpr,
):  # fmt: skip
    present = i < rows
    x = _load(source, i, source_stride, present, d, D, WIDTH)
    if ROTARY:
        y = _load(source, i, source_stride, present, _partner(d, D), D, WIDTH)
        x = _rotate(x, y, cos, sin, angle_base, i, present, d, D, False)
    x *= _factors(alpha, head, distance, scale, HAS_ALPHA)[:, None]
    _store(target, x, i, target_stride, present, d, OUT, WIDTH)


@triton.jit(do_not_specialize=COUNTS)
def prologue_forward(
    q, k, v, q_out, k_out, v_out, alpha, mask, share, cos, sin, starts, stops,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l,
    qo_b, qo_h, qo_l, ko_b, ko_h, ko_l, vo_b, vo_h, vo_l,
    mask_b, share_b, angle_b, rows, keys, centre, scale, q_heads, k_heads, group, rates,
    D: tl.constexpr, DV: tl.constexpr, OUT: tl.constexpr, WIDTH: tl.constexpr,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, BLOCK: tl.constexpr, HAS_ALPHA: tl.constexpr,
    HAS_MASK: tl.constexpr, RENORMALIZE: tl.constexpr, TAPS: tl.constexpr,
    ROTARY: tl.constexpr, VARLEN: tl.constexpr,
):  # fmt: skip
    """Scale, rotate and pool. k_heads counts the heads that are written, group per head read.

    With TAPS, `share` holds a filter of BEFORE + AFTER + 1 numbers for each head of v written.
    """
    head, b = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    i = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, WIDTH)
    distance = i.to(tl.float32) - centre
    if head < q_heads:
        _scaled(
            q + b * q_b + head * q_h, q_out + b * qo_b + head * qo_h, alpha, head, cos, sin,
            b * angle_b, i, q_l, qo_l, rows, distance, scale, d, D, OUT, WIDTH, HAS_ALPHA, ROTARY,
        )  # fmt: skip
    elif head < q_heads + k_heads:
        own = head - q_heads
        _scaled(
            k + b * k_b + (own // group) * k_h, k_out + b * ko_b + own * ko_h, alpha, own * rates,
            cos, sin, b * angle_b, i, k_l, ko_l, rows, -distance, scale, d, D, OUT, WIDTH,
            HAS_ALPHA, ROTARY,
        )  # fmt: skip
    else:
        own = head - q_heads - k_heads
        source = v + b * v_b + (own // group) * v_h
        total = tl.zeros((BLOCK, WIDTH), tl.float32)
        start, stop = _sequence(starts, stops, i, keys, VARLEN)
        for t in range(-AFTER, BEFORE + 1):
            j = i - t
            present = (j >= start) & (j < stop) & (i < rows)
            if HAS_MASK:
                present = present & (tl.load(mask + b * mask_b + j, mask=present, other=0) != 0)
            found = _load(source, j, v_l, present, d, DV, WIDTH)
            if TAPS:
                found *= _tap(share, own, t, BEFORE, AFTER)
            total += found
        if RENORMALIZE:
            total *= tl.load(share + b * share_b + i, mask=i < rows, other=0.0)[:, None]
        elif not TAPS:
            total *= 1.0 / (BEFORE + AFTER + 1)
        _store(v_out + b * vo_b + own * vo_h, total, i, vo_l, i < rows, d, OUT, WIDTH)


@triton.jit
def _unscaled(
    gradient, source, alpha, head, cos, sin, angle_base, i, gradient_stride, source_stride, rows,
    distance, scale, d, D: tl.constexpr, WIDTH: tl.constexpr, HAS_ALPHA: tl.constexpr,
    ROTARY: tl.constexpr, ALPHA_GRADIENT: tl.constexpr,
):  # fmt: skip
    """The gradient of a row before scaling and rotation, and each row's share of α's gradient."""
    present = i < rows
    factor = _factors(alpha, head, distance, scale, HAS_ALPHA)[:, None]
    g = _load(gradient, i, gradient_stride, present, d, D, WIDTH) * factor
    rate_gradient = tl.zeros_like(distance)
    if ALPHA_GRADIENT:
        x = _load(source, i, source_stride, present, d, D, WIDTH)
        if ROTARY:
            y = _load(source, i, source_stride, present, _partner(d, D), D, WIDTH)
            x = _rotate(x, y, cos, sin, angle_base, i, present, d, D, False)
        # beyond the last row the factor may be infinite, and 0·inf is no number
        rate_gradient = tl.where(present, -distance * tl.sum(x * g, 1), 0.0)
    if ROTARY:
        other = _load(gradient, i, gradient_stride, present, _partner(d, D), D, WIDTH) * factor
        g = _rotate(g, other, cos, sin, angle_base, i, present, d, D, True)
    return g, rate_gradient


@triton.jit(do_not_specialize=COUNTS)
def prologue_backward(
    q, k, v, dq_out, dk_out, dv_out, dq, dk, dv, rate_gradients, alpha, mask, share, cos, sin,
    starts, stops,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l,
    qo_b, qo_h, qo_l, ko_b, ko_h, ko_l, vo_b, vo_h, vo_l,
    dq_b, dq_h, dq_l, dk_b, dk_h, dk_l, dv_b, dv_h, dv_l,
    mask_b, share_b, angle_b, rows, keys, centre, scale, q_heads, k_heads, group, rates, shares,
    D: tl.constexpr, DV: tl.constexpr, WIDTH: tl.constexpr, BEFORE: tl.constexpr,
    AFTER: tl.constexpr, BLOCK: tl.constexpr, HAS_ALPHA: tl.constexpr, HAS_MASK: tl.constexpr,
    RENORMALIZE: tl.constexpr, TAPS: tl.constexpr, ROTARY: tl.constexpr,
    ALPHA_GRADIENT: tl.constexpr, TAPS_GRADIENT: tl.constexpr, VARLEN: tl.constexpr,
):  # fmt: skip
    """Gradients of q, k and v from those of the outputs. k_heads counts the heads of k itself.

    Each program also writes its share of the gradients of α, by head of q and of k, and of the
    taps, as one of `shares` numbers that lie side by side for each of these.
    """
    head, b = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    block = tl.program_id(1).to(tl.int64)
    i = block * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, WIDTH)
    distance = i.to(tl.float32) - centre
    partial = rate_gradients + b * tl.num_programs(1) + block
    if head < q_heads:
        g, rate_gradient = _unscaled(
            dq_out + b * qo_b + head * qo_h, q + b * q_b + head * q_h, alpha, head, cos, sin,
            b * angle_b, i, qo_l, q_l, rows, distance, scale, d, D, WIDTH, HAS_ALPHA, ROTARY,
            ALPHA_GRADIENT,
        )  # fmt: skip
        _store(dq + b * dq_b + head * dq_h, g, i, dq_l, i < rows, d, D, WIDTH)
        if ALPHA_GRADIENT:
            tl.store(partial + head * shares, tl.sum(rate_gradient, 0))
    elif head < q_heads + k_heads:
        own = head - q_heads
        total = tl.zeros((BLOCK, WIDTH), tl.float32)
        for member in range(group):
            out = own * group + member
            g, rate_gradient = _unscaled(
                dk_out + b * ko_b + out * ko_h, k + b * k_b + own * k_h, alpha, out * rates, cos,
                sin, b * angle_b, i, ko_l, k_l, rows, -distance, scale, d, D, WIDTH, HAS_ALPHA,
                ROTARY, ALPHA_GRADIENT,
            )  # fmt: skip
            total += g
            if ALPHA_GRADIENT:
                tl.store(partial + (q_heads + out) * shares, tl.sum(rate_gradient, 0))
        _store(dk + b * dk_b + own * dk_h, total, i, dk_l, i < keys, d, D, WIDTH)
    else:
        own = head - q_heads - k_heads
        total = tl.zeros((BLOCK, WIDTH), tl.float32)
        start, stop = _sequence(starts, stops, i, rows, VARLEN)
        real = i < keys
        if HAS_MASK:
            real = tl.load(mask + b * mask_b + i, mask=real, other=0) != 0
        if TAPS_GRADIENT:
            values = _load(v + b * v_b + own * v_h, i, v_l, real, d, DV, WIDTH)
        for member in range(group):
            out = own * group + member
            source = dv_out + b * vo_b + out * vo_h
            for t in range(-AFTER, BEFORE + 1):
                j = i + t  # the windows that hold value i
                present = (j >= start) & (j < stop)
                g = _load(source, j, vo_l, present, d, DV, WIDTH)
                if RENORMALIZE:
                    g *= tl.load(share + b * share_b + j, mask=present, other=0.0)[:, None]
                if TAPS_GRADIENT:
                    at = q_heads + k_heads * group + out * (BEFORE + AFTER + 1) + AFTER + t
                    tl.store(partial + at * shares, tl.sum(tl.sum(g * values, 1), 0))
                if TAPS:
                    g *= _tap(share, out, t, BEFORE, AFTER)
                total += g
        if not RENORMALIZE and not TAPS:
            total *= 1.0 / (BEFORE + AFTER + 1)
        if HAS_MASK:
            total = tl.where(real[:, None], total, 0.0)
        _store(dv + b * dv_b + own * dv_h, total, i, dv_l, i < keys, d, DV, WIDTH)
