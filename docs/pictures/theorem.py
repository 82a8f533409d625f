"""The pictures of docs/theorem.md: python docs/pictures/theorem.py (needs longlens[lab])."""

from pathlib import Path

import torch

from longlens.charts import Line, heat_map, line_chart, panels, standalone
from longlens.layers import build
from longlens.lens import as_attention
from longlens.lens.kernels import convolutions

HERE = Path(__file__).parent
LENGTH = 24
SIZE = dict(width=260, height=240)


def curve(name, values, style=0, **look):
    """A line over the numbers of values."""
    return Line(name, [(float(x), y) for x, y in enumerate(values.tolist())], style, **look)


def matrix(title, values, low, high):
    """A matrix as a picture; its scale is part of the title."""
    shown = f"{title}, {low:.2g} … {high:.2g}"
    return heat_map(shown, values.numpy(), "key", "query", low=low, high=high, width=260)


def construction():
    """A kernel, its W_q, the attention weights, and the two outputs."""
    kernel = torch.exp(-0.25 * torch.arange(LENGTH, dtype=torch.float64))
    attention = as_attention(kernel)
    u = torch.randn(LENGTH, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    scores = attention.query[0]
    scores = torch.where(scores < -100, torch.nan, scores)
    low, high = (float(scores.nan_to_num(0).min()), float(scores.nan_to_num(-100).max()))
    convolved = torch.stack(
        [sum(kernel[t] * u[i - t] for t in range(i + 1)) for i in range(LENGTH)]
    )
    outputs = [
        curve("k * u", convolved, mark=True, hollow=True),
        curve("attention", attention(u), style=1),
    ]
    first = line_chart("kernel k", [curve("k", kernel, mark=True)], "distance", reference=0, **SIZE)
    return [
        first,
        matrix("queries", scores, low, high),
        matrix("attention", attention.weights()[0], 0, 0.3),
        line_chart("outputs agree", outputs, "position", **SIZE),
    ]


def signed():
    """A channel of S4D as the difference of two heads."""
    torch.manual_seed(3)
    layer = build("s4d", 4, state=8, init="lin", dt_min=0.05, dt_max=0.2)
    kernel = convolutions(layer)[0].kernel(2 * LENGTH)[1]
    attention = as_attention(kernel)
    weights, c = attention.weights(), attention.value
    parts = [
        curve("positive part", kernel.clamp_min(0)),
        curve("negative part", kernel.clamp_max(0), style=1),
    ]
    high = float(weights[:, :-1, :-1].max())
    difference = (c[:, None, None] * weights).sum(0)[:-1, :-1]
    size = float(difference.abs().max())
    return [
        line_chart("an S4D channel", parts, "distance", reference=0, **SIZE),
        matrix("head +", weights[0], 0, high),
        matrix("head −", weights[1], 0, high),
        matrix("c · difference", difference, -size, size),
    ]


if __name__ == "__main__":
    for name, draw in (("theorem-construction", construction), ("theorem-signed", signed)):
        (HERE / f"{name}.svg").write_text(standalone(panels(draw.__doc__, [draw()])))
