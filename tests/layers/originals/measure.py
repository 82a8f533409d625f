"""How far a layer is from its oracle."""

import numpy as np
import torch

from longlens.layers import build
from tests.layers.cases import options
from tests.layers.originals.plain import numbers
from tests.layers.originals.table import Comparison
from tests.layers.test_state_space import shake

DIM = 8


def deviation(key: str, comparison: Comparison) -> float:
    """The largest |ours - theirs| over the options, each relative to its largest |theirs|.

    The layer is in float64, moved off its initial values; the sequence is standard normal.
    """
    worst = 0.0
    for i, chosen in enumerate(comparison.options):
        torch.manual_seed(i)
        more = dict(chosen)
        dim = more.pop("dim", DIM)
        known = options(key, max_length=comparison.length + 3)
        layer = shake(build(key, dim, **{**known, **more})).eval()
        x = torch.randn(2, comparison.length, dim, dtype=torch.float64)
        with torch.no_grad():
            ours = layer(x).numpy()
        weights = numbers(layer)
        theirs = np.stack([comparison.oracle(weights, sequence, layer) for sequence in x.numpy()])
        worst = max(worst, float(abs(ours - theirs).max() / abs(theirs).max()))
    return worst
