"""Counting instead of timing: parameters and arithmetic."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


def parameter_count(module: nn.Module) -> int:
    """Number of learned numbers; shared ones count once.

    >>> parameter_count(nn.Linear(3, 2))
    8
    """
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _is_free(func: Any) -> bool:
    """Views, and making memory, cost nothing."""
    schema = func._schema
    if any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns):
        return True
    return any(word in schema.name for word in ("empty", "detach", "lift_fresh", "new_zeros"))


class OperationCounter(TorchDispatchMode):
    """Counts the operations that run inside it.

    Matrix products, convolutions and attention count two per multiply-add; an FFT of n points
    5·n·log2(n) (half for real input); sorting n·log2(n); everything else one per number read or
    written, whichever is more. Views count nothing.

    Args:
        follow: a tensor; operators on what was computed from it are counted apart.

    Attributes:
        flops: the total.
        calls: how often each operator ran.
        followed_calls: the same for operators on ``follow`` or what came of it.
        complex_calls: operators that made complex numbers other than FFTs and products.

    >>> with OperationCounter() as counter:
    ...     _ = torch.ones(2, 3) @ torch.ones(3, 4)
    >>> counter.calls["aten::mm"], counter.flops >= 2 * 2 * 3 * 4
    (1, True)
    """

    def __init__(self, follow: Tensor | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # Held by reference, so that an id is not used twice.
        self._followed = {} if follow is None else {id(follow): follow}
        self.followed_calls: Counter[str] = Counter()
        self.flops = 0.0
        self.calls: Counter[str] = Counter()
        self.complex_calls: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator and add what it costs."""
        kwargs = kwargs or {}
        name: str = func._schema.name
        known = func._overloadpacket in flop_registry
        if name in OPDEFS and not known:  # written in Python: count what it does inside
            with self:
                return OPDEFS[name]._init_fn(*args, **kwargs)
        out = func(*args, **kwargs)
        outputs = _tensors(out)
        followed = any(id(t) in self._followed for t in _tensors((args, kwargs)))
        if followed:
            self._followed.update({id(t): t for t in outputs})
        if not _is_free(func):
            self.calls[name] += 1
            self.followed_calls[name] += followed
            self.flops += self._cost(func, name, args, kwargs, out, outputs)
            products = ("_fft", "aten::mul", "aten::clone", "aten::_to_copy", "aten::cat")
            if any(t.is_complex() for t in outputs) and not any(p in name for p in products):
                self.complex_calls[name] += 1
        return out

    def _cost(
        self, func: Any, name: str, args: Any, kwargs: Any, out: Any, outputs: list[Tensor]
    ) -> float:
        # Two operators of the CPU for which torch has no formula.
        if name == "aten::_scaled_dot_product_flash_attention_for_cpu":
            query, key, value = args[:3]
            return float(
                2 * query[..., 0].numel() * key.shape[-2] * (key.shape[-1] + value.shape[-1])
            )
        if name == "aten::mkldnn_rnn_layer":
            return float(2 * args[0][..., 0].numel() * (args[1].numel() + args[2].numel()))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            return float(formula(*args, **kwargs, out_val=out))
        read = _tensors((args, kwargs))
        size = max((t.numel() for t in read + outputs), default=0)
        if "_fft_" in name:
            # The real side has n points, the complex side n/2 + 1; dims is the second argument.
            real = next((t for t in read + outputs if not t.is_complex()), None)
            full = outputs[0] if real is None else real
            points = math.prod(full.shape[d] for d in args[1])
            each = 5 if real is None else 2.5
            return float(each * full.numel() * math.log2(max(2, points)))
        if "sort" in name:
            return float(size * math.log2(max(2, outputs[0].shape[-1])))
        return float(size)


def flop_count(run: Callable[[], Any]) -> float:
    """Arithmetic of ``run()``, by the rules of :class:`OperationCounter`.

    >>> flop_count(lambda: torch.ones(8) + 1) >= 8
    True
    """
    counter = OperationCounter()
    with counter:
        run()
    return counter.flops
