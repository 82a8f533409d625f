"""Linear probes: what a classifier of counts reaches, without any training of a deep model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from longlens.tasks.arrays import Ints

Sequences = Sequence[Ints]
Features = npt.NDArray[np.float32]
BUCKETS = 2048
PENALTIES = (1e-3, 1e-2, 1e-1)
_BASE = np.uint64(1_000_003)  # of a number whose digits are tokens: larger than a vocabulary
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def ngram_counts(sequences: Sequences, n: int, buckets: int = BUCKETS) -> Features:
    """Logarithmic counts of all n-grams, hashed into buckets: (N, buckets).

    >>> np.expm1(ngram_counts([np.array([3, 3, 5])], 1, 8))[0].round().tolist()
    [0.0, 0.0, 0.0, 2.0, 0.0, 1.0, 0.0, 0.0]
    """
    out = np.zeros((len(sequences), buckets), np.float32)
    for row, tokens in enumerate(sequences):
        size = len(tokens) - n + 1
        if size > 0:
            places = _bucket([tokens[k : k + size] for k in range(n)], buckets)
            out[row] = np.bincount(places, minlength=buckets)
    return np.log1p(out)


def _bucket(digits: Sequence[Ints], buckets: int) -> Ints:
    """A bucket for each sequence of numbers; single ones, if they are few, have one each."""
    mixed = np.zeros(len(digits[0]), np.uint64)
    for digit in digits:
        mixed = mixed * _BASE + digit.astype(np.uint64)
    if len(digits) > 1:  # the upper half of a product depends on all digits and their order
        mixed = mixed * _GOLDEN >> np.uint64(32)
    return (mixed % np.uint64(buckets)).astype(np.int64)


def placed_tokens(sequences: Sequences, buckets: int = BUCKETS) -> Features:
    """Which token is where, hashed into buckets: a linear model of the raw input."""
    out = np.zeros((len(sequences), buckets), np.float32)
    for row, tokens in enumerate(sequences):
        places = _bucket([np.arange(len(tokens)), tokens], buckets)
        out[row] = np.bincount(places, minlength=buckets)
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
