"""Pictures of what the lens sees, as PNG and SVG; matplotlib loads when the first one is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longlens.layers.alibi import AlibiAttention
from longlens.layers.attention import LaSAttention
from longlens.lens.look import View
from longlens.lens.maps import visible_keys
from longlens.lens.subjects import Subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Looked = Sequence[tuple[Subject, list[View]]]
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#777777")
RC = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 8.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "longlens",  # the same picture is the same file
}
SHOWN = 4  # channels, heads or layers beside each other
LINES = len(COLOURS)


def need_matplotlib() -> Any:
    """Matplotlib itself, or an error that says how to get it."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise ValueError(
            f"pictures need {error.name}: pip install 'longlens[lab]', or leave them out with "
            "--no-pictures"
        ) from None
    return matplotlib


def save(figure: Figure, folder: Path, name: str, dpi: int = 120) -> list[Path]:
    """Write NAME.png and NAME.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    with need_matplotlib().rc_context(RC):
        figure.savefig(paths[0], dpi=dpi)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def _panels(
    rows: int, columns: int, width: float, height: float
) -> tuple[Figure, list[list[Axes]]]:
    """A grid of panels, each ``width`` × ``height`` inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    return figure, [list(row) for row in grid]


def _styled(draw: Callable[..., Figure | None]) -> Callable[..., Figure | None]:
    def inner(*arguments: Any, **options: Any) -> Figure | None:
        with need_matplotlib().rc_context(RC):
            return draw(*arguments, **options)

    inner.__doc__ = draw.__doc__
    return inner


def _evenly(count: int, most: int) -> list[int]:
    """At most ``most`` of 0 … count - 1, first and last included."""
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def main_view(views: Sequence[View], layer: int = 0) -> View:
    """The most telling view of a layer: its kernel, else its attention, else its gradients."""
    own = [view for view in views if view.layer == layer]
    return min(own, key=lambda view: ("kernel", "attention", "gradient").index(view.view))


def _layers(views: Sequence[View]) -> list[int]:
    return sorted({view.layer for view in views if view.layer is not None})


def _draw_view(axes: Axes, view: View) -> None:
    """Curves of a few heads or channels against distance."""
    heads = _evenly(len(view.kernels), SHOWN)
    distance = torch.arange(view.kernels.shape[1])
    for colour, head in zip(COLOURS, heads, strict=False):
        curve = view.kernels[head].double()
        if view.view != "attention":
            curve = curve / curve.abs().max().clamp_min(1e-300)
        word = {"kernel": "channel", "attention": "head"}.get(view.view)
        label = None if word is None else f"{word} {head}"
        axes.plot(distance.numpy(), curve.numpy(), color=colour, linewidth=1.0, label=label)
    if view.view == "kernel":
        axes.axhline(0, color="#999999", linewidth=0.6)
        axes.set_ylabel("tap / largest")
    elif view.view == "attention":
        axes.set_ylim(bottom=0)
        axes.set_ylabel("weight / even")
    else:
        axes.set_ylabel("gradient / largest")
        axes.set_ylim(bottom=0)
    axes.set_xlabel("distance")


