"""An audit of a task as tables and pictures: does it need long range?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from longlens.charts import Line, line_chart, text_chart
from longlens.report.audit_chart import audited, field_chart
from longlens.report.layout import Part
from longlens.report.results import Measurement
from longlens.tables import MISSING, Table, word

GLOBAL = "all"
LAYERS = "kernel 61 in each layer / global (%)"
PROBES = ("bag_of_tokens", "bigrams", "trigrams", "tokens_in_place")


def percent(value: float | None) -> str:
    """A share in percent.

    >>> percent(0.925), percent(None)
    ('92.5', '—')
    """
    return MISSING if value is None else f"{100 * value:.1f}"


def audit_part(measurement: Measurement) -> Part:
    """An audit as a folded part of a page: its verdict, its curve, then everything else."""
    values = measurement.values
    title = audited(values)
    diagnostics = values.get("diagnostics") or {}
    best = values.get("shuffled_model") or {}
    curve = field_chart(values, "Accuracy against receptive field", "test accuracy (%)")
    further = [
        _ratio(title, values),
        _ranges(title, values),
        _probes(title, diagnostics),
        _shuffled(f"{title}: order destroyed, trigrams", diagnostics.get("shuffled_trigrams")),
        _shuffled(f"{title}: order destroyed, best model", best.get("rows")),
        *_groups(title, values),
        _certificate(title, values),
        _conditions(title, values),
    ]
    shown = values.get("shown") or ()
    details = Part(
        "How it was measured, baselines and ranges",
        key=f"d-{measurement.name}",
        folded=True,
        figures=[
            line_chart(_example(each), [_curve(each)], "position", named=False)
            for each in shown
            if "curve" in each
        ],
        tables=[table for table in further if table.rows],
        text=[f"{_example(each)}: {each['text']}" for each in shown if "text" in each],
        notes=[str(note) for note in values.get("notes") or ()],
    )
    models = curve_table(title, values)
    return Part(
        title,
        key=f"m-{measurement.name}",
        folded=True,
        said=plain_verdict(values),
        text=[
            *(f"{mark.capitalize()}: {why}." for mark, why in marks(values)),
            str((values.get("verdict") or {}).get("text") or ""),
        ],
        figures=[curve] if curve else [],
        tables=[models] if models.rows else [],
        parts=[details],
    )


def _example(shown: Mapping[str, Any]) -> str:
    """What an example is: a typical one or the longest, how long, and its label."""
    what = f"{shown['what']} example".capitalize()
    return f"{what}, {shown['length']:,} positions: {shown['label']}"


def _curve(shown: Mapping[str, Any]) -> Line:
    return Line(_example(shown), [(float(x), float(y)) for x, y in shown["curve"]])


def plain_verdict(values: Mapping[str, Any]) -> str:
    """What an audit says, in words that need no explanation.

    >>> values = {"length": 1000, "ranges": {"of_gain": {"0.95": {"receptive_field": 5}}},
    ...           "verdict": {"category": "short range", "decided": True, "confidence": 0.97}}
    >>> plain_verdict(values)
    'Short range, 97 % sure: 5 of 1,000 positions are enough.'
    """
    verdict = values.get("verdict") or {}
    category = verdict.get("category")
    if category is None:
        return "Nothing is known yet."
    needed = _needed(values)
    fields = [row["receptive_field"] for row in values.get("curve") or () if "test" in row]
    widest = max(filter(None, fields), default=None)
    if needed:
        enough = f"{needed:,} of {values['length']:,} positions are enough"
    else:
        enough = f"{widest or 0:,} of {values.get('length') or 0:,} positions are not enough"
    if verdict.get("decided"):
        sure = verdict.get("confidence")
        said = "" if sure is None else f", {100 * sure:.0f} % sure"
        return f"{category.capitalize()}{said}: {enough}."
    seeds = verdict.get("seeds") or 0
    few = f"{seeds} seed{'' if seeds == 1 else 's'}"
    if category != "open":
        return f"Probably {category}: {enough}, as far as {few} can tell."
    return f"Open: {enough} among the models that were tried ({few})."


def _needed(values: Mapping[str, Any]) -> int | None:
    """The receptive field that 95 % of what is learned beyond chance needs; None: not found."""
    gain = (values.get("ranges") or {}).get("of_gain") or {}
    field: int | None = (gain.get("0.95") or {}).get("receptive_field")
    return field


def summary(measurements: Sequence[Measurement]) -> Table:
    """All audits in one table."""
    rows = []
    for measurement in measurements:
        values = measurement.values
        verdict = values.get("verdict") or {}
        floor = verdict.get("floor") or {}
        rows.append(
            {
                "task": audited(measurement.values),
                "verdict": _decided(verdict),
                "seeds": verdict.get("seeds"),
                "confidence (%)": percent(verdict.get("confidence")),
                "field for 95 % of the gain": _needed(values) or "more than tried",
                "typical length": values.get("length"),
                "without a network (%)": percent(floor.get("test")),
                "whole stack sees 61 / global (%)": percent(_share(values, "ratio")),
                LAYERS: percent(_share(values, "layer_ratio")),
                "published: kernel 61 in each layer / MEGA (%)": percent(
                    _share(values, "published")
                ),
                "marks": ", ".join(mark for mark, _ in marks(values)) or None,
            }
        )
    for optional, empty in (("marks", None), (LAYERS, MISSING)):
        if all(row[optional] == empty for row in rows):
            for row in rows:
                del row[optional]
    return Table.of(rows, "All audits")


def _share(values: Mapping[str, Any], key: str) -> float | None:
    if key == "published" and marks(values):  # other data, or small models: nothing to compare
        return None
    return (values.get(key) or {}).get("ratio")


def _decided(verdict: Mapping[str, Any]) -> str | None:
    """The verdict's category, and whether that is all that can be said."""
    category: str | None = verdict.get("category")
    if category in (None, "open") or verdict.get("decided"):
        return category
    return f"{category}, undecided"


