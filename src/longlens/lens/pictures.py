"""Pictures of what the lens sees, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from longlens.charts import Line, dot_chart, heat_map, line_chart, panels
from longlens.layers.alibi import AlibiAttention
from longlens.layers.attention import LaSAttention
from longlens.lens.look import View
from longlens.lens.maps import visible_keys
from longlens.lens.subjects import Subject
from longlens.models.aspects import ASPECTS, describe
from longlens.runs.record import thin
from longlens.tables import Table

Looked = Sequence[tuple[Subject, list[View]]]
SHOWN = 4  # channels, heads or layers beside each other
LINES = 8  # of one chart
PANEL, WIDEST = 250, 420  # width of a chart among others, as the names of subjects need it
# Of each way of looking: what its curves are called, and what is drawn.
AXES = {
    "kernel": ("channel", "tap / largest"),
    "attention": ("head", "weight / even"),
    "gradient": ("", "gradient / largest"),
}


def draw_all(looked: Looked) -> dict[str, str]:
    """Everything that there is to draw, by name."""
    drawn = {
        "kernels": draw_kernels(looked),
        "profiles": draw_profiles(looked),
        "reach": draw_reach(looked),
        "decay": draw_decay(looked),
        "maps": draw_maps(looked),
    }
    return {name: picture for name, picture in drawn.items() if picture is not None}


def aspect_table(looked: Looked) -> Table:
    """The paper's Table 10 for the subjects' mixers, with measured decay and smoothness.

    Aspects are those of ``longlens layers``; the numbers are medians over channels or heads of the
    first layer.
    """
    described = {m: describe(m, dim=64) for m in {subject.mixer for subject, _ in looked}}
    rows: list[dict[str, object]] = []
    for subject, views in looked:
        view = main_view(views)
        summary, aspects = view.summary(), described[subject.mixer]
        rows.append({
            "layer": subject.name, "seen by": view.view,
            **{title: "y" if getattr(aspects, name) else "·" for name, title in ASPECTS.items()},
            "rate": summary and summary.decay_rate, "half": summary and summary.half_distance,
            "variation": summary and summary.total_variation,
            "centroid": summary and summary.spectral_centroid,
        })  # fmt: skip
    return Table.of(rows)


def _points(values: Tensor) -> list[tuple[float, float]]:
    return [(float(x), y) for x, y in enumerate(values.double().tolist())]


def main_view(views: Sequence[View], layer: int = 0) -> View:
    """The most telling view of a layer: its kernel, else its attention, else its gradients."""
    of_layer = [view for view in views if view.layer == layer]
    return min(of_layer, key=lambda view: list(AXES).index(view.view))


def _layers(views: Sequence[View]) -> list[int]:
    return sorted({view.layer for view in views if view.layer is not None})


def _width(looked: Looked) -> int:
    longest = max(len(subject.name) for subject, _ in looked)
    return max(PANEL, min(WIDEST, 16 + round(8.5 * longest)))  # bold letters


def _view_chart(title: str, view: View, where: str, width: int) -> str:
    """Curves of a few heads or channels against distance."""
    word, y_name = AXES[view.view]
    lines = []
    for style, head in enumerate(thin(range(len(view.kernels)), SHOWN)):
        weights = view.kernels[head].double()
        if view.view != "attention":
            weights = weights / weights.abs().max().clamp_min(1e-300)
        lines.append(Line(f"{word} {head}".strip(), _points(weights), style))
    return line_chart(
        title, lines, "distance", f"{where}{y_name}", reference=0.0, named=bool(word),
        width=width, height=220,
    )  # fmt: skip


def draw_kernels(looked: Looked) -> str:
    """Kernels side by side (the paper's Figure 1): a panel a subject, or a row of them a layer."""
    deepest = max(len(_layers(views)) for _, views in looked)
    charts = []
    for number in range(deepest):
        for subject, views in looked:
            layers = _layers(views)
            layer = number if number in layers else layers[-1]
            view = main_view(views, layer)
            where = "" if deepest == 1 else f"layer {layer}: "
            if view.part not in ("kernel", "weights"):
                where += f"{view.part}, "
            charts.append(_view_chart(subject.name, view, where, _width(looked)))
    columns = min(SHOWN, len(looked)) if deepest == 1 else len(looked)
    return panels("Kernels", [charts[i : i + columns] for i in range(0, len(charts), columns)])


def draw_profiles(looked: Looked) -> str:
    """Mean weight by distance of all subjects on logarithmic axes, scaled to 1 at its largest.

    A line a subject: the mean over its layers. Up to eight subjects; beyond, see the reach.
    """
    lines: list[Line] = []
    runs: list[object] = []  # a run before and after training has one colour
    for number, (subject, views) in enumerate(looked[: 2 * LINES]):
        run = number if subject.run is None else subject.run
        runs += [] if run in runs else [run]
        if len(runs) > LINES:
            break
        shown = [main_view(views, layer) for layer in _layers(views)]
        size = min(len(view.profile) for view in shown)
        profile = torch.stack([view.profile[:size] for view in shown]).mean(0).double()
        points = [(x + 1, y) for x, y in _points(profile / profile.max()) if y > 1e-6]
        dashed = LINES if subject.stage == "before training" else 0
        name = f"{subject.name} ({shown[0].view})"
        lines.append(Line(name, points, runs.index(run) + dashed))
    return line_chart(
        "Mean |weight| by distance, against the largest", lines, "distance + 1",
        log_x=True, log_y=True, width=760, height=360,
    )  # fmt: skip


def draw_reach(looked: Looked) -> str:
    """Effective receptive fields: within which distance half and 90 % of the gradients lie."""
    rows: dict[str, dict[str, float]] = {}
    for subject, views in looked:
        gradients = [view for view in views if view.view == "gradient"]
        whole = [view for view in gradients if view.layer is None]
        for view in whole or gradients:
            summary = view.summary()
            if summary is not None:
                several = not whole and len(gradients) > 1
                name = f"{subject.name}, layer {view.layer}" if several else subject.name
                rows[name] = {"50 %": summary.half_distance + 1, "90 %": summary.reach_90 + 1}
    return dot_chart(
        "Within which distance shares of the gradient lie", rows, "distance + 1, logarithmic",
        joined=True, width=760,
    )  # fmt: skip


def decay_of(layer: Any) -> tuple[Tensor, str] | None:
    """By what rate each head decays with distance, (H,), and what it multiplies; None: by none."""
    if isinstance(layer, LaSAttention):
        rates, _ = layer.rates()
        return None if rates is None else (rates.detach().cpu(), "score")
    if isinstance(layer, AlibiAttention):  # subtracted from the score
        return layer.slopes.detach().cpu(), "weight"
    return None


def draw_decay(looked: Looked, length: int = 1024) -> str | None:
    """Decay per head, exp(-α·distance), and its matrices; None where there is none."""
    some = [float(x) for x in range(0, length, 4)]
    matrix = torch.tensor(some)[:, None] - torch.tensor(some)
    rows = []
    for subject, _ in looked:
        decay = decay_of(subject.layers[0][0])
        if decay is None:
            continue
        rates, what = decay
        heads = thin(range(len(rates)), SHOWN)
        lines = [
            Line(f"head {head}", [(x, math.exp(-float(rates[head]) * x)) for x in some], style)
            for style, head in enumerate(heads)
        ]
        charts = [
            line_chart(subject.name, lines, "distance", f"factor on the {what}", reference=0.0,
                       width=_width(looked), height=220)
        ]  # fmt: skip
        for head in heads:
            values = torch.exp(-float(rates[head]) * matrix).masked_fill(matrix < 0, float("nan"))
            title = f"head {head}, α = {float(rates[head]):.2g}"
            charts.append(
                heat_map(title, values.numpy(), "key", "query", low=0, high=1, length=length)
            )
        rows.append(charts)
    return panels("Decay", rows) if rows else None


def _maps(views: list[View]) -> Iterator[tuple[str, Tensor]]:
    """Some heads of a single layer; of a model some layers, each the mean over its heads."""
    maps = [(view.layer, view.map) for view in views if view.map is not None]
    if len(maps) == 1:
        heads = maps[0][1]
        for head in thin(range(len(heads)), SHOWN):
            yield f"head {head}", heads[head]
    else:
        for layer, heads in thin(maps, SHOWN):
            yield f"layer {layer}, mean of heads", heads.mean(0)


def draw_maps(looked: Looked, most: int = 128) -> str | None:
    """Attention maps on the same input (Figure 4): subjects below each other, layers beside.

    A single layer shows some of its heads instead; a model the mean over heads. Weights times the
    number of keys a query sees, so that rows of different lengths compare; min-max between the 1st
    and the 99th percentile; the first ``most`` positions.
    """
    rows = []
    for subject, views in looked:
        layer = next((view.layer for view in views if view.map is not None), None)
        charts = []
        for where, weights in _maps(views):
            size = min(most, len(weights))
            seen = visible_keys(subject.layers[layer or 0][0], len(weights))
            values = (weights.abs() * seen.sum(-1, keepdim=True))[:size, :size].double()
            inside = values[seen[:size, :size]]
            low, high = (float(inside.quantile(q)) for q in (0.01, 0.99))
            shown = values.masked_fill(~seen[:size, :size], float("nan")).numpy()
            charts.append(
                heat_map(subject.name, shown, "key", f"{where}; query", low=low, high=high,
                         width=_width(looked))
            )  # fmt: skip
        if charts:
            rows.append(charts)
    return panels("Attention maps", rows) if rows else None
