"""Every key of the registry in every direction it has, small enough for a test."""

import torch

from longlens.layers import MIXERS, build, options_of

# Small versions of whatever size options a mixer has.
SMALL = {
    "num_heads": 2,
    "state": 8,
    "query_dim": 8,
    "chunk": 8,
    "block": 4,
    "random_blocks": 1,
    "num_buckets": 4,
    "shift": 4,
    "rank": 8,
    "scale_dim": 8,
    "averages": 4,
    "features": 16,
    "memory": 4,
    "hidden": 16,
    "rpe_dim": 8,
}
# A state space on a quarter of 16 channels would drown in the dense products around it.
OWN = {"local": {"window": 5}, "gss": {"inner_dim": 8}}


def options(key, *, max_length=64, **more):
    known = options_of(key)
    small = {k: v for k, v in SMALL.items() if k in known and known[k] is not None}
    if "max_length" in known:
        small["max_length"] = max_length
    return {**small, **OWN.get(key, {}), **more}


def directions(key):
    """The values of ``bidirectional`` to try; a mixer without the option has one."""
    if "bidirectional" in options_of(key):
        return [{"bidirectional": False}, {"bidirectional": True}]
    return [{}]


def make(key, dim=16, *, max_length=64, **more):
    return build(key, dim, **options(key, max_length=max_length, **more))


CASES = [(key, direction) for key in MIXERS for direction in directions(key)]
IDS = [f"{key}{'-both' if direction.get('bidirectional') else ''}" for key, direction in CASES]
KEYS = list(MIXERS)  # those of the library: a test may add its own for a while
DEFAULTS = [(key, {}) for key in KEYS]


def run_steps(mixer, x):
    """Outputs of ``step`` along x (B, L, D)."""
    state, outputs = None, []
    for t in range(x.shape[1]):
        y, state = mixer.step(x[:, t], state)
        outputs.append(y)
    return torch.stack(outputs, dim=1)
