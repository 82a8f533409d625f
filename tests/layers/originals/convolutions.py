"""Long convolutions, token mixing, hybrids and recurrent networks, as in their authors' code."""

import math

import numpy as np

from tests.layers.originals.plain import (
    convolve,
    dense,
    erf,
    gelu,
    layer_norm,
    sigmoid,
    silu,
    softmax,
)
from tests.layers.originals.state_space import framed


def sgconv(w, x, layer):
    """Scales in falling powers of two; the norm of the first kernel has that factor too."""
    weights = w["kernel.w"]  # (scales, M, D, d)
    scales, size = weights.shape[0], weights.shape[-1]
    parts = []
    for i, samples in enumerate(weights):
        stretch = 2 ** max(0, i - 1)
        # Linear interpolation between the centres of the samples, constant beyond the outer ones.
        place = np.clip((np.arange(size * stretch) + 0.5) / stretch - 0.5, 0, size - 1)
        low = np.floor(place).astype(int)
        part = place - low
        up = samples[..., low] * (1 - part) + samples[..., np.minimum(low + 1, size - 1)] * part
        parts.append(2.0 ** (scales - i - 1) * up)
    taps = np.concatenate(parts, axis=-1) / (w["kernel.norm"] * 2.0 ** (scales - 1))
    return framed(w, x, layer, taps[..., : len(x)], "glu")


def longconv(w, x, layer):
    raw = w["kernel.taps"]
    pad = layer.kernel.smoothing // 2
    wide = np.pad(raw, ((0, 0), (0, 0), (pad, pad)))
    taps = np.mean([wide[..., s : s + raw.shape[-1]] for s in range(2 * pad + 1)], axis=0)
    taps = np.maximum(abs(taps) - layer.kernel.threshold, 0) * np.sign(taps)
    return framed(w, x, layer, taps[..., : len(x)], "glu")


def ckconv(w, x, layer):
    """The authors' network; ω stands before both sines there, so its second weights are W/ω."""
    net, omega = "kernel.network", layer.kernel.network.omega
    length = layer.kernel.max_length
    # Their positions run over [-1, 1]; the first layer's weights and biases for that range are
    half = w[f"{net}.first.weight"] * (length - 1) / length / 2
    centre = w[f"{net}.first.bias"] + half[:, 0]
    h = np.sin(omega * (np.linspace(-1, 1, length)[:, None] @ half.T + centre))
    second, bias = w[f"{net}.second.weight"] / omega, w[f"{net}.second.bias"] / omega
    h = np.sin(omega * (h @ second.T + bias))
    taps = dense(w, f"{net}.last", h).T.reshape(-1, x.shape[1], length)
    return framed(w, x, layer, taps[..., : len(x)], "linear")


def hyena(w, x, layer):
    length, dim = x.shape
    order, longest = layer.order, layer.filter.max_length
    p = convolve(dense(w, "project", x), w["short.weight"][:, 0, ::-1]) + w["short.bias"]
    *gates, v = np.split(p, order + 1, axis=-1)
    t = np.linspace(0, 1, longest)[:, None]
    bands = layer.filter.bands
    angle = 2 * np.pi * np.arange(longest)[:, None] / longest
    z = np.exp(-1j * np.linspace(1e-4, bands - 1, bands) * angle)
    h = np.concatenate([t, z.real, z.imag], axis=-1)
    for i in range(3):
        h = np.sin(w["filter.frequency"] * dense(w, f"filter.layers.{i}", h))
    h = dense(w, "filter.last", h)
    deltas = np.linspace(math.log(0.01) / 1.5, math.log(0.01) / 0.3, h.shape[-1])
    h = (h * np.exp(-t * abs(deltas))).reshape(longest, dim, order - 1)
    for o, gate in enumerate(reversed(gates[1:])):
        v = v * gate
        v = convolve(v, h[:length, :, o].T) + w["skip"][o] * v
    return dense(w, "output", v * gates[0])


def tnn(w, x, layer):
    def simple_rms_norm(t):
        return t / (np.linalg.norm(t, axis=-1, keepdims=True) / math.sqrt(t.shape[-1]) + 1e-8)

    def entry(distance):  # (W,)
        h = dense(w, "rpe.0", np.array([float(distance)]))
        for i in (3, 6, 9):
            h = dense(w, f"rpe.{i}", np.maximum(simple_rms_norm(h), 0))
        h = dense(w, "coefficients", np.maximum(simple_rms_norm(h), 0))
        return layer.decay ** abs(distance) * h

    v = silu(dense(w, "value", x))
    mixed = np.zeros_like(v)
    for i in range(len(x)):
        for j in range(i + 1 if layer.causal else len(x)):
            mixed[i] += entry(i - j) * v[j]
    return dense(w, "output", silu(dense(w, "gate", x)) * mixed)


