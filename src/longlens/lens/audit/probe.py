"""Linear probes: what a classifier of counts reaches, without any training of a deep model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

Sequences = Sequence[npt.NDArray[np.int64]]
Features = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
BUCKETS = 2048
PENALTIES = (1e-3, 1e-2, 1e-1)
_MULTIPLIERS = np.array([1, 1000003, 998244353, 1000000007], np.int64)


def ngram_counts(sequences: Sequences, n: int, buckets: int = BUCKETS) -> Features:
    """Logarithmic counts of all n-grams, hashed into buckets: (N, buckets).

    >>> np.expm1(ngram_counts([np.array([3, 3, 5])], 1, 8))[0].round().tolist()
    [0.0, 0.0, 0.0, 2.0, 0.0, 1.0, 0.0, 0.0]
    """
    out = np.zeros((len(sequences), buckets), np.float32)
    for row, tokens in enumerate(sequences):
        size = len(tokens) - n + 1
        if size > 0:
            mixed = sum(tokens[k : k + size] * _MULTIPLIERS[k] for k in range(n))
            out[row] = np.bincount(np.asarray(mixed) % buckets, minlength=buckets)
    return np.log1p(out)


def placed_tokens(sequences: Sequences, buckets: int = BUCKETS) -> Features:
    """Which token is where, hashed into buckets: a linear model of the raw input."""
    out = np.zeros((len(sequences), buckets), np.float32)
    for row, tokens in enumerate(sequences):
        mixed = tokens * _MULTIPLIERS[1] + np.arange(len(tokens)) * _MULTIPLIERS[2]
        out[row] = np.bincount(mixed % buckets, minlength=buckets)
    return out


def linear_probe(
    train: tuple[Features, Ints],
    validation: tuple[Features, Ints],
    test: tuple[Features, Ints],
    classes: int,
) -> dict[str, Any]:
    """Multinomial logistic regression; the penalty is chosen on validation.

    Returns:
        ``{"validation": accuracy, "test": accuracy, "penalty": …}``.

    >>> x, y = np.eye(2, dtype=np.float32).repeat(8, 0), np.arange(2).repeat(8)
    >>> linear_probe((x, y), (x, y), (x, y), 2)["test"]
    1.0
    """
    mean, spread = train[0].mean(0), train[0].std(0)
    used = spread > 0

    def ready(part: tuple[Features, Ints]) -> tuple[torch.Tensor, torch.Tensor]:
        x = (part[0][:, used] - mean[used]) / spread[used]
        return torch.from_numpy(x), torch.from_numpy(part[1])

    (x, y), *others = ready(train), ready(validation), ready(test)
    best: dict[str, Any] = {"validation": -1.0}
    for penalty in PENALTIES:
        weight, bias = _fitted(x, y, classes, penalty)
        shares = [
            float((F.linear(inputs, weight, bias).argmax(1) == labels).float().mean())
            for inputs, labels in others
        ]
        if shares[0] > best["validation"]:
            best = {"validation": shares[0], "test": shares[1], "penalty": penalty}
    return best


def _fitted(
    x: torch.Tensor, y: torch.Tensor, classes: int, penalty: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of a logistic regression of classes y (N,) on x (N, features)."""
    weight = torch.zeros(classes, x.shape[1], requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    solver = torch.optim.LBFGS([weight, bias], max_iter=30, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        solver.zero_grad()
        loss = F.cross_entropy(F.linear(x, weight, bias), y)
        loss = loss + penalty * weight.square().sum()
        loss.backward()
        return loss

    solver.step(closure)
    return weight.detach(), bias.detach()
