"""What is minimised and what is reported, for each kind of task.

Every quantity is a sum and a count, so that micro-batches, ranks and evaluation batches of any
size add up to the same average. Shapes: B batch, L length, T targets, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

KINDS = ("classification", "regression", "next_token", "masked")


@dataclass(frozen=True)
class Objective:
    """Loss and metric of one kind of task.

    ==============  ==================  ============  =========================================
    kind            model's output      targets       metric
    ==============  ==================  ============  =========================================
    classification  (B, C)              (B,)          accuracy
    regression      (B, L, D)           (B, T, D)     r2, over the last T positions
    next_token      (B, L, V)           (B, L)        bits_per_token (of bytes: bits per byte)
    masked          (B, L, V)           (B, L)        accuracy, on the hidden positions
    ==============  ==================  ============  =========================================

    Args:
        kind: see above. ``masked`` is masked-token prediction.

    >>> objective = Objective("classification")
    >>> sums = objective.sums(torch.tensor([[0.0, 9.0]]), torch.tensor([1]))
    >>> objective.metrics(sums)["accuracy"]
    1.0
    """

    kind: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")

    @property
    def metric(self) -> str:
        """The metric that models are selected by."""
        return {"regression": "r2", "next_token": "bits_per_token"}.get(self.kind, "accuracy")

    @property
    def higher_is_better(self) -> bool:
        """Whether more of the metric is better."""
        return self.kind != "next_token"

    @property
    def per_position(self) -> bool:
        """Whether the number of terms of the loss depends on the data, not on the rows alone."""
        return self.kind in ("next_token", "masked")

    def count(self, targets: Tensor, where: Tensor | None = None) -> Tensor:
        """How many terms the loss of these targets has, as a float32 scalar.

        ``where`` (B, L) says which positions count, for next_token and masked.
        """
        if self.per_position and where is not None:
            return where.sum(dtype=torch.float32)
        return torch.full((), float(targets.numel()), device=targets.device)

    def loss_sum(self, outputs: Tensor, targets: Tensor, where: Tensor | None = None) -> Tensor:
        """The loss, summed over its terms, in float32.

        ``where`` (B, L): the positions that count; for regression the real ones, of which the last
        T have targets; not used for classification.
        """
        return self._terms(outputs.float(), targets, where).sum()

    def _terms(self, outputs: Tensor, targets: Tensor, where: Tensor | None) -> Tensor:
        if self.kind == "regression":
            return (last_positions(outputs, targets.shape[1], where) - targets).square()
        if self.kind == "classification":
            return F.cross_entropy(outputs, targets, reduction="none")
        terms = F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
        return terms if where is None else terms.masked_fill(~where.flatten(), 0.0)

    def sums(self, outputs: Tensor, targets: Tensor, where: Tensor | None = None) -> Tensor:
        """What :meth:`metrics` is computed from: a float64 vector that adds up over batches."""
        outputs = outputs.detach().float()
        terms = self._terms(outputs, targets, where)
        loss = terms.sum(dtype=torch.float64)
        count = self.count(targets, where).double()
        if self.kind == "regression":
            y = targets.double()
            return torch.stack([loss, count, y.sum(), y.square().sum()])
        if self.kind == "next_token":
            zero = torch.zeros_like(loss)
            return torch.stack([loss, count, zero, zero])
        right = correct(outputs, targets)
        if where is not None and self.per_position:
            right = right & where
        return torch.stack([loss, count, right.sum(dtype=torch.float64), torch.zeros_like(loss)])

    def metrics(self, sums: Tensor) -> dict[str, float]:
        """Loss and metric from added-up sums; NaN where nothing was added."""
        loss, count, third, fourth = sums.tolist()
        count = count or math.nan
        metrics = {"loss": loss / count}
        if self.kind == "regression":
            spread = fourth - third * third / count
            metrics["r2"] = 1.0 - loss / spread if spread > 0 else float("nan")
        elif self.kind == "next_token":
            metrics["bits_per_token"] = loss / count / math.log(2)
        else:
            metrics["accuracy"] = third / count
        return metrics

    def better(self, new: float, old: float | None) -> bool:
        """Whether ``new`` improves on ``old``; NaN never does."""
        if math.isnan(new):
            return False
        return old is None or (new > old if self.higher_is_better else new < old)


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """Which targets have the highest output; outputs with a NaN are wrong.

    >>> correct(torch.tensor([[2.0, 1.0], [float("nan")] * 2]), torch.tensor([0, 0]))
    tensor([ True, False])
    """
    return (outputs.argmax(-1) == targets) & ~outputs.isnan().any(-1)  # NaN has class 0 for argmax


def last_positions(outputs: Tensor, count: int, mask: Tensor | None) -> Tensor:
    """The last ``count`` real positions of each row: (B, L, D), mask (B, L) -> (B, count, D).

    >>> mask = torch.tensor([[True, True, True, False]])
    >>> last_positions(torch.arange(4.0).view(1, 4, 1), 2, mask).flatten()
    tensor([1., 2.])
    """
    if mask is None:
        return outputs[:, -count:]
    first = mask.sum(1, keepdim=True) - count
    index = (first + torch.arange(count, device=mask.device)).clamp(min=0)
    return outputs.gather(1, index[..., None].expand(-1, -1, outputs.shape[-1]))


SUMS = 4  # length of the vector that Objective.sums returns