def gmlp(w, x, layer):
    u, v = np.split(gelu(dense(w, "input", x)), 2, axis=-1)
    matrix = w["spatial"][: len(x), : len(x)]
    matrix = np.tril(matrix) if layer.causal else matrix
    gate = matrix @ layer_norm(w, "norm", v) + w["bias"][: len(x), None]
    return dense(w, "output", u * gate)


def mega(w, x, layer):
    length = len(x)
    y = w["ema.skip"] * x
    for side in range(len(w["ema.alpha"])):
        p = sigmoid(w["ema.alpha"][side])  # (D, N)
        q = 1 - p * sigmoid(w["ema.delta"][side])
        weight = p * w["ema.beta"][side] * w["ema.eta"][side] / math.sqrt(p.shape[-1])
        taps = (weight[..., None] * q[..., None] ** np.arange(length)).sum(1)
        turned = x if side == 0 else x[::-1]
        part = convolve(turned, taps)
        y = y + (part if side == 0 else part[::-1])
    sizes = np.cumsum(layer.split)[:-1]
    z, r, hx, u = np.split(dense(w, "project", silu(y)), sizes, axis=-1)
    z, r, u = silu(z), silu(r), sigmoid(u)
    q, k = (z * w["scale"][i] + w["shift"][i] for i in (0, 1))
    v = silu(dense(w, "value", x))
    chunk = layer.chunk or length
    out = np.zeros_like(v)
    for start in range(0, length, chunk):
        rows = slice(start, min(start + chunk, length))
        n = rows.stop - rows.start
        seen = np.tril(np.ones((n, n), bool)) if layer.causal else np.ones((n, n), bool)
        dots = q[rows] @ k[rows].T
        bias = simple_bias(w, n) if layer.simple else rotary_bias(w["bias_query"], w["bias_key"], n)
        if layer.attention == "softmax":
            weights = softmax(np.where(seen, dots / math.sqrt(q.shape[-1]) + bias, -np.inf))
        else:
            scores = dots / seen.sum(-1, keepdims=True) + bias
            deviation = math.sqrt(0.25 / math.pi)
            weights = seen * (1 + erf((scores - math.sqrt(0.5)) / (deviation * math.sqrt(2)))) / 2
        out[rows] = weights @ v[rows]
    h = silu(hx + dense(w, "mix", out * r))
    return x + u * (h - x)


def simple_bias(w, n):
    """A learned number for every distance j - i, the present in the middle of the table: (n, n)."""
    middle = len(w["bias_table"]) // 2
    place = np.arange(n)
    return w["bias_table"][middle + place - place[:, None]]


def rotary_bias(a, b, n):
    """(R_i a)·(R_j b), (n, n)."""
    half = len(a) // 2
    angle = np.arange(n)[:, None] * np.exp(-np.arange(half) * math.log(10_000) / half)

    def turn(t):
        first, second = t[:half], t[half:]
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    return turn(a) @ turn(b).T


def recurrent(cell):
    """A network of ``nn.LSTM`` or ``nn.GRU``, and a second one from the end with a projection."""

    def oracle(w, x, layer):
        def run(name, order):
            into, back, into_bias, back_bias = (w[f"{name}.{i}"] for i in range(4))
            state = (np.zeros(x.shape[1]), np.zeros(x.shape[1]))
            seen = []
            for u in order:
                state = cell(into @ u + into_bias, back @ state[0] + back_bias, state)
                seen.append(state[0])
            return np.array(seen)

        y = run("forwards", x)
        if layer.causal:
            return y
        return dense(w, "join", np.concatenate([y, run("backwards", x[::-1])[::-1]], axis=-1))

    return oracle


@recurrent
def lstm(a, b, state):
    i, f, g, o = np.split(a + b, 4)
    c = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


@recurrent
def gru(a, b, state):
    (ar, az, an), (br, bz, bn) = np.split(a, 3), np.split(b, 3)
    r, z = sigmoid(ar + br), sigmoid(az + bz)
    n = np.tanh(an + r * bn)
    return ((1 - z) * n + z * state[0],)
