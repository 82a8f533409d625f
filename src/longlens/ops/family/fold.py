"""Decays as numbers per position, folded into queries and keys.

Under a causal mask every decay of the family but the power law is a difference of two positions:
a product of channels is multiplied by exp(M_in - M_jn), and A_i - A_j is added to a score. M and A
fall along the sequence. About any centre, exp(M_i - c)·exp(c - M_j) scales the rows of q and k. A
makes columns of both: (1, A_i - c)·(c - A_j, 1); where a softmax sees all keys of a row at once,
A_i cancels, and A_j is all there is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from longlens.ops.family.call import DecayCall, placed, running

# The largest range of A for which scores keep their digits in a sum with it: float32 has 24 bits,
# and half precision asks for fewer.
ADD_RANGE = {
    torch.float64: 1e5,
    torch.float32: 32.0,
    torch.bfloat16: 8192.0,
    torch.float16: 1024.0,
}


class Levels(NamedTuple):
    """M (B or 1, H, n, D or 1) and A (B or 1, H, n) of queries or keys, float64; None: absent."""

    multiplied: Tensor | None
    added: Tensor | None

    def rows(self, rows: slice) -> Levels:
        """Those of some positions."""
        m, a = self
        return Levels(None if m is None else m[:, :, rows], None if a is None else a[:, :, rows])

    def blocks(self, size: int) -> Levels:
        """Cut into blocks: (·, H, G, size, ·) and (·, H, G, size); the last value fills the end."""
        m, a = self
        if m is not None:
            m = _filled(m, size).unflatten(2, (-1, size))
        if a is not None:
            a = _filled(a[..., None], size).unflatten(2, (-1, size))[..., 0]
        return Levels(m, a)


def _filled(x: Tensor, size: int) -> Tensor:
    extra = -x.shape[2] % size
    return torch.cat([x, x[:, :, -1:].expand(-1, -1, extra, -1)], dim=2) if extra else x


def levels(call: DecayCall, fits: bool = False) -> Levels:
    """M and A of the call's keys."""
    return Levels(multiplied(call, fits), added(call))


def multiplied(call: DecayCall, fits: bool = False) -> Tensor | None:
    """M of the call's keys.

    A gate per channel is as large as the queries. In half precision and in range float32 is enough
    for its sum, and half the traffic.
    """
    m = None
    half = call.query.is_cuda and call.query.dtype in (torch.bfloat16, torch.float16)
    if call.alpha is not None:
        m = placed(call.alpha, call.key.shape[2])[..., None]
    if call.log_gate is not None:
        gate = running(call.log_gate, torch.float32 if fits and half else torch.float64)
        m = gate if m is None else m + gate
    return m


def added(call: DecayCall) -> Tensor | None:
    """A of the call's keys."""
    a = None
    if call.slopes is not None:
        a = placed(call.slopes, call.key.shape[2])
    if call.log_forget is not None:
        forget = running(call.log_forget)
        a = forget if a is None else a + forget
    return a


def scaled(x: Tensor, exponent: Tensor | None) -> Tensor:
    """x·exp(exponent), rounded once."""
    if exponent is None:
        return x
    factor = torch.exp(exponent)
    if x.dtype != torch.float64:
        factor = factor.float()
    out = x * factor
    return out if out.dtype == x.dtype else out.to(x.dtype)


def columns(x: Tensor, numbers: list[Tensor | None], scale: float) -> Tensor:
    """X (…, n, D) with a column for each number of a row; None: the ones that it meets.

    In half precision a number is the sum of three, and so keeps the digits of float32.
    """
    count = 1 if x.dtype in (torch.float32, torch.float64) else 3
    found = [x]
    for number in numbers:
        if number is None:
            found.append(x.new_ones(*x.shape[:-1], count))
            continue
        rest = (number / scale).expand(x.shape[:-1])[..., None]
        for _ in range(count):
            found.append(rest.to(x.dtype))
            rest = rest.detach() - found[-1].detach()
    return torch.cat(found, dim=-1)


def padded(x: Tensor, width: int) -> Tensor:
    """X with zeros up to `width` columns."""
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))
