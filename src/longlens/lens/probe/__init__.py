"""Random features of bounded reach: what a window is worth, in seconds, without training."""

from longlens.lens.probe.prober import Outcome, Prober, nested

__all__ = ["Outcome", "Prober", "nested"]
