"""LSTM and GRU over a sequence: PyTorch's kernels, made safe for ``torch.compile``.

``torch.compile`` refuses ``nn.LSTM``, and tracing the kernels unrolls every time step. Inside a
compiled graph the whole recurrence is therefore one opaque operator, whose backward pass runs the
recurrence again; eager mode calls the kernels directly and needs no second run.

Shapes: B batch, L length, D width of input and state, G gates (4 for LSTM, 3 for GRU).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longlens.ops.numerics import full_precision, no_autocast

GATES = {"lstm": 4, "gru": 3}


def rnn_step(kind: str, x: Tensor, state: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
    """One step: x (B, D) and the state ([h, c] or [h], each (B, D)) -> the next state.

    >>> weights = [torch.zeros(3, 1), torch.zeros(3, 1), torch.zeros(3), torch.zeros(3)]
    >>> rnn_step("gru", torch.ones(1, 1), [torch.ones(1, 1)], weights)
    [tensor([[0.5000]])]
    """
    if kind == "lstm":
        return list(torch.lstm_cell(x, state, *weights))
    return [torch.gru_cell(x, state[0], *weights)]


def _run(kind: str, x: Tensor, weights: list[Tensor]) -> Tensor:
    """All outputs from a zero state: x (B, L, D) -> (B, L, D)."""
    h = x.new_zeros(1, x.shape[0], weights[1].shape[1])
    # biases, one layer, no dropout, training (keeps what backward needs), one direction, B first
    options = (True, 1, 0.0, True, False, True)
    if kind == "lstm":
        out: Tensor = torch.lstm(x, [h, h], weights, *options)[0]
    else:
        out = torch.gru(x, h, weights, *options)[0]
    return out


@torch.library.custom_op("longlens::rnn", mutates_args=())
def _opaque(kind: str, x: Tensor, weights: list[Tensor]) -> Tensor:
    return _run(kind, x, weights).contiguous()  # the layout that the fake kernel promises


@_opaque.register_fake
def _(kind: str, x: Tensor, weights: list[Tensor]) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("longlens::rnn_backward", mutates_args=())
def _opaque_backward(kind: str, grad: Tensor, x: Tensor, weights: list[Tensor]) -> list[Tensor]:
    # Operators run below autograd; lifting that one exclusion lets the recurrence be recorded.
    key = torch._C.DispatchKey.AutogradFunctionality
    with torch.enable_grad(), torch._C._SetExcludeDispatchKeyGuard(key, False):
        leaves = [t.detach().requires_grad_() for t in (x, *weights)]
        out = _run(kind, leaves[0], leaves[1:])
        grads = torch.autograd.grad(out, leaves, grad)
        # cuDNN's are views of one buffer, and an operator's outputs must not share memory
        return [g.clone(memory_format=torch.contiguous_format) for g in grads]


@_opaque_backward.register_fake
def _(kind: str, grad: Tensor, x: Tensor, weights: list[Tensor]) -> list[Tensor]:
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, *weights)]


def _setup(ctx: Any, inputs: tuple[str, Tensor, list[Tensor]], output: Tensor) -> None:
    ctx.kind = inputs[0]
    ctx.save_for_backward(inputs[1], *inputs[2])


def _backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, list[Tensor]]:
    x, *weights = ctx.saved_tensors
    grads = _opaque_backward(ctx.kind, grad, x, weights)
    return None, grads[0], grads[1:]


_opaque.register_autograd(_backward, setup_context=_setup)


def rnn(kind: str, x: Tensor, weights: list[Tensor]) -> Tensor:
    """All outputs of an LSTM or GRU from a zero state, in full precision.

    Args:
        kind: "lstm" or "gru".
        x: (B, L, D).
        weights: input (G·D, D), recurrent (G·D, D) and their biases (G·D,), as in ``nn.LSTM``.

    Returns:
        (B, L, D) in the dtype of ``x``.

    >>> weights = [torch.zeros(4, 1), torch.zeros(4, 1), torch.zeros(4), torch.zeros(4)]
    >>> rnn("lstm", torch.ones(1, 2, 1), weights).flatten()
    tensor([0., 0.])
    """
    with no_autocast(x):
        run = _opaque if torch.compiler.is_compiling() else _run
        return run(kind, full_precision(x), [full_precision(w) for w in weights]).to(x.dtype)


def rnn_reference(kind: str, x: Tensor, weights: list[Tensor]) -> Tensor:
    """The gates written out, one step at a time: the specification of :func:`rnn`.

    >>> weights = [torch.zeros(4, 1), torch.zeros(4, 1), torch.zeros(4), torch.zeros(4)]
    >>> rnn_reference("lstm", torch.ones(1, 2, 1), weights).flatten()
    tensor([0., 0.])
    """
    w_in, w_rec, b_in, b_rec = weights
    h = c = x.new_zeros(x.shape[0], w_rec.shape[1])
    outputs = []
    for t in range(x.shape[1]):
        from_input, from_state = x[:, t] @ w_in.mT + b_in, h @ w_rec.mT + b_rec
        if kind == "lstm":
            i, f, g, o = (from_input + from_state).chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        else:
            (r, z, n), (r_s, z_s, n_s) = from_input.chunk(3, -1), from_state.chunk(3, -1)
            z = torch.sigmoid(z + z_s)
            h = (1 - z) * torch.tanh(n + torch.sigmoid(r + r_s) * n_s) + z * h
        outputs.append(h)
    return torch.stack(outputs, dim=1)
