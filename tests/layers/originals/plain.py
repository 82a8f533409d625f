"""What several oracles need: numpy in float64, one sequence (L, D) at a time."""

import math

import numpy as np

erf = np.vectorize(math.erf, otypes=[np.float64])


def numbers(layer):
    """The layer's parameters and buffers by name."""
    return {name: t.detach().numpy().astype(np.float64) for name, t in layer.state_dict().items()}


def dense(w, name, x):
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def gelu(x):
    return x * (1 + erf(x / math.sqrt(2))) / 2


def elu_plus_one(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def layer_norm(w, name, x, eps=1e-5):
    centred = x - x.mean(-1, keepdims=True)
    unit = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    return unit * w[f"{name}.weight"] + w[f"{name}.bias"]


def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def split(x, heads):
    """(L, D) -> (H, L, d): head h has the channels h·d … (h + 1)·d - 1."""
    return np.stack(np.split(x, heads, axis=-1))


def join(x):
    """(H, L, d) -> (L, D)."""
    return np.concatenate(list(x), axis=-1)


def swap(x):
    return np.swapaxes(x, -1, -2)


def seen_by(length, causal):
    """(L, L): which key each query may see."""
    return np.tril(np.ones((length, length), bool)) if causal else np.ones((length, length), bool)


def attend(q, k, v, *, seen, bias=0.0):
    """softmax(q kᵀ/√d + bias) v over the keys seen: (H, L, d)."""
    scores = q @ swap(k) / math.sqrt(q.shape[-1]) + bias
    return softmax(np.where(seen, scores, -np.inf)) @ v


def project(w, x, heads):
    return tuple(split(dense(w, name, x), heads) for name in ("query", "key", "value"))


def convolve(x, past, future=None):
    """Σ_{j ≤ i} past[i - j] x_j + Σ_{j > i} future[j - i - 1] x_j, channel by channel.

    ``past`` and ``future`` are (D, at least L taps, or fewer: zeros follow).
    """
    y = np.zeros_like(x)
    for i in range(len(x)):
        for j in range(len(x)):
            taps, lag = (past, i - j) if j <= i else (future, j - i - 1)
            if taps is not None and lag < taps.shape[1]:
                y[i] += taps[:, lag] * x[j]
    return y


def complex_of(pairs):
    return pairs[..., 0] + 1j * pairs[..., 1]


def mixed(w, y, output):
    """The tail of S4-like layers: GELU, then a projection, gated or not."""
    y = dense(w, "mix.project", gelu(y))
    if output == "linear":
        return y
    value, gate = np.split(y, 2, axis=-1)
    return value * sigmoid(gate)
