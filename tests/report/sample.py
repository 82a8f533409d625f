"""Small files of results that hold every case the report must show. The numbers are made up."""

import json
import math

TASKS = ("ListOps", "Text", "Retrieval", "Image", "Pathfinder", "Path-X")
ROWS = ("Transformer", "LaS", "LaS-chunk", 'MEGA <&> "friends"', "S4", "Nobody")
PUBLISHED = {
    "Transformer": (37.11, 65.21, 79.14, 42.94, 71.83, None),
    "LaS": (53.05, 79.28, 85.56, 70.44, 81.62, None),
    "LaS-chunk": (46.21, 79.11, 83.84, 64.90, 54.61, None),
    'MEGA <&> "friends"': (63.14, 90.43, 91.25, 90.44, 96.01, 97.98),
    "S4": (59.60, 86.82, 90.90, 88.65, 94.20, 96.35),
}


def record(row, column, seed=0, accuracy=0.5, status="finished", stands_in_for=None, **more):
    """One collected record."""
    groups = {}
    if column == "ListOps":
        groups = {
            "accuracy_by_operator": {
                str(i): {"accuracy": accuracy + 0.02 * i, "count": 500} for i in range(4)
            },
            "accuracy_by_depth": {
                str(d): {"accuracy": accuracy + 0.3 - 0.05 * d, "count": 200} for d in range(4, 11)
            },
        }
    values = {
        "row": row,
        "column": column,
        "seed": seed,
        "status": status,
        "error": None,
        "options": {"dim": 128},
        "provenance": {"commit": "abc123def456", "torch": "2.11.0", "hardware": "NVIDIA H200"},
        "clean": True,
        "data": {
            "identity": f"{column.lower():f<64}",
            "name": column.lower(),
            "options": {},
            "examples": {"train": 100},
            "stands_in_for": stands_in_for,
        },
        "metric": {"name": "accuracy", "higher_is_better": True},
        "speed": {"tokens_per_second": 1.25e6, "seconds": 540.0},
        "peak_memory_mib": 2048.0,
        "parameters": 1_234_567,
        "steps": 1000,
        "total_steps": 1000,
        "epochs": 12.5,
        "selected_step": 900,
        "started": "2026-01-02T03:04:05+00:00",
        "ended": "2026-01-02T03:14:05+00:00",
        "wall_seconds": 600.0,
        "curves": {
            "train.loss": [[s, 2.3 * math.exp(-s / 500)] for s in range(20, 1001, 20)],
            "validation.accuracy": [
                [s, accuracy * (1 - math.exp(-s / 200))] for s in range(20, 1001, 20)
            ],
        },
        **more,
    }
    if status == "finished":
        values["metrics"] = {
            "validation": {"loss": 1.0, "accuracy": accuracy + 0.01},
            "test": {"loss": 1.1, "accuracy": accuracy, **groups},
        }
    return values


def table2():
    """A table with seeds, a failed one, a stand-in, published-only rows and missing cells."""
    records = [
        record("LaS", "ListOps", 0, 0.53),
        record("LaS", "ListOps", 1, 0.55),
        record("LaS", "ListOps", 2, status="failed", error="the loss is <nan> at step 300"),
        record("LaS", "Text", 0, 0.80),
        record("LaS", "Image", 0, 0.69),
        record("LaS", "Pathfinder", 0, 0.9, stands_in_for="LRA's Pathfinder <images>"),
        record("Transformer", "ListOps", 0, 0.38),
        record("Transformer", "Image", 0, 0.45, clean=False),
        record("Transformer", "Text", 0, status="stopped"),
        record("Nobody", "Text", 0, 0.70),
    ]
    return {
        "schema": 1,
        "experiment": "table2",
        "title": "Table 2: the Long Range Arena",
        "source": "Zimerman & Wolf 2024, Table 2",
        "command": "longlens run table2",
        "metric": "accuracy",
        "rows": list(ROWS),
        "columns": list(TASKS),
        "kind": "table",
        "published": {
            row: {t: v for t, v in zip(TASKS, values, strict=True) if v is not None}
            for row, values in PUBLISHED.items()
        }
        | {"Nobody": {"Speed": 2.5}},
        "notes": ["Text: validation is carved from train; papers often select on test."],
        "records": records,
    }


def figure5():
    """A curve over x, of a metric of which less is better, without groups."""

    def run(row, column, seed, bits):
        values = record(row, column, seed)
        values["metric"] = {"name": "bits_per_token", "higher_is_better": False}
        values["metrics"] = {"test": {"loss": 1.0, "bits_per_token": bits}}
        values["curves"] = {"validation.bits_per_token": [[10, bits + 1], [20, bits]]}
        return values

    return {
        "schema": 1,
        "experiment": "figure5",
        "title": "Figure 5: context length",
        "metric": "bits_per_byte",
        "rows": ["LaS", "softmax"],
        "columns": ["32", "128", "1024"],
        "kind": "curve",
        "x_label": "chunk",
        "published": {"LaS": {"32": 1.5, "128": 1.3}},
        "records": [
            run(row, column, 0, bits + extra)
            for row, extra in (("LaS", 0.0), ("softmax", 0.1))
            for column, bits in (("32", 1.4), ("128", 1.35), ("1024", 1.2))
        ],
    }


OPS = """\
shape,dtype,implementation,path,forward_ms,forward_backward_ms,ratio_to_plain,peak_mib,error,commit,hardware
"1,8,2048,32",float32,plain SDPA,,27.6,96.4,1,13.1,nan,abc,"CPU, 2 threads"
"1,8,2048,32",float32,LaS,folded,29.2,99.7,1.03,29.4,4.5e-07,abc,"CPU, 2 threads"
"1,8,2048,32",float32,eager Eq. 4,,1909,3102,32.2,1054,5.8e-07,abc,"CPU, 2 threads"
"1,8,8192,32",float32,plain SDPA,,395,1478,1,43.3,nan,abc,"CPU, 2 threads"
"1,8,8192,32",float32,LaS,folded,401,1519,1.03,117,6.1e-07,abc,"CPU, 2 threads"
"""


def write_results(folder):
    """Write all of them into a folder; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for values in (table2(), figure5()):
        (folder / f"{values['experiment']}.json").write_text(json.dumps(values))
    (folder / "ops_cpu.csv").write_text(OPS)
    return folder
