"""State spaces and linear recurrences, as their authors' code computes them."""

import numpy as np

from tests.layers.originals.plain import (
    complex_of,
    convolve,
    dense,
    gelu,
    layer_norm,
    mixed,
    sigmoid,
)


def framed(w, x, layer, taps, output):
    """Convolution, skip, GELU, projection; ``taps`` is (1 or 2, D, L)."""
    future = None if layer.causal else taps[1]
    return mixed(w, convolve(x, taps[0], future) + w["skip"] * x, output)


def powers(exponent, length):
    """exp(exponent · l): (..., L)."""
    return np.exp(exponent[..., None] * np.arange(length))


def bilinear(a, b, dt):
    eye = np.eye(len(a))
    inverse = np.linalg.inv(eye - dt / 2 * a)
    return inverse @ (eye + dt / 2 * a), inverse @ (dt * b)


def krylov(a, b, c, length):
    """C A^l B, one matrix-vector product a tap: a (N, N), b (N,), c (M, N) -> (M, L)."""
    taps = []
    for _ in range(length):
        taps.append(c @ b)
        b = a @ b
    return np.stack(taps, axis=-1)


def ss(w, x, layer):
    dts = np.exp(w["kernel.log_dt"])
    taps = [
        krylov(*bilinear(w["kernel.a"], w["kernel.b"], dt), w["kernel.c"][:, d], len(x))
        for d, dt in enumerate(dts)
    ]
    return framed(w, x, layer, np.stack(taps, axis=1), "linear")


def s4(w, x, layer, output="glu"):
    """The dense DPLR matrices; C is recovered from C̃ = C(I - Ā^L), L the longest kernel.

    Of n A and B (`n_ssm` there) channel d has those of number d mod n.
    """
    lam = -np.exp(w["kernel.log_decay"]) + 1j * w["kernel.frequency"]
    p, b, c = (complex_of(w[f"kernel.{name}"]) for name in ("p", "b", "truncated_c"))

    def both(z):
        return np.concatenate([z, z.conj()], axis=-1)

    taps = []
    for d, dt in enumerate(np.exp(w["kernel.log_dt"])):
        one = d % len(lam)
        low = both(p[one])
        a, step = bilinear(np.diag(both(lam[one])) - np.outer(low, low.conj()), both(b[one]), dt)
        rest = np.eye(len(a)) - np.linalg.matrix_power(a, layer.kernel.max_length)
        taps.append(krylov(a, step, both(c[:, d]) @ np.linalg.inv(rest), len(x)).real)
    return framed(w, x, layer, np.stack(taps, axis=1), output)


def s4_linear(w, x, layer):
    return s4(w, x, layer, "linear")


def dss(w, x, layer):
    lam = -np.exp(w["kernel.log_decay"]) + 1j * w["kernel.frequency"]
    weight = complex_of(w["kernel.w"])  # (M, D, N)
    step = np.exp(w["kernel.log_dt"])[:, None] * lam
    if layer.kernel.variant == "exp":
        gain = (np.exp(step) - 1) / lam
    else:  # one over the sum of a row of the softmax, a geometric series
        gain = (np.exp(step) - 1) / (np.exp(step * layer.kernel.max_length) - 1) / lam
    taps = np.einsum("mdn,dnl->mdl", weight * gain, powers(step, len(x))).real
    return framed(w, x, layer, taps, "linear")


def s4d(w, x, layer):
    lam = -np.exp(w["kernel.log_decay"]) + 1j * w["kernel.frequency"]
    dt = np.exp(w["kernel.log_dt"])[:, None]
    if layer.kernel.discretization == "zoh":
        gain, ratio = (np.exp(dt * lam) - 1) / lam, np.exp(dt * lam)
    else:
        gain, ratio = dt / (1 - dt * lam / 2), (1 + dt * lam / 2) / (1 - dt * lam / 2)
    c = complex_of(w["kernel.c"])
    taps = 2 * np.einsum("mdn,dnl->mdl", c * gain, powers(np.log(ratio), len(x))).real
    return framed(w, x, layer, taps, "glu")


