"""The family of LaS attention: other decays, data-dependent ones, other smoothers, sinks.

One definition (`reference.py`), one function (`decay_attention`), the same exactness; `fold.py`
says what makes it fast.
"""

from longlens.ops.family.api import decay_attention, decay_weights, explain_decay
from longlens.ops.family.taps import filter_values, smoothing_taps

__all__ = ["decay_attention", "decay_weights", "explain_decay", "filter_values", "smoothing_taps"]
