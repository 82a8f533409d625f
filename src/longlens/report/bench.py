"""Rows of ``longlens bench`` as tables and pictures."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping

from longlens.charts import Line, dot_chart, line_chart
from longlens.report.results import Bench
from longlens.tables import Table

ORIGIN = ("longlens", "commit", "torch", "python", "hardware", "date")
SHAPES = {
    "ops": "B,H,L,D",
    "layer": "B,L,dim,heads",
    "decode": "B,prompt,dim,heads,key heads",
    "length": "B,H,L,D",
    "step": "run",
}


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def _times(value: float) -> str:
    return f"{value:.2f} ×"


# Column of the file: its name in a table, and how its numbers are written (None: as they are).
COLUMNS: dict[str, tuple[str, Callable[[float], str] | None]] = {
    "implementation": ("attention", None),
    "layer": ("layer", None),
    "path": ("path", None),
    "compiled": ("compiled", None),
    "graph": ("graph", None),
    "causal": ("causal", None),
    "rotary": ("rotary", None),
    "bound": ("bound", None),
    "window": ("window", None),
    "forward_ms": ("forward", _ms),
    "forward_backward_ms": ("forward + backward", _ms),
    "token_ms": ("a token", _ms),
    "step_ms": ("a step", _ms),
    "padded_tokens_per_s": ("padded tokens/s", lambda value: f"{value:,.0f}"),
    "tokens_per_s": ("tokens/s", lambda value: f"{value:,.0f}"),
    "share_of_peak": ("of peak", lambda value: f"{value:.0%}"),
    "first_step_s": ("first step", lambda value: f"{value:.0f} s"),
    "attention_ms": ("attention", _ms),
    "matrix_ms": ("matrix products", _ms),
    "norm_ms": ("norms", _ms),
    "pointwise_ms": ("pointwise", _ms),
    "optimizer_ms": ("optimizer", _ms),
    "copies_ms": ("copies", _ms),
    "other_ms": ("other", _ms),
    "ratio_to_plain": ("to plain SDPA", _times),
    "ratio_to_softmax": ("to softmax", _times),
    "graph_ms": ("as a CUDA graph", _ms),
    "graph_ratio": ("graph to plain", _times),
    "floor_ms": ("floor", _ms),
    "cache_gb_per_s": ("GB/s of cache", lambda value: f"{value:.0f}"),
    "peak_mib": ("peak memory", lambda value: f"{value:.0f} MiB"),
    "peak_kib_per_token": ("KiB a token", lambda value: f"{value:.1f}"),
    "error": ("error", lambda value: f"{value:.0e}"),
}
# Shown in a picture of a step; optimizer and copies take a hundredth of it.
PARTS = ("attention_ms", "matrix_ms", "norm_ms", "pointwise_ms", "other_ms")
SHORT = {  # the columns that matter
    "ops": ("implementation", "forward_backward_ms", "ratio_to_plain", "graph_ms", "graph_ratio",
            "peak_mib", "error"),
    "step": ("step_ms", "padded_tokens_per_s", "share_of_peak", "first_step_s", "attention_ms",
             "matrix_ms", "norm_ms", "pointwise_ms"),
}  # fmt: skip


def title_of(bench: Bench) -> str:
    """What was measured, on what, and what else the file's name says."""
    what = {
        "ops": "Attention",
        "layer": "Attention layers",
        "decode": "Decoding",
        "length": "One layer on long sequences",
        "step": "Training steps",
    }[kind(bench)]
    hardware = bench.rows[0].get("hardware") or ""
    known = {kind(bench), "cpu", *re.findall(r"\w+", hardware.lower())}
    more = " ".join(word for word in bench.name.lower().split("_") if word not in known)
    return ", ".join(filter(None, [what, more, hardware]))


def kind(bench: Bench) -> str:
    """Which of the benchmarks wrote the rows, by the column that only it has."""
    columns = {"implementation": "ops", "token_ms": "decode", "ratio_to_softmax": "layer",
           "peak_kib_per_token": "length", "step_ms": "step"}  # fmt: skip
    for column, name in columns.items():
        if column in bench.rows[0]:
            return name
    raise ValueError(
        f"{bench.name}.csv holds no rows of longlens bench: {', '.join(bench.rows[0])}"
    )


def bench_table(bench: Bench, everything: bool = False) -> Table:
    """The rows; of attention and of steps the columns that matter, unless ``everything``.

    Columns without a single value are left out.
    """
    there = [name for name in COLUMNS if any(_cell(name, row) for row in bench.rows)]
    if not everything and kind(bench) in SHORT:
        there = [name for name in there if name in SHORT[kind(bench)]]
    return Table(
        [SHAPES[kind(bench)], *(COLUMNS[name][0] for name in there)],
        [
            [label, *(_cell(name, row) for name in there)]
            for label, row in zip(labels(bench), bench.rows, strict=True)
        ],
    )