def scans(lam, drive, causal):
    """States of h_t = λ h_{t-1} + drive_t, from the start and, not causal, from the end too."""
    states = []
    for order in (drive,) if causal else (drive, drive[::-1]):
        h, seen = np.zeros_like(drive[0]), []
        for u in order:
            h = lam * h + u
            seen.append(h)
        states.append(np.array(seen))
    return states if causal else [states[0], states[1][::-1]]


def s5(w, x, layer):
    lam = -np.exp(w["log_decay"]) + 1j * w["frequency"]
    ratio = np.exp(lam * np.exp(w["log_dt"]))
    b = ((ratio - 1) / lam)[:, None] * complex_of(w["b"])
    states = np.concatenate(scans(ratio, x @ b.T, layer.causal), axis=-1)
    c = np.concatenate(list(complex_of(w["c"])), axis=-1)  # (D, N/2 or N)
    y = gelu(2 * (states @ c.T).real + w["skip"] * x)
    return y * sigmoid(dense(w, "gate", y))


def lru(w, x, layer):
    ratio = np.exp(-np.exp(w["log_rate"]) + 1j * np.exp(w["log_phase"]))
    b = np.exp(w["log_gamma"])[:, None] * complex_of(w["b"])
    y = w["skip"] * x
    for states, c in zip(scans(ratio, x @ b.T, layer.causal), complex_of(w["c"]), strict=True):
        y = y + (states @ c.T).real
    return mixed(w, y, "glu")


def dlr(w, x, layer):
    lam = -np.exp(w["kernel.log_rate"]) + 1j * w["kernel.angle"]
    taps = np.einsum("mdn,nl->mdl", complex_of(w["kernel.w"]), powers(lam, len(x))).real
    return framed(w, x, layer, taps, "glu")


def gss(w, x, layer):
    lam = -np.exp(w["kernel.log_decay"]) + 1j * np.exp(w["kernel.log_frequency"])
    c = complex_of(w["kernel.w"]) * (np.exp(lam) - 1) / lam
    taps = np.einsum("mdn,nl->mdl", c, powers(lam, len(x))).real
    u = layer_norm(w, "norm", gelu(dense(w, "to_inner", x)))
    y = convolve(u, taps[0], None if layer.causal else taps[1]) + w["skip"] * u
    return dense(w, "output", dense(w, "widen", y) * gelu(dense(w, "to_gate", x)))


def h3(w, x, layer):
    """Both state spaces as matrices: the shift's is a shift of N places, fed at the first."""
    q, k, v = np.split(dense(w, "project", x), 3, axis=-1)
    size = w["shift_taps"].shape[1]
    first = np.eye(size)[0]
    shift = np.stack([krylov(np.eye(size, k=-1), first, c, len(x)) for c in w["shift_taps"]])
    k = convolve(k, shift)
    lam = -np.exp(w["kernel.log_decay"]) + 1j * w["kernel.frequency"]  # (H, N/2)
    dt = np.exp(w["kernel.log_dt"])[:, None]
    c = complex_of(w["kernel.c"])[0] * dt / (1 - dt * lam / 2)
    ratio = (1 + dt * lam / 2) / (1 - dt * lam / 2)
    taps = 2 * (c[..., None] * ratio[..., None] ** np.arange(len(x))).sum(1).real
    d = layer.head_dim
    y = np.zeros_like(x)
    for h in range(layer.num_heads):
        channels = slice(h * d, (h + 1) * d)
        outer = k[:, channels, None] * v[:, None, channels]  # (L, d1, d2)
        flat = outer.reshape(len(x), -1)
        memory = convolve(flat, np.repeat(taps[h : h + 1], d * d, axis=0)) + w["skip"][h] * flat
        y[:, channels] = (q[:, channels, None] * memory.reshape(outer.shape)).sum(1)
    return dense(w, "output", y)
