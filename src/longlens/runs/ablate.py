"""A trained model with parts of it switched off: which attention heads does it need?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from longlens.models.build import Model
from longlens.tasks.batches import Batches
from longlens.training.engine import Engine
from longlens.training.evaluate import evaluate
from longlens.training.options import TrainOptions


def check_ablation(options: TrainOptions, model: Model) -> None:
    """Raise ValueError where the model has nothing of what ``options.ablate`` switches off."""
    if options.ablate == "none":
        return
    if any(not hasattr(mixer, "out") or not hasattr(mixer, "num_heads") for mixer in mixers(model)):
        raise ValueError(
            f"ablate=heads needs softmax or LaS attention, whose heads can be switched off, got "
            f"mixer={options.mixer!r}"
        )
    if options.parallel == "fsdp":
        raise ValueError("ablate=heads needs whole weights; with parallel=fsdp use none")


def mixers(model: Model) -> list[Any]:
    """The mixers of a model, in order."""
    return list(model.backbone.mixers())


def by_decay(mixer: Any) -> list[int]:
    """Heads in the order of their decay rates, the slowest first; without rates as they are.

    >>> from longlens import LaSAttention
    >>> by_decay(LaSAttention(8, num_heads=4))
    [0, 1, 2, 3]
    """
    rates, _ = mixer.rates()
    heads = list(range(mixer.num_heads))
    return heads if rates is None else sorted(heads, key=rates.tolist().__getitem__)


@contextmanager
def heads_off(switched: Sequence[tuple[nn.Module, int]]) -> Iterator[None]:
    """Inside the block these heads add nothing to their layers' outputs.

    >>> from longlens import LaSAttention
    >>> layer, x = LaSAttention(8, num_heads=2), torch.randn(1, 5, 8)
    >>> with heads_off([(layer, 0), (layer, 1)]):
    ...     bool(torch.equal(layer(x), layer.out.bias.expand(1, 5, 8)))
    True
    """
    places: list[tuple[Any, slice]] = []
    for mixer, head in switched:
        width = int(mixer.head_dim)  # type: ignore[arg-type]
        places.append((mixer, slice(head * width, (head + 1) * width)))
    kept = [mixer.out.weight[:, place].detach().clone() for mixer, place in places]
    with torch.no_grad():
        for mixer, place in places:
            mixer.out.weight[:, place] = 0.0
    try:
        yield
    finally:
        with torch.no_grad():
            for (mixer, place), weights in zip(places, kept, strict=True):
                mixer.out.weight[:, place] = weights


def without_heads(engine: Engine, batches: Batches, rows: int) -> dict[str, Any]:
    """The metric over a split with every head switched off in turn.

    Args:
        engine: holds the trained model.
        batches: of the split.
        rows: of a full batch, see :func:`longlens.training.evaluate.evaluate`.

    Returns:
        ``heads``: by the head's number in the order of decay, "1" the slowest, the metric with that
        head off in all blocks; ``blocks``: the same for each block alone; ``rates``: the decay
        rates of each block in that order, None without LaS's decay.
    """
    layers = mixers(engine.job.model)  # type: ignore[arg-type]
    orders = [by_decay(mixer) for mixer in layers]
    metric = engine.job.objective.metric

    def metric_without(switched: Sequence[tuple[nn.Module, int]]) -> float:
        with heads_off(switched):
            views = engine.options.views  # as in the test beside which this stands
            return float(evaluate(engine, batches.epoch(0), rows, views=views)[metric])

    numbers = range(min(map(len, orders)))
    rates = [mixer.rates()[0] for mixer in layers]
    return {
        "heads": {
            str(n + 1): metric_without([(m, o[n]) for m, o in zip(layers, orders, strict=True)])
            for n in numbers
        },
        "blocks": [
            {str(n + 1): metric_without([(mixer, order[n])]) for n in range(len(order))}
            for mixer, order in zip(layers, orders, strict=True)
        ],
        "rates": [
            None if alpha is None else [alpha.tolist()[head] for head in order]
            for alpha, order in zip(rates, orders, strict=True)
        ],
    }