def labels(bench: Bench) -> list[str]:
    """The rows' shapes, and what tells rows apart: dtypes, options of training steps."""
    several = len({row.get("dtype") for row in bench.rows}) > 1
    shared: dict[str, set[str]] = {}
    for row in bench.rows:
        shared[row["shape"]] = shared.get(row["shape"], _options(row)) & _options(row)
    return [
        " ".join(
            [
                row["shape"],
                *[row.get("dtype", "")] * several,
                *sorted(_options(row) - shared[row["shape"]]),
            ]
        )
        for row in bench.rows
    ]


def _options(row: Mapping[str, str]) -> set[str]:
    """Options as ``longlens bench step`` writes them, ``name=value`` each; values hold blanks."""
    return set(re.split(r" (?=\w+=)", row["options"])) if row.get("options") else set()


def bench_conditions(bench: Bench) -> dict[str, str]:
    """Where the rows were measured, several values where they differ."""
    names = ("dtype", *ORIGIN)
    values = {n: list(dict.fromkeys(r[n] for r in bench.rows if r.get(n))) for n in names}
    return {name: ", ".join(words) for name, words in values.items() if words}


def bench_pictures(bench: Bench, width: int = 400) -> list[tuple[str, str]]:
    """Time, as CUDA graphs where there are any, and memory: names and SVG pictures."""
    where = f" · {bench.rows[0]['hardware']}" if bench.rows[0].get("hardware") else ""
    if kind(bench) == "length":
        return list(_over_length(bench, where, width))
    if kind(bench) == "step":
        parts = {
            label: {
                COLUMNS[name][0]: value_of(row, name) for name in PARTS if value_of(row, name) > 0
            }
            for label, row in zip(labels(bench), bench.rows, strict=True)
        }
        if not any(parts.values()):
            return []
        axis = f"ms on the device, logarithmic{where}"
        return [("time", dot_chart("Where a training step goes", parts, axis, "run", width=width))]
    series, title, reference = {
        "ops": ("implementation", "Forward and backward, against plain SDPA", "ratio_to_plain"),
        "layer": ("layer", "Forward and backward of a layer, against softmax", "ratio_to_softmax"),
        "decode": ("layer", "One decoded token, against softmax", "ratio_to_softmax"),
    }[kind(bench)]
    pictures, shape = [], SHAPES[kind(bench)]
    if graphs := _by_shape(bench, series, "graph_ratio"):
        axis = f"times as long, replayed as CUDA graphs, logarithmic{where}"
        pictures.append(
            ("graph", dot_chart(title, graphs, axis, shape, reference=1.0, width=width))
        )
    if times := _by_shape(bench, series, reference):
        axis = f"times as long, logarithmic{where}"
        pictures.append(("time", dot_chart(title, times, axis, shape, reference=1.0, width=width)))
    if memory := _by_shape(bench, series, "peak_mib"):
        axis = f"MiB, logarithmic{where}"
        pictures.append(("memory", dot_chart("Peak memory", memory, axis, shape, width=width)))
    return pictures


def _over_length(bench: Bench, where: str, width: int) -> Iterator[tuple[str, str]]:
    for name, column, title, unit in (
        ("time", "forward_backward_ms", "Forward and backward of a LaS layer", "ms"),
        ("memory", "peak_mib", "Peak memory of a LaS layer", "MiB"),
    ):
        points = sorted(
            (float(row["shape"].split(",")[2]), value_of(row, column))
            for row in bench.rows
            if value_of(row, column) > 0
        )
        if points:
            yield name, line_chart(
                title, [Line("LaS", points, mark=True)], f"tokens{where}", unit,
                log_x=True, log_y=True, x_ticks=[x for x, _ in points], width=width,
            )  # fmt: skip


def _by_shape(bench: Bench, series: str, column: str) -> dict[str, dict[str, float]]:
    rows: dict[str, dict[str, float]] = {}
    for label, row in zip(labels(bench), bench.rows, strict=True):
        if (value := value_of(row, column)) > 0:
            rows.setdefault(label, {})[row[series]] = value
    return rows


def value_of(row: Mapping[str, str], column: str) -> float:
    """The number in a column, NaN where there is none."""
    return float(row.get(column) or "nan")


def _cell(name: str, row: Mapping[str, str]) -> str:
    write = COLUMNS[name][1]
    if write is None:
        return row.get(name) or ""
    value = value_of(row, name)
    return "" if math.isnan(value) else write(value)