def marks(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a reader must know of an audit's numbers."""
    known = []
    data = values.get("data") or {}
    if data.get("selected_on") == "test":
        known.append(("selected on test", "the test split chose the models' steps"))
    if stands_in := data.get("stands_in_for"):
        known.append(("stand-in", f"other data: stands in for {stands_in}"))
    if older := values.get("outdated"):
        known.append(("older version", str(older)))
    if (values.get("options") or {}).get("quick"):
        known.append(("quick", "small models and data"))
    return known


def audit_failures(measurement: Measurement) -> list[dict[str, str]]:
    """The models whose training did not finish, as lines of the page's table."""
    values = measurement.values
    return [
        {
            "experiment": f"Audit of {audited(measurement.values)}",
            "row": str(point.get("model")), "column": str(values.get("task")),
            "seed": word(point.get("seed")), "status": str(point["status"]),
            "step": word(point.get("steps")), "reason": word(point.get("error")),
        }
        for point in [*(values.get("points") or ()), *(values.get("global") or ())]
        if point.get("status") not in (None, "finished")
    ]  # fmt: skip


def curve_table(title: str, values: Mapping[str, Any]) -> Table:
    """Every model of an audit."""
    rows = []
    for entry in values.get("curve") or ():
        spread = f" ± {percent(entry['deviation'])}" if entry.get("deviation") is not None else ""
        rows.append(
            {
                "model": entry["model"],
                "receptive field": entry.get("receptive_field")
                or (GLOBAL if entry.get("global", True) else "in blocks"),
                "seeds": entry.get("seeds"),
                "validation (%)": percent(entry.get("validation")),
                "test (%)": percent(entry.get("test")) + spread,
                "beyond chance": percent(entry.get("gain")),
            }
        )
    return Table.of(rows, f"{title}: every model")


def _ranges(title: str, values: Mapping[str, Any]) -> Table:
    """The least field that reaches 90, 95, 99 % of the best model."""
    rows = []
    for what, name in (("of_accuracy", "accuracy"), ("of_gain", "accuracy beyond chance")):
        for level, field in ((values.get("ranges") or {}).get(what) or {}).items():
            ends = ["more" if end is None else word(end) for end in field.get("interval") or ()]
            rows.append(
                {
                    "share of the best": f"{100 * float(level):.0f} % of its {name}",
                    "receptive field": field.get("receptive_field") or "more than was tried",
                    "90 % interval": " … ".join(ends) or MISSING,
                }
            )
    return Table.of(rows, f"{title}: the range that is needed")


def _ratio(title: str, values: Mapping[str, Any]) -> Table:
    """Ratios of bounded to global models: what a whole stack sees, and kernels of each layer."""
    rows: list[dict[str, Any]] = []
    for key, what in (("ratio", "whole stack"), ("layer_ratio", "kernel of each layer")):
        ours = values.get(key) or {}
        if ours:
            field, each = ours.get("receptive_field"), ours.get("kernels")
            size = field if key == "ratio" else (each or [None])[0]
            rows.append({"convolutions": f"ours, {what} {word(size)}", "see in all": field,
                         "share (%)": percent(ours.get("ratio")), "of": ours.get("of"),
                         "source": None})  # fmt: skip
    published = values.get("published") or {}
    if published and not marks(values):
        rows.append({"convolutions": f"published, kernel of each layer {published.get('kernel')}",
                     "see in all": None, "share (%)": percent(published.get("ratio")),
                     "of": "MEGA", "source": published.get("source")})  # fmt: skip
    return Table.of(rows, f"{title}: share of a global model's accuracy")


def _probes(title: str, diagnostics: Mapping[str, Any]) -> Table:
    rows = [
        {"without training a network": name.replace("_", " "), "test (%)": percent(value)}
        for name in ("chance", "majority", *PROBES)
        if (value := _test(diagnostics.get(name))) is not None
    ]
    return Table.of(rows, f"{title}: what cheap baselines reach")


def _test(value: Any) -> float | None:
    if isinstance(value, Mapping):
        value = value.get("test")
    return float(value) if isinstance(value, int | float) else None


def _shuffled(title: str, rows: Any) -> Table:
    """Accuracy by the window within which, or of which, order is destroyed."""
    shown = [{**row, "test (%)": percent(row.get("test"))} for row in rows or ()]
    return Table.of([{k: v for k, v in row.items() if k != "test"} for row in shown], title)


def _groups(title: str, values: Mapping[str, Any]) -> list[Table]:
    tables = []
    for group, by_model in (values.get("groups") or {}).items():
        rows = [
            {"model": model} | {key: percent(cell.get("accuracy")) for key, cell in cells.items()}
            for model, cells in by_model.items()
        ]
        tables.append(Table.of(rows, f"{title}: test accuracy (%) by {group}"))
    return tables


def _certificate(title: str, values: Mapping[str, Any]) -> Table:
    certificate = values.get("certificate") or {}
    rows = [{"certificate": key.replace("_", " "), "value": v} for key, v in certificate.items()]
    return Table.of(rows, f"{title}: what is proven")


def _conditions(title: str, values: Mapping[str, Any]) -> Table:
    data = values.get("data") or {}
    facts = {
        **(values.get("options") or {}),
        "data": f"{data.get('name') or ''} {str(data.get('identity') or '')[:12]}".strip(),
        "examples": data.get("examples"),
        "probed": values.get("probed"),
        **(values.get("provenance") or {}),
        "started": values.get("started"),
    }
    rows = [
        {"condition": key.replace("_", " "), "value": value}
        for key, value in facts.items()
        if value not in (None, "", {})
    ]
    return Table.of(rows, f"{title}: conditions")


def audit_text(report: Mapping[str, Any]) -> str:
    """An audit for the terminal: what baselines and models reach, ranges and the verdict."""
    diagnostics = report.get("diagnostics") or {}
    tables = [
        _probes("", diagnostics),
        _shuffled("", diagnostics.get("shuffled_trigrams")),
        curve_table("", report),
        _ranges("", report),
        _ratio("", report),
        _certificate("", report),
    ]
    words = [report["verdict"]["text"]]
    if report.get("open"):
        words.insert(0, f"still open: {', '.join(report['open'])}")
    if probed := report.get("probed"):
        counts = f"fitted to {probed['train']:,} examples, tested on {probed['test']:,}"
        words.insert(0, f"probes: {counts}, read as {probed['as']}")
    if most := (diagnostics.get("mutual_information") or {}).get("most"):
        words.insert(0, f"most informative: position {most['position']}, {most['bits']:.3f} bits")
    examples = [
        text_chart(_curve(each), height=6)
        if "curve" in each
        else f"{_example(each)}\n{each['text']}"
        for each in report.get("shown") or ()
    ]
    return "\n\n".join([*examples, *(table.text() for table in tables if table.rows), *words])
