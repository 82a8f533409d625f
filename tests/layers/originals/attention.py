"""Attention and its efficient relatives, as their authors' code computes them."""

import math

import numpy as np
import torch

from tests.layers.originals.plain import (
    attend,
    dense,
    elu_plus_one,
    join,
    project,
    seen_by,
    sigmoid,
    softmax,
    split,
    swap,
)


def softmax_attention(w, x, layer, turn=lambda t: t):
    q, k, v = (split(t, layer.num_heads) for t in np.split(dense(w, "qkv", x), 3, axis=-1))
    return dense(w, "out", join(attend(turn(q), turn(k), v, seen=seen_by(len(x), layer.causal))))


def rotary(w, x, layer):
    """RoFormer rotates the pairs (x_2n, x_2n+1); with its channels in the order here, the same."""

    def turn(t):  # (H, L, d)
        half = t.shape[-1] // 2
        pairs = np.stack([t[..., :half], t[..., half:]], axis=-1)  # as the published order has them
        angle = np.arange(t.shape[1])[:, None] * 10_000.0 ** (-np.arange(half) / half)
        z = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angle)
        return np.concatenate([z.real, z.imag], axis=-1)

    return softmax_attention(w, x, layer, turn)


def alibi(w, x, layer):
    def slopes(heads):  # a geometric series that starts at its own ratio, 2^(-8/H)
        if math.log2(heads).is_integer():
            ratio = 2 ** (-(2 ** -(math.log2(heads) - 3)))
            return [ratio ** (i + 1) for i in range(heads)]
        near = 2 ** math.floor(math.log2(heads))
        return slopes(near) + slopes(2 * near)[::2][: heads - near]

    q, k, v = project(w, x, layer.num_heads)
    place = np.arange(len(x))
    slope = np.array(slopes(layer.num_heads))[:, None, None]
    # The code adds m·j to every row, which is m·(j - i) up to a constant of the row.
    bias = slope * place if layer.causal else -slope * abs(place[:, None] - place)
    return dense(w, "output", join(attend(q, k, v, seen=seen_by(len(x), layer.causal), bias=bias)))


def reformer(w, x, layer):
    q, v = (split(dense(w, name, x), layer.num_heads) for name in ("query", "value"))
    length = len(x)
    allowed = seen_by(length, layer.causal)
    out = np.zeros_like(v)
    for h in range(layer.num_heads):
        key = q[h] / np.sqrt((q[h] ** 2).mean(-1, keepdims=True)) / math.sqrt(q.shape[-1])
        rounds = []
        for rotation in w["rotations"][h]:  # (d, buckets / 2)
            rotated = q[h] @ rotation
            rounds.append(np.concatenate([rotated, -rotated], axis=-1).argmax(-1))
        together = np.array([bucket[:, None] == bucket for bucket in rounds])
        parts, masses = [], []
        for same in together:
            scores = q[h] @ key.T - np.log(np.maximum(together.sum(0), 1))
            scores = scores - 1e5 * np.eye(length)
            scores = np.where(same & allowed, scores, -np.inf)
            masses.append(np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1)))
            masses[-1] += scores.max(-1)
            parts.append(softmax(scores) @ v[h])
        share = softmax(np.array(masses).T)  # (L, rounds)
        out[h] = sum(share[:, [r]] * part for r, part in enumerate(parts))
    return dense(w, "output", join(out))


def linformer(w, x, layer):
    q, k, v = project(w, x, layer.num_heads)
    keys = w["project_keys"][:, : len(x)] @ k
    values = w["project_values"][:, : len(x)] @ v
    weights = softmax(q @ swap(keys) / math.sqrt(q.shape[-1]))
    return dense(w, "output", join(weights @ values))


