"""What a mixer is, and the few things that many mixers share.

A mixer is any ``nn.Module`` with ``forward(x, mask=None)`` on (B, L, D) and the attributes
``causal``, ``receptive_field`` and ``cost``; it need not inherit from :class:`Mixer`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longlens.ops.numerics import full_precision

if TYPE_CHECKING:
    from collections.abc import Iterable

State = tuple[Tensor, ...]
OptimHints = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Aspects:
    """Design aspects of the LaS paper's Table 10 that cannot be measured from a built layer.

    The measurable ones (decay, complex numbers, recurrence) are measured: see
    ``longlens.models.aspects``.
    """

    regularized: bool = False
    """The kernel or the attention matrix is explicitly regularised."""
    special_init: bool = False
    """Starts from values made for long memory (HiPPO, a ring, a decay), not a generic draw."""
    stable: bool = False
    """Cannot blow up for any value of the parameters, by construction."""
    gating: bool = False
    """Multiplies two functions of the input (beyond a GLU after the mixing)."""
    normalized: bool = False
    """Has a normalisation of its own inside."""


class Mixer(nn.Module):
    """Base of the mixers here: (B, L, D) -> (B, L, D).

    ``mask`` is (B, L), True at real tokens. Padded positions never influence real ones; what
    stands at padded positions in the output is finite and otherwise unspecified.
    """

    causal: bool = True
    """Output i depends on inputs 0 … i only."""
    receptive_field: int | None = None
    """How many positions one output can see, itself included; None: all of them."""
    cost: str = "L"
    """How the arithmetic of forward grows with the length: "L", "L log L" or "L^2"."""
    aspects: Aspects = Aspects()
    carries_input: bool = False
    """The output already has the input in it, through a gate: a block adds it no second time, and
    forward and step take ``kept``, the input before a norm."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix along the sequence: x (B, L, D), mask (B, L) bool or None -> (B, L, D)."""
        raise NotImplementedError


def zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Zero at padded positions, whatever stands there (also NaN): x (B, L, D), mask (B, L).

    >>> zero_padding(torch.ones(1, 2, 1), torch.tensor([[True, False]])).flatten()
    tensor([1., 0.])
    """
    if mask is None:
        return x
    is_tensor = isinstance(mask, Tensor)
    if not is_tensor or mask.dtype != torch.bool or mask.shape != x.shape[:2]:
        got = f"{mask.dtype} of shape {tuple(mask.shape)}" if is_tensor else repr(mask)
        raise ValueError(
            f"mask must be a bool tensor of shape {tuple(x.shape[:2])}, True for a real token, "
            f"got {got}"
        )
    return x.masked_fill(~mask[..., None], 0)


def as_parameter(value: Tensor) -> nn.Parameter:
    """A parameter in the default dtype; initial values are often computed in float64.

    >>> as_parameter(torch.zeros(2, dtype=torch.float64)).dtype
    torch.float32
    """
    return nn.Parameter(value.to(torch.get_default_dtype()))


def wide_call(module: nn.Module, *inputs: Any) -> Any:
    """Call a module whose parameters may be in half precision as if they were float32.

    Positions beyond 256 have no number of their own in bfloat16, so a network of the position must
    not compute in the dtype that a model was cast to.

    >>> wide_call(nn.Linear(1, 2).bfloat16(), torch.ones(3, 1)).dtype
    torch.float32
    """
    if next(module.parameters()).dtype in (torch.float32, torch.float64):
        return module(*inputs)
    wide = {name: full_precision(p) for name, p in module.named_parameters()}
    return torch.func.functional_call(module, wide, inputs)


def special(*names: str, lr: float = 1e-3) -> OptimHints:
    """The usual ``optim_hints`` of a module: a small learning rate and no weight decay.

    >>> special("log_dt")
    {'log_dt': {'lr': 0.001, 'weight_decay': 0.0}}
    """
    return {name: {"lr": lr, "weight_decay": 0.0} for name in names}


def optim_hints(model: nn.Module) -> OptimHints:
    """What the parameters of a model ask of an optimiser, by their names in the model.

    A module asks by an attribute ``optim_hints``, of its class or its own: options of an
    optimiser's group by the name of a parameter. Copies, ``torch.compile``, DDP and ``fully_shard``
    keep it, since they replace tensors or wrap modules but do not rewrite a module's attributes.

    Args:
        model: any module; it may be a mixer, a model, or either of them wrapped or sharded.

    Returns:
        for each parameter that has hints, its name as in ``model.named_parameters()`` and the
        options; all other parameters are missing.

    Raises:
        ValueError: where a module has hints for a parameter that it does not have.

    >>> from longlens.layers import build
    >>> optim_hints(build("lru", 8, state=4))["log_rate"]
    {'lr': 0.001, 'weight_decay': 0.0}
    """
    hints: dict[str, Mapping[str, float]] = {}
    for prefix, module in model.named_modules():
        # Not getattr: a compiled module hands on the attributes of the one that it wraps.
        of_module = inspect.getattr_static(module, "optim_hints", {})
        parameters = dict(module.named_parameters(recurse=False))
        for name, options in of_module.items():
            if name not in parameters:
                raise ValueError(
                    f"{type(module).__name__}.optim_hints names {name!r}, but the module's "
                    f"parameters are {', '.join(map(repr, parameters))}"
                )
            hints[f"{prefix}.{name}" if prefix else name] = dict(options)
    return hints


def as_pairs(z: Tensor) -> Tensor:
    """Complex (...) to real (..., 2), the way complex parameters are stored.

    Optimisers, ``.double()`` and checkpoints then see plain real tensors.
    """
    return torch.view_as_real(z.resolve_conj()).to(torch.get_default_dtype()).contiguous()


def as_complex(pairs: Tensor) -> Tensor:
    """Real (..., 2) to complex (...), in float32 at least: no half precision is complex."""
    pairs = full_precision(pairs)
    return torch.complex(pairs[..., 0], pairs[..., 1])


def check_choice(name: str, value: str, allowed: Iterable[str]) -> None:
    """Raise ValueError unless ``value`` is one of ``allowed``.

    >>> check_choice("output", "glue", ("glu", "linear"))
    Traceback (most recent call last):
    ValueError: output must be one of 'glu', 'linear', got 'glue'
    """
    if value not in tuple(allowed):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def check_positive(**values: int) -> None:
    """Raise ValueError unless every value is at least 1.

    >>> check_positive(dim=0)
    Traceback (most recent call last):
    ValueError: dim must be at least 1, got 0
    """
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def check_divides(name: str, divisor: int, of: str, number: int) -> None:
    """Raise ValueError unless ``divisor`` divides ``number``.

    >>> check_divides("num_heads", 3, "dim", 8)
    Traceback (most recent call last):
    ValueError: num_heads must divide dim = 8, got 3
    """
    if divisor < 1 or number % divisor:
        raise ValueError(f"{name} must divide {of} = {number}, got {divisor}")


def check_length(length: int, max_length: int) -> None:
    """Raise ValueError where a sequence is longer than the layer was built for."""
    if length > max_length:
        raise ValueError(
            f"the sequence has {length} positions but the layer was built with "
            f"max_length={max_length}; build it with a larger one"
        )


def check_step(mixer: nn.Module) -> None:
    """Raise ValueError where ``step`` is called on a mixer that is not causal."""
    if not mixer.causal:
        raise ValueError("step needs a causal mixer, got one built with bidirectional=True")


class OutputMix(nn.Module):
    """GELU, then a position-wise projection, the tail of S4-like layers.

    Args:
        dim: D.
        output: "glu" (D -> 2D, gated back to D), "linear" (D -> D) or "none" (GELU alone).

    >>> OutputMix(4, "glu")(torch.zeros(1, 2, 4)).shape
    torch.Size([1, 2, 4])
    """

    def __init__(self, dim: int, output: str) -> None:
        super().__init__()
        check_choice("output", output, ("glu", "linear", "none"))
        self.kind = output
        width = {"glu": 2 * dim, "linear": dim, "none": 0}[output]
        self.project = nn.Linear(dim, width) if width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        x = self.project(F.gelu(x))
        return F.glu(x) if self.kind == "glu" else x
