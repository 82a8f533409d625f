"""From subjects to measurements: every layer's kernels, attention by distance, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from longlens.lens.convolution import LINEAR, check
from longlens.lens.field import influence
from longlens.lens.kernels import convolutions
from longlens.lens.maps import (
    attention_map,
    by_distance,
    row_entropy,
    row_smoothness,
    visible_keys,
)
from longlens.lens.measures import Measures, measure, thin
from longlens.lens.subjects import Subject
from longlens.runs.record import rounded
from longlens.training.provenance import provenance

SCHEMA = 1
VIEWS = {  # what the profiles are
    "kernel": "mean share of |taps| over channels",
    "attention": "mean weight over heads, 1: even",
    "gradient": "mean |∂ output / ∂ input|",
}


@dataclass(frozen=True)
class View:
    """One way of looking at one layer."""

    layer: int | None
    """Number of the layer; None: the whole model."""
    view: str
    """"kernel", "attention" or "gradient"."""
    part: str
    """Which part of the layer."""
    kernels: Tensor
    """(heads, distances): signed taps of a convolution, else weights."""
    map: Tensor | None = None
    """The attention matrices of the first sequence, (H, L, L)."""
    entropies: Tensor | None = None
    """Mean entropy of the rows of the attention matrices, (H,)."""
    smoothness: Tensor | None = None
    """Mean total variation and spectral centroid of those rows, (H, 2)."""
    error: float | None = None
    """How far the layer is from a convolution with these kernels, see ``convolution.check``."""

    @property
    def profile(self) -> Tensor:
        """One curve for all heads: mean mass by distance (kernels), else mean weight."""
        size = self.kernels.abs()
        if self.view == "kernel":
            size = size / size.sum(-1, keepdim=True).clamp_min(1e-300)
        return size.mean(0)

    def measures(self, head: int) -> Measures | None:
        """What is measured on one head; None where its kernel is zero.

        Decay, reach and entropy of an attention head are those of the mean weight by distance, its
        smoothness that of single rows.
        """
        kernel = self.kernels[head]
        if float(kernel.abs().max()) == 0:
            return None
        measures = measure(kernel)
        if self.smoothness is not None:
            variation, centroid = self.smoothness[head].tolist()
            measures = replace(measures, total_variation=variation, spectral_centroid=centroid)
        return measures

    def summary(self) -> Measures | None:
        """The median over the heads of every measure; None where all heads are zero."""
        every = [self.measures(head) for head in range(len(self.kernels))]
        measured = [one for one in every if one is not None]
        if not measured:
            return None
        middle: dict[str, Any] = {}
        for name in vars(measured[0]):
            values = [getattr(m, name) for m in measured]
            if name == "mass_beyond":
                middle[name] = {d: _median([v[d] for v in values]) for d in values[0]}
            else:
                middle[name] = _median([v for v in values if v is not None])
        return Measures(**middle)


def _median(values: Sequence[float]) -> Any:
    if not values:
        return None
    return sorted(values)[(len(values) - 1) // 2]  # the lower one: always a value that occurs


def look_at_layer(layer: nn.Module, x: Tensor, number: int = 0) -> list[View]:
    """All views of one mixer.

    Args:
        layer: any mixer.
        x: its input, (B, L, D).
        number: of the layer in its model.

    Returns:
        a view for each convolution inside, one for the attention matrix, if there is one, and
        always the gradients'.

    >>> from longlens.layers import build
    >>> [v.view for v in look_at_layer(build("mega", 8), torch.randn(1, 16, 8))]
    ['kernel', 'attention', 'gradient']
    """
    length = x.shape[1]
    views = []
    for part in convolutions(layer, x.shape[2]):
        error = check(part, min(length, 48))
        if error > LINEAR:
            raise ValueError(
                f"{type(layer).__name__} is not linear and time-invariant in its {part.part}: "
                f"relative error {error:.1e}"
            )
        views.append(View(number, "kernel", part.part, part.channels(length), error=error))
    weights = attention_map(layer, x)
    if weights is not None:
        seen = visible_keys(layer, length)
        profile = by_distance(weights, seen)
        smoothness = row_smoothness(weights, seen)
        views.append(
            View(
                number,
                "attention",
                "weights",
                profile,
                weights[0],
                row_entropy(weights),
                smoothness,
            )
        )
    gradient = influence(layer, x, causal=bool(layer.causal))
    views.append(View(number, "gradient", "input gradients", gradient[None]))
    return views


def look(subject: Subject) -> list[View]:
    """All views of a subject's layers, and of the whole model where there are several blocks."""
    views = []
    for number, (layer, x) in enumerate(subject.layers):
        views += look_at_layer(layer, x, number)
    if subject.body is not None:
        gradient = influence(subject.body, subject.start, causal=subject.causal)
        views.append(View(None, "gradient", "whole model", gradient[None]))
    return views


def heads_json(view: View, most: int = 16) -> list[dict[str, Any]]:
    """The measures of a view's heads, at most ``most`` of them, evenly chosen."""
    count = len(view.kernels)
    step = -(-count // most)
    entries = []
    for head in range(0, count, step):
        entry: dict[str, Any] = {"head": head}
        measured = view.measures(head)
        if measured is None:
            entries.append(entry | {"zero": True})
            continue
        entry |= measured.to_json()
        if view.entropies is not None:
            entry["row_entropy"] = rounded(float(view.entropies[head]))
        entries.append(entry)
    return entries


def view_json(view: View) -> dict[str, Any]:
    """A view as plain values: one entry of ``layers``."""
    summary = view.summary()
    values: dict[str, Any] = {
        "layer": view.layer,
        "view": view.view,
        "part": view.part,
        "channels": len(view.kernels),
        "heads": heads_json(view),
        "median": None if summary is None else summary.to_json(),
        "profile": thin(view.profile),
    }
    if view.error is not None:
        values["convolution_error"] = float(f"{view.error:.2g}")
    return values


def lens_json(title: str, looked: Sequence[tuple[Subject, list[View]]]) -> dict[str, Any]:
    """What ``lens.json`` holds.

    >>> from longlens.lens.subjects import find_subjects
    >>> (subject,) = find_subjects("conv", length=16, dim=4)
    >>> values = lens_json("a short convolution", [(subject, look(subject))])
    >>> values["kind"], values["subjects"][0]["layers"][0]["heads"][0]["half_distance"]
    ('lens', ...)
    """
    return {
        "schema": SCHEMA,
        "kind": "lens",
        "title": title,
        "views": VIEWS,
        "subjects": [
            {
                "name": subject.name,
                "mixer": subject.mixer,
                "run": None if subject.run is None else subject.run.resolve().name,
                "stage": subject.stage,
                "inputs": subject.inputs,
                "origin": subject.origin,
                "layers": [view_json(view) for view in views],
            }
            for subject, views in looked
        ],
        "provenance": provenance(),
    }
