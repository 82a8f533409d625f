"""An audit as a picture and as text, from its JSON file alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longlens.report.svg import Line, line_chart, standalone

SIZES = ("train", "validation", "test", "seed")


def audited(report: Mapping[str, Any]) -> str:
    """The task of an audit, with the options that make its examples what they are.

    >>> audited(dict(task="far-order", options=dict(task_options=dict(distance=512))))
    'far-order, distance 512'
    """
    given = (report.get("options") or {}).get("task_options") or {}
    shown = [f"{k} {v}" for k, v in given.items() if k not in SIZES]
    return ", ".join([str(report.get("task")), *shown])


def draw_audit(report: Mapping[str, Any], width: int = 640, height: int = 340) -> str:
    """Test accuracy against receptive field as SVG: convolutions, global models, chance.

    >>> row = dict(model="conv 3", receptive_field=3, test=0.4, deviation=None, seeds=1)
    >>> picture = draw_audit(dict(task="t", curve=[row], chance=0.1, points=[], length=64))
    >>> picture.startswith("<svg") and "receptive field" in picture
    True
    """
    curve, chance = report["curve"], report["chance"]
    bounded = [row for row in curve if row["receptive_field"] is not None]
    fields = [float(row["receptive_field"]) for row in bounded] or [1.0]
    ends = (fields[0], fields[-1] if len(fields) > 1 else 2 * fields[0])
    points = [(field, 100 * row["test"]) for field, row in zip(fields, bounded, strict=False)]
    lines = [Line("convolutions", points, 0, mark=True)] if points else []
    for style, row in enumerate((row for row in curve if row["receptive_field"] is None), 1):
        level = 100 * row["test"]
        spread = "" if row["deviation"] is None else f" ± {100 * row['deviation']:.1f}"
        what = "global" if row.get("global", True) else "in blocks"
        name = f"{row['model']}, {what}: {level:.1f}{spread} %"
        lines.append(Line(name, [(x, level) for x in ends], style))
    lines.append(
        Line(f"chance: {100 * chance:.1f} %", [(x, 100 * chance) for x in ends], 6, hollow=True)
    )
    picture = line_chart(
        f"{audited(report)}: test accuracy (%) against receptive field",
        lines,
        "receptive field, positions",
        _subtitle(report),
        log_x=True,
        x_ticks=fields,
        width=width,
        height=height,
    )
    return standalone(picture)


def _subtitle(report: Mapping[str, Any]) -> str:
    """How it was measured, and the verdict, in one line."""
    options = report.get("options") or {}
    verdict = report.get("verdict")
    parts = []
    if verdict and verdict["decided"]:
        parts.append(f"{verdict['category']}, {verdict['confidence']:.0%} sure")
    if "budget" in options:
        parts.append(f"{options['budget']} a model")
    for name in ("steps", "epochs"):
        if name in options:
            parts.append(f"{options[name]:,g} {name} a model")
    if "seeds" in options:
        parts.append(f"{options['seeds']} seeds" if options["seeds"] > 1 else "1 seed")
    if options.get("quick"):
        parts.append("quick: small models")
    return " · ".join(parts)


def audit_text(report: Mapping[str, Any]) -> str:
    """A few lines for the terminal: diagnostics, the curve, ranges and the verdict."""
    lines = [*_diagnostics(report)]
    lines.append(
        f"{'model':<14}{'field':>8}{'validation':>12}{'test':>9}{'± seeds':>9}{'seeds':>7}"
    )
    for row in report["curve"]:
        field = row["receptive_field"] or "global"
        spread = "–" if row["deviation"] is None else f"{100 * row['deviation']:.2f}"
        lines.append(
            f"{row['model']:<14}{field:>8}{100 * row['validation']:>11.2f}%"
            f"{100 * row['test']:>8.2f}%{spread:>9}{row['seeds']:>7}"
        )
    ranges = report.get("ranges") or {}
    for name, what in (("of_accuracy", "of the best accuracy"), ("of_gain", "of it beyond chance")):
        for level, found in ranges.get(name, {}).items():
            needed = found["receptive_field"] or "global"
            ends = [str(value or "global") for value in found["interval"] or ()]
            spread = f" (90 % interval {' … '.join(ends)})" if ends else ""
            lines.append(f"{100 * float(level):.0f} % {what}: field {needed}{spread}")
    for key, what in (
        ("ratio", "a stack that sees"),
        ("layer_ratio", "layers of equal kernels, seeing"),
    ):
        if ratio := report.get(key):
            field = ratio["receptive_field"]
            lines.append(f"{what} {field} positions reaches {ratio['ratio']:.1%} of {ratio['of']}")
    if known := report.get("published"):
        lines.append(f"published: layers of kernel {known['kernel']}, {known['ratio']:.1%} of MEGA")
    if report.get("certificate"):
        proof = report["certificate"]
        lines.append(
            f"certificate ({proof['method']}, {proof['orbits']} orbits): no model of the "
            f"{proof['kind']} kind and range {proof['range']} is expected above "
            f"{proof['accuracy_bound']:.1%}, in exact arithmetic"
        )
        lines += [f"  certificate fails: {problem}" for problem in proof["problems"]]
    lines.append(report["verdict"]["text"])
    return "\n".join(lines)


def _diagnostics(report: Mapping[str, Any]) -> list[str]:
    found = report.get("diagnostics")
    if not found:
        return []
    lines = [f"{'majority':<24}{found['majority']:.2%}"]
    for name in ("bag_of_tokens", "bigrams", "trigrams", "tokens_in_place"):
        if name in found:
            lines.append(f"{name.replace('_', ' '):<24}{found[name]['test']:.2%}")
    for row in found.get("shuffled_trigrams", []):
        lines.append(f"trigrams, {row['kind']} {row['window']:<8}{row['test']:.2%}")
    if "mutual_information" in found:
        most = found["mutual_information"]["most"]
        lines.append(
            f"most informative token: {most['bits']:.3f} bits, position {most['position']}"
        )
    return lines
