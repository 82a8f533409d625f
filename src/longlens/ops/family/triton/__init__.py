"""Fused GPU kernels of the family, written in Triton.

- `levels`: numbers of positions, from forget gates and slopes
- `added`: attention with a difference of levels added to its scores
- `gates`: one pass that folds a decay per channel into queries and keys

`*_op` launch them, as PyTorch operators, and import triton only then.
"""
