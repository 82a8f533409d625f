"""Local-and-Smooth attention: one function, several exact ways to compute it."""

from longlens.ops.las.api import explain, las_attention, las_attention_packed, las_weights
from longlens.ops.las.decay import decay_rates
from longlens.ops.las.plan import Plan
from longlens.ops.las.sharded import folded_inputs_sharded, las_attention_sharded
from longlens.ops.las.varlen import las_attention_varlen

__all__ = [
    "Plan",
    "decay_rates",
    "explain",
    "folded_inputs_sharded",
    "las_attention",
    "las_attention_packed",
    "las_attention_sharded",
    "las_attention_varlen",
    "las_weights",
]
