"""Time budgets: how many steps fit into a given wall time."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
RESERVE = 0.04  # share of the budget kept for what was not timed
EVALUATION = 0.1  # share of a run's work that its evaluations may take
FORWARD = 1 / 3  # work of evaluating an example, of training on one


def seconds(text: str) -> float:
    """Read a duration: 90s, 8m, 1.5h, 1h30m; a bare number is seconds.

    >>> seconds("8m"), seconds("1h30m"), seconds("45")
    (480.0, 5400.0, 45.0)
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([smhd])", text)
    if re.fullmatch(r"\d+(\.\d+)?", text):
        parts = [(text, "s")]
    elif not parts or "".join(a + b for a, b in parts) != re.sub(r"\s", "", text):
        raise ValueError(f"budget must be a duration such as 90s, 8m or 1h30m, got {text!r}")
    total = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if total <= 0:
        raise ValueError(f"budget must be more than 0, got {text!r}")
    return total


@dataclass(frozen=True)
class Timing:
    """Seconds of one training step and of one pass over the validation split, as measured."""

    step: float
    evaluation: float
    final: float
    """Of everything after the last step: evaluation on validation and test, files."""


def steps_that_fit(
    budget: float,
    spent: float,
    timing: Timing,
    evaluate_every: int | None,
    epoch: int,
    evaluation: float,
) -> int:
    """The most steps whose training, evaluation and end fit into what is left of the budget.

    Args:
        budget: seconds in all.
        spent: seconds gone already (start, data, compilation, timing).
        timing: what things cost.
        evaluate_every: steps between evaluations, or None: see :func:`evaluation_interval`.
        epoch: steps of an epoch.
        evaluation: steps that are as much work as an evaluation.

    >>> steps_that_fit(100.0, 0.0, Timing(step=0.1, evaluation=1.0, final=2.0), 100, 1000, 3.0)
    850
    """
    left = budget * (1 - RESERVE) - spent - timing.final

    def cost(steps: int) -> float:
        every = evaluation_interval(evaluate_every, steps, epoch, evaluation)
        return steps * timing.step + -(-steps // every) * timing.evaluation

    low, high = 1, max(1, int(left / timing.step)) if left > 0 else 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost(middle) <= left else (low, middle - 1)
    return low


def evaluation_interval(
    evaluate_every: int | None, steps: int, epoch: int, evaluation: float
) -> int:
    """Steps between evaluations: as given, else an epoch, or a tenth of all steps if that is less.

    Unless it is given, all evaluations together take at most a tenth of the work, or there is one
    alone, at the end. Work is counted, not timed: a run that is cut off and goes on, perhaps on
    another machine, must evaluate at the same steps.

    >>> evaluation_interval(None, 1000, 300, 5.0), evaluation_interval(None, 10000, 300, 5.0)
    (100, 300)
    >>> evaluation_interval(None, 1000, 300, 20.0)  # ten of them would take 200 steps
    200
    """
    if evaluate_every is not None:
        return evaluate_every
    often = max(1, min(epoch, steps // 10))
    affordable = max(1, int(EVALUATION * steps / evaluation))
    return max(often, -(-steps // affordable))
