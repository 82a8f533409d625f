"""The decay rates of an attention's heads, fixed or learned, with a bound known in advance."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from longlens.ops.las import decay_rates
from longlens.ops.las.checks import check_bound, may_read, rounded_up
from longlens.ops.las.transforms import forward_mode

WIDEST_LEARNED_RATE = 0.05  # how far learning may take α, unless `bound` starts beyond


class _Clamp(torch.autograd.Function):
    """`clamp(0, most)`, but outside of the range a gradient that leads back inside passes.

    Without it a rate that one step of an optimiser carries beyond an end stays there for good.
    A gradient that leads farther out is zero, as the clamp's is. So out there a gradient that is
    added up from parts of a batch is not that of the whole: `DecayRates.clamp_` after each step
    keeps the rates where it is.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(alpha: Tensor, most: float) -> Tensor:
        return alpha.clamp(0.0, most)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        alpha, ctx.most = inputs
        ctx.save_for_backward(alpha)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (alpha,), grad = ctx.saved_tensors, grads[0]  # descent moves against the gradient
        outward = ((alpha < 0) & (grad > 0)) | ((alpha > ctx.most) & (grad < 0))
        return grad.masked_fill(outward, 0), None


def clamped(alpha: Tensor, most: float) -> Tensor:
    """Rates kept inside [0, most]; see `_Clamp` for their gradient.

    Forward-mode derivatives are those of a plain clamp: `torch.compile` refuses functions that
    define their own. So are the gradients of `torch.func.grad` in compiled code.

    >>> rates = torch.tensor([-0.1, 0.0], requires_grad=True)
    >>> (-clamped(rates, 0.5)).sum().backward()
    >>> rates.grad
    tensor([-1., -1.])
    """
    if forward_mode():
        return alpha.clamp(0.0, most)
    result: Tensor = _Clamp.apply(alpha, most)  # type: ignore[no-untyped-call]
    return result


