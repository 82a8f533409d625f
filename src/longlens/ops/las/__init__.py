"""Local-and-Smooth attention: one function, several exact ways to compute it."""

from longlens.ops.las.api import Plan, explain, las_attention, las_weights
from longlens.ops.las.decay import decay_rates

__all__ = ["Plan", "decay_rates", "explain", "las_attention", "las_weights"]
