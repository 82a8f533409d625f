"""The zoo: sequence mixers with one interface, (B, L, D) -> (B, L, D). See README.md here."""

from longlens.layers.registry import MIXERS, build, options_of

__all__ = ["MIXERS", "build", "options_of"]
