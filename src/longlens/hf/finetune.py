"""Learned rates in other people's training loops: weight decay, FSDP2."""

from __future__ import annotations

from typing import Any

from torch import nn

from longlens.hf.state import LaSState


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """A torch optimizer's groups: matrices with weight decay, rates, norms and biases without.

    Args:
        model: any module; frozen parameters are left out.
        weight_decay: that of the first group.

    Returns:
        Two groups, for `torch.optim.AdamW` or the `optimizers` of transformers' `Trainer`.

    >>> from longlens.hf.options import Options
    >>> state = LaSState(4, Options(learned_alpha=True))
    >>> [len(group["params"]) for group in parameter_groups(state, 0.1)]
    [0, 1]

    """
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        dict(params=[p for p in trained if p.ndim > 1], weight_decay=weight_decay),
        dict(params=[p for p in trained if p.ndim <= 1], weight_decay=0.0),
    ]


def shard_rates(model: nn.Module, **options: Any) -> None:
    """Call this before `fully_shard` of layers: FSDP2 wants one dtype in each of its groups.

    Learned rates are float32 in a model of any dtype, so each layer's become a group of their own.

    Args:
        model: a transformers model with LaS attention.
        options: those of `torch.distributed.fsdp.fully_shard`, such as `mesh`.

    """
    from torch.distributed.fsdp import fully_shard

    for state in list(model.modules()):
        if isinstance(state, LaSState) and state.learned_alpha:
            fully_shard(state, **options)
