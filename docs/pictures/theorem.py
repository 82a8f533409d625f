"""The pictures of docs/theorem.md: python docs/pictures/theorem.py (needs longlens[lab])."""

from pathlib import Path

import matplotlib
import torch
from matplotlib.figure import Figure

from longlens.layers import build
from longlens.lens import as_attention
from longlens.lens.kernels import convolutions
from longlens.lens.pictures import COLOURS, RC

HERE = Path(__file__).parent
LENGTH = 24


def show(axes, matrix, title, *, cmap, low=None, high=None):
    """A matrix as a picture with its scale."""
    picture = axes.imshow(matrix.numpy(), cmap=cmap, vmin=low, vmax=high)
    axes.set_title(title)
    axes.set_xlabel("key")
    axes.figure.colorbar(picture, ax=axes, shrink=0.8)


def construction():
    """A kernel, its W_q, the attention weights, and the two outputs."""
    kernel = torch.exp(-0.25 * torch.arange(LENGTH, dtype=torch.float64))
    attention = as_attention(kernel)
    u = torch.randn(LENGTH, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    figure = Figure(figsize=(10.4, 2.7), layout="constrained")
    first, query, weights, output = figure.subplots(1, 4)
    first.bar(range(LENGTH), kernel.numpy(), color=COLOURS[0])
    first.set_title("kernel k")
    first.set_xlabel("distance")
    scores = attention.query[0]
    scores = torch.where(scores < -100, torch.nan, scores)
    show(query, scores, r"queries $W_q$ = ln of taps and rests", cmap="viridis")
    query.set_ylabel("query")
    show(weights, attention.weights()[0], "attention = softmax", cmap="magma", low=0, high=0.3)
    convolved = torch.stack(
        [sum(kernel[t] * u[i - t] for t in range(i + 1)) for i in range(LENGTH)]
    )
    output.plot(convolved.numpy(), color=COLOURS[0], linewidth=3.5, alpha=0.5, label="k * u")
    output.plot(attention(u).numpy(), color=COLOURS[1], linewidth=1.2, label="attention")
    output.set_title("outputs agree")
    output.set_xlabel("position")
    output.legend(frameon=False)
    return figure


def signed():
    """A channel of S4D as the difference of two heads."""
    torch.manual_seed(3)
    layer = build("s4d", 4, state=8, init="lin", dt_min=0.05, dt_max=0.2)
    kernel = convolutions(layer)[0].kernel(2 * LENGTH)[1]
    attention = as_attention(kernel)
    weights, c = attention.weights(), attention.value
    figure = Figure(figsize=(10.4, 2.7), layout="constrained")
    first, plus, minus, both = figure.subplots(1, 4)
    tap = range(2 * LENGTH)
    for colour, part, name in ((COLOURS[0], kernel.clamp_min(0), "positive part"),
                               (COLOURS[1], kernel.clamp_max(0), "negative part")):  # fmt: skip
        first.bar(tap, part.numpy(), color=colour, label=name)
    first.set_title("kernel of an S4D channel")
    first.set_xlabel("distance")
    first.legend(frameon=False)
    high = float(weights[:, :-1, :-1].max())
    show(plus, weights[0], "head +", cmap="magma", low=0, high=high)
    show(minus, weights[1], "head −", cmap="magma", low=0, high=high)
    plus.set_ylabel("query")
    matrix = (c[:, None, None] * weights).sum(0)[:-1, :-1]
    size = float(matrix.abs().max())
    show(both, matrix, "their difference, times c", cmap="RdBu_r", low=-size, high=size)
    return figure


if __name__ == "__main__":
    with matplotlib.rc_context(RC):
        for name, draw in (("theorem-construction", construction), ("theorem-signed", signed)):
            draw().savefig(HERE / f"{name}.png", dpi=120)