@_styled
def draw_kernels(looked: Looked) -> Figure:
    """Kernels side by side (the paper's Figure 1): a panel a subject, or a row of them a layer."""
    deepest = max(len(_layers(views)) for _, views in looked)
    panels: list[tuple[str, View]] = []
    if deepest == 1:
        columns = min(SHOWN, len(looked))
        for subject, views in looked:
            view = main_view(views)
            part = "" if view.part in ("kernel", "weights") else f" ({view.part})"
            panels.append((f"{subject.name}{part}", view))
    else:
        columns = len(looked)
        for layer in range(deepest):
            for subject, views in looked:
                own = layer if layer in _layers(views) else _layers(views)[-1]
                panels.append((f"{subject.name}\nlayer {own}", main_view(views, own)))
    rows = -(-len(panels) // columns)
    figure, grid = _panels(rows, columns, 8.6 / max(columns, 2), 2.0 if rows > 1 else 2.5)
    for i, axes in enumerate(axes for row in grid for axes in row):
        if i >= len(panels):
            axes.set_axis_off()
            continue
        title, view = panels[i]
        axes.set_title(title)
        _draw_view(axes, view)
        if i + columns < len(panels):
            axes.set_xlabel("")
        kinds = [v.view for _, v in panels[:i]]
        if view.view != "gradient" and view.view not in kinds:
            axes.legend(
                frameon=False,
                handlelength=1.0,
                labelspacing=0.2,
                loc="lower right" if view.view == "kernel" else "best",
            )
    return figure


@_styled
def draw_profiles(looked: Looked) -> Figure:
    """Mean weight by distance of all subjects on one logarithmic axis, scaled to 1 at its largest.

    A line a subject: the mean over its layers. Up to eight subjects; beyond, see the reach.
    """
    figure, grid = _panels(1, 1, 8.0, 3.4)
    axes = grid[0][0]
    runs: list[object] = []  # a run before and after training has one colour
    for i, (subject, views) in enumerate(looked[: 2 * LINES]):
        owner = i if subject.run is None else subject.run
        runs += [] if owner in runs else [owner]
        if len(runs) > LINES:
            break
        own = [main_view(views, layer) for layer in _layers(views)]
        size = min(len(view.profile) for view in own)
        profile = torch.stack([view.profile[:size] for view in own]).mean(0).double()
        profile = profile / profile.max()
        shown = profile > 1e-6
        distance = torch.arange(size)
        axes.plot(
            (distance[shown] + 1).numpy(),
            profile[shown].numpy(),
            color=COLOURS[runs.index(owner)],
            linestyle="--" if subject.stage == "before training" else "-",
            linewidth=1.4,
            label=f"{subject.name} ({own[0].view})",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("distance + 1")
    axes.set_ylabel("mean |weight| / largest")
    axes.legend(frameon=False, loc="lower left")
    axes.grid(True, which="major", linewidth=0.4, color="#dddddd")
    return figure


@_styled
def draw_reach(looked: Looked) -> Figure:
    """Effective receptive fields: within which distance half and 90 % of the gradients lie."""
    rows = []
    for subject, views in looked:
        gradients = [v for v in views if v.view == "gradient"]
        whole = [v for v in gradients if v.layer is None]
        for view in whole or gradients:
            summary = view.summary()
            if summary is not None:
                rows.append((subject.name, summary.half_distance, summary.reach_90))
    figure, grid = _panels(1, 1, 8.0, 0.8 + 0.22 * len(rows))
    axes = grid[0][0]
    for y, (_, half, most) in enumerate(rows):
        axes.plot([half + 1, most + 1], [y, y], color="#bbbbbb", linewidth=2, zorder=1)
    places = list(range(len(rows)))
    axes.scatter([r[1] + 1 for r in rows], places, color=COLOURS[0], s=22, label="50 %", zorder=2)
    axes.scatter([r[2] + 1 for r in rows], places, color=COLOURS[1], s=22, label="90 %", zorder=2)
    axes.set_yticks(places, [r[0] for r in rows])
    axes.invert_yaxis()
    axes.set_xscale("log", base=2)
    axes.set_xlabel("distance + 1 within which this share of the gradient lies")
    axes.grid(True, axis="x", linewidth=0.4, color="#dddddd")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def decay_of(layer: Any) -> tuple[Tensor, str] | None:
    """By what rate each head decays with distance, (H,), and what it multiplies; None: by none."""
    if isinstance(layer, LaSAttention):
        rates, _ = layer.rates()
        return None if rates is None else (rates.detach().cpu(), "score")
    if isinstance(layer, AlibiAttention):  # subtracted from the score
        return layer.slopes.detach().cpu(), "weight"
    return None


@_styled
def draw_decay(looked: Looked, length: int = 1024) -> Figure | None:
    """Decay matrices per head, exp(-α·distance), and their first rows; None where there is none."""
    found = []
    for subject, _ in looked:
        decay = decay_of(subject.layers[0][0])
        if decay is not None:
            found.append((subject.name, *decay))
    if not found:
        return None
    figure, grid = _panels(len(found), SHOWN + 1, 1.9, 2.15)
    distance = torch.arange(length, dtype=torch.float64)
    matrix = torch.tril(distance[:, None] - distance)
    seen = torch.tril(torch.ones_like(matrix)).bool()
    for (name, rates, what), row in zip(found, grid, strict=True):
        chosen = _evenly(len(rates), SHOWN)
        for colour, head in zip(COLOURS, chosen, strict=False):
            curve = torch.exp(-float(rates[head]) * distance)
            row[0].plot(
                distance.numpy(), curve.numpy(), color=colour, linewidth=1.2, label=f"head {head}"
            )
        row[0].set_ylim(-0.03, 1.05)
        row[0].set_title(name)
        row[0].set_xlabel("distance")
        row[0].set_ylabel(f"factor on the {what}")
        row[0].legend(frameon=False, handlelength=1.0)
        for axes, head in zip(row[1:], chosen, strict=False):
            values = torch.exp(-float(rates[head]) * matrix).masked_fill(~seen, float("nan"))
            place = (0, length, length, 0)
            picture = values[::4, ::4].numpy()
            axes.imshow(picture, vmin=0, vmax=1, cmap="viridis", extent=place)
            axes.set_title(f"head {head}, α = {float(rates[head]):.2g}")
            axes.set_xlabel("key")
        row[1].set_ylabel("query")
        for axes in row[1 + len(chosen) :]:
            axes.set_axis_off()
    return figure


@_styled
def draw_maps(looked: Looked, most: int = 128) -> Figure | None:
    """Attention maps on the same input (Figure 4): subjects below each other, layers beside.

    A single layer shows some of its heads instead; a model the mean over heads. Weights times the
    number of keys a query sees, so that rows of different lengths compare; min-max between the 1st
    and the 99th percentile; the first ``most`` positions.
    """
    rows = []
    for subject, views in looked:
        own = [view for view in views if view.map is not None]
        if not own:
            continue
        pictures: list[tuple[str, Tensor]] = []
        if len(own) == 1:
            one = own[0].map
            assert one is not None
            pictures = [(f"head {h}", one[h]) for h in _evenly(len(one), SHOWN)]
        else:
            for i in _evenly(len(own), SHOWN):
                found = own[i].map
                assert found is not None
                pictures.append((f"layer {own[i].layer}, mean of heads", found.mean(0)))
        layer = subject.layers[own[0].layer or 0][0]
        rows.append((subject.name, layer, pictures))
    if not rows:
        return None
    columns = max(len(pictures) for _, _, pictures in rows)
    figure, grid = _panels(len(rows), columns, 2.15, 2.2)
    for (name, layer, pictures), line in zip(rows, grid, strict=True):
        for axes, (title, weights) in zip(line, pictures, strict=False):
            size = min(most, len(weights))
            seen = visible_keys(layer, len(weights))
            values = (weights.abs() * seen.sum(-1, keepdim=True))[:size, :size].double()
            inside = values[seen[:size, :size]]
            low, high = (float(inside.quantile(q)) for q in (0.01, 0.99))
            values = values.masked_fill(~seen[:size, :size], float("nan"))
            axes.imshow(
                values.numpy(),
                vmin=low,
                vmax=max(high, low + 1e-12),
                cmap="magma",
                interpolation="none",  # a square a weight, and small files
            )
            axes.set_title(title)
        for axes in line[len(pictures) :]:
            axes.set_axis_off()
        line[0].set_ylabel(f"{fill(name, 28)}\nquery")
    for axes in grid[-1]:
        axes.set_xlabel("key")
    return figure


@_styled
def draw_table(rows: Sequence[Sequence[str]], heading: Sequence[str]) -> Figure:
    """A table as a picture: text cells, a line under the heading, shaded every other row."""
    widths = [max(len(str(r[i])) for r in [heading, *rows]) + 2 for i in range(len(heading))]
    figure, grid = _panels(1, 1, 8.4, 0.45 + 0.21 * (len(rows) + 1))
    axes = grid[0][0]
    axes.set_axis_off()
    axes.set_xlim(0, sum(widths))
    axes.set_ylim(len(rows) + 0.5, -0.6)
    starts = [sum(widths[:i]) for i in range(len(widths))]
    for y, row in enumerate([heading, *rows]):
        if y and y % 2 == 0:
            axes.axhspan(y - 0.5, y + 0.5, color="#f2f4f6", linewidth=0)
        for start, width, cell in zip(starts, widths, row, strict=True):
            first = start == 0
            place = start + 0.5 if first else start + width / 2
            axes.text(
                place, y, cell, va="center", ha="left" if first else "center",
                fontsize=8, fontweight="bold" if y == 0 else "normal",
            )  # fmt: skip
    axes.axhline(0.5, color="#333333", linewidth=0.8)
    return figure
