"""The zoo: mixers, modules from (B, L, D) to (B, L, D), one paper per file. See README.md here."""

from longlens.layers.registry import MIXERS, build, options_of

__all__ = ["MIXERS", "build", "options_of"]