class DecayRates(nn.Module):
    """One rate per head: a buffer, or a parameter where they are learned.

    `alpha` (num_heads,) is saved with the model and is never rounded below float32: a
    rate of 1e-3 over a thousand positions does not survive rounding to 8 bits.

    `alpha_max` bounds it. Loading a state dict makes the bound follow the rates that come, above it
    or not. Fixed rates that were changed in another way, in place or by `functional_call`, must
    stay inside the bound: uncompiled code raises where they do not, until `follow` is called.
    Learned rates are clamped to [0, alpha_max] where they are used: that keeps their bound true.
    Outside of it their gradient is what leads back inside. `longlens train` calls `clamp_` after
    each step; do so where you add gradients up from parts of a batch.
    A state dict holds a clamped copy where they are beyond it (what is written into that does not
    reach the rates), unless it is made with `keep_vars`.
    An ensemble of learned rates (`torch.func.stack_module_state`) is clamped to the bound of its
    base module, so its members need one bound. Other ones cannot raise, as those of fixed rates
    do: a rate above the bound may be an optimizer's.

    >>> rates = DecayRates(3, bound=0.002)
    >>> rates.rates()
    (tensor([0.0000, 0.0010, 0.0020]), 0.0020000000949949026)
    """

    alpha: Tensor
    alpha_max: float  # known without reading the rates, so that compiled code can rely on it
    _checked: tuple[Any, int] | None = None  # the tensor and version that were last read

    def __init__(
        self,
        num_heads: int,
        bound: float = 1e-3,
        spacing: str = "uniform",
        *,
        learned_alpha: bool = False,
        alpha_max: float | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Make the rates.

        Args:
            num_heads: number of query heads.
            bound: the bound B of the initial rates; 0 for no decay.
            spacing: how they fill the range, see `decay_rates`.
            learned_alpha: make them a parameter.
            alpha_max: the largest rate that learning may reach; None: max(0.05, bound).
            device: None: torch's default device.
        """
        super().__init__()
        self.num_heads, self.bound, self.spacing = num_heads, bound, spacing
        self.learned_alpha = learned_alpha
        rates = self._initial()
        largest = float(rates.max())
        if alpha_max is not None and not learned_alpha:
            raise ValueError(
                "alpha_max goes with learned_alpha=True; fixed rates follow from bound"
            )
        if alpha_max is not None and largest > rounded_up(alpha_max, rates.dtype):
            raise ValueError(
                f"alpha_max must be at least the largest initial rate {largest:.4g}, "
                f"got {alpha_max}"
            )
        if not learned_alpha:
            self._reach = 0.0  # the bound is at least this
        else:
            self._reach = WIDEST_LEARNED_RATE if alpha_max is None else alpha_max
        self.alpha_max = max(self._reach, largest)
        rates = rates.to(torch.get_default_device() if device is None else device)
        if learned_alpha:
            self.alpha = nn.Parameter(rates)
        else:
            self.register_buffer("alpha", rates)

    def _initial(self) -> Tensor:
        with torch.device("cpu"):  # their largest is read, which a meta tensor cannot be
            return decay_rates(self.num_heads, self.bound, self.spacing)

    @torch.no_grad()
    def restore(self) -> None:
        """Give the rates their initial values, in place."""
        self.alpha.copy_(self._initial())
        self.alpha_max = self._reach
        self.follow()

    def follow(self) -> None:
        """Make `alpha_max` true for the rates at hand, which may have been loaded or set."""
        if self.alpha.is_meta:
            return
        rates = self.alpha.detach()
        if hasattr(rates, "full_tensor"):  # sharded: every rank gets the same bound
            rates = rates.full_tensor()
        largest = float(rates.max())
        self.alpha_max = max(self._reach, self.alpha_max if self.learned_alpha else 0.0, largest)

    @torch.no_grad()
    def clamp_(self) -> None:
        """Bring learned rates back that a step of an optimizer carried out of [0, alpha_max].

        >>> rates = DecayRates(2, bound=0.5, learned_alpha=True)
        >>> with torch.no_grad():
        ...     _ = rates.alpha.sub_(0.1)
        >>> rates.clamp_()
        >>> rates.alpha.tolist()
        [0.0, 0.4000000059604645]
        """
        rates = self.alpha.detach()
        if hasattr(rates, "to_local"):  # sharded: every rank has its own part
            rates = rates.to_local()
        rates.clamp_(0.0, self.alpha_max)

    def rates(self) -> tuple[Tensor | None, float | None]:
        """The rate of each head, (num_heads,), and a bound on them; (None, None): no decay."""
        if self.learned_alpha:
            return clamped(self.alpha, self.alpha_max), self.alpha_max
        if may_read(self.alpha):
            self._check()
        return (None, None) if self.alpha_max == 0 else (self.alpha, self.alpha_max)

    def forward(self) -> tuple[Tensor | None, float | None]:
        """The same, as a call that hooks know: FSDP and offloading give rates their values then."""
        return self.rates()

    def _check(self) -> None:
        """Raise where the bound does not hold any more; a device is asked only after a change."""
        alpha = self.alpha
        version = -1 if alpha.is_inference() else alpha._version
        known = self._checked
        if alpha.is_cpu or known is None or known[0]() is not alpha or known[1] != version:
            remedy = ": the rates were changed; call follow() of this DecayRates if that was meant"
            check_bound(alpha, self.alpha_max, remedy)
            self._checked = (weakref.ref(alpha), version)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, which take no weak references."""
        return {name: value for name, value in self.__dict__.items() if name != "_checked"}

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        """Save no rate beyond the bound: whoever loads it would take it for the bound."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        rates = self.alpha.detach()
        if keep_vars or not self.learned_alpha or rates.is_meta:
            return
        acting = rates.clamp(max=self.alpha_max)
        if hasattr(rates, "full_tensor") or not torch.equal(acting, rates):
            destination[f"{prefix}alpha"] = acting

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.follow()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move the rates with the model, but never round them."""

        def move(rates: Tensor) -> Tensor:
            moved = fn(rates)
            exact = moved.dtype in (torch.float32, torch.float64)
            return moved if exact else rates.to(moved.device)

        empty = self.alpha.is_meta
        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        if empty and not self.alpha.is_meta:  # `to_empty`: these need no checkpoint
            self.restore()
        return self

    def extra_repr(self) -> str:
        """The options that matter, for `print(model)`."""
        return (
            f"heads={self.num_heads}, alpha_max={self.alpha_max:.4g}, learned={self.learned_alpha}"
        )