def bigbird(w, x, layer):
    """The pattern of the code for every head, with the random blocks that the layer has drawn."""
    q, k, v = project(w, x, layer.num_heads)
    length, size, r = len(x), layer.block, layer.random_blocks
    blocks = -(-length // size)
    index, counts = layer.neighbours(torch.ones(1, blocks, dtype=torch.bool))
    drawn, real = index[0, ..., -r:].numpy(), counts[0, ..., -r:].numpy()
    out = []
    for h in range(layer.num_heads):
        pattern = np.zeros((blocks, blocks), bool)
        for i in range(blocks):
            pattern[i, max(0, i - 1) : i + 2] = True
            pattern[i, drawn[h, i][real[h, i]]] = True
        pattern[[0, -1]] = pattern[:, [0, -1]] = True
        seen = pattern.repeat(size, 0).repeat(size, 1)[:length, :length]
        out.append(attend(q[h], k[h], v[h], seen=seen))
    return dense(w, "output", join(out))


def linear_weights(q, k, v, causal):
    weights = np.where(seen_by(q.shape[1], causal), q @ swap(k), 0)
    return weights / weights.sum(-1, keepdims=True) @ v


def linear(w, x, layer):
    q, k, v = project(w, x, layer.num_heads)
    out = linear_weights(elu_plus_one(q), elu_plus_one(k), v, layer.causal)
    return dense(w, "output", join(out))


def performer(w, x, layer):
    q, k, v = project(w, x, layer.num_heads)

    def features(t, *, is_query):
        t = t / t.shape[-1] ** 0.25
        dots = t @ w["projection"].T
        top = dots.max(-1, keepdims=True) if is_query else dots.max((-1, -2), keepdims=True)
        size = (t**2).sum(-1, keepdims=True) / 2
        return np.exp(dots - size - top) / math.sqrt(len(w["projection"]))

    out = linear_weights(features(q, is_query=True), features(k, is_query=False), v, layer.causal)
    return dense(w, "output", join(out))


def luna(w, x, layer):
    q, k, v = project(w, x, layer.num_heads)
    p = split(dense(w, "memory_query", w["memory"]), layer.num_heads)
    scale = 1 / math.sqrt(q.shape[-1])
    if layer.causal:
        pack = elu_plus_one(split(dense(w, "pack_key", x), layer.num_heads) @ swap(p * scale))
        out = np.zeros_like(v)
        for h in range(layer.num_heads):
            keys, values = 0.0, 0.0
            for t in range(len(x)):
                keys = keys + np.outer(k[h, t], pack[h, t])
                values = values + np.outer(pack[h, t], v[h, t])
                unpack = softmax(q[h, t] * scale @ keys / (t + 1))
                out[h, t] = unpack @ values / (t + 1)
        return dense(w, "output", join(out))
    packed = join(softmax(p * scale @ swap(k)) @ v)
    keys = split(dense(w, "packed_key", packed), layer.num_heads)
    values = split(dense(w, "packed_value", packed), layer.num_heads)
    return dense(w, "output", join(softmax(q * scale @ swap(keys)) @ values))


def forgetting(w, x, layer):
    """The logarithms of all forget gates after key j, up to query i, are added to the score."""
    q, k, v = (split(t, layer.num_heads) for t in np.split(dense(w, "qkv", x), 3, axis=-1))
    gates = np.log(sigmoid(dense(w, "to_gates", x))).T  # (H, L)
    bias = np.array(
        [[[g[j + 1 : i + 1].sum() for j in range(len(x))] for i in range(len(x))] for g in gates]
    )
    return dense(w, "out", join(attend(q, k, v, seen=seen_by(len(x), True), bias=bias)))


def wall(w, x, layer):
    """Each channel's product decays by all gates of that channel after key j, up to query i."""
    q, k, v = (split(t, layer.num_heads) for t in np.split(dense(w, "qkv", x), 3, axis=-1))
    gates = split(-layer.rate_max * sigmoid(dense(w, "to_gates", x)), layer.num_heads)  # (H, L, d)
    scores = np.full((layer.num_heads, len(x), len(x)), -np.inf)
    for i in range(len(x)):
        for j in range(i + 1):
            decay = np.exp(gates[:, j + 1 : i + 1].sum(1))  # (H, d)
            scores[:, i, j] = (q[:, i] * k[:, j] * decay).sum(-1) / math.sqrt(q.shape[-1])
    return dense(w, "out", join(softmax(scores) @ v))


def key_convolution(w, x, layer):
    """Each row of attention is filtered along the keys, after the softmax; the future stays 0."""
    q, k, v = (split(t, layer.num_heads) for t in np.split(dense(w, "qkv", x), 3, axis=-1))
    scores = q @ swap(k) / math.sqrt(q.shape[-1])
    weights = softmax(np.where(seen_by(len(x), True), scores, -np.inf))
    filtered = np.zeros_like(weights)
    for tap in range(min(layer.window, len(x))):
        share = w["taps"][:, tap, None, None]
        filtered[:, :, : len(x) - tap] += share * weights[:, :, tap:]
    return dense(w, "out", join(filtered @ v))
