"""Mixers: modules from (B, L, D) to (B, L, D), one paper per file."""
