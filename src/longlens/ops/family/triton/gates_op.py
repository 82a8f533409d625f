"""The kernels of `gates` as a PyTorch operator: (q, k, log_gate) -> scaled queries and keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longlens.ops.las.operands import dense_rows
from longlens.ops.las.triton.prologue_op import empty_as
from longlens.ops.launching import fused_operator, launch, next_power_of_2

BLOCK = 64  # rows of a program
Scaled = tuple[Tensor, Tensor, Tensor]


def _strides(*tensors: Tensor) -> list[int]:
    return [n for t in tensors for n in t.stride()[:3]]


def _outputs(q: Tensor, k: Tensor, gate: Tensor) -> Scaled:
    """Scaled q and k, as wide as SDPA takes them, and the sums of blocks of gates."""
    B, H, S, D = q.shape
    width = -(-D // 8) * 8
    q_out, k_out = empty_as(q, [B, H, S, width]), empty_as(k, [B, H, S, width])
    return q_out, k_out, q.new_empty(B, H, -(-S // BLOCK), D, dtype=torch.float32)


def _common(q: Tensor) -> tuple[tuple[int, int], list[int], dict[str, int]]:
    """Grid, numbers and settings of all kernels for q (B, H, S, D)."""
    B, H, S, D = q.shape
    blocks = -(-S // BLOCK)
    # widths beyond D are written, too, so BD covers them
    return (blocks, B * H), [S, H, blocks], dict(D=D, BD=max(8, next_power_of_2(D)), BLOCK=BLOCK)


def _forward(q: Tensor, k: Tensor, gate: Tensor) -> Scaled:
    """q, k, gate (B, H, S, D)."""
    from longlens.ops.family.triton.gates import gate_fold, gate_sums

    q_out, k_out, sums = _outputs(q, k, gate)
    q, k, gate = dense_rows(q), dense_rows(k), dense_rows(gate)
    grid, numbers, settings = _common(q)
    launch(gate_sums, grid, [gate, sums], [*_strides(gate), *numbers], **settings)
    tensors = [q, k, gate, q_out, k_out]
    launch(
        gate_fold, grid, [*tensors, sums], [*_strides(*tensors), *numbers],
        OUT=q_out.shape[3], **settings,
    )  # fmt: skip
    return q_out, k_out, sums


def _gradients(dq_out: Tensor, dk_out: Tensor, saved: list[Tensor], *rest: Any) -> Scaled:
    q, k, gate, _ = saved
    B, H, S, D = gate.shape
    shape = [B, H, S, D] if rest[-1] else [0, 0, 0, 0]
    if gate.stride(1) < gate.stride(2):  # in the order of the gates
        d_gate = gate.new_empty(shape[0], shape[2], shape[1], shape[3], dtype=torch.float32)
        d_gate = d_gate.transpose(1, 2)
    else:
        d_gate = gate.new_empty(shape, dtype=torch.float32)
    return empty_as(q, list(q.shape)), empty_as(k, list(k.shape)), d_gate


def _backward(dq_out: Tensor, dk_out: Tensor, saved: list[Tensor], gate_gradient: bool) -> Scaled:
    """Gradients of q, k and, where asked for (else empty), the gates in float32."""
    from longlens.ops.family.triton.gates import gate_finish, gate_unfold

    dq, dk, d_gate = _gradients(dq_out, dk_out, saved, gate_gradient)
    q, k, gate, sums = saved
    outs = [dense_rows(t) for t in (dq_out, dk_out, q, k, gate)]
    grid, numbers, settings = _common(q)
    d_sums = torch.empty_like(sums)
    launch(
        gate_unfold, grid, [*outs, dq, dk, d_gate, sums, d_sums],
        [*_strides(*outs, dq, dk, d_gate), *numbers], GATE_GRADIENT=gate_gradient, **settings,
    )  # fmt: skip
    if gate_gradient:
        launch(gate_finish, grid, [d_gate, d_sums], [*_strides(d_gate), *numbers], **settings)
    return dq, dk, d_gate


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, gate = inputs
    ctx.gate_gradient = gate.requires_grad
    ctx.save_for_backward(*tensors, gate, output[2])


def _differentiate(ctx: Any, backward: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
    saved = list(ctx.saved_tensors)
    there = next(g for g in grads if g is not None)
    dq_out, dk_out = (torch.zeros_like(there) if g is None else g for g in grads)
    dq, dk, d_gate = backward(dq_out, dk_out, saved, ctx.gate_gradient)
    return dq, dk, d_gate.to(saved[2].dtype) if ctx.gate_gradient else None


_, fold_gates = fused_operator(
    "fold_gates", _forward, _backward, like=(_outputs, _gradients), setup=_setup,
    differentiate=_differentiate, outputs=2,
)  # fmt: skip
