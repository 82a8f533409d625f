"""Ridge regression on classes, its strength chosen by leave-one-out, in closed form.

Of X (N examples, F features, standardised) one symmetric eigenvalue problem of min(N, F) is solved;
then every strength λ costs a few products. With K = X Xᵀ + λ the left-out residual of example i
is (K⁻¹ y)_i / (K⁻¹)_ii, and with few features the same is (y − ŷ)_i / (1 − h_ii), h the leverage.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

STRENGTHS = tuple(10.0 ** (power / 2) for power in range(-6, 13))  # in units of the mean eigenvalue
LEFT_OUT = 4000  # examples whose left-out residuals choose the strength


@dataclass(frozen=True)
class Ridge:
    """A fitted classifier: ``scores(x)`` are (N, classes), the largest wins.

    ``left_out`` is the accuracy on training examples, each predicted by the fit to all others.
    """

    mean: Tensor
    scale: Tensor
    weight: Tensor  # (F, classes)
    bias: Tensor
    strength: float
    left_out: float
    error: float  # mean squared left-out residual, by which strengths are compared

    def scores(self, features: Tensor) -> Tensor:
        """Scores of features (N, F)."""
        return ((features - self.mean) * self.scale) @ self.weight + self.bias


def fit_ridge(features: Tensor, labels: Tensor, classes: int) -> Ridge:
    """Fit features (N, F) to labels (N,); a feature that does not vary is left out.

    >>> x = torch.eye(2).repeat(8, 1); y = torch.arange(2).repeat(8)
    >>> fit = fit_ridge(x, y, 2)
    >>> fit.left_out, fit.scores(x).argmax(1).equal(y)
    (1.0, True)
    """
    count, size = features.shape
    mean = features.mean(0)
    spread = features.std(0, unbiased=False)
    varies = spread > 1e-5 * features.abs().amax(0)  # in whatever unit they are measured
    scale = torch.where(varies, 1 / spread.clamp_min(1e-30), torch.zeros(()))
    x = (features - mean).mul_(scale)
    targets = 2.0 * torch.nn.functional.one_hot(labels, classes).to(x.dtype) - 1
    bias = targets.mean(0)
    y = targets - bias
    few = count <= size  # examples: then the problem of size N is the smaller one
    values, vectors = _eigen(x @ x.T if few else x.T @ x)
    unit = float(values.mean()) or 1.0
    shown = slice(None) if few else slice(0, LEFT_OUT)
    turned = vectors.T @ (y if few else x.T @ y)
    seen = vectors if few else x[shown] @ vectors
    best: tuple[float, float, Tensor] | None = None
    for strength in STRENGTHS:
        inverse = 1 / (values + strength * unit)
        predicted = seen @ (inverse[:, None] * turned)
        leverage = seen.square() @ inverse
        if few:  # X Xᵀ (X Xᵀ + λ)⁻¹ = 1 − λ (X Xᵀ + λ)⁻¹
            predicted = y - strength * unit * predicted
            leverage = 1 - strength * unit * leverage
        # The mean was taken from all examples, this one included: its leverage is 1/N.
        free = (1 - leverage - 1 / count).clamp_min(1e-6)
        residual = (y[shown] - predicted) / free[:, None]
        error = float(residual.square().mean())
        if best is None or error < best[0]:
            best = error, strength, residual
    assert best is not None
    error, strength, residual = best
    solved = vectors @ (turned / (values + strength * unit)[:, None])
    right = (targets[shown] - residual).argmax(1) == labels[shown]
    return Ridge(
        mean, scale, x.T @ solved if few else solved, bias, strength,
        left_out=float(right.float().mean()), error=error,
    )  # fmt: skip


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, none below zero, and eigenvectors of a positive semi-definite matrix."""
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except RuntimeError:  # many equal eigenvalues: a diagonal that rises parts them
        part = float(matrix.diagonal().mean()) or 1.0
        ramp = torch.linspace(1e-9, 1e-6, len(matrix), dtype=torch.double) * part
        values, vectors = torch.linalg.eigh(matrix.double() + ramp.diag())
    return values.clamp_min(0).to(matrix.dtype), vectors.to(matrix.dtype)
